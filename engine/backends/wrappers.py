"""Backend wrappers: the pass-through base, one for a model's own thought marks, one that validates.

Retries with limits (`retry`) and fault injection (`fault_injection`) are wrappers in other modules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from ..errors import ConfigurationError, user_frame
from ..json_data import strip_surrogates
from ..likelihood import Reading
from ..messages import Completion, Message, Request
from ..thoughts import AnswerStream, ThoughtMarks, separate_thoughts
from .base import Backend, OnRateLimit, PromptSize


class BackendWrapper(Backend):
    """Base wrapper with the label, prices and abilities of the backend `inner`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.label, self.price_in, self.price_out = inner.label, inner.price_in, inner.price_out
        self.price_cached = inner.price_cached
        self.continues_text = inner.continues_text
        self.replays, self.reads_one = inner.replays, inner.reads_one
        self.fallible, self.nearby = inner.fallible, inner.nearby

    async def generate(self, request: Request) -> Completion:
        return await self.inner.generate(request)

    async def read(self, reading: Reading) -> Completion:
        return await self.inner.read(reading)

    def on_rate_limit(self, callback: OnRateLimit) -> None:
        self.inner.on_rate_limit(callback)

    async def __aenter__(self) -> Backend:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.inner.__aexit__(*exc)

    def prompt_size(self, messages: Sequence[Message]) -> PromptSize | None:
        return self.inner.prompt_size(messages)

    async def check(self) -> None:
        await self.inner.check()

    def ended(self, affinity: str) -> None:
        self.inner.ended(affinity)

    def interrupted(self, affinity: str) -> None:
        self.inner.interrupted(affinity)

    def statistics(self) -> dict[str, Any]:
        return self.inner.statistics()


class ThoughtSplittingBackend(BackendWrapper):
    """Wrapper for a model with its own thought marks: it separates the thoughts and does not stream them."""

    def __init__(self, inner: Backend, marks: ThoughtMarks) -> None:
        super().__init__(inner)
        self._marks = marks

    async def generate(self, request: Request) -> Completion:
        if request.on_text is not None:
            request = replace(request, on_text=AnswerStream(request.on_text, self._marks).feed)
        completion = await self.inner.generate(request)
        if not self.replays and self._marks.may_occur_in(completion.text):
            separate_thoughts(completion, self._marks)
        return completion


_log = logging.getLogger("viva")
_TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


class ValidatingBackend(BackendWrapper):
    """Wrapper that checks the types of completions from `generate` and `read`, and replaces lone surrogates by U+FFFD.

    Exceptions in hooks that no conversation depends on become warnings of the logger `viva`.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._reported: set[str] = set()

    async def __aexit__(self, *exc: object) -> None:
        with self._warn_on_error("closing it"):
            await self.inner.__aexit__(*exc)

    def ended(self, affinity: str) -> None:
        with self._warn_on_error("ended"):
            self.inner.ended(affinity)

    def interrupted(self, affinity: str) -> None:
        with self._warn_on_error("interrupted"):
            self.inner.interrupted(affinity)

    def statistics(self) -> dict[str, Any]:
        with self._warn_on_error("statistics"):
            return self.inner.statistics()
        return {}

    async def generate(self, request: Request) -> Completion:
        return self._checked(await self._awaitable(self.inner.generate(request), "generate"), "generate")

    async def read(self, reading: Reading) -> Completion:
        return self._checked(await self._awaitable(self.inner.read(reading), "read"), "read")

    @contextmanager
    def _warn_on_error(self, problem: str) -> Iterator[None]:
        """Log the first exception in a hook that no conversation depends on, and suppress all."""
        try:
            yield
        except Exception as error:
            if problem not in self._reported:
                self._reported.add(problem)
                _log.warning("model '%s': %s raised %s: %s (%s)", self.label, problem, type(error).__name__, error,
                             user_frame(error))  # fmt: skip

    def _awaitable(self, answer: Any, method: str) -> Any:
        if not isawaitable(answer):
            raise self._wrong(method, f"is no coroutine function; write `async def {method}`")
        return answer

    def _checked(self, answer: Any, method: str) -> Completion:
        if not isinstance(answer, Completion):
            raise self._wrong(method, f"returned {type(answer).__name__}; return viva.Completion(text)")
        for name in ("text", "finish", "thoughts", "usage_note"):
            text = getattr(answer, name)
            if not isinstance(text, str):
                raise self._wrong(method, f"returned a Completion whose {name} is {type(text).__name__}, not text")
            if not text.isascii():
                setattr(answer, name, strip_surrogates(text))
        for name in _TOKEN_COUNTS:
            count = getattr(answer, name)
            if not isinstance(count, int) or not 0 <= count < 2**63:
                raise self._wrong(method, f"returned a Completion with {name}={count!r}; expected a count of tokens")
        versions = answer.versions
        if versions is not None and not (
            isinstance(versions, list) and all(isinstance(version, str) for version in versions)
        ):
            raise self._wrong(method, f"returned a Completion with versions={versions!r:.80}; expected a list of texts")
        return answer

    def _wrong(self, method: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"model '{self.label}': {type(self.inner).__name__}.{method} {problem}")

"""A backend of the user's own, whose answers are looked at before they are recorded: one that is none ends the run with
a sentence, and text that no journal can hold is mended.

What never belongs here: the engine's own kinds, which need no looking at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

from ..blame import place_of
from ..errors import ConfigurationError
from ..escapes import readable
from ..likelihood import Reading
from ..messages import Completion, Request
from .base import Backend
from .wrapper import Wrapper

_log = logging.getLogger("viva")
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


class Checked(Wrapper):
    """Sees that ``generate`` and ``read`` give a ``Completion`` of the right types; halves of surrogate pairs in its
    texts become U+FFFD. What it raises where nothing is asked of it is a warning of the logger ``viva``.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._said: set[str] = set()
        self.fallible = getattr(inner, "fallible", False)

    async def __aexit__(self, *exc: object) -> None:
        with self._warned("closing it"):
            await self.inner.__aexit__(*exc)

    def ended(self, affinity: str) -> None:
        with self._warned("ended"):
            self.inner.ended(affinity)

    def interrupted(self, affinity: str) -> None:
        with self._warned("interrupted"):
            self.inner.interrupted(affinity)

    def statistics(self) -> dict[str, Any]:
        with self._warned("statistics"):
            return self.inner.statistics()
        return {}

    async def generate(self, request: Request) -> Completion:
        return self._checked(await self._awaitable(self.inner.generate(request), "generate"), "generate")

    async def read(self, reading: Reading) -> Completion:
        return self._checked(await self._awaitable(self.inner.read(reading), "read"), "read")

    @contextmanager
    def _warned(self, what: str) -> Iterator[None]:
        """What is raised where nothing is asked harms no conversation; it is said once."""
        try:
            yield
        except Exception as error:
            if what not in self._said:
                self._said.add(what)
                _log.warning("model '%s': %s raised %s: %s (%s)", self.label, what, type(error).__name__, error,
                             place_of(error))  # fmt: skip

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
                setattr(answer, name, readable(text))
        for name in _COUNTS:
            count = getattr(answer, name)
            if not isinstance(count, int) or not 0 <= count < 2**63:
                raise self._wrong(method, f"returned a Completion with {name}={count!r}; expected a count of tokens")
        versions = answer.versions
        if versions is not None and not (isinstance(versions, list) and all(isinstance(one, str) for one in versions)):
            raise self._wrong(method, f"returned a Completion with versions={versions!r:.80}; expected a list of texts")
        return answer

    def _wrong(self, method: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"model '{self.label}': {type(self.inner).__name__}.{method} {what}")

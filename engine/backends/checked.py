"""A backend of the user's own, whose answers are looked at before they are recorded: one that is none ends the run with
a sentence, and text that no journal can hold is mended.

What never belongs here: the engine's own kinds, which need no looking at.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError
from ..likelihood import Reading
from ..messages import Completion, Request
from .base import Backend

_COUNTS = ("prompt_tokens", "completion_tokens")


class Checked(Backend):
    """Sees that ``generate`` and ``read`` give a ``Completion`` of the right types; halves of surrogate pairs in its
    texts become U+FFFD.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.label, self.price_in, self.price_out = inner.label, inner.price_in, inner.price_out
        self.replays, self.reads_one = inner.replays, inner.reads_one
        self.fallible = getattr(inner, "fallible", False)

    async def __aenter__(self) -> Backend:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.inner.__aexit__(*exc)

    async def check(self) -> None:
        await self.inner.check()

    def ended(self, affinity: str) -> None:
        self.inner.ended(affinity)

    def statistics(self) -> dict[str, Any]:
        return self.inner.statistics()

    async def generate(self, request: Request) -> Completion:
        return self._checked(await self.inner.generate(request), "generate")

    async def read(self, reading: Reading) -> Completion:
        return self._checked(await self.inner.read(reading), "read")

    def _checked(self, answer: Any, method: str) -> Completion:
        if not isinstance(answer, Completion):
            raise self._wrong(method, f"returned {type(answer).__name__}; return viva.Completion(text)")
        for name in ("text", "finish", "thoughts", "usage_note"):
            text = getattr(answer, name)
            if not isinstance(text, str):
                raise self._wrong(method, f"returned a Completion whose {name} is {type(text).__name__}, not text")
            if not text.isascii():
                setattr(answer, name, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        for name in _COUNTS:
            count = getattr(answer, name)
            if not isinstance(count, int) or not 0 <= count < 2**63:
                raise self._wrong(method, f"returned a Completion with {name}={count!r}; expected a count of tokens")
        return answer

    def _wrong(self, method: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"model '{self.label}': {type(self.inner).__name__}.{method} {what}")

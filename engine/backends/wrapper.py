"""A backend around another one: everything goes through, but for what a wrapper does itself.

What never belongs here: limits, retries, faults, checks (each is a wrapper of its own).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..likelihood import Reading
from ..messages import Completion, Request
from ..thoughts import AnswerStream, ThoughtMarks, separate_thoughts
from .allowance import Hear
from .base import Backend


class Wrapper(Backend):
    """Has the label, prices and abilities of the backend ``inner``."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.label, self.price_in, self.price_out = inner.label, inner.price_in, inner.price_out
        self.price_cached = inner.price_cached
        self.continues_text = inner.continues_text
        self.replays, self.reads_one = inner.replays, inner.reads_one

    async def generate(self, request: Request) -> Completion:
        return await self.inner.generate(request)

    async def read(self, reading: Reading) -> Completion:
        return await self.inner.read(reading)

    def hear_allowance(self, hear: Hear) -> None:
        self.inner.hear_allowance(hear)

    async def __aenter__(self) -> Backend:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.inner.__aexit__(*exc)

    async def check(self) -> None:
        await self.inner.check()

    def ended(self, affinity: str) -> None:
        self.inner.ended(affinity)

    def interrupted(self, affinity: str) -> None:
        self.inner.interrupted(affinity)

    def statistics(self) -> dict[str, Any]:
        return self.inner.statistics()


class OwnThoughts(Wrapper):
    """A backend whose model has its own marks of thoughts: it answers with the thoughts apart, and streams none."""

    def __init__(self, inner: Backend, marks: ThoughtMarks) -> None:
        super().__init__(inner)
        self.fallible, self.nearby = getattr(inner, "fallible", False), getattr(inner, "nearby", True)
        self._marks = marks

    async def generate(self, request: Request) -> Completion:
        if request.on_text is not None:
            request = replace(request, on_text=AnswerStream(request.on_text, self._marks).feed)
        completion = await self.inner.generate(request)
        if not self.replays and self._marks.may_stand_in(completion.text):
            separate_thoughts(completion, self._marks)
        return completion

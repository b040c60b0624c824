"""A backend around another one: everything goes through, but for what a wrapper does itself.

What never belongs here: limits, retries, faults, checks (each is a wrapper of its own).
"""

from __future__ import annotations

from typing import Any

from ..likelihood import Reading
from ..messages import Completion, Request
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

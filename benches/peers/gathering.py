"""Conversations gathered at one call and weighed while all of them wait there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import workload


class Gathering:
    """``count`` conversations call ``wait``; when the last has come they are weighed, then all go on."""

    def __init__(self, count: int) -> None:
        self._count, self._waiting = count, 0
        self._gathered, self._release = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        """Come to the gathering, and leave with the others."""
        self._waiting += 1
        if self._waiting == self._count:
            self._gathered.set()
        await self._release.wait()

    async def weigh(self, run: Callable[[], Awaitable[object]]) -> float:
        """Carry the run to its end; kilobytes of resident memory per conversation while all of them waited."""
        figure = 0.0

        async def watch() -> None:
            nonlocal figure
            await self._gathered.wait()
            await asyncio.sleep(0.5)  # the journal empties its queue
            gc.collect()
            figure = (workload._memory_mb("VmRSS") - before) * 1e3 / self._count
            self._release.set()

        gc.collect()
        before = workload._memory_mb("VmRSS")
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            await run()
        return figure

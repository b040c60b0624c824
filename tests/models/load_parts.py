"""What tests of loads are made of: requests, judges that are queues with known theory, a test in one call."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.backends.base import Backend
from viva.engine.clock import Clock, VirtualClock
from viva.engine.errors import Throttled, Unavailable
from viva.engine.messages import Completion, Message, Request, Sampling
from viva.loadtest.judge_client import LoadJudge
from viva.loadtest.load_records import LoadRequest
from viva.loadtest.load_settings import check_load_settings
from viva.loadtest.run_load_test import LoadTest

SAMPLING = Sampling(max_tokens=16)


def requests(count: int, **fields: Any) -> list[LoadRequest]:
    """So many requests that differ."""
    return [
        LoadRequest(f"r{number}", (Message("user", f"Judge answer {number}."),), SAMPLING, **fields)
        for number in range(count)
    ]


@dataclass
class QueueJudge(Backend):
    """An M/M/c queue on a clock, first come first served. ``spent`` has each request's true seconds in the system.

    ``stall_at``: before the request with this number all servers stand still for ``stall`` seconds. ``trouble``:
    what a request with this number raises.
    """

    clock: Clock
    servers: int = 1
    mean: float = 0.1
    seed: int = 1
    stall_at: int = -1
    stall: float = 0.0
    trouble: Callable[[int], Exception | None] = lambda number: None
    spent: list[float] = field(default_factory=list)
    service: float = 0.0
    label: str = "queue"

    def __post_init__(self) -> None:
        self.free = [0.0] * self.servers
        self.draw = random.Random(self.seed)
        self.arrived = 0

    async def generate(self, request: Request) -> Completion:
        now, number = self.clock.now(), self.arrived
        self.arrived += 1
        if number == self.stall_at:
            self.free = [max(one, now) + self.stall for one in self.free]
        place = min(range(self.servers), key=self.free.__getitem__)
        start = max(now, self.free[place])
        took = self.draw.expovariate(1 / self.mean)
        self.free[place] = start + took
        self.service += took
        self.spent.append(start + took - now)
        await self.clock.sleep(start + 0.1 * took - now)
        if (error := self.trouble(number)) is not None:
            raise error
        if request.on_text is not None:
            request.on_text("fine")
        await self.clock.sleep(start + took - self.clock.now())
        return Completion("fine", "stop", 10, 4)


def unavailable(number: int) -> Exception:
    """A failure that may pass."""
    return Unavailable(f"request {number} is not served", model="queue", status=503)


def throttled(number: int) -> Exception:
    """A refusal for want of room."""
    return Throttled(f"request {number} came too soon", model="queue", status=429, retry_after=1.0)


def carried_out(
    folder: Path,
    clock: VirtualClock,
    judges: dict[str, Backend],
    work: list[LoadRequest],
    ready: Callable[[LoadTest], None] = lambda test: None,
    **fields: Any,
) -> LoadTest:
    """A load test that was carried out in virtual time, or went on; without unloaded passes and cool-down unless they
    are asked for. ``ready`` is called before it begins.
    """
    names = {label: f"simulated:{label}" for label in judges}
    settings = check_load_settings({"judges": names, "baseline": 0, "cool_down": 0.0, **fields})
    opened = [LoadJudge(label, names[label], backend) for label, backend in judges.items()]
    folder.mkdir(parents=True, exist_ok=True)

    async def run() -> LoadTest:
        test = LoadTest(settings, work, opened, folder, clock)
        ready(test)
        await test.run()
        return test

    return clock.run(run)

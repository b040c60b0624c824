"""A run that says which of its answers are committed: the file ``acknowledged`` beside its folder names each.

Called as a program: ``acknowledging_run.py SCENARIO TASKS DISK DURABILITY``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import viva

MODELS = {"pupil": ["simulated:a", "simulated:b"], "tutor": "simulated:t"}


async def _run(scenario: Path, tasks: Path, disk: Path, durability: str) -> None:
    file = os.open(disk / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options = {"models": MODELS, "tasks": tasks, "out": disk / "run", "concurrency": 4, "durability": durability}
    async with viva.start(scenario, **options) as live:
        async for event in live.events(capacity=4):  # the run goes on when its answers are acknowledged
            if isinstance(event, viva.CallFinished):
                await live.flush()  # returns when the answer is committed
                os.write(file, f"{event.conversation} {event.role} {event.ordinal}\n".encode())


if __name__ == "__main__":
    asyncio.run(_run(*map(Path, sys.argv[1:4]), sys.argv[4]))

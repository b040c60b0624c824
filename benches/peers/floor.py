"""The floor: what the workload costs when nothing is done for it but building messages and parsing verdicts.

Plain asyncio, a fixed pool of workers, and a model that answers at once after giving way to the loop.
Whatever an engine costs above this line is what its queues, limits, records and reports cost.

What it is not: an engine. It keeps no journal, limits nothing, and an error ends it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import workload


@dataclass(slots=True)
class Tally:
    """What the workers add up."""

    calls: int = 0
    score: int = 0


async def model(role: str, _messages: list[workload.Message]) -> str:
    """The zero-latency model: one turn of the loop per call, as any awaited reply takes at least."""
    await asyncio.sleep(0)
    return workload.REPLIES[role]


async def converse(number: int, tally: Tally) -> None:
    """Run one conversation to its end."""
    script = workload.conversation(number)
    role, _, messages = next(script)
    while True:
        reply = await model(role, messages)
        tally.calls += 1
        try:
            role, _, messages = script.send(reply)
        except StopIteration as end:
            tally.score += end.value
            return


async def worker(numbers: Iterator[int], tally: Tally) -> None:
    """Take conversations until none is left; the shared iterator is the queue, one thread needs no lock."""
    for number in numbers:
        await converse(number, tally)


async def run(conversations: int, concurrency: int) -> Tally:
    """All conversations, ``concurrency`` of them at a time."""
    tally = Tally()
    numbers = iter(range(conversations))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, conversations)):
            group.create_task(worker(numbers, tally))
    return tally


def main() -> None:
    """Run the floor and print its figures."""
    parser = argparse.ArgumentParser(description="bare asyncio floor of the benches")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=1_000)
    options = parser.parse_args()

    meter = workload.Meter()
    with meter:
        tally = asyncio.run(run(options.conversations, options.concurrency))
    print(meter.line("floor", options.conversations, tally.calls, score=tally.score))


if __name__ == "__main__":
    main()

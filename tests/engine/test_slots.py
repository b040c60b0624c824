"""Slots: a limit of conversations in flight that runs share, served first in, first out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from small_runs import three_questions

from viva.engine.backends.registry import build
from viva.engine.clock import VirtualClock
from viva.engine.events import ConversationFinished, ConversationStarted, Event
from viva.engine.journal import Journal
from viva.engine.runner import Outcome, Plan, Runner, Slots
from viva.engine.stream import EventStream


def side_by_side(folder: Path, counts: list[int], limit: int, **drained: int) -> tuple[list[Outcome], list[str], int]:
    """Runs on shared slots: their outcomes, the runs in the order in which conversations began, the most in flight."""
    clock = VirtualClock()
    began: list[str] = []
    in_flight = most = 0

    async def main() -> list[Outcome]:
        slots = Slots(limit)
        outcomes: list[Outcome] = []

        async def one(name: str, count: int) -> None:
            stream = EventStream()

            def hear(event: Event) -> None:
                nonlocal in_flight, most
                if isinstance(event, ConversationStarted):
                    began.append(name)
                    in_flight += 1
                    most = max(most, in_flight)
                    if began.count(name) == drained.get(name):
                        runner.drain()
                elif isinstance(event, ConversationFinished):
                    in_flight -= 1

            stream.listen(hear)
            async with (
                build("simulated:m?latency=1&sigma=0", clock, stream.publish) as backend,
                Journal(folder / f"{name}.sqlite", clock) as journal,
            ):
                runner = Runner(seed=1, clock=clock, journal=journal, events=stream, concurrency=1, slots=slots)
                plans = (Plan(n, f"talk-{n}", {"candidate": backend}, n) for n in range(count))
                outcomes.append(await runner.run(plans, three_questions, count))

        async with anyio.create_task_group() as group:
            for place, count in enumerate(counts):
                group.start_soon(one, "abc"[place], count)
        assert slots.in_use == 0
        return outcomes

    return clock.run(main), began, most


@pytest.mark.parametrize("counts", [[12], [12, 12], [3, 20, 1], [0, 5]], ids=str)
def test_runs_share_the_limit_and_all_come_to_their_end(tmp_path: Path, counts: list[int]) -> None:
    outcomes, began, most = side_by_side(tmp_path, counts, 4)
    assert sorted(outcome.finished for outcome in outcomes) == sorted(counts)
    assert {outcome.how for outcome in outcomes} == {"done"}
    assert len(began) == sum(counts)
    assert most == min(4, sum(counts))


def test_who_waits_side_by_side_goes_on_in_turn(tmp_path: Path) -> None:
    _, began, _ = side_by_side(tmp_path, [20, 20], 2)
    tail = "".join(began[4:-4])
    assert "aaa" not in tail
    assert "bbb" not in tail


def test_a_drained_run_leaves_its_slots_to_the_others(tmp_path: Path) -> None:
    outcomes, began, most = side_by_side(tmp_path, [20, 20], 4, a=6)
    assert {outcome.how: outcome.finished for outcome in outcomes} == {"drained": 6, "done": 20}
    assert most == 4
    assert began.count("a") == 6


def test_a_party_without_a_turn_gives_its_slot_to_the_one_that_waits_longest() -> None:
    slots, given = Slots(1), []

    def party(name: str) -> Any:
        return lambda: given.append(name)

    first, second = party("first"), party("second")
    assert slots.take()
    assert not slots.take()
    slots.wait(first)
    slots.wait(second)
    assert slots.keep(first)  # its turn: now the other one's comes before
    assert not slots.keep(first)
    slots.release()
    slots.release()
    assert given == ["second", "first"]
    slots.release()
    assert slots.in_use == 0

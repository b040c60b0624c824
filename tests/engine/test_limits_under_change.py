"""Limits while things change: waiters leave, pauses come, calls use less or more than was reserved for them."""

from __future__ import annotations

import anyio
import pytest
from case_tables import case_table

from viva.engine.clock import VirtualClock
from viva.engine.limits import Limits, Rate


def after_cancelling(limits: Limits, clock: VirtualClock, before: int, leaver: int, after: int) -> float:
    """When a waiter of ``after`` tokens is admitted that stands behind one of ``leaver`` tokens who leaves at 0.5 s."""
    admitted: list[float] = []

    async def one(tokens: int) -> None:
        async with limits.permit(tokens):
            admitted.append(clock.now())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(one, before)
            await clock.sleep(0.1)
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(one, leaver)
                await clock.sleep(0.1)
                group.start_soon(one, after)
                await clock.sleep(0.3)
                leaving.cancel_scope.cancel()

    clock.run(main)
    assert len(admitted) == 2
    return admitted[1]


def test_who_leaves_takes_no_turn_of_the_rate_along() -> None:
    clock = VirtualClock()
    assert after_cancelling(Limits(clock, requests=Rate(60, 60.0)), clock, 0, 0, 0) < 1.5


def test_who_leaves_takes_no_tokens_along() -> None:
    clock = VirtualClock()
    # 900 are used, so 1000 must wait for a minute and 100 need not.
    assert after_cancelling(Limits(clock, tokens=Rate(1000, 60.0)), clock, 900, 1000, 100) == pytest.approx(0.5)


def test_a_pause_holds_back_whoever_was_next() -> None:
    clock = VirtualClock()
    limits = Limits(clock, requests=Rate(60, 60.0))
    admitted: list[float] = []

    async def one() -> None:
        async with limits.permit():
            admitted.append(clock.now())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one)
            await clock.sleep(0.5)
            limits.pause(30.0)

    clock.run(main)
    assert [time >= 30.5 for time in admitted] == [False, True, True]


@case_table(
    ("estimates", "used", "lasts", "expected"),
    [
        ([900, 900], 100, 1.0, [0.0, 1.0]),  # it used less: the next need not wait for a minute
        ([100, 900], 800, 1.0, [0.0, 0.0]),  # both fit when they begin
        ([5000, 10], 10, 1.0, [0.0, 1.0]),  # more than the whole limit gets through, alone
        ([10, 5000, 10], 10, 1.0, [0.0, 60.1, 61.1]),
        ([100] * 4, 10, 70.0, [0.0] * 4),
    ],
)
def test_reservations_are_corrected_by_what_was_used(
    estimates: list[int], used: int, lasts: float, expected: list[float]
) -> None:
    clock = VirtualClock()
    limits = Limits(clock, tokens=Rate(1000, 60.0))
    admitted: list[float] = []

    async def one(tokens: int) -> None:
        async with limits.permit(tokens) as permit:
            admitted.append(clock.now())
            await clock.sleep(lasts)
            permit.record_usage(used)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for tokens in estimates:
                group.start_soon(one, tokens)

    clock.run(main)
    assert admitted == pytest.approx(expected)


@pytest.mark.parametrize("used", [10, 900])
def test_calls_longer_than_the_window_leave_nothing_behind(used: int) -> None:
    clock = VirtualClock()
    limits = Limits(clock, tokens=Rate(1000, 60.0))

    async def main() -> None:
        for _ in range(20):
            async with limits.permit(400) as permit:
                await clock.sleep(70)
                permit.record_usage(used)
        async with limits.permit(400):
            assert limits.statistics()["tokens_in_window"] == 400

    clock.run(main)
    assert clock.now() == pytest.approx(20 * 70)


def test_who_left_does_not_wait_any_more() -> None:
    clock = VirtualClock()
    limits = Limits(clock, concurrency=1)

    async def hold() -> None:
        async with limits.permit():
            await clock.sleep(60)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await clock.sleep(1)
            async with anyio.create_task_group() as leaving:
                for _ in range(3):
                    leaving.start_soon(hold)
                await clock.sleep(1)
                assert limits.statistics()["waiting"] == 3
                leaving.cancel_scope.cancel()
            await clock.sleep(1)
            assert limits.statistics()["waiting"] == 0

    clock.run(main)

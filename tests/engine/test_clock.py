"""The virtual clock: time that only passes when everybody waits, for whatever waits on the loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import anyio
import pytest

from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import Clock, RealClock, VirtualClock
from viva.engine.errors import Throttled, Unavailable
from viva.engine.events import Event, Retried
from viva.engine.limits import Limits
from viva.engine.messages import Request, Sampling, View, request_digest

_WEEK = 7 * 24 * 3600.0


def request(seed: int) -> Request:
    """A request that differs by its seed alone."""
    view, sampling = View(), Sampling()
    view.append("user", "Why is steel cold?")
    return Request(view.messages, sampling, seed, request_digest(view, sampling, seed))


def test_a_week_of_sleeps_passes_in_order() -> None:
    clock = VirtualClock(start=1000.0)
    lengths = [random.Random(3).uniform(0.0, _WEEK) for _ in range(2000)] + [_WEEK, 0.0, -1.0]
    woken: list[tuple[float, float]] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((clock.now(), seconds))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for seconds in lengths:
                group.start_soon(sleeper, seconds)

    clock.run(main)
    assert [seconds for _, seconds in woken[2:]] == sorted(lengths)[2:]
    assert [now for now, _ in woken] == pytest.approx([max(0.0, seconds) for seconds in sorted(lengths)])
    assert clock.now() == pytest.approx(_WEEK)
    assert clock.wall() == pytest.approx(_WEEK + 1000.0)


def test_no_time_passes_while_anybody_can_run() -> None:
    clock = VirtualClock()
    seen: set[float] = set()

    async def busy() -> None:
        for _ in range(100):
            seen.add(clock.now())
            await clock.sleep(0)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(clock.sleep, 5)
            group.start_soon(busy)

    clock.run(main)
    assert seen == {0.0}
    assert clock.now() == 5.0


def test_everything_on_the_loop_lives_by_the_clock() -> None:
    clock = VirtualClock()
    rung: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(10, lambda: rung.append(clock.now()))
        await asyncio.sleep(20)
        with anyio.move_on_after(30) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert loop.time() == anyio.current_time() == clock.now()

    clock.run(main)
    assert rung == [10.0]
    assert clock.now() == 50.0


def test_a_wait_for_a_thread_is_a_real_wait() -> None:
    clock = VirtualClock()
    asked, order = threading.Event(), list[str]()

    def work() -> None:
        asked.wait()
        order.append("thread")

    async def sleeper() -> None:
        await clock.sleep(_WEEK)
        order.append("week")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(sleeper)
            with clock.external():
                # The thread begins to end in the turn after which the loop has nothing but the sleeper's timer.
                asyncio.get_running_loop().call_soon(asked.set)
                await anyio.to_thread.run_sync(work)
                assert clock.now() == 0.0
            assert clock.waiting_outside == 0

    clock.run(main)
    assert order == ["thread", "week"]
    assert clock.now() == _WEEK


def test_an_error_in_a_thread_ends_the_wait() -> None:
    clock = VirtualClock()

    def fail() -> None:
        raise ValueError("lost")

    async def main() -> None:
        with pytest.raises(ValueError, match="lost"), clock.external():
            await anyio.to_thread.run_sync(fail)
        await clock.sleep(3)

    clock.run(main)
    assert (clock.waiting_outside, clock.now()) == (0, 3.0)


def test_one_clock_may_run_again_and_goes_on() -> None:
    clock = VirtualClock()
    for _ in range(3):
        clock.run(lambda: clock.sleep(2.0))
    clock.advance(1.0)
    assert clock.now() == 7.0


@pytest.mark.parametrize("make", [RealClock, VirtualClock])
def test_results_and_errors_come_out_of_run(make: Callable[[], Clock]) -> None:
    async def answer() -> int:
        return 42

    async def fail() -> int:
        raise KeyError("lost")

    assert make().run(answer) == 42
    with pytest.raises(KeyError, match="lost"):
        make().run(fail)


def backed_off(seed: int, attempts: int, **chances: float) -> tuple[float, list[float]]:
    """Virtual seconds that a call takes which fails at every attempt, and the pauses that were announced."""
    clock = VirtualClock()
    pauses: list[float] = []

    def hear(event: Event) -> None:
        assert isinstance(event, Retried)
        pauses.append(event.delay)

    policy = RetryPolicy(attempts=attempts)
    backend = RetryingBackend(SimulatedBackend(clock, **chances), Limits(clock), clock, policy, hear)

    async def main() -> None:
        with pytest.raises((Unavailable, Throttled)):
            await backend.generate(request(seed))

    clock.run(main)
    assert backend.statistics()["retries"] == len(pauses) == attempts - 1
    assert backend.statistics()["calls"] == attempts
    return clock.now(), pauses


@pytest.mark.parametrize("attempts", [1, 2, 8, 500])
def test_backing_off_takes_the_sum_of_its_pauses(attempts: int) -> None:
    taken, pauses = backed_off(11, attempts, fail=1.0)
    expected = [RetryPolicy().delay(failures, 11, None) for failures in range(1, attempts)]
    assert pauses == expected
    assert taken == pytest.approx(sum(expected), rel=1e-12)


def test_pauses_double_up_to_the_longest() -> None:
    _, pauses = backed_off(5, 30, fail=1.0)
    policy = RetryPolicy()
    for failures, pause in enumerate(pauses):
        ceiling = min(policy.longest, policy.first * 2**failures)
        assert ceiling / 2 <= pause <= ceiling


def test_a_named_time_is_the_least_pause() -> None:
    taken, pauses = backed_off(5, 4, throttle=1.0)  # the simulated endpoint asks for one second
    assert min(pauses) >= 1.0
    assert taken == pytest.approx(sum(pauses))
    assert RetryPolicy(longest_retry_after=30).delay(1, 5, 3600.0) == 30

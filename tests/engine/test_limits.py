"""Limits: what a server sees of a rate, who comes when, and that no place is ever lost; in virtual time but for one."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.limits import Limits, Rate
from viva.engine.messages import Request, Sampling, View, request_digest

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_RATES = [Rate(3, 60.0), Rate(20, 1.0), Rate(1000, 1.0), Rate(600, 60.0)]
_LATEST = 0.09
_ENOUGH = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@functools.cache
def grants(rate: Rate, periods: int = 6, bursts: int = 3) -> tuple[float, ...]:
    """When each of many waiters was admitted; they come in bursts, the next while the last still waits."""
    clock = VirtualClock()
    limits = Limits(clock, requests=rate)
    granted: list[float] = []

    async def one() -> None:
        async with limits.permit():
            granted.append(clock.now())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(bursts):
                for _ in range(rate.count * periods // bursts):
                    group.start_soon(one)
                await clock.sleep(rate.period)

    clock.run(main)
    return tuple(granted)


def most_within(times: Iterable[float], width: float) -> int:
    """The most of these times that fall into one window (half open, as 60 requests in a minute are meant)."""
    ordered = sorted(times)
    most = first = 0
    for index, time in enumerate(ordered):
        while time - ordered[first] >= width:
            first += 1
        most = max(most, index - first + 1)
    return most


@pytest.mark.parametrize("rate", _RATES, ids=str)
@_ENOUGH
@given(delays=st.lists(st.floats(0.0, _LATEST), min_size=1, max_size=30), run=st.integers(1, 1500))
def test_no_window_at_the_server_holds_more_than_the_limit(rate: Rate, delays: list[float], run: int) -> None:
    arrivals = [time + delays[index // run % len(delays)] for index, time in enumerate(grants(rate))]
    assert most_within(arrivals, rate.period) <= rate.count


@pytest.mark.parametrize("rate", _RATES, ids=str)
def test_not_even_the_worst_delays_pass_the_limit(rate: Rate) -> None:
    # The first request of a window as late as can be, all others at once: no delays can be worse than that.
    assert most_within(grants(rate), rate.period + _LATEST) <= rate.count


@pytest.mark.parametrize("rate", _RATES, ids=str)
def test_a_limit_is_used_to_85_percent(rate: Rate) -> None:
    granted = grants(rate)
    assert (len(granted) - 1) / (granted[-1] - granted[0]) >= 0.85 * rate.count / rate.period


@pytest.mark.parametrize(
    "make",
    [
        lambda clock: Limits(clock, concurrency=2),
        lambda clock: Limits(clock, requests=Rate(10, 1.0)),
        lambda clock: Limits(clock, tokens=Rate(250, 1.0)),
        lambda clock: Limits(clock, concurrency=3, requests=Rate(500, 1.0), tokens=Rate(1000, 1.0)),
    ],
    ids=["concurrency", "requests", "tokens", "all"],
)
def test_first_come_first_served(make: Callable[[VirtualClock], Limits]) -> None:
    clock = VirtualClock()
    limits = make(clock)
    served: list[int] = []

    async def one(number: int) -> None:
        async with limits.permit(tokens=100 if number % 3 else 10):
            served.append(number)
            await clock.sleep(0.05 * (number % 4))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(one, number)

    clock.run(main)
    assert served == list(range(40))


@pytest.mark.parametrize("limit", [1, 7])
def test_concurrency_holds_through_errors_and_cancellation(limit: int) -> None:
    clock = VirtualClock()
    limits = Limits(clock, concurrency=limit)
    inside = most = 0
    ends: Counter[str] = Counter()

    async def one(number: int) -> None:
        nonlocal inside, most
        with anyio.move_on_after(0.5 * limit if number % 5 == 0 else None) as scope, suppress(ValueError):
            async with limits.permit():
                inside += 1
                most = max(most, inside)
                try:
                    await clock.sleep(0.3 + number % 3)
                finally:
                    inside -= 1
                if number % 4 == 0:
                    raise ValueError
        ends["cancelled" if scope.cancelled_caught else "ended"] += 1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)

    clock.run(main)
    assert (inside, most) == (0, limit)
    assert ends.total() == 100
    assert ends["cancelled"] > 0
    statistics = limits.statistics()
    assert (statistics["in_flight"], statistics["most_in_flight"], statistics["waiting"]) == (0, limit, 0)


@case_table("turns", range(6))
def test_a_place_given_to_a_waiter_that_just_left_is_handed_on(turns: int) -> None:
    clock = VirtualClock()
    limits = Limits(clock, concurrency=1)

    async def hold() -> None:
        async with limits.permit():
            pass

    async def main() -> None:
        async with anyio.create_task_group() as group:
            async with limits.permit():
                group.start_soon(hold)
                await clock.sleep(1)
            for _ in range(turns):  # a cancellation at any point between release and resumption
                await clock.sleep(0)
            group.cancel_scope.cancel()
        with anyio.fail_after(1):
            await hold()

    clock.run(main)
    assert limits.statistics()["in_flight"] == 0


@_ENOUGH
@given(
    wanted=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    pauses=st.lists(st.floats(0, 40), min_size=1, max_size=9),
)
def test_tokens_in_any_minute_stay_within_the_limit(wanted: list[int], pauses: list[float]) -> None:
    clock = VirtualClock()
    limits = Limits(clock, tokens=Rate(1000, 60.0))
    admitted: list[tuple[float, int]] = []

    async def one(tokens: int) -> None:
        async with limits.permit(tokens) as permit:
            admitted.append((clock.now(), tokens))
            permit.record_usage(tokens)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for index, tokens in enumerate(wanted):
                group.start_soon(one, tokens)
                await clock.sleep(pauses[index % len(pauses)] * (index % 3))

    clock.run(main)
    assert sum(tokens for _, tokens in admitted) == sum(wanted)
    for start, _ in admitted:
        assert sum(tokens for time, tokens in admitted if start <= time < start + 60.0 + _LATEST) <= 1000


def test_more_than_the_whole_limit_gets_through_alone() -> None:
    clock = VirtualClock()
    limits = Limits(clock, tokens=Rate(1000, 60.0))
    admitted: list[float] = []

    async def one(tokens: int) -> None:
        async with limits.permit(tokens) as permit:
            admitted.append(clock.now())
            permit.record_usage(tokens)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for tokens in (10, 5000, 10):
                group.start_soon(one, tokens)

    clock.run(main)
    assert admitted == pytest.approx([0.0, 60.1, 120.2])


def test_statistics_add_up() -> None:
    clock = VirtualClock()
    limits = Limits(clock, concurrency=4)
    begun = done = 0

    async def one() -> None:
        nonlocal begun, done
        begun += 1
        async with limits.permit():
            await clock.sleep(1)
        done += 1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(one)
            for _ in range(12):
                await clock.sleep(0.7)
                now = limits.statistics()
                assert now["granted"] == now["in_flight"] + done
                assert now["granted"] + now["waiting"] == begun
                assert now["in_flight"] <= now["most_in_flight"] == 4

    clock.run(main)
    assert limits.statistics() == {
        "in_flight": 0,
        "most_in_flight": 4,
        "waiting": 0,
        "granted": 30,
        "tokens_in_window": 0,
    }


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="0/60 s"):
        Rate(0)
    with pytest.raises(ConfigurationError, match="concurrency"):
        Limits(VirtualClock(), concurrency=0)


def test_a_real_server_sees_no_more_than_the_rate(chaos: StartChaos) -> None:
    server = chaos({})
    view, sampling, clock = View(), Sampling(), RealClock()
    view.append("user", "Why is steel cold?")
    request = Request(view.messages, sampling, 7, request_digest(view, sampling, 7))

    async def main() -> None:
        async with build(server.model("candidate", rps=40), clock) as backend, anyio.create_task_group() as group:

            async def call_on_and_on() -> None:
                while True:
                    await backend.generate(request)

            for _ in range(200):
                group.start_soon(call_on_and_on)
            await anyio.to_thread.run_sync(lambda: server.log(requests=110))
            group.cancel_scope.cancel()

    clock.run(main)
    assert most_within((entry["at"] for entry in server.log()), 1.0) <= 40


def test_line_29_a_busy_event_loop_lets_no_window_hold_more() -> None:
    clock = VirtualClock()
    limits = Limits(clock, requests=Rate(9, 1.0))
    gone: list[float] = []

    async def one() -> None:
        async with limits.permit():
            gone.append(clock.now())

    async def busy() -> None:
        while len(gone) < 60:
            # Each call that is let go waits for a step of other work: a long one now and then, as in a resumed run.
            under_way = limits.statistics()["granted"] > len(gone)
            clock.advance(0.3 if under_way and len(gone) % 10 == 3 else 0.0005)
            await anyio.lowlevel.checkpoint()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(busy)
            for _ in range(60):
                group.start_soon(one)

    clock.run(main)
    assert most_within(gone, 1.0) <= 9

"""Limits that find themselves: nearly all of what an endpoint takes, and few calls that it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from limited_endpoint import AtOnce, Bucket, EachWindow, Limit, course

from viva.engine.adaptive_limit import AdaptiveLimit
from viva.engine.backends.base import Backend, parse_rate_limit_headers
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.clock import VirtualClock
from viva.engine.errors import Throttled
from viva.engine.limits import Limits
from viva.engine.messages import Completion, Request, Sampling, View

_SETTLED = 30.0  # seconds
_FEW = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def _around(mean: float) -> Callable[[random.Random], float]:
    return lambda draw: mean * (0.5 + draw.random())


@pytest.mark.parametrize("seconds", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    ("endpoint", "permitted", "headers"),
    [
        pytest.param(lambda: AtOnce(32), lambda seconds: 32 / seconds, False, id="32-at-once"),
        pytest.param(lambda: AtOnce(200), lambda seconds: 200 / seconds, False, id="200-at-once"),
        pytest.param(lambda: Bucket(50, 50), lambda seconds: 50.0, False, id="bucket"),
        pytest.param(lambda: EachWindow(500, 10), lambda seconds: 50.0, False, id="windows"),
        pytest.param(lambda: Bucket(50, 3000), lambda seconds: 50.0, True, id="large-bucket-with-headers"),
        pytest.param(lambda: EachWindow(500, 10), lambda seconds: 50.0, True, id="windows-with-headers"),
    ],
)
def test_nearly_all_of_what_is_permitted_after_half_a_minute_and_few_refusals(
    endpoint: Callable[[], Limit], permitted: Callable[[float], float], headers: bool, seconds: float
) -> None:
    found = course(endpoint(), _around(seconds), 150, headers=headers)
    assert found.rate(_SETTLED, 150) >= 0.95 * permitted(seconds)
    assert found.refused_share(_SETTLED) < 0.015
    assert found.refused_share() < 0.02
    if headers:
        assert not found.refused


@_FEW
@given(st.integers(2, 150), st.floats(0.1, 3.0), st.integers(0, 100))
def test_any_number_of_calls_at_once_is_found(count: int, seconds: float, seed: int) -> None:
    found = course(AtOnce(count), _around(seconds), 120, seed=seed)
    assert found.rate(_SETTLED + 10, 120) >= 0.9 * count / seconds
    # A try beyond the limit now and then is what finds out that it was raised.
    late = [at for at in found.refused if at > _SETTLED]
    assert len(late) <= 60


@_FEW
@given(st.floats(10.0, 80.0), st.floats(1.0, 5.0), st.floats(0.05, 3.0), st.integers(0, 100))
def test_any_rate_is_found(rate: float, size: float, seconds: float, seed: int) -> None:
    found = course(Bucket(rate, size * rate), _around(seconds), 150, seed=seed)
    assert found.rate(_SETTLED + 20, 150) >= 0.85 * rate
    assert found.refused_share(_SETTLED) < 0.08


def test_a_raised_and_a_lowered_limit_are_followed() -> None:
    class Changing(AtOnce):
        def arrive(self, now: float) -> tuple[bool, float | None]:
            self._count = 40 if now < 100 else 10 if now < 200 else 80
            return super().arrive(now)

    found = course(Changing(40), _around(0.5), 420)
    assert found.rate(50, 100) >= 0.95 * 40 / 0.5
    # What was taken before makes it look like a rate that was lowered; the pace found for it is on the safe side.
    assert found.rate(130, 200) >= 0.65 * 10 / 0.5
    assert sum(130 <= at < 200 for at in found.refused) < 60
    assert found.rate(350, 420) >= 0.85 * 80 / 0.5


def test_single_refusals_without_a_cause_narrow_little() -> None:
    class Moody(AtOnce):
        draw = random.Random(4)

        def arrive(self, now: float) -> tuple[bool, float | None]:
            return (False, None) if self.draw.random() < 0.003 else super().arrive(now)

    found = course(Moody(200), _around(0.5), 120)
    assert found.rate(_SETTLED, 120) >= 0.85 * 200 / 0.5


class _Refusing(Backend):
    """Takes 20 calls at once, each for half a second."""

    label, fallible = "small", True

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._here = clock, 0
        self.refused = 0

    async def generate(self, request: Request) -> Completion:
        if self._here >= 20:
            self.refused += 1
            await self._clock.sleep(0.005)
            raise Throttled("too many", model=self.label, status=429)
        self._here += 1
        try:
            await self._clock.sleep(0.5)
        finally:
            self._here -= 1
        return Completion("fine", "stop", 1, 1)


@pytest.mark.parametrize("first", [16, None])
def test_no_call_of_2000_fails_at_an_endpoint_that_takes_twenty(first: int | None) -> None:
    clock = VirtualClock()
    backend = _Refusing(clock)
    limits = Limits(clock, adaptive=AdaptiveLimit(clock.now(), first))
    governed = RetryingBackend(backend, limits, clock, RetryPolicy())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(2000):
                request = Request(View().messages, Sampling(max_tokens=5), number, b"")
                group.start_soon(governed.generate, request)

    clock.run(main)
    statistics = governed.statistics()
    assert statistics["granted"] == 2000 + backend.refused
    assert statistics["window"] == 20
    # Without a first window all 2000 leave at once, as at a server of one's own.
    assert backend.refused < (40 if first else 2200)
    assert clock.now() < 1.15 * 2000 / 20 * 0.5 + (0 if first else 5)


@case_table(
    ("headers", "told"),
    [
        ({"x-ratelimit-remaining-requests": "4999", "x-ratelimit-reset-requests": "12ms"}, ("requests", 4999, 0.012)),
        ({"x-ratelimit-remaining-tokens": "150", "x-ratelimit-reset-tokens": "6m0.5s"}, ("tokens", 150, 360.5)),
        ({"ratelimit-remaining": "5", "ratelimit-reset": "53"}, ("requests", 5, 53)),
        (
            {
                "Date": "Wed, 25 Nov 2026 10:00:00 GMT",
                "anthropic-ratelimit-requests-remaining": "3",
                "anthropic-ratelimit-requests-reset": "2026-11-25T10:00:30Z",
            },
            ("requests", 3, 30),
        ),
        (
            {
                "Date": "Wed, 25 Nov 2026 10:00:00 GMT",
                "ratelimit-remaining": "0",
                "ratelimit-reset": str(1795600810),
            },
            ("requests", 0, 10),
        ),
    ],
)
def test_what_remains_is_read_from_each_providers_headers(
    headers: dict[str, str], told: tuple[str, float, float]
) -> None:
    [found] = parse_rate_limit_headers(headers)
    assert (found.what, found.remaining) == told[:2]
    assert found.seconds == pytest.approx(told[2])


@given(st.text(max_size=12), st.text(max_size=12))
def test_headers_that_mean_nothing_say_nothing(remaining: str, reset: str) -> None:
    for found in parse_rate_limit_headers({"ratelimit-remaining": remaining, "ratelimit-reset": reset}):
        assert found.remaining >= 0
        assert found.seconds >= 0

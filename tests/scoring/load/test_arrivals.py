"""Schedules of an open loop: rates, shapes, no drift, and the same times from the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scoring import load_schedule


def _first(times: object, count: int) -> np.ndarray:
    return np.array(list(itertools.islice(times, count)))  # type: ignore[call-overload]


def test_constant_arrivals_do_not_drift() -> None:
    # A sum of a million gaps of 0.1 is off by microseconds; products are not.
    times = itertools.islice(load_schedule.constant_arrivals(10.0), 1_000_000, None)
    assert next(times) == 100_000.0


@pytest.mark.parametrize("rate", [0.5, 100.0])
def test_poisson_gaps_are_exponential(rate: float) -> None:
    gaps = np.diff(_first(load_schedule.poisson_arrivals(rate, 7, "step"), 20_000))
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.03)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.03)
    assert np.quantile(gaps, 0.95) == pytest.approx(-np.log(0.05) / rate, rel=0.05)


@pytest.mark.parametrize("burst", [0.25, 1.0, 4.0])
def test_bursty_gaps_have_the_rate_and_the_variation(burst: float) -> None:
    gaps = np.diff(_first(load_schedule.bursty_arrivals(20.0, burst, 7), 40_000))
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.04)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(burst, rel=0.12)


@given(st.integers(0, 2**31), st.floats(0.01, 1e4))
def test_the_same_seed_gives_the_same_times_and_they_ascend(seed: int, rate: float) -> None:
    one, other = (_first(load_schedule.poisson_arrivals(rate, seed, "a"), 50) for _ in range(2))
    assert (one == other).all()
    assert (np.diff(one) >= 0).all()
    assert (one != _first(load_schedule.poisson_arrivals(rate, seed, "b"), 50)).any()


def test_replayed_times_keep_their_gaps_and_begin_anew() -> None:
    times = _first(load_schedule.replay_arrivals([100.0, 101.0, 104.0]), 6)
    assert times.tolist() == [0.0, 1.0, 4.0, 6.0, 7.0, 10.0]


def test_replayed_times_are_stretched_to_a_rate() -> None:
    times = _first(load_schedule.replay_arrivals([0.0, 1.0, 4.0, 9.0], 30.0), 30_001)
    assert 30_000 / times[-1] == pytest.approx(30.0, rel=1e-3)


def test_times_that_are_all_the_same_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="two recorded times that differ"):
        next(load_schedule.replay_arrivals([3.0, 3.0]))

"""Latencies in bounded memory: quantiles, merging, storing, and what is no latency."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scoring.load_latency import LatencyHistogram

_SECONDS = st.lists(st.floats(1e-6, 3600.0), min_size=1, max_size=200)


def _of(values: list[float]) -> LatencyHistogram:
    made = LatencyHistogram()
    for value in values:
        made.record(value)
    return made


@given(_SECONDS, st.floats(0.0, 1.0))
def test_quantiles_are_those_of_the_values_to_three_digits(values: list[float], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert _of(values).quantile(share) == pytest.approx(exact, rel=2e-3, abs=2e-6)


@given(_SECONDS, _SECONDS)
def test_merged_is_as_if_recorded_together(one: list[float], other: list[float]) -> None:
    merged, together = _of(one), _of(one + other)
    merged.merge(_of(other))
    assert len(merged) == len(together)
    assert merged.mean == pytest.approx(together.mean)
    assert [merged.quantile(share) for share in (0.5, 0.95, 1.0)] == [
        together.quantile(share) for share in (0.5, 0.95, 1.0)
    ]


def test_a_record_gives_an_equal_histogram() -> None:
    made = _of(np.random.default_rng(3).exponential(0.2, 5000).tolist())
    again = LatencyHistogram.from_record(made.to_record())
    assert again.to_record() == made.to_record()
    assert again.quantile(0.99) == made.quantile(0.99)
    with pytest.raises(ValueError, match="damaged"):
        LatencyHistogram.from_record({"hdr": "nonsense", "total": 1.0, "longest": 1.0})


def test_negative_and_missing_latencies_are_errors() -> None:
    for value in (-1e-9, float("nan")):
        with pytest.raises(ValueError, match="a latency of"):
            _of([value])
    assert (_of([]).quantile(0.5), _of([]).mean, len(_of([]))) == (None, None, 0)


def test_the_distribution_ascends_to_one() -> None:
    points = _of([0.1] * 90 + [1.0] * 10).shares()
    assert points[-1] == (pytest.approx(1.0), 1.0)
    assert points == sorted(points)

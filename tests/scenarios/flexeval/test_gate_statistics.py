"""The gate against a baseline: how often it is red without a regression, and how often it finds one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from release_pairs import Draw, alarms, collected, continuous, passed, seldom, skewed

from viva.scenarios.flexeval.gates import checked_gate
from viva.scenarios.flexeval.spec import Threshold
from viva.scoring.planning import power_of

PAIRS, ALPHA = 1000, 0.05


def _binomial(chance: float) -> tuple[float, float]:
    """Between what counts 99.9% of the samples of so many pairs lie."""
    from scipy.stats import binom

    low, high = binom.interval(0.999, PAIRS, chance)
    return float(low), float(high)


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (continuous, {}),
        (continuous, {"conversations": 10}),
        (continuous, {"conversations": 110}),  # Student's t
        (skewed, {}),
        (skewed, {"repeats": 4, "conversations": 20}),
    ],
)
def test_false_alarms_of_one_metric_come_at_the_stated_rate(draw: Draw, shape: dict[str, Any]) -> None:
    low, high = _binomial(ALPHA)
    assert low <= alarms(draw, PAIRS, alpha=ALPHA, **shape) <= high


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (passed, {}),
        (passed, {"repeats": 3}),
        (seldom, {"conversations": 200}),
        (continuous, {"conversations": 5}),
    ],
)
def test_ties_and_few_conversations_make_false_alarms_rarer_never_more_frequent(
    draw: Draw, shape: dict[str, Any]
) -> None:
    # p takes few values there: the largest one below alpha lies well below it.
    assert alarms(draw, PAIRS, alpha=ALPHA, **shape) <= _binomial(ALPHA)[1]


def test_false_alarms_among_twenty_metrics_come_at_the_stated_rate_together() -> None:
    # With 12 conversations all 4,096 signs are tried: the largest p below alpha / 20 is 10 / 4,096.
    low, high = _binomial(1.0 - (1.0 - 10 / 4096) ** 20)
    assert low <= alarms(continuous, PAIRS, metrics=20, conversations=12, alpha=ALPHA) <= high


def test_a_planted_regression_is_found_at_the_stated_power() -> None:
    # Half a standard deviation of the conversations' differences, which is sqrt(2) for this kind of values. One-sided
    # at alpha is two-sided at 2 alpha, but for findings on the wrong side, which have no chance here.
    stated = power_of(0.5, 40, 1.0 - 2 * ALPHA)
    assert stated == pytest.approx(0.928, abs=0.001)
    low, high = _binomial(stated)
    found = alarms(continuous, PAIRS, fall=0.5 * math.sqrt(2), alpha=ALPHA)
    assert low <= found <= high


def test_a_fall_within_the_margin_is_none_and_one_beyond_it_is_red() -> None:
    import numpy as np

    before = np.linspace(0.0, 4.0, 30)[:, None]
    then = {"app": collected({"score": before})}
    for fall, broken in ((0.4, False), (0.6, True)):
        now = {"app": collected({"score": before - fall})}
        [check] = checked_gate([Threshold(metric="score", fall=0.5)], now, {}, {}, then, ALPHA)
        assert check.broken is broken
        assert check.was is not None
        assert check.found is not None
        assert check.was - check.found == pytest.approx(fall)
        assert check.by == pytest.approx(0.1 if broken else 0.0)
        assert check.n == 30


def test_a_rise_is_a_fall_seen_from_the_other_side() -> None:
    import numpy as np

    random = np.random.default_rng(3)
    values = {name: random.normal(size=(25, 2)) for name in ("one", "other")}
    now, then = ({"app": collected({"score": values[name]})} for name in values)
    turned, before = ({"app": collected({"score": -values[name]})} for name in values)
    [rise] = checked_gate([Threshold(metric="score", rise=0.1)], now, {}, {}, then, ALPHA)
    [fall] = checked_gate([Threshold(metric="score", fall=0.1)], turned, {}, {}, before, ALPHA)
    assert rise.p == pytest.approx(fall.p)
    assert rise.broken == fall.broken
    assert rise.found == pytest.approx(-(fall.found or 0.0))


def test_few_conversations_cannot_be_red_and_five_can() -> None:
    import numpy as np

    for conversations, red in ((4, False), (5, True)):  # 2 ** -4 > alpha > 2 ** -5
        now, then = ({"app": collected({"score": np.full((conversations, 1), value)})} for value in (0.0, 1.0))
        [check] = checked_gate([Threshold(metric="score", fall=0.0)], now, {}, {}, then, ALPHA)
        assert check.p == pytest.approx(2.0**-conversations)
        assert check.broken is red

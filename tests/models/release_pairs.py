"""Simulated values of two releases of one application, conversation by conversation, without running anything.

The difficulty of a conversation is common to both releases; what is left differs by chance alone, so that the releases
could be exchanged on each conversation, unless a fall is planted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from viva.scenarios.flexeval.gate import check_gate
from viva.scenarios.flexeval.metric_values import DialogTest, MetricSeries, SystemValues
from viva.scenarios.flexeval.spec import Threshold

Floats = NDArray[np.float64]
# From random numbers, conversations and repeats: the values of one release (conversations x repeats).
Draw = Callable[[np.random.Generator, Floats, int], Floats]


def continuous(draw: np.random.Generator, difficulty: Floats, repeats: int) -> Floats:
    """A score with as much chance as difficulty."""
    return difficulty[:, None] + draw.normal(size=(len(difficulty), repeats))


def skewed(draw: np.random.Generator, difficulty: Floats, repeats: int) -> Floats:
    """Lengths or latencies: a few are many times the rest."""
    return np.exp(1.5 * difficulty[:, None] + draw.normal(size=(len(difficulty), repeats)))


def passed(draw: np.random.Generator, difficulty: Floats, repeats: int) -> Floats:
    """0 or 1; most conversations are easy or hard for both releases, so that most differences are 0."""
    chance = 1.0 / (1.0 + np.exp(-6.0 * difficulty))
    return (draw.random((len(difficulty), repeats)) < chance[:, None]).astype(float)


def seldom(draw: np.random.Generator, difficulty: Floats, repeats: int) -> Floats:
    """1 in two conversations of a hundred: few differences in many conversations."""
    return (draw.random((len(difficulty), repeats)) < 0.02).astype(float)


def collected(metrics: dict[str, Floats]) -> SystemValues:
    """What a run collects of these values, each metric's as conversations x repeats."""
    found = SystemValues()
    for name, values in metrics.items():
        conversations, repeats = values.shape
        if not found.tests:
            found.tests = [DialogTest(f"c{one}", {}) for one in range(conversations) for _ in range(repeats)]
        series = found.series[name] = MetricSeries()
        series.numbers = array("d", values.ravel().tolist())
        series.tests = array("i", range(values.size))
        series.choices, series.roles = array("i", [-1]) * values.size, array("b", [3]) * values.size
        series.units = array("i", [0]) * values.size
    return found


def alarms(
    draw: Draw,
    pairs: int,
    *,
    conversations: int = 40,
    repeats: int = 1,
    metrics: int = 1,
    fall: float = 0.0,
    alpha: float = 0.05,
    seed: int = 0,
) -> int:
    """In how many of ``pairs`` release pairs the gate is red. ``fall`` is planted in all of the later one's metrics."""
    random = np.random.default_rng([1935, seed])
    thresholds = [Threshold(metric=f"m{one}", fall=0.0) for one in range(metrics)]
    red = 0
    for _ in range(pairs):
        difficulties = {one.metric: random.normal(size=conversations) for one in thresholds}
        before, after = ({name: draw(random, one, repeats) for name, one in difficulties.items()} for _ in range(2))
        after = {name: values - fall for name, values in after.items()}
        checks = check_gate(thresholds, {"app": collected(after)}, {}, {}, {"app": collected(before)}, alpha)
        red += any(check.broken for check in checks)
    return red

"""Pass rates corrected for a judge that errs: by its sensitivity and specificity, and by its predictive values.

``rogan_gladen``       needs only that the judge finds as many of the good and of the bad answers here as where it was
                       compared with people (Rogan and Gladen 1978), which may have been another run.
``predictive_rate``    for grades of answers drawn from the run itself: what people say of those that the judge passed
                       and of those that it failed, weighed by how many there are of each. That is the
                       prediction-powered rate (of a judge with two scores), and the more exact of the two: Rogan and
                       Gladen's leaves unused how many of the graded answers people passed.

Both intervals come from draws of the three shares, each from the beta distribution of its counts with half a count
more on either side (Jeffreys). In simulations (``benches/certified.py``) they hold for 30 labels and shares near 1,
where those of the delta method have a width of 0 and those of Lang and Reiczigel 2014 are up to 4 points too sure.

What never belongs here: scores of more than two values (``means``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..intervals import Estimate, Floats, check_level
from .means import corrected_difference, corrected_mean
from .sample import Sample
from .tuned import Tuned

Which: TypeAlias = NDArray[np.bool_]

_DRAWS = 4_000
_SEED = 28
# A judge that tells good from bad no better than this has no rate computed from its words.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Share:
    """A share, 0–1, of so many independent answers; not whole numbers where answers have weights or clusters."""

    value: float
    n: float

    def draws(self, source: np.random.Generator) -> Floats:
        """Values that the true share may have."""
        part = self.value * self.n
        return source.beta(part + 0.5, self.n - part + 0.5, _DRAWS)


@dataclass(frozen=True, slots=True)
class Confusion:
    """What people's pass and fail say of a judge's.

    ``sensitivity`` and ``specificity``: which share of the answers that people pass (fail) the judge passes (fails).
    ``passed`` and ``failed``: which share of the answers that the judge passes (fails) people pass. A share of which
    there is no answer has n = 0 and the value 0.5.
    """

    sensitivity: Share
    specificity: Share
    passed: Share
    failed: Share


def confusion(sample: Sample) -> Confusion:
    """The shares of a sample's graded answers; scores and grades are 0 and 1.

    :raises ValueError: one of them is something else.
    """
    f, y = sample.scores, sample.known_grades()
    if not (np.isin(f, (0.0, 1.0)).all() and np.isin(y, (0.0, 1.0)).all()):
        raise ValueError("pass rates need scores and grades of 0 (fail) and 1 (pass)")
    good, passed = y == 1.0, f == 1.0
    return Confusion(
        _share(sample, good, passed),
        _share(sample, ~good, ~passed),
        _share(sample, passed, good),
        _share(sample, ~passed, good),
    )


def rogan_gladen(passed: Share, sensitivity: Share, specificity: Share, level: float = 0.95) -> Estimate:
    """The rate (passed + specificity - 1) / (sensitivity + specificity - 1), within 0–1, with its interval.

    ``passed`` is the judge's pass rate, of other answers than the two shares were counted on. A judge that tells
    nothing (sensitivity + specificity near 1) makes the interval all of 0–1.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    check_level(level)
    source = np.random.default_rng(_SEED)
    q, se, sp = (one.draws(source) for one in (passed, sensitivity, specificity))
    told = se + sp - 1.0
    # Draws of a judge that tells nothing, or the opposite, say nothing of the rate: they lie at either end.
    sides = np.where(np.arange(_DRAWS) % 2 == 0, 0.0, 1.0)
    rates = np.where(told > _LEAST, (q + sp - 1.0) / np.maximum(told, _LEAST), sides)
    plain = sensitivity.value + specificity.value - 1.0
    value = (passed.value + specificity.value - 1.0) / plain if plain > _LEAST else passed.value
    return _within(value, rates, level)


def predictive_rate(sample: Sample, level: float = 0.95) -> Estimate:
    """The pass rate by predictive values, with its interval.

    :raises ValueError: scores or grades are not 0 and 1, no answer has a grade, or ``level`` is not between 0 and 1.
    """
    check_level(level)
    if not sample.labels:
        raise ValueError("no answer has a grade")
    told = confusion(sample)
    everywhere = _share(sample, np.ones_like(sample.graded), sample.scores == 1.0, np.ones_like(sample.scores))
    source = np.random.default_rng(_SEED)
    q, good, bad = (one.draws(source) for one in (everywhere, told.passed, told.failed))
    value = everywhere.value * told.passed.value + (1.0 - everywhere.value) * told.failed.value
    return _within(value, q * good + (1.0 - q) * bad, level)


def remainder(sample: Sample) -> Share:
    """The judge's pass rate among the answers without a grade; among all where each has one."""
    left = ~sample.graded if not sample.graded.all() else np.ones_like(sample.graded)
    return _share(sample, left, sample.scores == 1.0, left.astype(np.float64))


def rate_difference(
    first: Sample, second: Sample, ends: tuple[Estimate, Estimate], level: float = 0.95
) -> tuple[Estimate, Tuned | None]:
    """The difference of two rates from their intervals ``ends``, and the tuned difference that tells their correlation.

    MOVER (Zou and Donner 2008, "Construction of confidence limits about effect measures", Statistics in Medicine 27,
    equation 8), with the correlation of the two by the clusters that they share.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    check_level(level)
    one, other = ends
    try:
        tuned = corrected_difference(first, second)
        alone = [corrected_mean(sample) for sample in (first, second)]
    except ValueError:  # too few labels for a correlation: as if independent
        tuned, together = None, 0.0
    else:
        together = _correlation(alone[0].deviations, alone[1].deviations)
    value = one.value - other.value
    down = _hypot(one.value - one.low, other.high - other.value, together)
    up = _hypot(one.high - one.value, other.value - other.low, together)
    return Estimate(value, max(-1.0, value - down), min(1.0, value + up)), tuned


def _hypot(a: float, b: float, correlation: float) -> float:
    return math.sqrt(max(0.0, a * a + b * b - 2.0 * correlation * a * b))


def _correlation(one: Floats, other: Floats) -> float:
    size = max(one.size, other.size)
    a, b = (np.pad(row, (0, size - row.size)) for row in (one, other))
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0.0 else 0.0


def _share(sample: Sample, among: Which, which: Which, weights: Floats | None = None) -> Share:
    """The weighted share of ``which`` ``among`` answers, and of how many independent ones it is worth.

    That is Kish's effective number of clusters for weights, times or over what clustering adds to the variance (the
    design effect, Korn and Graubard 1998); never more than there are answers.
    """
    w = np.where(among, sample.weights if weights is None else weights, 0.0)
    held = w > 0.0
    if not held.any():
        return Share(0.5, 0.0)
    value = float(np.where(which, w, 0.0).sum() / w.sum())
    answers = float(w.sum() ** 2 / (w**2).sum())
    clusters = np.unique(sample.clusters[held]).size
    if clusters == held.sum():
        return Share(value, answers)
    residuals = sample.totals(w * (which - value), w)
    variance = float((residuals[:, 0] ** 2).sum()) / w.sum() ** 2 * clusters / max(clusters - 1, 1)
    plain = value * (1.0 - value)
    if plain == 0.0 or variance == 0.0:  # nothing to see it by: as if each cluster were of one mind
        return Share(value, float(w.sum() ** 2 / (residuals[:, 1] ** 2).sum()))
    return Share(value, min(answers, plain / variance))


def _within(value: float, draws: Floats, level: float) -> Estimate:
    low, high = np.quantile(np.clip(draws, 0.0, 1.0), [(1.0 - level) / 2, (1.0 + level) / 2])
    held = min(max(value, 0.0), 1.0)
    return Estimate(held, min(float(low), held), max(float(high), held))

"""All corrected figures of several candidates at once: as judged, corrected, what labels are worth, and the gaps.

What never belongs here: reading scores and grades, and how figures are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..intervals import Estimate, Floats
from ..regression import pearson
from .correlations import back, corrected_pearson, corrected_spearman
from .means import corrected_difference, corrected_mean, mean_parts
from .rates import Confusion, confusion, predictive_rate, rate_difference, remainder, rogan_gladen
from .sample import Sample
from .tuned import Tuned, tune


@dataclass(frozen=True, slots=True)
class Scale:
    """Scores and grades: numbers from ``low`` to ``high`` (infinite where unknown), or pass and fail (1, 0)."""

    low: float = -math.inf
    high: float = math.inf
    passes: bool = False

    def within(self, found: Estimate, *, difference: bool = False) -> Estimate:
        """An estimate with its ends within the bounds, or those of a difference."""
        low, high = (self.low - self.high, self.high - self.low) if difference else (self.low, self.high)
        return Estimate(*(min(max(end, low), high) for end in (found.value, found.low, found.high)))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. ``judged`` is what the judge's scores alone say; ``corrected`` is None of too few labels, and so are
    ``labels_alone`` (what the grades say without the judge) and ``worth`` (so many of these would be as exact).
    """

    answers: int
    labels: int
    judged: Estimate
    corrected: Estimate | None
    labels_alone: Estimate | None
    worth: float | None
    powers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """How far a judge is off. ``mean``: score - grade; ``absolute``: its size on average; ``r`` between the two.

    Of pass and fail: ``errors`` and ``rogan_gladen``, the rate by sensitivity and specificity.
    """

    mean: Estimate | None
    absolute: float
    r: float | None
    errors: Confusion | None = None
    rogan_gladen: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The figures by candidate, their gaps, and the differences of pairs, first − second."""

    candidates: dict[str, Figure]
    gaps: dict[str, Gap]
    differences: dict[tuple[str, str], Figure]


def certify(samples: Mapping[str, Sample], scale: Scale, level: float = 0.95) -> Certificate:
    """Correct the means of candidates and their differences; clusters are numbered alike in all samples.

    :raises ValueError: a sample has no answer, ``level`` is not between 0 and 1, or scores and grades of pass and fail
        are not 0 and 1.
    """
    figures = {name: _figure(sample, scale, level) for name, sample in samples.items()}
    gaps = {name: _gap(sample, scale, level) for name, sample in samples.items() if sample.labels}
    pairs = {
        (one, other): _difference(samples[one], samples[other], (figures[one], figures[other]), scale, level)
        for one, other in combinations(samples, 2)
    }
    return Certificate(figures, gaps, pairs)


def correlation(known: Floats, sample: Sample, *, ranks: bool, level: float = 0.95) -> Figure | None:
    """The correlation of grades with something known of each answer; None where there are too few labels or no spread.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    compute = corrected_spearman if ranks else corrected_pearson
    judge = compute(known, _as_judged(sample)) if sample.scores.std() > 0.0 and known.std() > 0.0 else None
    try:
        found = compute(known, sample)
    except ValueError:
        return None
    if judge is None:
        return None
    return Figure(
        len(sample.scores),
        sample.labels,
        back(judge.interval(level)),
        back(found.interval(level)),
        None,
        found.worth(sample.labels),
        found.powers,
    )


def _as_judged(sample: Sample) -> Sample:
    return Sample(sample.scores, sample.scores, np.ones_like(sample.scores), sample.clusters)


def _figure(sample: Sample, scale: Scale, level: float) -> Figure:
    judged = _alone(_as_judged(sample), scale, level)
    if judged is None:  # one cluster alone
        mean = float(sample.scores.mean())
        judged = scale.within(Estimate(mean, -math.inf, math.inf))
    alone = _alone(sample, scale, level) if sample.labels else None
    tuned = _tried(sample)
    if tuned is None:
        return Figure(len(sample.scores), sample.labels, judged, None, alone, None)
    corrected = predictive_rate(sample, level) if scale.passes else scale.within(_seen(tuned, sample, scale, level))
    worth = _finite(tuned.worth(sample.labels), len(sample.scores))
    return Figure(len(sample.scores), sample.labels, judged, corrected, alone, worth, tuned.powers)


def _seen(tuned: Tuned, sample: Sample, scale: Scale, level: float) -> Estimate:
    """The interval; where no label departs from what the judge's scores tell, one that allows for answers unseen.

    A share u = z² / (n + z²) of answers may be off and not be among n labels, as in Wilson's interval of n right out of
    n; how far is not known, at most the scale's width.
    """
    from scipy.stats import norm

    found = tuned.interval(level)
    residuals = (sample.grades - tuned.powers[0] * sample.scores)[sample.graded]
    if float(np.ptp(residuals)) > 1e-9 * max(1.0, float(np.abs(residuals).max())) or math.isinf(scale.high - scale.low):
        return found
    z = float(norm.ppf((1.0 + level) / 2))
    unseen = z * z / (sample.labels + z * z)
    return Estimate(
        found.value,
        min(found.low, found.value - unseen * (found.value - scale.low)),
        max(found.high, found.value + unseen * (scale.high - found.value)),
    )


def _alone(sample: Sample, scale: Scale, level: float) -> Estimate | None:
    """The mean of the grades without any correction."""
    if scale.passes:
        constant = Sample(np.zeros_like(sample.scores), sample.grades, sample.weights, sample.clusters)
        return predictive_rate(constant, level)
    try:
        return scale.within(tune([mean_parts(sample)], [1.0], [0.0]).interval(level))
    except ValueError:
        return None


def _tried(sample: Sample) -> Tuned | None:
    try:
        return corrected_mean(sample)
    except ValueError:
        return None


def _difference(one: Sample, other: Sample, figures: tuple[Figure, Figure], scale: Scale, level: float) -> Figure:
    answers, labels = len(one.scores) + len(other.scores), one.labels + other.labels
    judged = _plain_difference(_as_judged(one), _as_judged(other), level)
    first, second = figures[0].corrected, figures[1].corrected
    if first is None or second is None:
        return Figure(answers, labels, judged, None, None, None)
    alone = _plain_difference(one, other, level)
    if scale.passes:
        corrected, tuned = rate_difference(one, other, (first, second), level)
        worth = None if tuned is None else tuned.worth(labels)
        return Figure(answers, labels, judged, corrected, alone, worth, () if tuned is None else tuned.powers)
    try:
        found = corrected_difference(one, other)
    except ValueError:
        return Figure(answers, labels, judged, None, alone, None)
    corrected = scale.within(found.interval(level), difference=True)
    return Figure(answers, labels, judged, corrected, alone, _finite(found.worth(labels), answers), found.powers)


def _plain_difference(one: Sample, other: Sample, level: float) -> Estimate:
    count = max(one.count, other.count)
    try:
        return tune([mean_parts(one, count), mean_parts(other, count)], [1.0, -1.0], [0.0, 0.0]).interval(level)
    except ValueError:
        value = float(one.scores.mean() - other.scores.mean())
        return Estimate(value, -math.inf, math.inf)


def _gap(sample: Sample, scale: Scale, level: float) -> Gap:
    graded = sample.graded
    score, grade, weight = sample.scores[graded], sample.grades[graded], sample.weights[graded]
    off = Sample(score, score - grade, weight, sample.clusters[graded])
    try:
        mean = scale.within(tune([mean_parts(off)], [1.0], [0.0]).interval(level), difference=True)
    except ValueError:
        mean = None
    absolute = float((weight * np.abs(score - grade)).sum() / weight.sum())
    r = pearson(score.tolist(), grade.tolist())
    if not scale.passes:
        return Gap(mean, absolute, None if r is None else r[0])
    told = confusion(sample)
    rate = rogan_gladen(remainder(sample), told.sensitivity, told.specificity, level)
    return Gap(mean, absolute, None if r is None else r[0], told, rate)


def _finite(worth: float, answers: int) -> float:
    """A worth that is not more than all answers with grades: more is never gained by labels."""
    return min(worth, float(answers))

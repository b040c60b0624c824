"""All corrected figures of several candidates at once: as judged, corrected, what labels are worth, and the gaps.

What never belongs here: reading scores and grades, and how figures are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..intervals import Estimate, Floats
from ..regression import pearson
from .correlations import back, corrected_pearson, corrected_spearman
from .means import corrected_difference, corrected_mean, mean_parts
from .rates import Confusion, confusion, remainder, rogan_gladen
from .sample import Sample
from .tuned import Tuned, tune


@dataclass(frozen=True, slots=True)
class Scale:
    """Scores and grades: numbers from ``low`` to ``high`` (infinite where unknown), or pass and fail (1, 0)."""

    low: float = -math.inf
    high: float = math.inf
    passes: bool = False

    def __post_init__(self) -> None:
        if self.passes:
            object.__setattr__(self, "low", 0.0)
            object.__setattr__(self, "high", 1.0)

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

    The intervals of differences hold together for all pairs (Bonferroni), each at 1 - (1 - ``level``)/pairs: with five
    equal candidates, one in five studies would find two of them apart by intervals of single pairs.

    :raises ValueError: a sample has no answer, ``level`` is not between 0 and 1, or scores and grades of pass and fail
        are not 0 and 1.
    """
    figures = {name: _figure(sample, scale, level) for name, sample in samples.items()}
    gaps = {name: _gap(sample, scale, level) for name, sample in samples.items() if sample.labels}
    pairs = list(combinations(samples, 2))
    together = 1.0 - (1.0 - level) / max(1, len(pairs))
    differences = {
        (one, other): _difference(samples[one], samples[other], (figures[one], figures[other]), scale, together)
        for one, other in pairs
    }
    return Certificate(figures, gaps, differences)


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
    count = len(sample.scores)
    judged = _interval(_untuned([_as_judged(sample)]), scale, level)
    if judged is None:  # one cluster alone
        mean = float(sample.scores.mean())
        judged = scale.within(Estimate(mean, -math.inf, math.inf))
    plain, tuned = _untuned([sample]), _tuned([sample])
    alone, corrected = _interval(plain, scale, level), _interval(tuned, scale, level)
    if plain is None or tuned is None or alone is None or corrected is None:
        return Figure(count, sample.labels, judged, None, alone, None)
    worth = _worth(tuned, plain, (corrected, alone), sample.labels, scale, level)
    return Figure(count, sample.labels, judged, corrected, alone, min(worth, float(count)), tuned.powers)


def _difference(one: Sample, other: Sample, figures: tuple[Figure, Figure], scale: Scale, level: float) -> Figure:
    pair = [one, other]
    answers, labels = len(one.scores) + len(other.scores), one.labels + other.labels
    judged = _interval(_untuned([_as_judged(sample) for sample in pair]), scale, level)
    if judged is None:
        value = float(one.scores.mean() - other.scores.mean())
        judged = scale.within(Estimate(value, -math.inf, math.inf), difference=True)
    if figures[0].corrected is None or figures[1].corrected is None:
        return Figure(answers, labels, judged, None, None, None)
    plain, tuned = _untuned(pair), _tuned(pair)
    alone, corrected = _interval(plain, scale, level), _interval(tuned, scale, level)
    if plain is None or tuned is None or alone is None or corrected is None:
        return Figure(answers, labels, judged, None, alone, None)
    worth = _worth(tuned, plain, (corrected, alone), labels, scale, level)
    return Figure(answers, labels, judged, corrected, alone, min(worth, float(answers)), tuned.powers)


def _untuned(samples: Sequence[Sample]) -> Tuned | None:
    """Return the mean of the grades alone, or the difference of two; None where too few clusters have grades."""
    count = max(sample.count for sample in samples)
    signs = [1.0, -1.0][: len(samples)]
    try:
        return tune([mean_parts(sample, count) for sample in samples], signs, [0.0] * len(samples))
    except ValueError:
        return None


def _tuned(samples: Sequence[Sample]) -> Tuned | None:
    try:
        return corrected_mean(*samples) if len(samples) == 1 else corrected_difference(*samples)
    except ValueError:
        return None


def _interval(found: Tuned | None, scale: Scale, level: float) -> Estimate | None:
    if found is None:
        return None
    return scale.within(found.interval(level, scale.low, scale.high), difference=len(found.terms) > 1)


def _worth(
    tuned: Tuned, plain: Tuned, intervals: tuple[Estimate, Estimate], labels: int, scale: Scale, level: float
) -> float:
    """Return how many labels alone would give as short an interval as these ``labels`` do with the judge.

    The widths of labels alone fall with some power of their number, between 1/2 and 1; four times as many tell which.
    """
    if math.isinf(scale.high - scale.low):
        return tuned.worth(labels)
    corrected, alone = (one.high - one.low for one in intervals)
    more = plain.interval(level, scale.low, scale.high, times=4.0)
    power = math.log(alone / (more.high - more.low)) / math.log(4.0)
    times = (alone / corrected) ** (1.0 / min(max(power, 0.5), 1.0))
    return float(labels * times)


def _gap(sample: Sample, scale: Scale, level: float) -> Gap:
    graded = sample.graded
    score, grade, weight = sample.scores[graded], sample.grades[graded], sample.weights[graded]
    off = _untuned([Sample(score, score - grade, weight, sample.clusters[graded])])
    judged = float((weight * score).sum() / weight.sum())
    mean = None if off is None else off.interval(level, judged - scale.high, judged - scale.low)
    absolute = float((weight * np.abs(score - grade)).sum() / weight.sum())
    r = pearson(score.tolist(), grade.tolist())
    if not scale.passes:
        return Gap(mean, absolute, None if r is None else r[0])
    told = confusion(sample)
    rate = rogan_gladen(remainder(sample), told.sensitivity, told.specificity, level)
    return Gap(mean, absolute, None if r is None else r[0], told, rate)

"""Certificate of a judge: corrected figures, its errors, which answers to label next, and its drift.

Rogan and Gladen's rate (1978) needs only that the judge finds as many of the good and of the bad answers here as
where it was compared with people. Answers are drawn with known probabilities in proportion to how far the grade
is expected to lie from what the judge's score tells. The test of drift is a conformal test martingale (Vovk,
Nouretdinov and Gammerman 2003, "Testing exchangeability on-line", ICML).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .confidence_sequences import ConfidenceSequences
from .correlation import pearson
from .intervals import Estimate, Floats, check_level, student_quantile
from .prediction_powered import (
    GradedSample,
    PoweredEstimate,
    corrected_difference,
    corrected_mean,
    corrected_pearson,
    corrected_spearman,
    from_fisher,
    mean_parts,
    tune_power,
)

Mask: TypeAlias = NDArray[np.bool_]

_RATE_DRAWS = 4_000
_RATE_SEED = 28
# A judge that tells good from bad no better than this has no rate computed from its words.
_MIN_INFORMATION = 0.01


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share, 0–1, of so many independent answers; not whole numbers where answers have weights or clusters."""

    value: float
    n: float

    def draws(self, source: np.random.Generator) -> Floats:
        """Values that the true share may have."""
        part = self.value * self.n
        return source.beta(part + 0.5, self.n - part + 0.5, _RATE_DRAWS)


@dataclass(frozen=True, slots=True)
class JudgeConfusion:
    """What people's pass and fail say of a judge's.

    ``sensitivity`` and ``specificity``: which share of the answers that people pass (fail) the judge passes (fails).
    ``passed`` and ``failed``: which share of the answers that the judge passes (fails) people pass. A share of which
    there is no answer has n = 0 and the value 0.5.
    """

    sensitivity: Proportion
    specificity: Proportion
    passed: Proportion
    failed: Proportion


def judge_confusion(sample: GradedSample) -> JudgeConfusion:
    """The shares of a sample's graded answers; scores and grades are 0 and 1."""
    f, y = sample.scores, sample.known_grades()
    if not (np.isin(f, (0.0, 1.0)).all() and np.isin(y, (0.0, 1.0)).all()):
        raise ValueError("pass rates need scores and grades of 0 (fail) and 1 (pass)")
    good, passed = y == 1.0, f == 1.0
    return JudgeConfusion(
        _weighted_proportion(sample, good, passed),
        _weighted_proportion(sample, ~good, ~passed),
        _weighted_proportion(sample, passed, good),
        _weighted_proportion(sample, ~passed, good),
    )


def rogan_gladen(passed: Proportion, sensitivity: Proportion, specificity: Proportion, level: float = 0.95) -> Estimate:
    """The rate (passed + specificity - 1) / (sensitivity + specificity - 1), within 0–1, with its interval.

    ``passed`` is the judge's pass rate, of other answers than the two shares were counted on. A judge that tells
    nothing (sensitivity + specificity near 1) makes the interval all of 0–1.
    """
    check_level(level)
    source = np.random.default_rng(_RATE_SEED)
    q, se, sp = (proportion.draws(source) for proportion in (passed, sensitivity, specificity))
    information = se + sp - 1.0
    # Draws of a judge that tells nothing, or the opposite, say nothing of the rate: they lie at either end.
    sides = np.where(np.arange(_RATE_DRAWS) % 2 == 0, 0.0, 1.0)
    rates = np.where(information > _MIN_INFORMATION, (q + sp - 1.0) / np.maximum(information, _MIN_INFORMATION), sides)
    plain = sensitivity.value + specificity.value - 1.0
    value = (passed.value + specificity.value - 1.0) / plain if plain > _MIN_INFORMATION else passed.value
    return _rate_interval(value, rates, level)


def ungraded_pass_rate(sample: GradedSample) -> Proportion:
    """The judge's pass rate among the answers without a grade; among all where each has one."""
    ungraded = ~sample.graded if not sample.graded.all() else np.ones_like(sample.graded)
    return _weighted_proportion(sample, ungraded, sample.scores == 1.0, ungraded.astype(np.float64))


def _weighted_proportion(sample: GradedSample, base: Mask, subset: Mask, weights: Floats | None = None) -> Proportion:
    """The weighted share of ``which`` ``among`` answers, and of how many independent ones it is worth.

    That is Kish's effective number of clusters for weights, times or over what clustering adds to the variance (the
    design effect), its degrees of freedom adjusted to those of the clusters; never more than there are answers.

    Source: Korn and Graubard 1998, "Confidence intervals for proportions with small expected number of positive
        counts estimated from survey data", Survey Methodology 24, section 2.
    """
    w = np.where(base, sample.weights if weights is None else weights, 0.0)
    counted = w > 0.0
    if not counted.any():
        return Proportion(0.5, 0.0)
    value = float(np.where(subset, w, 0.0).sum() / w.sum())
    answers = float(w.sum() ** 2 / (w**2).sum())
    clusters = np.unique(sample.clusters[counted]).size
    if clusters == counted.sum():
        return Proportion(value, answers)
    residuals = sample.totals(w * (subset - value), w)
    variance = float((residuals[:, 0] ** 2).sum()) / w.sum() ** 2 * clusters / max(clusters - 1, 1)
    plain = value * (1.0 - value)
    if plain == 0.0 or variance == 0.0:  # nothing to see it by: as if each cluster were of one mind
        return Proportion(value, float(w.sum() ** 2 / (residuals[:, 1] ** 2).sum()))
    freedom = student_quantile(0.975, max(answers - 1.0, 1.0)) / student_quantile(0.975, max(clusters - 1.0, 1.0))
    return Proportion(value, min(answers, plain / variance * float(freedom) ** 2))


def _rate_interval(value: float, draws: Floats, level: float) -> Estimate:
    low, high = np.quantile(np.clip(draws, 0.0, 1.0), [(1.0 - level) / 2, (1.0 + level) / 2])
    rate = min(max(value, 0.0), 1.0)
    return Estimate(rate, min(float(low), rate), max(float(high), rate))


@dataclass(frozen=True, slots=True)
class GradeRange:
    """Scores and grades: numbers from ``low`` to ``high`` (infinite where unknown), or pass and fail (1, 0)."""

    low: float = -math.inf
    high: float = math.inf
    passes: bool = False

    def __post_init__(self) -> None:
        if self.passes:
            object.__setattr__(self, "low", 0.0)
            object.__setattr__(self, "high", 1.0)

    def clip(self, estimate: Estimate, *, difference: bool = False) -> Estimate:
        """An estimate with its ends within the bounds, or those of a difference."""
        low, high = (self.low - self.high, self.high - self.low) if difference else (self.low, self.high)
        return Estimate(*(min(max(end, low), high) for end in (estimate.value, estimate.low, estimate.high)))


@dataclass(frozen=True, slots=True)
class CorrectedFigure:
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
class JudgeError:
    """How far a judge is off. ``mean``: score - grade; ``absolute``: its size on average; ``r`` between the two.

    Of pass and fail: ``errors`` and ``rogan_gladen``, the rate by sensitivity and specificity.
    """

    mean: Estimate | None
    absolute: float
    r: float | None
    errors: JudgeConfusion | None = None
    rogan_gladen: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The figures by candidate, their gaps, and the differences of pairs, first − second."""

    candidates: dict[str, CorrectedFigure]
    gaps: dict[str, JudgeError]
    differences: dict[tuple[str, str], CorrectedFigure]


def certify(samples: Mapping[str, GradedSample], scale: GradeRange, level: float = 0.95) -> Certificate:
    """Correct the means of candidates and their differences; clusters are numbered alike in all samples.

    The intervals of differences hold together for all pairs (Bonferroni), each at 1 - (1 - ``level``)/pairs: with five
    equal candidates, one in five studies would find two of them apart by intervals of single pairs.
    """
    figures = {name: _corrected_figure(sample, scale, level) for name, sample in samples.items()}
    gaps = {name: _judge_error(sample, scale, level) for name, sample in samples.items() if sample.labels}
    pairs = list(combinations(samples, 2))
    pair_level = 1.0 - (1.0 - level) / max(1, len(pairs))
    differences = {
        (first, second): _corrected_difference(
            samples[first], samples[second], (figures[first], figures[second]), scale, pair_level
        )
        for first, second in pairs
    }
    return Certificate(figures, gaps, differences)


def corrected_correlation(
    covariate: Floats, sample: GradedSample, *, ranks: bool, level: float = 0.95
) -> CorrectedFigure | None:
    """Correlate grades with something known of each answer; None if there are too few labels or no spread."""
    compute = corrected_spearman if ranks else corrected_pearson
    judge = compute(covariate, _judge_sample(sample)) if sample.scores.std() > 0.0 and covariate.std() > 0.0 else None
    try:
        estimate = compute(covariate, sample)
    except ValueError:
        return None
    if judge is None:
        return None
    return CorrectedFigure(
        len(sample.scores),
        sample.labels,
        from_fisher(judge.interval(level)),
        from_fisher(estimate.interval(level)),
        None,
        estimate.worth(sample.labels),
        estimate.powers,
    )


def _judge_sample(sample: GradedSample) -> GradedSample:
    return GradedSample(sample.scores, sample.scores, np.ones_like(sample.scores), sample.clusters)


def _corrected_figure(sample: GradedSample, scale: GradeRange, level: float) -> CorrectedFigure:
    count = len(sample.scores)
    judged = _figure_interval(_labels_alone([_judge_sample(sample)]), scale, level)
    if judged is None:  # one cluster alone
        mean = float(sample.scores.mean())
        judged = scale.clip(Estimate(mean, -math.inf, math.inf))
    plain, tuned = _labels_alone([sample]), _with_judge([sample])
    alone, corrected = _figure_interval(plain, scale, level), _figure_interval(tuned, scale, level)
    if plain is None or tuned is None or alone is None or corrected is None:
        return CorrectedFigure(count, sample.labels, judged, None, alone, None)
    worth = _effective_labels(tuned, plain, (corrected, alone), sample.labels, scale, level)
    return CorrectedFigure(count, sample.labels, judged, corrected, alone, min(worth, float(count)), tuned.powers)


def _corrected_difference(
    first: GradedSample,
    second: GradedSample,
    figures: tuple[CorrectedFigure, CorrectedFigure],
    scale: GradeRange,
    level: float,
) -> CorrectedFigure:
    pair = [first, second]
    answers, labels = len(first.scores) + len(second.scores), first.labels + second.labels
    judged = _figure_interval(_labels_alone([_judge_sample(sample) for sample in pair]), scale, level)
    if judged is None:
        value = float(first.scores.mean() - second.scores.mean())
        judged = scale.clip(Estimate(value, -math.inf, math.inf), difference=True)
    if figures[0].corrected is None or figures[1].corrected is None:
        return CorrectedFigure(answers, labels, judged, None, None, None)
    plain, tuned = _labels_alone(pair), _with_judge(pair)
    alone, corrected = _figure_interval(plain, scale, level), _figure_interval(tuned, scale, level)
    if plain is None or tuned is None or alone is None or corrected is None:
        return CorrectedFigure(answers, labels, judged, None, alone, None)
    worth = _effective_labels(tuned, plain, (corrected, alone), labels, scale, level)
    return CorrectedFigure(answers, labels, judged, corrected, alone, min(worth, float(answers)), tuned.powers)


def _labels_alone(samples: Sequence[GradedSample]) -> PoweredEstimate | None:
    """Return the mean of the grades alone, or the difference of two; None where too few clusters have grades."""
    count = max(sample.count for sample in samples)
    signs = [1.0, -1.0][: len(samples)]
    try:
        return tune_power([mean_parts(sample, count) for sample in samples], signs, [0.0] * len(samples))
    except ValueError:
        return None


def _with_judge(samples: Sequence[GradedSample]) -> PoweredEstimate | None:
    try:
        return corrected_mean(*samples) if len(samples) == 1 else corrected_difference(*samples)
    except ValueError:
        return None


def _figure_interval(estimate: PoweredEstimate | None, scale: GradeRange, level: float) -> Estimate | None:
    if estimate is None:
        return None
    return scale.clip(estimate.interval(level, scale.low, scale.high), difference=len(estimate.terms) > 1)


def _effective_labels(
    tuned: PoweredEstimate,
    plain: PoweredEstimate,
    intervals: tuple[Estimate, Estimate],
    labels: int,
    scale: GradeRange,
    level: float,
) -> float:
    """Return how many labels alone would give as short an interval as these ``labels`` do with the judge.

    The widths of labels alone fall with some power of their number, between 1/2 and 1; four times as many tell which.
    """
    if math.isinf(scale.high - scale.low):
        return tuned.worth(labels)
    corrected, alone = (interval.high - interval.low for interval in intervals)
    more = plain.interval(level, scale.low, scale.high, times=4.0)
    power = math.log(alone / (more.high - more.low)) / math.log(4.0)
    times = (alone / corrected) ** (1.0 / min(max(power, 0.5), 1.0))
    return float(labels * times)


def _judge_error(sample: GradedSample, scale: GradeRange, level: float) -> JudgeError:
    graded = sample.graded
    score, grade, weight = sample.scores[graded], sample.grades[graded], sample.weights[graded]
    mean_error = _labels_alone([GradedSample(score, score - grade, weight, sample.clusters[graded])])
    judged = float((weight * score).sum() / weight.sum())
    mean = None if mean_error is None else mean_error.interval(level, judged - scale.high, judged - scale.low)
    absolute = float((weight * np.abs(score - grade)).sum() / weight.sum())
    r = pearson(score.tolist(), grade.tolist())
    if not scale.passes:
        return JudgeError(mean, absolute, None if r is None else r[0])
    confusion = judge_confusion(sample)
    rate = rogan_gladen(ungraded_pass_rate(sample), confusion.sensitivity, confusion.specificity, level)
    return JudgeError(mean, absolute, None if r is None else r[0], confusion, rate)


# This share of each probability is the same for all answers (Zrnic and Candès take mixtures with the even one, too).
SPREAD_FLOOR = 0.2
# As many labels of average spread are mixed into each answer's estimate: a few labels are a poor guide.
_PRIOR = 5.0
# Answers whose scores are closer than this share of the scores' spread tell about each other.
_NEAR_SCORE = 0.2


@dataclass(frozen=True, slots=True)
class LabelDraw:
    """A draw of answers: which are ``chosen`` now, and with which probability each answer would have been.

    ``probabilities`` are those of this draw alone, for answers with a grade those that they would have had.
    """

    chosen: NDArray[np.bool_]
    probabilities: Floats


def expected_spread(sample: GradedSample) -> Floats:
    """How far each answer's grade is expected to lie from its part in the correction (root mean square).

    A kernel mean of the squared residuals of the labels over the judge's score, shrunk to the mean of all. Everywhere
    the same where too few labels tell anything.
    """
    try:
        power = corrected_mean(sample).powers[0]
    except ValueError:
        return np.ones_like(sample.scores)
    graded = sample.graded
    w, f = sample.weights[graded], sample.scores[graded]
    residual = sample.grades[graded] - power * f
    squares = (residual - (w * residual).sum() / w.sum()) ** 2
    average = float((w * squares).sum() / w.sum())
    width = _NEAR_SCORE * float(sample.scores.std())
    if average <= 0.0 or width <= 0.0:
        return np.ones_like(sample.scores)
    values, places = np.unique(sample.scores, return_inverse=True)
    near = np.exp(-0.5 * ((values[:, None] - f[None, :]) / width) ** 2)
    guess = (near @ squares + _PRIOR * average) / (near.sum(axis=1) + _PRIOR)
    spreads: Floats = np.sqrt(guess)[places]
    return spreads


def draw_answers(
    spreads: Floats, graded: NDArray[np.bool_], count: int, *, seed: int, floor: float = SPREAD_FLOOR
) -> LabelDraw:
    """Draw exactly ``count`` of the answers that are not ``graded``, with probabilities in proportion to ``spreads``.

    Systematic sampling in random order (Madow 1949) has exactly the probabilities that it is given. They are at most 1:
    what is cut off there goes to the others.
    """
    ungraded = np.flatnonzero(~graded)
    if not 1 <= count <= ungraded.size:
        raise ValueError(f"{count} answers to draw; {ungraded.size} have no grade")
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"floor is {floor}; it is a share above 0 and at most 1")
    targets = (1.0 - floor) * spreads / spreads.mean() + floor
    factor = _scale_to_count(targets[ungraded], count)
    probabilities = np.minimum(1.0, factor * targets)
    source = np.random.default_rng(seed)
    order = source.permutation(ungraded)
    ends = np.cumsum(probabilities[order])
    ends *= count / ends[-1]  # rounding
    marks = source.random() + np.arange(count)
    chosen = np.zeros(graded.size, dtype=bool)
    chosen[order[np.minimum(np.searchsorted(ends, marks, side="right"), ungraded.size - 1)]] = True
    return LabelDraw(chosen, probabilities)


def combine_probabilities(before: Floats, now: Floats) -> Floats:
    """The probability of being in either of two draws, the second being made without regard to the first.

    The second draw's probabilities follow from the labels of the first through few numbers, and one label moves these
    by a share of 1 / labels: that is what the probabilities are wrong by, and the only bias of figures that use them.
    """
    both: Floats = 1.0 - (1.0 - before) * (1.0 - now)
    return both


def _scale_to_count(targets: Floats, count: int) -> float:
    """What ``wanted`` is multiplied by so that the probabilities, at most 1 each, add up to ``count``."""
    values = np.sort(targets)[::-1]
    for certain in range(count):
        factor = (count - certain) / float(values[certain:].sum())
        if factor * values[certain] <= 1.0:
            return float(factor)
    return 1.0 / float(values[-1])


_BETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_JUMP = 0.01
_TIE_SEED = 28


@dataclass(frozen=True, slots=True)
class Drift:
    """What ``labels`` new gaps (grade - score) say of drift.

    ``evidence``: the most that 1 grew to; ``p`` = 1 / evidence is an anytime-valid p-value. ``found_at``: after how
    many labels the level was reached; None: not so far. ``gap`` is the mean of the new gaps with an interval that
    holds at any time, ``calibration`` the mean of the calibration's.
    """

    labels: int
    calibrated: int
    evidence: float
    p: float
    found_at: int | None
    gap: Estimate
    calibration: float


def measure_drift(
    calibration: Sequence[float] | Floats,
    gaps: Sequence[float] | Floats,
    *,
    low: float,
    high: float,
    level: float = 0.95,
) -> Drift | None:
    """Test new gaps, in the order in which they were made, against the calibration's; None where either has none.

    ``low`` and ``high`` bound the gaps. Labels of both must have been drawn with even probabilities (``even_out``).
    Ties are broken at random with a fixed seed: the same gaps give the same evidence.
    """
    check_level(level)
    reference, new = np.asarray(calibration, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if not (reference.size and new.size):
        return None
    if not ((reference >= low) & (reference <= high)).all() or not ((new >= low) & (new <= high)).all():
        raise ValueError(f"gaps lie in {low:g}–{high:g}")
    ranks = _conformal_ranks(reference, new)
    # One half bets on gaps that are larger or smaller, the other on gaps that spread more or less.
    course = 0.5 * _jumper_capital(ranks) + 0.5 * _jumper_capital(np.abs(2.0 * ranks - 1.0))
    evidence = float(course.max())
    reached = np.flatnonzero(course >= 1.0 / (1.0 - level))
    sequence = ConfidenceSequences(1, low=low, high=high, level=level)
    for gap in new.tolist():
        sequence.add([gap])
    mean = math.fsum(new.tolist()) / new.size
    interval = Estimate(mean, min(mean, float(sequence.lows[0])), max(mean, float(sequence.highs[0])))
    return Drift(
        new.size,
        reference.size,
        evidence,
        min(1.0, 1.0 / evidence) if evidence > 0.0 else 1.0,
        int(reached[0]) + 1 if reached.size else None,
        interval,
        math.fsum(reference.tolist()) / reference.size,
    )


def even_out(weights: Floats, seed: int = _TIE_SEED) -> Floats:
    """Return which labels to keep (a mask) so that what is left was drawn with even probabilities."""
    mask: Floats = np.random.default_rng(seed).random(weights.size) * weights.max(initial=0.0) <= weights
    return mask


def _conformal_ranks(reference: Floats, new: Floats) -> Floats:
    """Each new gap's place among all before it, 0–1, uniform if they are exchangeable; ties at random."""
    source = np.random.default_rng(_TIE_SEED)
    ranks = np.empty(new.size)
    for position, gap in enumerate(new):
        before = np.concatenate((reference, new[:position]))
        ties = 1 + int((before == gap).sum())
        ranks[position] = (int((before < gap).sum()) + source.random() * ties) / (before.size + 1)
    return ranks


def _jumper_capital(uniform: Floats) -> Floats:
    """The capital after each number, from 1: bets move slowly between five slopes."""
    shares = np.full(_BETS.size, 1.0 / _BETS.size)
    course = np.empty(uniform.size)
    for step, value in enumerate(uniform):
        shares = (1.0 - _JUMP) * shares + _JUMP * shares.sum() / _BETS.size
        shares = shares * (1.0 + _BETS * (value - 0.5))
        course[step] = shares.sum()
    return course

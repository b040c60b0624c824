"""Certificate of a judge: corrected figures, its errors, the answers to label next, and its drift.

Rogan and Gladen's rate (1978) assumes that the judge has the same sensitivity and specificity here as where it was
compared with people. Answers to label are drawn with known probabilities, in proportion to the expected distance
between the grade and its prediction from the judge's score. Drift is tested by a conformal test martingale.

Source: Vovk, Nouretdinov and Gammerman 2003, "Testing exchangeability on-line", ICML.
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
# A judge that separates good from bad no better than this gets no rate from its verdicts.
_MIN_INFORMATION = 0.01


@dataclass(frozen=True, slots=True)
class Proportion:
    """Proportion, 0–1, of `n` independent answers; `n` is not whole if answers have weights or clusters."""

    value: float
    n: float

    def draws(self, source: np.random.Generator) -> Floats:
        """Draw plausible values of the true proportion."""
        part = self.value * self.n
        return source.beta(part + 0.5, self.n - part + 0.5, _RATE_DRAWS)


@dataclass(frozen=True, slots=True)
class JudgeConfusion:
    """People's pass and fail against the judge's.

    `sensitivity`: of the answers that people pass, the proportion that the judge passes. `specificity`: of the answers
    that people fail, the proportion that the judge fails. `passed`: of the answers that the judge passes, the
    proportion that people pass. `failed`: of the answers that the judge fails, the proportion that people pass. A
    proportion of no answers has n = 0 and the value 0.5.
    """

    sensitivity: Proportion
    specificity: Proportion
    passed: Proportion
    failed: Proportion


def judge_confusion(sample: GradedSample) -> JudgeConfusion:
    """Compute the proportions from a sample's graded answers; scores and grades are 0 and 1."""
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
    """Return (passed + specificity - 1) / (sensitivity + specificity - 1), within 0–1, with its interval.

    For a judge without information (sensitivity + specificity near 1) the interval is all of 0–1.

    Args:
        passed: The judge's pass rate on answers that are not behind `sensitivity` and `specificity`.
        sensitivity: As in `JudgeConfusion`.
        specificity: As in `JudgeConfusion`.
        level: Confidence level.
    """
    check_level(level)
    source = np.random.default_rng(_RATE_SEED)
    q, se, sp = (proportion.draws(source) for proportion in (passed, sensitivity, specificity))
    information = se + sp - 1.0
    # Draws of an uninformative or inverted judge say nothing about the rate: put them at either end.
    sides = np.where(np.arange(_RATE_DRAWS) % 2 == 0, 0.0, 1.0)
    rates = np.where(information > _MIN_INFORMATION, (q + sp - 1.0) / np.maximum(information, _MIN_INFORMATION), sides)
    plain = sensitivity.value + specificity.value - 1.0
    value = (passed.value + specificity.value - 1.0) / plain if plain > _MIN_INFORMATION else passed.value
    return _rate_interval(value, rates, level)


def ungraded_pass_rate(sample: GradedSample) -> Proportion:
    """Return the judge's pass rate among the answers without a grade; among all if every answer has one."""
    ungraded = ~sample.graded if not sample.graded.all() else np.ones_like(sample.graded)
    return _weighted_proportion(sample, ungraded, sample.scores == 1.0, ungraded.astype(np.float64))


def _weighted_proportion(sample: GradedSample, base: Mask, subset: Mask, weights: Floats | None = None) -> Proportion:
    """Return the weighted proportion of `subset` in `base` with its effective sample size.

    The effective sample size is Kish's effective number of answers, divided by the design effect of the clustering,
    with degrees of freedom adjusted to the clusters. It never exceeds the number of answers.

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
    if plain == 0.0 or variance == 0.0:  # no variance to estimate: as if each cluster were unanimous
        return Proportion(value, float(w.sum() ** 2 / (residuals[:, 1] ** 2).sum()))
    freedom = student_quantile(0.975, max(answers - 1.0, 1.0)) / student_quantile(0.975, max(clusters - 1.0, 1.0))
    return Proportion(value, min(answers, plain / variance * float(freedom) ** 2))


def _rate_interval(value: float, draws: Floats, level: float) -> Estimate:
    low, high = np.quantile(np.clip(draws, 0.0, 1.0), [(1.0 - level) / 2, (1.0 + level) / 2])
    rate = min(max(value, 0.0), 1.0)
    return Estimate(rate, min(float(low), rate), max(float(high), rate))


@dataclass(frozen=True, slots=True)
class GradeRange:
    """Scale of scores and grades: numbers from `low` to `high` (infinite if unknown), or pass and fail (1, 0)."""

    low: float = -math.inf
    high: float = math.inf
    passes: bool = False

    def __post_init__(self) -> None:
        if self.passes:
            object.__setattr__(self, "low", 0.0)
            object.__setattr__(self, "high", 1.0)

    def clip(self, estimate: Estimate, *, difference: bool = False) -> Estimate:
        """Clip an estimate and its ends to `low` and `high`; a `difference` to ± (`high` - `low`)."""
        low, high = (self.low - self.high, self.high - self.low) if difference else (self.low, self.high)
        return Estimate(*(min(max(end, low), high) for end in (estimate.value, estimate.low, estimate.high)))


@dataclass(frozen=True, slots=True)
class CorrectedFigure:
    """Figure as judged and as corrected.

    `judged` rests on the judge's scores alone, `labels_alone` on the grades alone; `worth` is the number of labels that
    would give as short an interval without the judge. With too few labels, `corrected` and `worth` are None, and
    `labels_alone` may be; for correlations `labels_alone` is always None. `powers` as in `PoweredEstimate`.
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
    """Error of a judge: `mean` and mean `absolute` of score - grade, and `r`, the correlation of scores and grades.

    For pass and fail, `errors` has the judge's error rates, and `rogan_gladen` the pass rate corrected by them.
    """

    mean: Estimate | None
    absolute: float
    r: float | None
    errors: JudgeConfusion | None = None
    rogan_gladen: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """Figures by candidate, judge errors (`gaps`) of those with labels, and differences of pairs, first − second."""

    candidates: dict[str, CorrectedFigure]
    gaps: dict[str, JudgeError]
    differences: dict[tuple[str, str], CorrectedFigure]


def certify(samples: Mapping[str, GradedSample], scale: GradeRange, level: float = 0.95) -> Certificate:
    """Correct the means of candidates and their differences; samples must number their clusters alike.

    The intervals of differences hold jointly for all pairs (Bonferroni), each at 1 - (1 - `level`) / pairs. With each
    pair's interval at `level`, one study out of five would separate two of five equal candidates.
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
    """Correlate grades with a covariate of each answer, by rank if `ranks`; None with too few labels or no spread."""
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
    if judged is None:  # a single cluster
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
    """Return the mean of one sample's grades, or the difference of two samples' means; None with too few clusters."""
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
    """Return how many labels alone would give an interval as short as these `labels` with the judge.

    The interval from labels alone narrows with a power of their number, from 1/2 to 1, estimated at four times as many.
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


# This fraction of each probability is the same for all answers (Zrnic and Candès mix in the uniform one, too).
SPREAD_FLOOR = 0.2
# Weight of the average spread, in labels: a few labels are a poor guide.
_PRIOR = 5.0
# Kernel width, as a fraction of the scores' spread.
_NEAR_SCORE = 0.2


@dataclass(frozen=True, slots=True)
class LabelDraw:
    """Draw of answers: the `chosen` ones, and each answer's probability of being chosen.

    `probabilities` belong to this draw alone; an answer that is already graded has the one that it would have had.
    """

    chosen: NDArray[np.bool_]
    probabilities: Floats


def expected_spread(sample: GradedSample) -> Floats:
    """Return the expected distance (root mean square) of each answer's grade from its prediction, power · score.

    The power is that of `corrected_mean`. The square of the distance is a kernel mean, by the judge's score, of the
    labels' squared residuals, shrunk to the overall mean. It is constant if there are too few labels.
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
    kernel = np.exp(-0.5 * ((values[:, None] - f[None, :]) / width) ** 2)
    guess = (kernel @ squares + _PRIOR * average) / (kernel.sum(axis=1) + _PRIOR)
    spreads: Floats = np.sqrt(guess)[places]
    return spreads


def draw_answers(
    spreads: Floats, graded: NDArray[np.bool_], count: int, *, seed: int, floor: float = SPREAD_FLOOR
) -> LabelDraw:
    """Draw exactly `count` of the ungraded answers, with probabilities that grow with `spreads`.

    Of each probability, the fraction `floor` is the same for all answers, the rest is proportional to the spread.
    Probabilities are capped at 1; the excess goes to the other answers.

    Source: systematic sampling in random order (Madow 1949).
    """
    ungraded = np.flatnonzero(~graded)
    if not 1 <= count <= ungraded.size:
        raise ValueError(f"cannot draw {count} answers; expected 1 to {ungraded.size}, the number without a grade")
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"floor is {floor}; it must be a share above 0 and at most 1")
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


def combine_probabilities(first: Floats, second: Floats) -> Floats:
    """Return the probability of being in at least one of two independent draws."""
    both: Floats = 1.0 - (1.0 - first) * (1.0 - second)
    return both


def _scale_to_count(targets: Floats, count: int) -> float:
    """Return the factor at which probabilities in proportion to `targets`, capped at 1, add up to `count`."""
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
    """Evidence of drift in `labels` new gaps (grade - score).

    `evidence` is the maximum that a stake of 1 grew to; `p` = 1 / evidence is an anytime-valid p-value. `found_at`:
    number of new labels after which drift was significant at the level; None if it never was. `gap` is the mean of the
    new gaps with an anytime-valid interval, `calibration` the mean gap of the calibration.
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
    """Test new gaps, in the order in which they were made, against the calibration's; None if either is empty.

    Labels of both must have been drawn with even probabilities (`even_out`). Ties are broken at random with a fixed
    seed, so the same gaps give the same evidence.

    Args:
        calibration: Earlier gaps (grade - score).
        gaps: New gaps.
        low: Lower bound of all gaps.
        high: Upper bound of all gaps.
        level: Confidence level.
    """
    check_level(level)
    reference, new = np.asarray(calibration, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if not (reference.size and new.size):
        return None
    if not ((reference >= low) & (reference <= high)).all() or not ((new >= low) & (new <= high)).all():
        raise ValueError(f"gaps must lie in {low:g}–{high:g}")
    ranks = _conformal_ranks(reference, new)
    # One half of the stake bets on larger or smaller gaps, the other half on more or less spread.
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
    """Return a mask of the labels to keep, so that all kept labels were drawn with the same probability.

    `weights` are 1 / the probability with which each label was drawn, as in `GradedSample`.
    """
    mask: Floats = np.random.default_rng(seed).random(weights.size) * weights.max(initial=0.0) <= weights
    return mask


def _conformal_ranks(reference: Floats, new: Floats) -> Floats:
    """Return each new gap's rank among all before it, scaled to 0–1.

    Ranks are uniform if the gaps are exchangeable; ties are broken at random.
    """
    source = np.random.default_rng(_TIE_SEED)
    ranks = np.empty(new.size)
    for position, gap in enumerate(new):
        before = np.concatenate((reference, new[:position]))
        ties = 1 + int((before == gap).sum())
        ranks[position] = (int((before < gap).sum()) + source.random() * ties) / (before.size + 1)
    return ranks


def _jumper_capital(uniform: Floats) -> Floats:
    """Return the capital after each number, starting at 1; bets move slowly between five slopes."""
    shares = np.full(_BETS.size, 1.0 / _BETS.size)
    course = np.empty(uniform.size)
    for step, value in enumerate(uniform):
        shares = (1.0 - _JUMP) * shares + _JUMP * shares.sum() / _BETS.size
        shares = shares * (1.0 + _BETS * (value - 0.5))
        course[step] = shares.sum()
    return course

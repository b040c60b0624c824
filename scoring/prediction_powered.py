"""Prediction-powered inference: means, differences and correlations of grades, corrected for a judge.

A figure has three parts: the statistic of the grades alone (`direct`), of the judge's scores on the graded answers, and
of the judge's scores on all answers. The corrected figure is direct + power · (score on all - score on graded), which
is unbiased for any judge and any power. The power that minimises the variance is computed from the same deviations as
the variance.

Grades with known ends of their scale have an interval that allows for unseen grades (`PoweredEstimate.interval`): with
few labels and a judge that misses rare failures, most samples contain no such failure, so neither grades nor scores
show any.

Source: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023, "Prediction-powered inference", Science 382; with the
    power tuned: Angelopoulos, Duchi and Zrnic 2023, PPI++, arXiv 2311.01453.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .intervals import Estimate, Floats, check_level, mid_ranks, student_half


@dataclass(frozen=True, slots=True)
class GradedSample:
    """Candidate's answers, as arrays with one entry for each answer.

    `scores`: the judge's. `grades`: people's, nan if missing. `weights`: 1 / the probability with which the answer was
    chosen to be graded (Horvitz and Thompson 1952), up to a common factor; 0 without a grade. `clusters`: the number of
    the answer's cluster; answers of one cluster (an item) are not independent. Samples that are compared must number
    their clusters alike, so that shared clusters are recognised.
    """

    scores: Floats
    grades: Floats
    weights: Floats
    clusters: NDArray[np.int64]

    @classmethod
    def from_arrays(
        cls,
        scores: Sequence[float] | Floats,
        grades: Sequence[float] | Floats,
        clusters: Sequence[int] | NDArray[np.int64] | None = None,
        probabilities: Sequence[float] | Floats | None = None,
    ) -> GradedSample:
        """Build a sample.

        Args:
            scores: The judge's scores.
            grades: People's grades, nan if missing.
            clusters: Default: every answer is a cluster.
            probabilities: Of being graded; ignored for answers without a grade. Default: all graded answers weigh the
                same.

        Raises:
            ValueError: if the lengths differ, a score is not finite, a grade is infinite, or a graded answer's
                probability is not above 0 and at most 1.
        """
        score = np.asarray(scores, dtype=np.float64)
        grade = np.asarray(grades, dtype=np.float64)
        number = np.arange(score.size) if clusters is None else np.asarray(clusters, dtype=np.int64)
        chosen = np.ones(score.size) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
        if len({array.shape for array in (score, grade, number, chosen)}) > 1 or score.ndim != 1:
            raise ValueError("scores, grades, clusters and probabilities need one entry for each answer")
        graded = ~np.isnan(grade)
        if not np.isfinite(score).all() or np.isinf(grade).any():
            raise ValueError("scores and grades must be finite numbers; leave out answers that the judge did not score")
        if not ((chosen[graded] > 0.0) & (chosen[graded] <= 1.0)).all():
            raise ValueError("the probability of a graded answer must be above 0 and at most 1")
        weights = np.zeros(score.size)
        weights[graded] = 1.0 / chosen[graded]
        return cls(score, grade, weights, number)

    @property
    def graded(self) -> NDArray[np.bool_]:
        """Mask of answers with a grade."""
        return self.weights > 0.0

    @property
    def labels(self) -> int:
        """Number of answers with a grade."""
        return int(self.graded.sum())

    @property
    def count(self) -> int:
        """Highest cluster number plus one."""
        return int(self.clusters.max()) + 1 if self.clusters.size else 0

    def known_grades(self) -> Floats:
        """Return the grades, 0 if missing, for use in weighted sums."""
        return np.where(self.graded, self.grades, 0.0)

    def totals(self, *columns: Floats, count: int | None = None) -> Floats:
        """Return the sums of columns by cluster, one row a cluster; `count` is the number of clusters."""
        size = self.count if count is None else count
        return np.stack([np.bincount(self.clusters, column, size) for column in columns], axis=1)


def number_names(names: Sequence[Hashable], shared: dict[Hashable, int] | None = None) -> NDArray[np.int64]:
    """Assign numbers to names, equal names alike; new names are added to `shared`, so that samples can share it."""
    numbers: dict[Hashable, int] = {} if shared is None else shared
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


_DRAWS, _MOST_DRAWS = 4_000, 50_000
_TAIL_DRAWS = 20  # draws that should lie beyond an end of an interval
_ROUNDING = 1e-12
_SEED = 28
# More clusters than this are drawn in this many groups of clusters with similar deviations.
_WEIGHT_GROUPS = 64
# Weight of the ungraded cluster: for yes-or-no grades 1 gives the interval of Clopper and Pearson, which is
# conservative; 1/2 gives about that of Jeffreys, which undercovers at some rates.
_UNSEEN = 0.7


@dataclass(frozen=True, slots=True)
class Parts:
    """Three parts of a statistic, each with its deviations: the changes when each cluster is left out.

    `direct`: of the grades alone; `on_graded` and `on_all`: of the judge's scores on the graded answers and on all. A
    deviation is the full statistic minus the statistic without the cluster. `weights`: the sum of the weights of each
    cluster's graded answers. `evenness`: mean weight of graded answers divided by the largest weight.
    """

    direct: float
    on_graded: float
    on_all: float
    direct_deviations: Floats
    graded_deviations: Floats
    all_deviations: Floats
    weights: Floats
    evenness: float = 1.0

    @property
    def clusters(self) -> float:
        """Effective number of clusters with grades (Kish 1965)."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    @property
    def spread(self) -> float:
        """Variance of all clusters' contributions to `on_all`, divided by the variance among clusters with grades.

        The scores of a few clusters with grades may by chance vary more or less than those of all clusters.
        """
        shares = self.weights / self.weights.sum()
        variance = float(shares @ (self.all_deviations - shares @ self.all_deviations) ** 2)
        nonzero = self.all_deviations[self.all_deviations != 0.0]
        ratio = float((nonzero**2).mean()) / variance if variance > 0.0 and nonzero.size else 1.0
        return min(max(ratio, 0.1), 10.0)


@dataclass(frozen=True, slots=True)
class Term:
    """Sample mean in a figure: `sign` times `value`, from `clusters` graded clusters.

    `clusters` counts only as many as if all labels had been drawn as rarely as those of the answers least likely to be
    graded.
    """

    value: float
    sign: float
    clusters: float


@dataclass(frozen=True, slots=True)
class PoweredEstimate:
    """Corrected figure. `powers`: one for each sample; 0 ignores the judge, 1 trusts its scores fully.

    `leaning`: the change of the figure if it used the powers of PPI++, which divide by the spread of all scores instead
    of the graded ones. `deviations` are the figure's, by cluster; `graded` is the number of clusters with grades;
    `freedom` is the degrees of freedom of the standard error `se`. `direct_se` is the standard error of the grades
    alone.
    """

    value: float
    se: float
    powers: tuple[float, ...]
    leaning: float
    deviations: Floats
    graded: NDArray[np.bool_]
    freedom: float
    direct: float
    direct_se: float
    terms: tuple[Term, ...]

    def interval(
        self, level: float = 0.95, low: float = -math.inf, high: float = math.inf, *, times: float = 1.0
    ) -> Estimate:
        """Return the figure with its interval at a level, for grades between `low` and `high`.

        If the graded answers happen to lack a kind of answer that the scores show elsewhere, the judge's error on it is
        unknown: the interval is extended in that direction by the size of `leaning`, combined like independent errors.

        Args:
            level: Confidence level.
            low: Lowest possible grade.
            high: Highest possible grade.
            times: Assume this multiple of graded clusters, all like these; ignored if `low` or `high` is infinite.
        """
        check_level(level)
        quantile = student_half(1.0, self.freedom, level)
        if math.isfinite(low) and math.isfinite(high):
            down, up = self._bounded(level, low, high, times)
        else:
            down, up = self._skewed(quantile)
        leaning = quantile * self.leaning
        return Estimate(
            self.value,
            self.value - math.hypot(down, min(leaning, 0.0)),
            self.value + math.hypot(up, max(leaning, 0.0)),
        )

    def _skewed(self, quantile: float) -> tuple[float, float]:
        """Return the distances of the ends by Student's t, transformed for the skew of the deviations.

        Source: Hall 1992, "On the removal of skewness by transformation", JRSS B 54, equation 3.5.
        """
        squares = float((self.deviations**2).sum())
        if squares <= (_ROUNDING * self.value) ** 2:
            return math.inf, math.inf
        skew = float((self.deviations**3).sum()) / squares**1.5
        low, high = sorted(_invert_hall(sign * quantile, skew) for sign in (1.0, -1.0))
        return self.se * max(high, 0.0), self.se * max(-low, 0.0)

    def _bounded(self, level: float, low: float, high: float, times: float) -> tuple[float, float]:
        """Return the distances of the ends, allowing for unseen grades at the ends of the scale.

        The clusters with grades get random exponential weights that sum to 1. In each sample one ungraded cluster joins
        them, with the worst grades for the lower end of the figure and the best for the upper one. For yes-or-no grades
        this is nearly the interval of Clopper and Pearson; with distant ends of the scale or many labels it is that of
        the Bayesian bootstrap, and so Student's. The judge's score of the ungraded cluster is taken to be its usual
        one.

        Source: Learned-Miller and Thomas 2019, "A new confidence interval for the mean of a bounded random variable",
            arXiv 1905.06208 (there the cluster weighs 1); Rubin 1981, "The Bayesian bootstrap", Annals of Statistics 9.
        """
        deviations = np.sort(self.deviations[self.graded])
        count = deviations.size
        # The weights' variance is 1 / (count (count + 1)); scale the draws to the squared standard error.
        factor = self.freedom / (self.freedom + 1.0)
        deviations = (deviations - deviations.mean()) * math.sqrt(factor * count * (count + 1.0))
        draws = min(_MOST_DRAWS, max(_DRAWS, math.ceil(2 * _TAIL_DRAWS / (1.0 - level))))
        weights, totals = _bootstrap_weights(count, times, draws)
        ends = [weights @ np.array([part.mean() for part in np.array_split(deviations, weights.shape[1])])] * 2
        source = np.random.default_rng(_SEED)
        for term in self.terms:
            unseen = source.standard_gamma(_UNSEEN, draws) * (count / term.clusters)
            totals = totals + unseen
            worst, best = (low, high) if term.sign > 0 else (high, low)
            centre = min(max(term.value, low), high)
            for side, extreme in enumerate((worst, best)):
                ends[side] = ends[side] + unseen * term.sign * (extreme - centre)
        ungraded = math.sqrt(float((self.deviations[~self.graded] ** 2).sum()))
        noise = ungraded * source.standard_normal(draws)
        down = float(np.quantile(ends[0] / totals + noise, (1.0 - level) / 2))
        up = float(np.quantile(ends[1] / totals + noise, (1.0 + level) / 2))
        return max(-down, 0.0), max(up, 0.0)

    def worth(self, labels: int) -> float:
        """Return how many labels alone would have as small a standard error as these `labels` with the judge."""
        if self.se > 0.0:
            return labels * (self.direct_se / self.se) ** 2
        return float(labels) if self.direct_se == 0.0 else math.inf


def tune_power(
    parts: Sequence[Parts], signs: Sequence[float], powers: Sequence[float] | None = None
) -> PoweredEstimate:
    """Return the signed sum of statistics, corrected with the powers that minimise its variance.

    Powers are tuned jointly: what two candidates' scores share cancels in their difference, so the best power for one
    candidate's mean may be far from the best power for the difference. The powers are those of a regression among the
    graded answers: a judge that is always right has a power of 1. PPI++ divides by the spread of all scores instead
    (`PoweredEstimate.leaning`); the results differ by 1 / labels, and with few labels and skewed scores PPI++ is biased
    against a good judge.

    The squared standard error is the sum over clusters of squared deviations, times (G - 1) / G (the jackknife's, for G
    clusters with grades). A cluster's deviation uses the powers fitted to the other clusters, like a leave-one-out
    residual. If the powers were fitted to the cluster, too, 30 labels of skewed gaps would look closer to the scores
    than the next 30 are.

    Args:
        parts: One for each sample.
        signs: 1 or -1 for each sample.
        powers: Use these instead of tuning them.

    Raises:
        ValueError: if there are fewer clusters with grades than powers to tune plus two.
    """
    tuned = 0 if powers is not None else len(parts)
    clusters = min(part.clusters for part in parts)
    if clusters < tuned + 2.0 - 1e-9:
        raise ValueError(f"{clusters:.1f} clusters with grades; at least {tuned + 2} are needed")
    directs = sum(
        (sign * part.direct_deviations for part, sign in zip(parts, signs, strict=True)),
        np.zeros_like(parts[0].weights),
    )
    gains = np.stack(
        [sign * (part.all_deviations - part.graded_deviations) for part, sign in zip(parts, signs, strict=True)]
    )
    differences = np.array([sign * (part.on_all - part.on_graded) for part, sign in zip(parts, signs, strict=True)])
    if powers is None:
        graded = np.stack([sign * part.graded_deviations for part, sign in zip(parts, signs, strict=True)])
        best, left_out_powers = _best_powers(directs, graded, np.ones(len(parts)), clusters)
        typical, _ = _best_powers(directs, graded, np.sqrt([part.spread for part in parts]), clusters)
        leaning = float((typical - best) @ differences)
    else:
        best, leaning = np.array(powers, dtype=np.float64), 0.0
        left_out_powers = np.repeat(best[:, None], directs.size, axis=1)
    direct = math.fsum(sign * part.direct for part, sign in zip(parts, signs, strict=True))
    deviations = directs + (left_out_powers * gains).sum(axis=0)
    factor = (clusters - 1.0) / clusters
    se, direct_se = (math.sqrt(factor * float((part**2).sum())) for part in (deviations, directs))
    value = direct + math.fsum((best * differences).tolist())
    terms = tuple(
        Term(
            part.direct + power * (part.on_all - part.on_graded),
            sign,
            float((part.weights > 0.0).sum()) * part.evenness,
        )
        for part, sign, power in zip(parts, signs, best.tolist(), strict=True)
    )
    having = np.logical_or.reduce([part.weights > 0.0 for part in parts])
    powers = tuple(best.tolist())
    return PoweredEstimate(value, se, powers, leaning, deviations, having, clusters - 1.0, direct, direct_se, terms)


def _best_powers(directs: Floats, graded: Floats, spreads: Floats, clusters: float) -> tuple[Floats, Floats]:
    """Return the powers that minimise the squared residuals, and for each cluster the powers that the others give.

    Scores without spread get the power 0.

    Args:
        directs: Deviations of the grades.
        graded: Deviations of the scores on graded answers, a row for each sample.
        spreads: Factors that make deviations typical.
        clusters: Effective number of clusters.
    """
    powers, left_out_powers = np.zeros(len(graded)), np.zeros_like(graded)
    scale = np.sqrt((graded**2).sum(axis=1))
    usable = scale > 1e-12 * max(float(scale.max()), math.sqrt(float(directs @ directs)), 1e-300)
    if not usable.any():
        return powers, left_out_powers
    rows = graded[usable] / scale[usable, None]
    spread = spreads[usable]
    inverse = np.linalg.pinv(rows @ rows.T * np.outer(spread, spread), rcond=1e-8, hermitian=True)
    products = rows * directs
    total = products.sum(axis=1, keepdims=True)
    # The sum of squares includes the cluster that is left out. If one cluster determines the power, this makes its
    # deviation larger, which intervals need in simulations with 30 labels of a judge that is rarely far off.
    left_out = np.where(directs != 0.0, (total - products) * clusters / (clusters - 1.0), total)
    powers[usable] = (inverse @ total)[:, 0] / scale[usable]
    left_out_powers[usable] = inverse @ left_out / scale[usable, None]
    return powers, left_out_powers


@lru_cache(maxsize=4)
def _bootstrap_weights(count: int, times: float, draws: int) -> tuple[Floats, Floats]:
    """Return random weights for groups of clusters (one row per draw), and each row's sum."""
    sizes = np.array([part.size for part in np.array_split(np.empty(count), min(count, _WEIGHT_GROUPS))])
    weights = np.random.default_rng([_SEED, count]).standard_gamma(sizes * times, (draws, sizes.size))
    return weights, weights.sum(axis=1)


def _invert_hall(x: float, skew: float) -> float:
    """Invert Hall's t + a t² + a² t³ / 3 + b with a = skew / 3 and b = skew / 6."""
    a, b = skew / 3.0, skew / 6.0
    if abs(a) < 1e-9:
        return x
    return float((np.cbrt(1.0 + 3.0 * a * (x - b)) - 1.0) / a)


def corrected_mean(sample: GradedSample, *, power: float | None = None) -> PoweredEstimate:
    """Estimate the mean grade over all answers like these; the power is tuned unless given.

    mean grade of the graded + power · (mean score of all - mean score of the graded). “All” includes the graded
    answers; PPI++ writes the same figure with the power times unlabelled / all. With unequal weights, means over the
    graded are weighted (Hájek 1971), with a bias that falls with 1 / labels.

    Raises:
        ValueError: if fewer than three clusters have grades (two with `power` given).
    """
    return tune_power([mean_parts(sample)], [1.0], None if power is None else [power])


def corrected_difference(first: GradedSample, second: GradedSample) -> PoweredEstimate:
    """Estimate the mean of `first` minus the mean of `second`, with joint powers and shared clusters."""
    count = max(first.count, second.count)
    return tune_power([mean_parts(first, count), mean_parts(second, count)], [1.0, -1.0])


def mean_parts(sample: GradedSample, count: int | None = None) -> Parts:
    """Return the parts of the mean, with deviations for `count` clusters."""
    if not sample.labels:
        raise ValueError("no answer has a grade")
    w, f, y = sample.weights, sample.scores, sample.known_grades()
    totals = sample.totals(w, w * y, w * f, np.ones_like(f), f, count=count)
    total = totals.sum(axis=0)
    left_out = total - totals
    with np.errstate(divide="ignore", invalid="ignore"):  # a single cluster with grades: `tune_power` rejects it
        rows = [(total[k] / total[n], np.nan_to_num(total[k] / total[n] - left_out[:, k] / left_out[:, n]))
                for k, n in ((1, 0), (2, 0), (4, 3))]  # fmt: skip
    (direct, directs), (on_graded, graded), (on_all, every) = rows
    weights = w[sample.graded]
    evenness = float(weights.mean() / weights.max())
    return Parts(float(direct), float(on_graded), float(on_all), directs, graded, every, totals[:, 0], evenness)


# Number of groups in which clusters without grades are left out. Leaving out each cluster by itself would take long,
# because all ranks are computed anew, and these clusters add little to the error.
_FISHER_GROUPS = 100


def corrected_pearson(covariate: Floats, sample: GradedSample) -> PoweredEstimate:
    """Estimate Pearson's r of grades with a covariate, on Fisher's scale (`from_fisher` converts it).

    The part of the grades is atanh r(covariate, grade), the parts of the judge are atanh r(covariate, score):
    predict-then-debias of a statistic with tuned power.

    Raises:
        ValueError: if fewer than three clusters have grades, or the covariate or the grades have no spread among them.

    Source: Kluger, Lu, Zrnic, Wang and Bates 2025, arXiv 2501.18577; PPI++ for means.
    """
    w, f, y, x = sample.weights, sample.scores, sample.known_grades(), _check_covariate(covariate, sample)
    x, f, y = x - x.mean(), f - f.mean(), np.where(sample.graded, y - _weighted_mean(y, w), 0.0)
    ones = np.ones_like(f)
    totals = sample.totals(
        *(w * column for column in (ones, x, y, x * x, y * y, x * y, f, f * f, x * f)), ones, x, f, x * x, f * f, x * f
    )
    total = totals.sum(axis=0)
    values, left_out = _pearson_parts(total), _pearson_parts(total - totals)
    return _tune_correlation(
        [float(value) for value in values], [value - part for value, part in zip(values, left_out, strict=True)], sample
    )


def corrected_spearman(covariate: Floats, sample: GradedSample) -> PoweredEstimate:
    """Estimate Spearman's rho like `corrected_pearson`, with mid-ranks among the answers of each part.

    Ranks are recomputed for every cluster that is left out, so the interval includes the error of the ranks. With
    unequal weights, ranks are weighted. Takes longer than `corrected_pearson`: O(clusters · answers).
    """
    w, f, y, x = sample.weights, sample.scores, sample.grades, _check_covariate(covariate, sample)
    graded, numbers, ones = sample.graded, sample.clusters, np.ones_like(f)

    def on_graded(mask: NDArray[np.bool_]) -> tuple[float, float]:
        selected = mask & graded
        return _spearman(x[selected], y[selected], w[selected]), _spearman(x[selected], f[selected], w[selected])

    def on_all(mask: NDArray[np.bool_]) -> float:
        return _spearman(x[mask], f[mask], ones[mask])

    every = np.ones_like(graded)
    values = [*on_graded(every), on_all(every)]
    deviations = [np.zeros(sample.count) for _ in values]
    with_grades = np.unique(numbers[graded])
    for cluster in with_grades:
        mask = numbers != cluster
        for value, row, without in zip(values, deviations, [*on_graded(mask), on_all(mask)], strict=True):
            row[cluster] = value - without
    ungraded_clusters = np.setdiff1d(np.unique(numbers), with_grades)
    for group in (
        np.array_split(ungraded_clusters, min(_FISHER_GROUPS, len(ungraded_clusters))) if len(ungraded_clusters) else ()
    ):
        # Share a group's deviation evenly, so that the squares of its clusters add up to the square of the group.
        deviations[2][group] = (values[2] - on_all(~np.isin(numbers, group))) / math.sqrt(len(group))
    return _tune_correlation(values, deviations, sample)


def from_fisher(estimate: Estimate) -> Estimate:
    """Convert from Fisher's scale to a coefficient from -1 to 1."""
    return Estimate(*(math.tanh(end) for end in (estimate.value, estimate.low, estimate.high)))


def _tune_correlation(values: Sequence[float], deviations: Sequence[Floats], sample: GradedSample) -> PoweredEstimate:
    if not math.isfinite(values[0]):
        raise ValueError("the graded answers have no spread in the covariate or in their grades")
    direct, graded, every = (np.nan_to_num(column) for column in deviations)
    on_graded, on_all = values[1:]
    if not (math.isfinite(on_graded) and math.isfinite(on_all)):  # scores without spread carry no information
        on_graded = on_all = 0.0
        graded = every = np.zeros_like(direct)
    weights = sample.totals(sample.weights)[:, 0]
    return tune_power([Parts(values[0], on_graded, on_all, direct, graded, every, weights)], [1.0])


def _check_covariate(covariate: Floats, sample: GradedSample) -> Floats:
    values = np.asarray(covariate, dtype=np.float64)
    if values.shape != sample.scores.shape or not np.isfinite(values).all():
        raise ValueError("the covariate needs a finite number for each answer")
    if not sample.labels:
        raise ValueError("no answer has a grade")
    return values


def _weighted_mean(values: Floats, weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


def _pearson_parts(s: Floats) -> tuple[Floats, Floats, Floats]:
    direct = _fisher(s[..., 0], s[..., 1], s[..., 2], s[..., 3], s[..., 4], s[..., 5])
    on_graded = _fisher(s[..., 0], s[..., 1], s[..., 6], s[..., 3], s[..., 7], s[..., 8])
    on_all = _fisher(s[..., 9], s[..., 10], s[..., 11], s[..., 12], s[..., 13], s[..., 14])
    return direct, on_graded, on_all


def _fisher(n: Floats, x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> Floats:
    """Return atanh of Pearson's r from sums; nan if a side has no spread."""
    vx, vy = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    minimum = 1e-12 * (xx / n), 1e-12 * (yy / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.where((vx > minimum[0]) & (vy > minimum[1]), (xy / n - x * y / n**2) / np.sqrt(vx * vy), np.nan)
    z: Floats = np.arctanh(np.clip(r, -0.999999, 0.999999))
    return z


def _spearman(x: Floats, y: Floats, w: Floats) -> float:
    if len(x) < 2:
        return math.nan
    n = w.sum()
    ranks = mid_ranks(x, w) / n, mid_ranks(y, w) / n
    a, b = (rank - _weighted_mean(rank, w) for rank in ranks)
    return float(_fisher(n, 0.0 * n, 0.0 * n, (w * a * a).sum(), (w * b * b).sum(), (w * a * b).sum()))

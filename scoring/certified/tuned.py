"""Power tuning and the interval that goes with it: what all prediction-powered figures share.

A figure has three parts: the statistic of the grades alone (the ``direct`` one), and what the judge's scores say of
it on the graded answers and on all. The corrected figure is direct + power · (score on all - score on graded), which
is right on average whatever the judge does and whatever the power is (Angelopoulos, Bates, Fannjiang, Jordan and Zrnic
2023, "Prediction-powered inference", Science 382; with the power tuned: Angelopoulos, Duchi and Zrnic 2023, PPI++,
arXiv 2311.01453). The power with the least variance comes from the same deviations as the variance.

Grades that end at a scale have an interval that allows for what no label shows (``Tuned.interval``): with few labels of
a judge that does not see rare failures, most samples hold none of them, and then neither grades nor scores tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..intervals import Estimate, Floats, check_level

_DRAWS, _MOST_DRAWS = 4_000, 50_000
_BEYOND = 20  # draws that should lie beyond an end of an interval
_ROUNDING = 1e-12
_SEED = 28
# More clusters than that are drawn in as many groups, of those that deviate by nearly as much.
_GROUPS = 64
# What the cluster that nobody graded weighs: 1 makes the interval of Clopper and Pearson of yes-or-no grades, which
# covers more often than its level, 1/2 about that of Jeffreys, which for some rates does so less often.
_UNSEEN = 0.7

# scipy.stats takes half a second to load: the functions that need it import it.


@dataclass(frozen=True, slots=True)
class Parts:
    """A statistic's three parts, each with its deviations: by how much it changes when a cluster is left out.

    ``direct``: of the grades alone; ``on_graded`` and ``on_all``: of the judge's scores on the graded answers and on
    all. Deviations are whole - without the cluster, one place for each cluster; ``weights`` are the clusters' weights
    among those with grades, 0 for those without. ``evenness``: mean weight of a graded answer over the greatest one.
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
        """How many clusters of equal weight the grades are worth: Kish's 1965 effective number."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    @property
    def spread(self) -> float:
        """The variance of what clusters add to ``on_all``, over that among the clusters with grades: few of these may
        by chance have scores that vary more or less than all do.
        """
        shares = self.weights / self.weights.sum()
        here = float(shares @ (self.all_deviations - shares @ self.all_deviations) ** 2)
        held = self.all_deviations[self.all_deviations != 0.0]
        ratio = float((held**2).mean()) / here if here > 0.0 and held.size else 1.0
        return min(max(ratio, 0.1), 10.0)


@dataclass(frozen=True, slots=True)
class Term:
    """One sample's mean in a figure: ``sign`` times ``value``, from as many graded ``clusters``.

    ``clusters`` are those of equal probability: of answers that were the least likely to be graded, so many labels were
    drawn as if evenly.
    """

    value: float
    sign: float
    clusters: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A corrected figure. ``powers``: one for each sample; 0 leaves the judge out, 1 takes its scores as they are.

    ``leaning``: by how much the figure would change with the powers of PPI++, which rest on the spread of all scores
    instead of that among the graded. ``deviations`` are those of the figure, in clusters of which ``graded`` have
    grades; ``freedom`` the degrees of freedom of its standard error ``se``. ``direct_se`` is the standard error of the
    grades alone.
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
        """Return the figure with its interval at a level. Grades lie between ``low`` and ``high``.

        Where the graded answers happen to lack a kind of answer that the scores show elsewhere, nobody knows how the
        judge does on these: the end to which the figure leans is further out by the leaning, as independent errors
        add.

        Args:
            times: as if as many times as many clusters, all like these, had grades; only with finite ends of the scale.

        Raises:
            ValueError: ``level`` is not between 0 and 1.
        """
        from scipy.stats import t

        check_level(level)
        quantile = float(t.ppf((1.0 + level) / 2, self.freedom))
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
        """Return how far the ends are off by Student's t, transformed for the skew of the deviations.

        Without it few labels of skewed gaps would miss on one side. Deviations of 0 say nothing of what no label shows.

        Source: Hall 1992, "On the removal of skewness by transformation", JRSS B 54, equation 3.5, by the cubic that
            can be inverted.
        """
        squares = float((self.deviations**2).sum())
        if squares <= (_ROUNDING * self.value) ** 2:
            return math.inf, math.inf
        skew = float((self.deviations**3).sum()) / squares**1.5
        low, high = sorted(_inverse(sign * quantile, skew) for sign in (1.0, -1.0))
        return self.se * max(high, 0.0), self.se * max(-low, 0.0)

    def _bounded(self, level: float, low: float, high: float, times: float) -> tuple[float, float]:
        """Return how far the ends are off, allowing for grades at the ends of the scale that no label shows.

        The clusters with grades get random weights, exponential ones made to sum to 1. For the lower end so does, in
        each sample, a cluster that nobody graded, with the grades that are the worst for the figure, for the upper end
        one with the best. Of yes-or-no grades that is nearly the interval of Clopper and Pearson; where the scale is
        far away or labels are many, it is that of the Bayesian bootstrap, and so Student's. The judge's score of what
        nobody graded is taken to be its usual one.

        Source: Learned-Miller and Thomas 2019, "A new confidence interval for the mean of a bounded random variable",
            arXiv 1905.06208 (there the cluster weighs 1); Rubin 1981, "The Bayesian bootstrap", Annals of Statistics 9.
        """
        here = np.sort(self.deviations[self.graded])
        count = here.size
        # The weights' variance is 1 / (count (count + 1)); what is drawn is to have the squared standard error.
        share = self.freedom / (self.freedom + 1.0)
        here = (here - here.mean()) * math.sqrt(share * count * (count + 1.0))
        draws = min(_MOST_DRAWS, max(_DRAWS, math.ceil(2 * _BEYOND / (1.0 - level))))
        weights, totals = _weights(count, times, draws)
        ends = [weights @ np.array([part.mean() for part in np.array_split(here, weights.shape[1])])] * 2
        source = np.random.default_rng(_SEED)
        for term in self.terms:
            unseen = source.standard_gamma(_UNSEEN, draws) * (count / term.clusters)
            totals = totals + unseen
            worst, best = (low, high) if term.sign > 0 else (high, low)
            held = min(max(term.value, low), high)
            for place, extreme in enumerate((worst, best)):
                ends[place] = ends[place] + unseen * term.sign * (extreme - held)
        others = math.sqrt(float((self.deviations[~self.graded] ** 2).sum()))
        noise = others * source.standard_normal(draws)
        down = float(np.quantile(ends[0] / totals + noise, (1.0 - level) / 2))
        up = float(np.quantile(ends[1] / totals + noise, (1.0 + level) / 2))
        return max(-down, 0.0), max(up, 0.0)

    def worth(self, labels: int) -> float:
        """Return how many labels alone would have as small a standard error as these ``labels`` with the judge."""
        if self.se > 0.0:
            return labels * (self.direct_se / self.se) ** 2
        return float(labels) if self.direct_se == 0.0 else math.inf


def tune(parts: Sequence[Parts], signs: Sequence[float], powers: Sequence[float] | None = None) -> Tuned:
    """The sum of statistics, each with its sign, corrected with the powers that make its variance least.

    Powers are tuned together: what two candidates' scores have in common drops out of their difference, and a power
    that is best for either alone may be far from best there. They are those of a regression among the graded: a judge
    that is always right has a power of 1. PPI++ divides by the spread of all scores instead (``Tuned.leaning``), which
    differs by 1 / labels, and pulls few labels of skewed scores from what a good judge says of the others.

    The squared standard error is the sum over clusters of squared deviations, (G - 1) / G times (the jackknife's, for
    G clusters with grades). A cluster's deviation is taken with the powers that the others would give, as a residual of
    a regression is that of a line without the point: with tuned powers 30 labels of skewed gaps would look closer to
    the scores than the next 30 are.

    :param powers: take these instead of tuning them.
    :raises ValueError: fewer clusters with grades than powers to tune and two more.
    """
    tuned = 0 if powers is not None else len(parts)
    clusters = min(one.clusters for one in parts)
    if clusters < tuned + 2.0 - 1e-9:
        raise ValueError(f"{clusters:.1f} clusters with grades; {tuned + 2} are the least")
    directs = sum(
        (sign * one.direct_deviations for one, sign in zip(parts, signs, strict=True)), np.zeros_like(parts[0].weights)
    )
    gains = np.stack(
        [sign * (one.all_deviations - one.graded_deviations) for one, sign in zip(parts, signs, strict=True)]
    )
    differences = np.array([sign * (one.on_all - one.on_graded) for one, sign in zip(parts, signs, strict=True)])
    if powers is None:
        graded = np.stack([sign * one.graded_deviations for one, sign in zip(parts, signs, strict=True)])
        held, others = _best(directs, graded, np.ones(len(parts)), clusters)
        typical, _ = _best(directs, graded, np.sqrt([one.spread for one in parts]), clusters)
        leaning = float((typical - held) @ differences)
    else:
        held, leaning = np.array(powers, dtype=np.float64), 0.0
        others = np.repeat(held[:, None], directs.size, axis=1)
    direct = math.fsum(sign * one.direct for one, sign in zip(parts, signs, strict=True))
    deviations = directs + (others * gains).sum(axis=0)
    share = (clusters - 1.0) / clusters
    se, direct_se = (math.sqrt(share * float((one**2).sum())) for one in (deviations, directs))
    value = direct + math.fsum((held * differences).tolist())
    terms = tuple(
        Term(one.direct + power * (one.on_all - one.on_graded), sign, float((one.weights > 0.0).sum()) * one.evenness)
        for one, sign, power in zip(parts, signs, held.tolist(), strict=True)
    )
    having = np.logical_or.reduce([one.weights > 0.0 for one in parts])
    powers = tuple(held.tolist())
    return Tuned(value, se, powers, leaning, deviations, having, clusters - 1.0, direct, direct_se, terms)


def _best(directs: Floats, graded: Floats, spreads: Floats, clusters: float) -> tuple[Floats, Floats]:
    """The powers with the least sum of squared residuals directs - powers · graded, and by cluster those that the other
    clusters give; 0 for scores without spread. ``spreads``: by how much deviations are to be multiplied to be typical.
    """
    held, others = np.zeros(len(graded)), np.zeros_like(graded)
    scale = np.sqrt((graded**2).sum(axis=1))
    usable = scale > 1e-12 * max(float(scale.max()), math.sqrt(float(directs @ directs)), 1e-300)
    if not usable.any():
        return held, others
    rows = graded[usable] / scale[usable, None]
    spread = spreads[usable]
    inverse = np.linalg.pinv(rows @ rows.T * np.outer(spread, spread), rcond=1e-8, hermitian=True)
    products = rows * directs
    whole = products.sum(axis=1, keepdims=True)
    # The sum of squares keeps the cluster's own: where one cluster makes the power, its deviation is then the larger,
    # and in simulations with 30 labels of a judge that is seldom far off that is what intervals need.
    left = np.where(directs != 0.0, (whole - products) * clusters / (clusters - 1.0), whole)
    held[usable] = (inverse @ whole)[:, 0] / scale[usable]
    others[usable] = inverse @ left / scale[usable, None]
    return held, others


@lru_cache(maxsize=4)
def _weights(count: int, times: float, draws: int) -> tuple[Floats, Floats]:
    """Return random weights of ``count`` clusters in groups, a row for each draw, and the rows' sums."""
    sizes = np.array([part.size for part in np.array_split(np.empty(count), min(count, _GROUPS))])
    weights = np.random.default_rng([_SEED, count]).standard_gamma(sizes * times, (draws, sizes.size))
    return weights, weights.sum(axis=1)


def _inverse(x: float, skew: float) -> float:
    """The inverse of Hall's t + a t² + a² t³ / 3 + b with a = skew / 3 and b = skew / 6."""
    a, b = skew / 3.0, skew / 6.0
    if abs(a) < 1e-9:
        return x
    return float((np.cbrt(1.0 + 3.0 * a * (x - b)) - 1.0) / a)

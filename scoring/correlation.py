"""How far scores follow benchmark accuracies: coefficients with p-values, overall and by dataset, and lines.

Yu et al. 2024, appendix C, Table 7 (coefficients, with and without a suspected model) and Figure 4 (lines, points off
them).
What never belongs here: where the figures come from (files, runs), tables, and drawing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .regression import Point, Regression, pearson, robust_line

# scipy.stats takes half a second to load: the functions that need it import it.

# Up to so many pairs Spearman's p-value comes from all n! orders (40,320); beyond, from the t distribution.
EXACT = 8


@dataclass(slots=True, frozen=True)
class Figures:
    """What one model reached on one dataset: static accuracy and score, each in the unit of its source.

    ``accuracy_se`` and ``score_se`` are their standard errors, 0 where they are not known.
    """

    model: str
    dataset: str
    accuracy: float
    score: float
    accuracy_se: float = 0.0
    score_se: float = 0.0


@dataclass(slots=True, frozen=True)
class Coefficient:
    """A coefficient from -1 to 1, and the two-sided p-value of there being no relation."""

    value: float
    p: float


@dataclass(slots=True, frozen=True)
class Correlation:
    """The three coefficients of ``n`` pairs; each None where one side has no spread, or of fewer than three pairs."""

    n: int
    pearson: Coefficient | None
    spearman: Coefficient | None
    kendall: Coefficient | None


@dataclass(slots=True, frozen=True)
class Correlations:
    """Table 7's columns for one choice of models: all datasets' pairs pooled, and each dataset by itself."""

    overall: Correlation
    datasets: dict[str, Correlation]


@dataclass(slots=True, frozen=True)
class Fit:
    """The line of score on accuracy over one dataset's models.

    ``spread`` is the expected spread of the residuals, in units of the score: without standard errors a point is
    flagged beyond ``line.threshold * spread``, with them its own are joined to it.
    """

    line: Regression
    spread: float


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Correlation:
    """Pearson, Spearman and Kendall of pairs.

    :raises ValueError: the two differ in length.
    """
    found = pearson(xs, ys)
    linear = None if found is None else Coefficient(*found)
    return Correlation(len(xs), linear, spearman(xs, ys), kendall(xs, ys))


def spearman(xs: Sequence[float], ys: Sequence[float]) -> Coefficient | None:
    """Spearman's rho (1904): Pearson's r of the ranks, ties having the mean of theirs. None as with ``pearson``.

    Up to ``EXACT`` pairs the p-value is that of the permutation test: the share of all orders whose rho is as far out,
    twice the smaller tail. Beyond, rho * sqrt((n-2) / (1-rho²)) is taken for t with n-2 degrees of freedom (Kendall and
    Stuart, vol. 2, section 31.19), which is poor for few pairs, and calls pairs that are all in order certain (p = 0):
    no p-value is less than 2/n!, the chance that n pairs are in order or in the opposite one.

    :raises ValueError: the two differ in length.
    """
    from scipy.stats import permutation_test, rankdata, spearmanr

    if not _related(xs, ys):
        return None
    found = spearmanr(xs, ys)
    if len(xs) > EXACT:
        return Coefficient(float(found.statistic), max(float(found.pvalue), _least(len(xs))))
    ranks, others = rankdata(xs), rankdata(ys)
    others -= others.mean()

    def products(shuffled: Any, axis: int) -> Any:  # rho, but for a factor that no order changes
        return (shuffled * others).sum(axis=axis)

    exact = permutation_test(
        (ranks,), products, permutation_type="pairings", n_resamples=math.inf, vectorized=True, alternative="two-sided"
    )
    return Coefficient(float(found.statistic), float(exact.pvalue))


def kendall(xs: Sequence[float], ys: Sequence[float]) -> Coefficient | None:
    """Kendall's tau-b (1938, 1945): concordant less discordant pairs of pairs, over the root of those not tied in x
    times those not tied in y. None as with ``pearson``.

    The p-value is scipy's: exact where nothing is tied and n is at most 33, else by the normal approximation with
    the variance for ties.

    :raises ValueError: the two differ in length.
    """
    from scipy.stats import kendalltau

    if not _related(xs, ys):
        return None
    found = kendalltau(xs, ys)
    return Coefficient(float(found.statistic), max(float(found.pvalue), sys.float_info.min))


def correlate(figures: Iterable[Figures], without: Collection[str] = ()) -> Correlations:
    """Coefficients of accuracy and score over all models but those named in ``without`` (Yu et al. 2024, Table 7).

    Overall pools the pairs of all datasets as they are, as the paper does. Its p-values take the pairs for independent;
    a model's figures on several datasets are not, so they are too small.
    """
    kept = [one for one in figures if one.model not in without]
    return Correlations(_of(kept), {name: _of(group) for name, group in by_dataset(kept).items()})


def fits(figures: Iterable[Figures]) -> dict[str, Fit | None]:
    """The robust line of score on accuracy in each dataset (Yu et al. 2024, Figure 4); None where accuracies are equal.

    :raises ValueError: a dataset has fewer than three models, or one of them twice.
    """
    return {name: _fit(group) for name, group in by_dataset(figures).items()}


def by_dataset(figures: Iterable[Figures]) -> dict[str, list[Figures]]:
    """The figures of each dataset, in the order in which datasets first appear."""
    groups: dict[str, list[Figures]] = {}
    for one in figures:
        groups.setdefault(one.dataset, []).append(one)
    return groups


def _of(group: Sequence[Figures]) -> Correlation:
    return correlation([one.accuracy for one in group], [one.score for one in group])


def _related(xs: Sequence[float], ys: Sequence[float]) -> bool:
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values against {len(ys)}")
    return len(xs) > 2 and len(set(xs)) > 1 and len(set(ys)) > 1


def _least(n: int) -> float:
    """The least p-value of a test over all orders of ``n`` pairs, and above 0 where that is too small for a float."""
    return max(math.exp(math.log(2.0) - math.lgamma(n + 1)), sys.float_info.min)


def _fit(group: Sequence[Figures]) -> Fit | None:
    points = [Point(one.model, one.accuracy, one.score, one.accuracy_se, one.score_se) for one in group]
    if len(points) > 2 and len({point.x for point in points}) < 2:
        return None
    line = robust_line(points)
    # A point's deviation is its residual over spread and own errors joined: the furthest one tells the spread best.
    furthest = max(points, key=lambda point: abs(line.residuals[point.name]))
    residual, deviation = line.residuals[furthest.name], line.deviations[furthest.name]
    joined = residual / deviation if deviation else 0.0
    own = math.hypot(furthest.y_error, line.slope * furthest.x_error)
    return Fit(line, math.sqrt(max(0.0, joined**2 - own**2)))

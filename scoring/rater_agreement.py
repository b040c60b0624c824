"""Agreement of graders on a table of grades: coefficients corrected for chance, with intervals clustered by question.

Krippendorff's alpha, Gwet's AC1 and AC2 and the plain share of pairs that agree, computed from how often each grade was
given to each answer; intervals by the jackknife over clusters. What never belongs here: which graders are compared, and
agreement of raters that stand in rows (``agreement``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .agreement import Scale
from .grade_table import Codes, Floats, GradeTable
from .intervals import Estimate, check_level
from .ratios import weighted_ratio

# scipy.stats takes half a second to load: the functions that need it import it.

_CATEGORIES = 16  # of more distinct grades no interval is computed
_ROUNDING = 1e-12


@dataclass(slots=True, frozen=True)
class Coefficient:
    """A coefficient of agreement; None where it is not defined, as where all grades are the same. The ends are None
    where there are too few clusters, or none departs from the others. ``se``: the jackknife's standard error.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    se: float | None = None


@dataclass(slots=True, frozen=True)
class GraderAgreement:
    """``answers`` with two grades at least, on which all figures rest.

    ``same``: the share of pairs of grades of one answer that are the same. ``alpha`` by scale. ``ac1`` takes grades as
    names, ``ac2`` weighs a disagreement by the square of its distance; categories are the grades that were given.
    """

    answers: int
    same: Estimate | None
    alpha: dict[Scale, Coefficient] = field(default_factory=dict)
    ac1: Coefficient = Coefficient(None)
    ac2: Coefficient = Coefficient(None)


def grader_agreement(table: GradeTable, level: float = 0.95) -> GraderAgreement:
    """The agreement of all graders of a table whose grades have one scale.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    check_level(level)
    counts, cluster, values = _counted(table)
    several = counts.sum(axis=1) > 1
    if not several.any():
        return GraderAgreement(0, None)
    same = same_share(counts[several], cluster[several], level)
    scales: tuple[Scale, ...] = ("nominal", "ordinal", "interval")
    coincidences = _by_cluster(_coincidences(counts[several]), cluster[several])
    alphas = {scale: _jackknifed(coincidences, partial(_alpha, values=values, scale=scale), level)
              for scale in scales}  # fmt: skip
    ac1, ac2 = (
        _jackknifed(_by_cluster(_gwet_sums(counts, each), cluster), partial(_gwet, weights=each), level)
        for each in (np.eye(len(values)), _quadratic(values))
    )
    return GraderAgreement(int(several.sum()), same, alphas, ac1, ac2)


def same_share(counts: Floats, cluster: Codes, level: float = 0.95) -> Estimate | None:
    """The share of pairs of grades of one answer that are the same. ``counts``: answers × categories."""
    number = counts.sum(axis=1)
    alike, pairs = (counts * (counts - 1)).sum(axis=1), number * (number - 1)
    found = weighted_ratio(alike, pairs, np.zeros(len(cluster), dtype=np.int64), cluster, np.ones(1))
    return None if found is None else found.within(level)


def _counted(table: GradeTable) -> tuple[Floats, Codes, Floats]:
    """How often each answer was given each grade, the answers' clusters, and the grades."""
    present = np.flatnonzero(~np.isnan(table.values))
    values, category = np.unique(table.values[present], return_inverse=True)
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, first, answer = np.unique(keys, return_index=True, return_inverse=True)
    counts = np.zeros((len(first), len(values)))
    np.add.at(counts, (answer, category), 1.0)
    return counts, table.cluster_codes()[present][first], values


def _coincidences(counts: Floats) -> Floats:
    """Of each answer the coincidence matrix of its grades, each row with all of its pairs weighing as its grades do."""
    pairs = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(counts.shape[1])
    return np.asarray(pairs / (counts.sum(axis=1) - 1)[:, None, None], dtype=np.float64)


def _by_cluster(sums: Floats, cluster: Codes) -> Floats:
    """Sums of answers as sums of clusters."""
    codes, places = np.unique(cluster, return_inverse=True)
    found = np.zeros((len(codes), *sums.shape[1:]))
    np.add.at(found, places, sums)
    return found


def _alpha(coincidences: Floats, values: Floats, scale: Scale) -> Floats:
    """Alpha of each of many coincidence matrices; nan where chance alone would agree fully."""
    marginal = coincidences.sum(axis=-1)
    if scale == "nominal":
        apart = np.broadcast_to(1.0 - np.eye(len(values)), coincidences.shape)
    else:
        ranks = np.cumsum(marginal, axis=-1) - marginal / 2 if scale == "ordinal" else np.broadcast_to(
            values, marginal.shape
        )  # fmt: skip
        apart = (ranks[..., :, None] - ranks[..., None, :]) ** 2
    total = marginal.sum(axis=-1)
    observed = (coincidences * apart).sum(axis=(-2, -1))
    expected = (marginal[..., :, None] * marginal[..., None, :] * apart).sum(axis=(-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > _ROUNDING, 1.0 - (total - 1) * observed / expected, np.nan)


def _quadratic(values: Floats) -> Floats:
    width = max(float(values[-1] - values[0]), _ROUNDING) if len(values) else 1.0
    return np.asarray(1.0 - ((values[:, None] - values[None, :]) / width) ** 2, dtype=np.float64)


def _gwet_sums(counts: Floats, weights: Floats) -> Floats:
    """By answer: its share of agreeing pairs, whether it has pairs, its shares of categories, and one of itself."""
    number = counts.sum(axis=1)
    several = number > 1
    agreed = (counts * (counts @ weights - 1)).sum(axis=1)
    shares = np.where(several, agreed / np.maximum(1.0, number * (number - 1)), 0.0)
    return np.column_stack([shares, several, counts / number[:, None], np.ones(len(counts))])


def _gwet(sums: Floats, weights: Floats) -> Floats:
    """AC1 of identity weights, AC2 of others (Gwet 2014, "Handbook of inter-rater reliability", section 4.4)."""
    categories = len(weights)
    if categories < 2:
        return np.full(len(sums), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = sums[:, 0] / sums[:, 1]
        shares = sums[:, 2:-1] / sums[:, -1:]
        chance = weights.sum() / (categories * (categories - 1)) * (shares * (1 - shares)).sum(axis=1)
        return np.asarray((observed - chance) / (1 - chance), dtype=np.float64)


def _jackknifed(by_cluster: Floats, coefficient: Callable[[Floats], Floats], level: float) -> Coefficient:
    """A coefficient of the sums of all clusters, with Student's interval by the jackknife, at most 1."""
    from scipy.stats import t

    whole = by_cluster.sum(axis=0, keepdims=True)
    value = float(coefficient(whole)[0])
    n = len(by_cluster)
    if not np.isfinite(value):
        return Coefficient(None)
    if n < 3 or whole.shape[-1] > _CATEGORIES:
        return Coefficient(value)
    samples = coefficient(whole - by_cluster)
    samples = samples[np.isfinite(samples)]
    error = float(np.sqrt((n - 1) / n * ((samples - samples.mean()) ** 2).sum())) if len(samples) == n else 0.0
    if error <= _ROUNDING:
        return Coefficient(value)
    half = float(t.ppf((1.0 + level) / 2, n - 1)) * error
    return Coefficient(value, max(-1.0, value - half), min(1.0, value + half), error)


def mean_coefficient(parts: Sequence[tuple[Coefficient, int]], level: float = 0.95) -> Coefficient:
    """The mean of coefficients over things of different scales, weighted by numbers of answers; undefined ones are left
    out.
    """
    from scipy.stats import norm

    known = [(one, n) for one, n in parts if one.value is not None and n]
    if not known:
        return Coefficient(None)
    whole = sum(n for _, n in known)
    value = sum((one.value or 0.0) * n for one, n in known) / whole
    if any(one.se is None for one, _ in known):
        return Coefficient(value)
    error = float(np.sqrt(sum(((one.se or 0.0) * n / whole) ** 2 for one, n in known)))
    half = float(norm.ppf((1.0 + level) / 2)) * error
    return Coefficient(value, max(-1.0, value - half), min(1.0, value + half), error)

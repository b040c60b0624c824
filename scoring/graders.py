"""People's grades as a table of numbers, the severity of graders, and their agreement.

Severity is an additive model: a grade is what its answer deserves, plus the leniency of its grader, plus noise. Nothing
is assumed about what answers deserve, so a grader is only compared with others on the same answers. Agreement is
Krippendorff's alpha, Gwet's AC1 and AC2, and the plain fraction of agreeing pairs, with jackknife intervals over
questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .agreement import Scale
from .intervals import Estimate, check_level, normal_quantile, student_half, student_quantile
from .ratios import weighted_ratio

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


class GradeRow(NamedTuple):
    """Grade of one answer. `low` and `top`: lowest and highest grade allowed. `value` None: missing."""

    dimension: str
    question: str
    candidate: str
    grader: str
    value: float | None
    top: float
    low: float = 0.0


@dataclass(slots=True)
class GradeTable:
    """Grades by dimension, question, candidate and grader, one row a grade (Table 2 of Sun et al. 2024 in long form).

    Names are listed once, in given order or order of first appearance; each column holds positions in these lists. A
    missing grade is a row with the value nan. `models`: the graders that are models. `clusters`: the cluster of each
    question; default: the question itself.
    """

    dimensions: list[str]
    questions: list[str]
    candidates: list[str]
    graders: list[str]
    dimension: Codes
    question: Codes
    candidate: Codes
    grader: Codes
    values: Floats
    tops: Floats
    lows: Floats
    models: frozenset[str] = frozenset()
    clusters: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.clusters:
            self.clusters = list(self.questions)

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[GradeRow],
        *,
        dimensions: Sequence[str] = (),
        candidates: Sequence[str] = (),
        graders: Sequence[str] = (),
        models: Iterable[str] = (),
        clusters: dict[str, str] | None = None,
    ) -> GradeTable:
        """Build the table from rows. Names passed as arguments come first, in their order, even if no row has them."""
        names = [dict.fromkeys(dimensions), {}, dict.fromkeys(candidates), dict.fromkeys(graders)]
        indexes: list[dict[str, int]] = [{name: code for code, name in enumerate(group)} for group in names]
        codes: list[list[int]] = [[], [], [], []]
        values, tops, lows = list[float](), list[float](), list[float]()
        for row in rows:
            for index, column, name in zip(indexes, codes, row[:4], strict=True):
                column.append(index.setdefault(name, len(index)))
            values.append(float("nan") if row.value is None else row.value)
            tops.append(row.top)
            lows.append(row.low)
        lists = [list(index) for index in indexes]
        columns = [np.array(column, dtype=np.int64) for column in codes]
        return cls(
            *(lists[0], lists[1], lists[2], lists[3]),
            *(columns[0], columns[1], columns[2], columns[3]),
            values=np.array(values, dtype=np.float64),
            tops=np.array(tops, dtype=np.float64),
            lows=np.array(lows, dtype=np.float64),
            models=frozenset(models),
            clusters=[(clusters or {}).get(question, question) for question in lists[1]],
        )

    def select(self, rows: NDArray[np.bool_]) -> GradeTable:
        """Return the table of the selected rows, with all names."""
        return GradeTable(
            self.dimensions, self.questions, self.candidates, self.graders,
            self.dimension[rows], self.question[rows], self.candidate[rows], self.grader[rows],
            self.values[rows], self.tops[rows], self.lows[rows], self.models, self.clusters,
        )  # fmt: skip

    def cluster_codes(self) -> Codes:
        """Return the code of each row's cluster, numbered from 0 in the order of `clusters`."""
        codes = {name: code for code, name in enumerate(dict.fromkeys(self.clusters))}
        return np.array([codes[name] for name in self.clusters], dtype=np.int64)[self.question]

    def without_models(self) -> GradeTable:
        """Return the grades that people gave."""
        people = np.array([name not in self.models for name in self.graders], dtype=np.bool_)
        return self.select(people[self.grader]) if len(self) else self


# scipy.stats and scipy.sparse load slowly, so the functions that need them import them.


@dataclass(slots=True, frozen=True)
class GraderSeverity:
    """Severity of a grader: by how much it grades below the mean of its group on the same answers.

    A negative `severity` is lenient; None if the grader shares no answer with anybody. `answers` counts the answers
    that others graded, too. `group` is the number of the group, from 1, in the order of graders; None without a
    severity.
    """

    grader: str
    severity: float | None
    low: float | None
    high: float | None
    answers: int
    questions: int
    group: int | None


@dataclass(slots=True, frozen=True)
class SeverityFit:
    """Fitted severity model.

    `groups`: number of groups of graders that cannot be compared with one another. `noise`: standard deviation of
    grades about the model. `by_grader`: fitted severities, 0 for graders without one.
    """

    graders: list[GraderSeverity]
    groups: int
    noise: float | None
    by_grader: Floats
    _solution: Floats  # matrix from graders' sums of residuals to leniencies
    _scores: Any  # clusters × graders, sparse: sums of residuals

    def correct(self, table: GradeTable, rows: NDArray[np.bool_] | None = None) -> GradeTable:
        """Return the table with each grade raised by its grader's severity; only in `rows`, if given."""
        raised = self.by_grader[table.grader] if len(table) else np.empty(0)
        if rows is not None:
            raised = np.where(rows, raised, 0.0)
        result = table.select(np.ones(len(table), dtype=np.bool_))
        result.values = table.values + raised
        return result

    def influence(self, weights: Floats) -> Floats:
        """Return each cluster's contribution to the error of the sum of `weights` (by grader) times severity."""
        solved = -(weights @ self._solution)
        return np.asarray(self._scores @ solved, dtype=np.float64)


def fit_severity(table: GradeTable, level: float = 0.95) -> SeverityFit:
    """Fit the model to a table of original grades; graders that are models are measured against people's mean.

    Intervals are Student's, with the sandwich of residuals by cluster (Liang and Zeger 1986) and the grader's clusters
    less 1 as degrees of freedom. They are never narrower than with homoscedastic noise. This noise includes one extra
    grade that is one step off, so that full agreement on a few answers does not pass for certainty.
    """
    from scipy.sparse import coo_matrix

    check_level(level)
    graders, codes = len(table.graders), table.cluster_codes()
    clusters = int(codes.max(initial=-1)) + 1
    rows, answer = _comparable_rows(table)
    grader, values, cluster = table.grader[rows], table.values[rows], codes[rows]
    sizes = np.bincount(answer).astype(np.float64)
    incidence = coo_matrix((np.ones(len(answer)), (answer, grader)), (max(1, len(sizes)), graders)).tocsr()
    scaled = coo_matrix((1.0 / sizes[answer], (answer, grader)), incidence.shape).tocsr()
    laplacian = np.diag(np.bincount(grader, minlength=graders).astype(np.float64)) - (incidence.T @ scaled).toarray()
    group = _connected_groups(laplacian)
    solution = _centring_matrix(group, [name in table.models for name in table.graders]) @ _group_inverse(
        laplacian, group
    )
    deviations = values - _answer_means(values, answer, sizes)
    lenient = solution @ np.bincount(grader, deviations, graders)
    own = lenient[grader]
    residuals = deviations - own + _answer_means(own, answer, sizes)
    scores = coo_matrix((residuals, (cluster, grader)), (max(1, clusters), graders)).tocsr()
    groups = int(group.max(initial=0))
    freedom = len(values) - len(sizes) - (int((group > 0).sum()) - groups)
    noise = (float(residuals @ residuals) + _grade_step(table) ** 2) / (max(0, freedom) + 1)
    counted = len(np.unique(cluster))
    meat = (scores.T @ scores).toarray() * (counted / (counted - 1) if counted > 1 else 1.0)
    variances = np.maximum(
        np.diagonal(solution @ meat @ solution.T), noise * np.diagonal(solution @ laplacian @ solution.T)
    )
    of_grader = np.bincount(np.unique(grader * max(1, clusters) + cluster) // max(1, clusters), minlength=graders)
    half = student_quantile((1.0 + level) / 2, np.maximum(1.0, of_grader - 1)) * np.sqrt(variances)
    answers = np.bincount(grader, minlength=graders)
    severities = [
        GraderSeverity(name, value, value - reach, value + reach, count, questions, number) if number else
        GraderSeverity(name, None, None, None, 0, 0, None)
        for name, value, reach, count, questions, number in zip(
            table.graders, (-lenient).tolist(), half.tolist(), answers.tolist(), of_grader.tolist(), group.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    deviation = float(np.sqrt(residuals @ residuals / freedom)) if freedom > 0 else None
    return SeverityFit(severities, groups, deviation, np.where(group > 0, -lenient, 0.0), solution, scores)


def _comparable_rows(table: GradeTable) -> tuple[Codes, Codes]:
    """Return the rows whose answer has grades of at least two graders, and the number of each row's answer."""
    present = np.flatnonzero(~np.isnan(table.values))
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, answer, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shared = counts[answer] > 1
    _, numbers = np.unique(answer[shared], return_inverse=True)
    return present[shared], numbers.astype(np.int64)


def _answer_means(values: Floats, answer: Codes, sizes: Floats) -> Floats:
    """Return the mean over each row's answer."""
    return np.asarray((np.bincount(answer, values, len(sizes)) / sizes)[answer], dtype=np.float64)


def _connected_groups(laplacian: Floats) -> Codes:
    """Return the number, from 1, of each grader's group; 0 for graders who share no answer with anybody."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(csr_matrix(laplacian < 0), directed=False)
    alone = np.diagonal(laplacian) <= 0
    numbers: dict[int, int] = {}
    return np.array([0 if single else numbers.setdefault(int(label), len(numbers) + 1)
                     for label, single in zip(labels, alone, strict=True)], dtype=np.int64)  # fmt: skip


def _group_inverse(laplacian: Floats, group: Codes) -> Floats:
    """Return the inverse on what is identified: within each group, up to a constant."""
    inverse = np.zeros_like(laplacian)
    for number in range(1, int(group.max(initial=0)) + 1):
        inside = np.ix_(group == number, group == number)
        size = int((group == number).sum())
        inverse[inside] = np.linalg.inv(laplacian[inside] + 1.0 / size) - 1.0 / size
    return inverse


def _centring_matrix(group: Codes, models: Sequence[bool]) -> Floats:
    """Return the matrix that centres each group on its people; on all its members if it has no people."""
    matrix = np.eye(len(group))
    person = ~np.array(models, dtype=np.bool_)
    for number in range(1, int(group.max(initial=0)) + 1):
        inside = group == number
        measured = inside & person if (inside & person).any() else inside
        matrix[inside] -= measured / measured.sum()
    return matrix


def _grade_step(table: GradeTable) -> float:
    """Return the smallest distance between two used grades; the width of the scale if there is only one."""
    values = np.unique(table.values[~np.isnan(table.values)])
    if len(values) > 1:
        return float(np.diff(values).min())
    return float((table.tops - table.lows).max(initial=1.0))


_MAX_CATEGORIES = 16  # with more distinct grades no interval is computed
_ROUNDING = 1e-12


@dataclass(slots=True, frozen=True)
class AgreementCoefficient:
    """Coefficient of agreement with its jackknife interval and `se`.

    `value` is None if undefined, such as if all grades are the same; the ends are None with too few clusters, or if no
    cluster departs from the others.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    se: float | None = None


@dataclass(slots=True, frozen=True)
class GraderAgreement:
    """Agreement on `answers` with at least two grades.

    `same`: fraction of pairs of grades of one answer that are the same. `alpha` by scale. `ac1` is nominal, `ac2`
    weights a disagreement by its squared distance; categories are the grades in use.
    """

    answers: int
    same: Estimate | None
    alpha: dict[Scale, AgreementCoefficient] = field(default_factory=dict)
    ac1: AgreementCoefficient = AgreementCoefficient(None)
    ac2: AgreementCoefficient = AgreementCoefficient(None)


def grader_agreement(table: GradeTable, level: float = 0.95) -> GraderAgreement:
    """Return the agreement of all graders of a table whose grades have one scale."""
    check_level(level)
    counts, cluster, values = _grade_counts(table)
    several = counts.sum(axis=1) > 1
    if not several.any():
        return GraderAgreement(0, None)
    same = exact_agreement(counts[several], cluster[several], level)
    scales: tuple[Scale, ...] = ("nominal", "ordinal", "interval")
    coincidences = _sum_by_cluster(_coincidence_matrices(counts[several]), cluster[several])
    alphas = {scale: _jackknife(coincidences, partial(_alpha, values=values, scale=scale), level)
              for scale in scales}  # fmt: skip
    ac1, ac2 = (
        _jackknife(_sum_by_cluster(_gwet_sums(counts, weights), cluster), partial(_gwet, weights=weights), level)
        for weights in (np.eye(len(values)), _quadratic_weights(values))
    )
    return GraderAgreement(int(several.sum()), same, alphas, ac1, ac2)


def exact_agreement(counts: Floats, cluster: Codes, level: float = 0.95) -> Estimate | None:
    """Return the fraction of pairs of grades of one answer that are the same. `counts`: answers × categories."""
    number = counts.sum(axis=1)
    alike, pairs = (counts * (counts - 1)).sum(axis=1), number * (number - 1)
    ratio = weighted_ratio(alike, pairs, np.zeros(len(cluster), dtype=np.int64), cluster, np.ones(1))
    return None if ratio is None else ratio.bounded_interval(level)


def _grade_counts(table: GradeTable) -> tuple[Floats, Codes, Floats]:
    """Return how often each answer got each grade, the answers' clusters, and the grades."""
    present = np.flatnonzero(~np.isnan(table.values))
    values, category = np.unique(table.values[present], return_inverse=True)
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, first, answer = np.unique(keys, return_index=True, return_inverse=True)
    counts = np.zeros((len(first), len(values)))
    np.add.at(counts, (answer, category), 1.0)
    return counts, table.cluster_codes()[present][first], values


def _coincidence_matrices(counts: Floats) -> Floats:
    """Return each answer's coincidence matrix; an answer's pairs weigh as much as its grades."""
    pairs = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(counts.shape[1])
    return np.asarray(pairs / (counts.sum(axis=1) - 1)[:, None, None], dtype=np.float64)


def _sum_by_cluster(sums: Floats, cluster: Codes) -> Floats:
    """Sum answers' values by cluster."""
    codes, places = np.unique(cluster, return_inverse=True)
    totals = np.zeros((len(codes), *sums.shape[1:]))
    np.add.at(totals, places, sums)
    return totals


def _alpha(coincidences: Floats, values: Floats, scale: Scale) -> Floats:
    """Return alpha of each coincidence matrix; nan if chance alone would agree fully."""
    marginal = coincidences.sum(axis=-1)
    if scale == "nominal":
        distances = np.broadcast_to(1.0 - np.eye(len(values)), coincidences.shape)
    else:
        ranks = np.cumsum(marginal, axis=-1) - marginal / 2 if scale == "ordinal" else np.broadcast_to(
            values, marginal.shape
        )  # fmt: skip
        distances = (ranks[..., :, None] - ranks[..., None, :]) ** 2
    total = marginal.sum(axis=-1)
    observed = (coincidences * distances).sum(axis=(-2, -1))
    expected = (marginal[..., :, None] * marginal[..., None, :] * distances).sum(axis=(-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > _ROUNDING, 1.0 - (total - 1) * observed / expected, np.nan)


def _quadratic_weights(values: Floats) -> Floats:
    width = max(float(values[-1] - values[0]), _ROUNDING) if len(values) else 1.0
    return np.asarray(1.0 - ((values[:, None] - values[None, :]) / width) ** 2, dtype=np.float64)


def _gwet_sums(counts: Floats, weights: Floats) -> Floats:
    """Return by answer: its fraction of agreeing pairs, whether it has pairs, its fractions of categories, and a 1."""
    number = counts.sum(axis=1)
    several = number > 1
    agreed = (counts * (counts @ weights - 1)).sum(axis=1)
    shares = np.where(several, agreed / np.maximum(1.0, number * (number - 1)), 0.0)
    return np.column_stack([shares, several, counts / number[:, None], np.ones(len(counts))])


def _gwet(sums: Floats, weights: Floats) -> Floats:
    """Return AC1 for identity weights, else AC2 (Gwet 2014, "Handbook of inter-rater reliability", section 4.4)."""
    categories = len(weights)
    if categories < 2:
        return np.full(len(sums), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = sums[:, 0] / sums[:, 1]
        shares = sums[:, 2:-1] / sums[:, -1:]
        chance = weights.sum() / (categories * (categories - 1)) * (shares * (1 - shares)).sum(axis=1)
        return np.asarray((observed - chance) / (1 - chance), dtype=np.float64)


def _jackknife(by_cluster: Floats, coefficient: Callable[[Floats], Floats], level: float) -> AgreementCoefficient:
    """Return a coefficient of the summed clusters, with Student's jackknife interval, at most 1."""
    total = by_cluster.sum(axis=0, keepdims=True)
    value = float(coefficient(total)[0])
    n = len(by_cluster)
    if not np.isfinite(value):
        return AgreementCoefficient(None)
    if n < 3 or total.shape[-1] > _MAX_CATEGORIES:
        return AgreementCoefficient(value)
    samples = coefficient(total - by_cluster)
    samples = samples[np.isfinite(samples)]
    error = float(np.sqrt((n - 1) / n * ((samples - samples.mean()) ** 2).sum())) if len(samples) == n else 0.0
    if error <= _ROUNDING:
        return AgreementCoefficient(value)
    half = student_half(error, n - 1, level)
    return AgreementCoefficient(value, max(-1.0, value - half), min(1.0, value + half), error)


def mean_coefficient(parts: Sequence[tuple[AgreementCoefficient, int]], level: float = 0.95) -> AgreementCoefficient:
    """Return the mean of coefficients on different scales, weighted by answers; undefined ones are left out."""
    terms = [(coefficient, n) for coefficient, n in parts if coefficient.value is not None and n]
    if not terms:
        return AgreementCoefficient(None)
    total = sum(n for _, n in terms)
    value = sum((coefficient.value or 0.0) * n for coefficient, n in terms) / total
    if any(coefficient.se is None for coefficient, _ in terms):
        return AgreementCoefficient(value)
    error = float(np.sqrt(sum(((coefficient.se or 0.0) * n / total) ** 2 for coefficient, n in terms)))
    half = normal_quantile((1.0 + level) / 2) * error
    return AgreementCoefficient(value, max(-1.0, value - half), min(1.0, value + half), error)

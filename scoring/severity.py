"""How severe graders are: an additive model of grades, and figures corrected for who graded what.

A grade is what its answer deserves, plus the leniency of its grader, plus noise. What answers deserve is left free, so
a grader is only ever compared with others on the same answers: candidates and questions of any difficulty, and any
mixture of them, make nobody look severe. The model is fitted by least squares, which is maximum likelihood where noise
is normal (the two-way layout of Searle, Casella and McCulloch 1992, answers and graders both fixed).

Graders who share no answers, not even through others, cannot be compared: each group is measured against its own mean.
What never belongs here: what is made of a severe grader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .grade_table import Codes, Floats, GradeTable
from .intervals import check_level

if TYPE_CHECKING:
    from numpy.typing import NDArray

# scipy.stats and scipy.sparse take a while to load: the functions that need them import them.


@dataclass(slots=True, frozen=True)
class GraderSeverity:
    """How many grades a grader gives less than the mean of their group would give to the same answers; below 0: more.

    None where the grader shares no answer with anybody. ``answers`` are those that others graded, too; ``group`` is the
    number of the group, from 1, in the order of graders; None where there is no severity.
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
    """The fitted model. ``groups``: how many groups of graders there are that cannot be compared with one another.

    ``noise`` is the standard deviation of a grade about what the model says, in grades. ``by_grader`` are the fitted
    severities, 0 where there are none.
    """

    graders: list[GraderSeverity]
    groups: int
    noise: float | None
    by_grader: Floats
    _solution: Floats  # from the sums of residuals of graders to leniencies
    _scores: Any  # clusters × graders, sparse: sums of residuals

    def corrected(self, table: GradeTable, rows: NDArray[np.bool_] | None = None) -> GradeTable:
        """The table with each grade raised by its grader's severity; only these ``rows``, if they are given."""
        raised = self.by_grader[table.grader] if len(table) else np.empty(0)
        if rows is not None:
            raised = np.where(rows, raised, 0.0)
        found = table.chosen(np.ones(len(table), dtype=np.bool_))
        found.values = table.values + raised
        return found

    def influence(self, weights: Floats) -> Floats:
        """What each cluster, by its code, adds to the error of the sum of ``weights`` (by grader) times severity."""
        solved = -(weights @ self._solution)
        return np.asarray(self._scores @ solved, dtype=np.float64)


def fit_severity(table: GradeTable, level: float = 0.95) -> SeverityFit:
    """Fit the model to a table of original grades; graders that are models are measured against people's mean.

    Intervals are Student's, with the sandwich of residuals by cluster (Liang and Zeger 1986) and as many degrees of
    freedom as the grader has clusters, less 1; never narrower than noise that is equal everywhere would make them, for
    which one more grade that is one step off is counted, so that full agreement of a few does not pass for certainty.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    from scipy.sparse import coo_matrix
    from scipy.stats import t

    check_level(level)
    graders, codes = len(table.graders), table.cluster_codes()
    clusters = int(codes.max(initial=-1)) + 1
    rows, answer = _compared(table)
    grader, values, cluster = table.grader[rows], table.values[rows], codes[rows]
    sizes = np.bincount(answer).astype(np.float64)
    incidence = coo_matrix((np.ones(len(answer)), (answer, grader)), (max(1, len(sizes)), graders)).tocsr()
    scaled = coo_matrix((1.0 / sizes[answer], (answer, grader)), incidence.shape).tocsr()
    laplacian = np.diag(np.bincount(grader, minlength=graders).astype(np.float64)) - (incidence.T @ scaled).toarray()
    group = _groups(laplacian)
    solution = _centring(group, [name in table.models for name in table.graders]) @ _inverse(laplacian, group)
    apart = values - _means(values, answer, sizes)
    lenient = solution @ np.bincount(grader, apart, graders)
    own = lenient[grader]
    left = apart - own + _means(own, answer, sizes)
    scores = coo_matrix((left, (cluster, grader)), (max(1, clusters), graders)).tocsr()
    groups = int(group.max(initial=0))
    freedom = len(values) - len(sizes) - (int((group > 0).sum()) - groups)
    noise = (float(left @ left) + _step(table) ** 2) / (max(0, freedom) + 1)
    counted = len(np.unique(cluster))
    meat = (scores.T @ scores).toarray() * (counted / (counted - 1) if counted > 1 else 1.0)
    variances = np.maximum(
        np.diagonal(solution @ meat @ solution.T), noise * np.diagonal(solution @ laplacian @ solution.T)
    )
    of_grader = np.bincount(np.unique(grader * max(1, clusters) + cluster) // max(1, clusters), minlength=graders)
    half = np.asarray(t.ppf((1.0 + level) / 2, np.maximum(1, of_grader - 1))) * np.sqrt(variances)
    answers = np.bincount(grader, minlength=graders)
    told = [
        GraderSeverity(name, value, value - reach, value + reach, count, questions, number) if number else
        GraderSeverity(name, None, None, None, 0, 0, None)
        for name, value, reach, count, questions, number in zip(
            table.graders, (-lenient).tolist(), half.tolist(), answers.tolist(), of_grader.tolist(), group.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    deviation = float(np.sqrt(left @ left / freedom)) if freedom > 0 else None
    return SeverityFit(told, groups, deviation, np.where(group > 0, -lenient, 0.0), solution, scores)


def _compared(table: GradeTable) -> tuple[Codes, Codes]:
    """The rows whose answer has grades of two graders at least, and the number of each row's answer."""
    present = np.flatnonzero(~np.isnan(table.values))
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, answer, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shared = counts[answer] > 1
    _, numbers = np.unique(answer[shared], return_inverse=True)
    return present[shared], numbers.astype(np.int64)


def _means(values: Floats, answer: Codes, sizes: Floats) -> Floats:
    """The mean over each row's answer."""
    return np.asarray((np.bincount(answer, values, len(sizes)) / sizes)[answer], dtype=np.float64)


def _groups(laplacian: Floats) -> Codes:
    """The number, from 1, of each grader's group; 0 of who shares no answer with anybody."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    _, found = connected_components(csr_matrix(laplacian < 0), directed=False)
    alone = np.diagonal(laplacian) <= 0
    numbers: dict[int, int] = {}
    return np.array([0 if single else numbers.setdefault(int(one), len(numbers) + 1)
                     for one, single in zip(found, alone, strict=True)], dtype=np.int64)  # fmt: skip


def _inverse(laplacian: Floats, group: Codes) -> Floats:
    """The inverse on what is identified: within each group, up to a constant."""
    found = np.zeros_like(laplacian)
    for number in range(1, int(group.max(initial=0)) + 1):
        inside = np.ix_(group == number, group == number)
        size = int((group == number).sum())
        found[inside] = np.linalg.inv(laplacian[inside] + 1.0 / size) - 1.0 / size
    return found


def _centring(group: Codes, models: Sequence[bool]) -> Floats:
    """The matrix that sets the mean of each group's people to 0; of all where there are none."""
    found = np.eye(len(group))
    person = ~np.array(models, dtype=np.bool_)
    for number in range(1, int(group.max(initial=0)) + 1):
        inside = group == number
        measured = inside & person if (inside & person).any() else inside
        found[inside] -= measured / measured.sum()
    return found


def _step(table: GradeTable) -> float:
    """The smallest distance between two grades that were given; the width of the scale where there is but one."""
    values = np.unique(table.values[~np.isnan(table.values)])
    if len(values) > 1:
        return float(np.diff(values).min())
    return float((table.tops - table.lows).max(initial=1.0))

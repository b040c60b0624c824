"""Grades of candidates: Grade(q,j) by dimension, weighted Grade(q), accuracy, differences, severity correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from viva.scoring.comparison import adjust_p_values
from viva.scoring.disputes import dimension_weights
from viva.scoring.graders import Codes, Floats, GradeTable, SeverityFit
from viva.scoring.ratios import RatioDifference, WeightedRatio, ratio_difference, weighted_ratio

OVERALL = "overall"
LEVEL = 0.95
MAX_PAIRED = 12  # with more candidates, only the best is compared with each other one
Measure = Literal["grade", "accuracy"]


@dataclass(slots=True, frozen=True)
class GradeFigure:
    """Figure in per cent with its interval; all None without grades.

    `grades`, `missing` and `questions` are the numbers of grades behind it, of missing grades and of questions.
    """

    value: float | None
    low: float | None
    high: float | None
    grades: int
    missing: int
    questions: int


@dataclass(slots=True, frozen=True)
class DimensionGroup:
    """Dimensions combined under a common path, or as `OVERALL`."""

    name: str
    dimensions: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class CandidateGrades:
    """Figures of a candidate by dimension or group."""

    candidate: str
    grade: Mapping[str, GradeFigure]
    accuracy: Mapping[str, GradeFigure]


@dataclass(slots=True, frozen=True)
class GradeDifference:
    """Difference first minus second in percentage points, on the `questions` for which both have grades.

    `p_corrected` is Holm-corrected over the pairs of a group. The interval is corrected likewise: it contains 0 exactly
    if `p_corrected` is at least 1 - level. Without p there is no interval.
    """

    group: str
    first: str
    second: str
    value: float
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    questions: int


def dimension_groups(dimensions: Sequence[str]) -> list[DimensionGroup]:
    """Return the groups of dimension paths, narrower before broader, `OVERALL` last.

    Every first step is a group, and every longer common prefix of several dimensions; of groups with equal dimensions
    the shortest name is kept.
    """
    by_prefix: dict[str, list[str]] = {}
    for path in dimensions:
        steps = path.split("/")
        for depth in range(1, len(steps)):
            by_prefix.setdefault("/".join(steps[:depth]), []).append(path)
    groups: list[DimensionGroup] = []
    for name, members in sorted(by_prefix.items(), key=lambda item: item[0].count("/")):
        is_repeated = any(set(group.dimensions) == set(members) for group in groups) or len(members) == len(dimensions)
        if not is_repeated and (len(members) > 1 or "/" not in name):
            groups.append(DimensionGroup(name, tuple(members)))
    last = {path: index for index, path in enumerate(dimensions)}
    groups.sort(key=lambda group: (last[group.dimensions[-1]], len(group.dimensions)))
    return [*groups, DimensionGroup(OVERALL, tuple(dimensions))]


class GradeSums:
    """Sums of a table's grades, for figures of any candidate and group; grades up to `wrong` count as not accurate."""

    def __init__(self, table: GradeTable, weights: Mapping[str, float] | None, wrong: float = 0.0) -> None:
        """Sum up a table.

        Raises:
            ConfigurationError: A dimension has no weight.
        """
        self.table, self.weights = table, dimension_weights(table.dimensions, weights)
        self._dimension_index = {name: index for index, name in enumerate(table.dimensions)}
        self._cluster = table.cluster_codes()
        self._present = ~np.isnan(table.values)
        self._earned: dict[Measure, tuple[Floats, Floats]] = {
            "grade": (np.where(self._present, table.values, 0.0), np.where(self._present, table.tops, 0.0)),
            "accuracy": ((self._present & (table.values > wrong)).astype(np.float64), self._present.astype(np.float64)),
        }
        self._rows = [np.flatnonzero(table.candidate == index) for index in range(len(table.candidates))]

    def ratio(self, candidate: int, measure: Measure, dimensions: Sequence[str], questions: Codes | None = None) -> \
            WeightedRatio | None:  # fmt: skip
        """Return a candidate's ratio over dimensions, of all or of these questions (by index); None without grades."""
        rows = self._rows_of(candidate, dimensions)
        rows = rows[self._present[rows]]
        if questions is not None:
            rows = rows[np.isin(self.table.question[rows], questions)]
        if not len(rows):
            return None
        earned, attainable = self._earned[measure]
        own_weights = np.zeros(len(self.weights))
        chosen = [self._dimension_index[name] for name in dimensions]
        own_weights[chosen] = self.weights[chosen]
        return weighted_ratio(
            earned[rows], attainable[rows], self.table.dimension[rows], self._cluster[rows], own_weights
        )

    def figure(self, candidate: int, measure: Measure, dimensions: Sequence[str], level: float = LEVEL) -> GradeFigure:
        """Return a candidate's figure over dimensions, with its interval."""
        rows = self._rows_of(candidate, dimensions)
        present = rows[self._present[rows]]
        counts = len(present), len(rows) - len(present), len(np.unique(self.table.question[present]))
        ratio = self.ratio(candidate, measure, dimensions)
        if ratio is None:
            return GradeFigure(None, None, None, *counts)
        ends = ratio.bounded_interval(level)
        return GradeFigure(100 * ends.value, 100 * ends.low, 100 * ends.high, *counts)

    def questions(self, candidate: int, dimensions: Sequence[str]) -> Codes:
        """Return the indices of these dimensions' questions for which a candidate has grades."""
        rows = self._rows_of(candidate, dimensions)
        return np.unique(self.table.question[rows[self._present[rows]]])

    def _rows_of(self, candidate: int, dimensions: Sequence[str]) -> Codes:
        rows = self._rows[candidate]
        if len(dimensions) == len(self.table.dimensions):
            return rows
        return rows[np.isin(self.table.dimension[rows], [self._dimension_index[name] for name in dimensions])]


def grade_candidates(sums: GradeSums, level: float = LEVEL) -> list[CandidateGrades]:
    """Return every candidate's figures, by dimension and by group, in the table's order."""
    table = sums.table
    places = {name: (name,) for name in table.dimensions} | {
        group.name: group.dimensions for group in dimension_groups(table.dimensions)
    }
    return [
        CandidateGrades(
            candidate,
            {name: sums.figure(at, "grade", paths, level) for name, paths in places.items()},
            {name: sums.figure(at, "accuracy", paths, level) for name, paths in places.items()},
        )
        for at, candidate in enumerate(table.candidates)
    ]


def compare_candidates(sums: GradeSums, level: float = LEVEL) -> list[GradeDifference]:
    """Compare every pair of candidates in every group, the better of a pair first.

    With more than `MAX_PAIRED` candidates, only the best of each group is compared with each other one.
    """
    table, differences = sums.table, list[GradeDifference]()
    for group in dimension_groups(table.dimensions):
        group_ratios = [sums.ratio(at, "grade", group.dimensions) for at in range(len(table.candidates))]
        ranked = sorted(
            (at for at, ratio in enumerate(group_ratios) if ratio is not None),
            key=lambda at: (-round(_ratio_or_zero(group_ratios[at]), 9), at),
        )
        questions_of = {at: sums.questions(at, group.dimensions) for at in ranked}
        pairs = list(combinations(ranked, 2)) if len(ranked) <= MAX_PAIRED else [(ranked[0], at) for at in ranked[1:]]
        compared = []
        for first, second in pairs:
            shared = np.intersect1d(questions_of[first], questions_of[second])
            ratios = [
                group_ratios[at]
                if len(shared) == len(questions_of[at])
                else sums.ratio(at, "grade", group.dimensions, shared)
                for at in (first, second)
            ]
            if ratios[0] is not None and ratios[1] is not None:
                compared.append((first, second, len(shared), ratio_difference(ratios[0], ratios[1])))
        ps = adjust_p_values([difference.p for *_, difference in compared])
        for (first, second, n, difference), p in zip(compared, ps, strict=True):
            low, high = _corrected_interval(difference, p, level)
            pair = table.candidates[first], table.candidates[second]
            differences.append(
                GradeDifference(group.name, *pair, 100 * difference.value, low, high, difference.p, p, n)
            )
    return differences


def _corrected_interval(
    difference: RatioDifference, p: float | None, level: float
) -> tuple[float | None, float | None]:
    """Return an interval corrected like p, which contains 0 exactly if the corrected p is at least 1 - level."""
    if p is None or difference.p is None:
        return None, None
    times = p / difference.p if difference.p > 0.0 else 1.0
    ends = difference.ends(1.0 - (1.0 - level) / max(1.0, times))
    assert ends is not None
    low, high = (ends.low, ends.high) if p < 1.0 - level else (min(ends.low, 0.0), max(ends.high, 0.0))
    return 100 * low, 100 * high


def _ratio_or_zero(ratio: WeightedRatio | None) -> float:
    return -1.0 if ratio is None else ratio.value


def corrected_grades(
    table: GradeTable,
    fit: SeverityFit,
    weights: Mapping[str, float] | None = None,
    rows: NDArray[np.bool_] | None = None,
    level: float = LEVEL,
) -> list[dict[str, GradeFigure]]:
    """Return the severity-corrected grade of each dimension and group in per cent, by candidate.

    `fit` is of a table with the same graders and clusters; `rows` is a mask of the grades to correct (default: all);
    leave out those that an adjudicator decided, which belong to no grader. Intervals include the error of the fitted
    severities; a figure beyond 0 or 100 is clipped.

    Raises:
        ConfigurationError: A dimension has no weight.
    """
    sums = GradeSums(fit.correct(table, rows), weights)
    correctable = ~np.isnan(table.values) & (np.ones(len(table), dtype=np.bool_) if rows is None else rows)
    places = {name: (name,) for name in table.dimensions} | {
        group.name: group.dimensions for group in dimension_groups(table.dimensions)
    }
    by_candidate = []
    for candidate in range(len(table.candidates)):
        own = table.candidate == candidate
        figures = {}
        for name, paths in places.items():
            figure, ratio = sums.figure(candidate, "grade", paths, level), sums.ratio(candidate, "grade", paths)
            if ratio is not None:
                of_graders = _severity_weights(
                    table, own, correctable, [table.dimensions.index(path) for path in paths], sums.weights
                )
                ends = _with_error(ratio, fit.influence(of_graders)).bounded_interval(level)
                figure = replace(figure, value=100 * ends.value, low=100 * ends.low, high=100 * ends.high)
            figures[name] = figure
        by_candidate.append(figures)
    return by_candidate


def _severity_weights(
    table: GradeTable, own: NDArray[np.bool_], chosen: NDArray[np.bool_], dimensions: list[int], weights: Floats
) -> Floats:
    """Return how much each grader's severity moves a ratio: the total weight of that grader's grades in the ratio."""
    rows = own & np.isin(table.dimension, dimensions) & ~np.isnan(table.values)
    attainable = np.bincount(table.dimension[rows], table.tops[rows], len(table.dimensions))
    used = np.where(attainable > 0, weights, 0.0)
    shares = np.where(attainable > 0, used / used.sum() / np.where(attainable > 0, attainable, 1.0), 0.0)
    affected = rows & chosen
    return np.asarray(
        np.bincount(table.grader[affected], shares[table.dimension[affected]], len(table.graders)), dtype=float
    )


def _with_error(ratio: WeightedRatio, error: Floats) -> WeightedRatio:
    """Return the ratio with a further error by cluster, correlated with the ratio's own error."""
    wide = max(len(error), len(ratio.influence))
    influence, further = (np.pad(errors, (0, wide - len(errors))) for errors in (ratio.influence, error))
    both = influence + further
    variance = max(0.0, ratio.variance + float(both @ both) - float(influence @ influence))
    return replace(ratio, variance=variance, influence=both)

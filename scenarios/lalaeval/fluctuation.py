"""Decomposition of a candidate's grade change between two rounds: questions, responses, same graders, other graders.

The parts follow the paper's appendix F.2, and sum to the change.

A grade belongs to one of six scenarios. Its question is *different* (not graded for this candidate in the other round,
or changed), or the same with a *different response*, or *both are the same*; and its grader is the *same* or
*different*. If the question is the same, the same graders are those who graded the candidate's answer to it in both
rounds. If the question is different, they are those who graded anything of the candidate in the other round. If
everybody grades everything, these are the paper's definitions. Otherwise these definitions ensure that only changes of
a grader's own grades count as changes of the same grader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from viva.scoring.disputes import dimension_weights
from viva.scoring.graders import Codes, Floats, GradeTable
from viva.scoring.intervals import student_half

from .candidate_grades import LEVEL, Measure, dimension_groups
from .graded_round import Versions

ChangePart = Literal["question", "response", "same_grader", "grader"]
CHANGE_PARTS: tuple[ChangePart, ...] = ("question", "response", "same_grader", "grader")
QUESTIONS = ("different question", "different response", "both the same")
GRADERS = ("same grader", "different grader")
_ROUNDING = 1e-9  # rounding error of an empty sum


@dataclass(slots=True, frozen=True)
class Contribution:
    """Percentage points with their interval; its ends are None if there is one question, or all contribute equally."""

    value: float
    low: float | None
    high: float | None


@dataclass(slots=True, frozen=True)
class FluctuationScenario:
    """Scenario of grades in one round.

    `share` is its share of the attainable grades, `average` its average grade in per cent (None if it is empty).
    """

    share: float
    average: float | None


@dataclass(slots=True, frozen=True)
class Fluctuation:
    """Change of a candidate in a dimension or group, in percentage points: `parts` sum to `change`.

    `scenarios` are by question and grader (`QUESTIONS`, `GRADERS`), before and after; only a single dimension has them.
    """

    candidate: str
    name: str
    before: float
    after: float
    change: Contribution
    parts: Mapping[ChangePart, Contribution]
    questions: int
    scenarios: Mapping[tuple[str, str], tuple[FluctuationScenario, FluctuationScenario]] = field(default_factory=dict)


def decompose_changes(
    tables: tuple[GradeTable, GradeTable],
    versions: tuple[Versions, Versions],
    weights: Mapping[str, float] | None = None,
    measure: Measure = "grade",
    level: float = LEVEL,
) -> list[Fluctuation]:
    """Return the changes of every candidate that both rounds have, by dimension, group and overall.

    `tables` and `versions` are (earlier, later). Both rounds use `weights` (None: all equal), divided by their sum over
    the round's dimensions. A dimension that one round lacks counts as new or removed questions.

    Raises:
        ConfigurationError: A dimension has no weight.
    """
    before, after = tables
    dimensions = list(dict.fromkeys([*before.dimensions, *after.dimensions]))
    weighed = dimension_weights(dimensions, weights)
    fluctuations: list[Fluctuation] = []
    for candidate in after.candidates:
        if candidate in before.candidates:
            cells = _sum_cells(tables, versions, candidate, dimensions, measure)
            if cells is not None:
                fluctuations += _candidate_fluctuations(candidate, dimensions, weighed, cells, level)
    return fluctuations


@dataclass(slots=True, frozen=True)
class _Cells:
    """Sums by cluster, dimension, round, question and grader: `sums` has one row (given, attainable) per cell."""

    cluster: Codes
    code: Codes  # dimension · 12 + round · 6 + question · 2 + grader
    sums: Floats


def _sum_cells(
    tables: tuple[GradeTable, GradeTable],
    versions: tuple[Versions, Versions],
    candidate: str,
    dimensions: Sequence[str],
    measure: Measure,
) -> _Cells | None:
    rounds = [_graded_rows(table, candidate) for table in tables]
    if not all(len(rows) for rows in rounds):
        return None
    names: dict[str, int] = {}
    at = {name: index for index, name in enumerate(dimensions)}
    clusters, places, sums = [], [], []
    graded_pairs = [set(_question_grader_pairs(table, rows)) for table, rows in zip(tables, rounds, strict=True)]
    for round_, (table, rows) in enumerate(zip(tables, rounds, strict=True)):
        other_pairs = graded_pairs[1 - round_]
        other_questions, anybody = {name for name, _ in other_pairs}, {name for _, name in other_pairs}
        own, other_versions = versions[round_], versions[1 - round_]
        kind = np.full(len(table.questions), 0)
        for k in np.unique(table.question[rows]):
            name = table.questions[k]
            if name in other_questions and own.same_question(other_versions, name):
                kind[k] = 2 if own.same_response(other_versions, name, candidate) else 1
        code = np.array([names.setdefault(name, len(names)) for name in table.clusters], dtype=np.int64)
        dimension = np.array([at[name] for name in table.dimensions], dtype=np.int64)
        questions = kind[table.question[rows]]
        same = np.array(
            [pair in other_pairs if matched else pair[1] in anybody
             for pair, matched in zip(_question_grader_pairs(table, rows), questions.tolist(), strict=True)],
                 dtype=np.int64
        )  # fmt: skip
        clusters.append(code[table.question[rows]])
        places.append(dimension[table.dimension[rows]] * 12 + round_ * 6 + questions * 2 + 1 - same)
        earned, attainable = table.values[rows], table.tops[rows]
        if measure == "accuracy":
            earned, attainable = (earned > 0).astype(np.float64), np.ones(len(rows))
        sums.append(np.column_stack([earned, attainable]))
    keys, inverse = np.unique(
        np.concatenate(clusters) * (12 * len(dimensions)) + np.concatenate(places), return_inverse=True
    )
    both = np.concatenate(sums)
    total = np.zeros((len(keys), 2))
    np.add.at(total, inverse, both)
    cluster, cell_code = np.divmod(keys, 12 * len(dimensions))
    return _Cells(cluster, cell_code, total)


def _question_grader_pairs(table: GradeTable, rows: Codes) -> Iterator[tuple[str, str]]:
    """Yield the question and the grader of each of these rows."""
    for question, grader in zip(table.question[rows].tolist(), table.grader[rows].tolist(), strict=True):
        yield table.questions[question], table.graders[grader]


def _graded_rows(table: GradeTable, candidate: str) -> Codes:
    """Return the rows of a candidate that contain a grade."""
    return np.flatnonzero((table.candidate == table.candidates.index(candidate)) & ~np.isnan(table.values))


def _candidate_fluctuations(
    candidate: str, dimensions: list[str], weights: Floats, cells: _Cells, level: float
) -> Iterator[Fluctuation]:
    totals = np.zeros((len(dimensions) * 12, 2))
    np.add.at(totals, cells.code, cells.sums)
    by_dimension = totals.reshape(-1, 2, 3, 2, 2)
    own = _Changes.from_sums(by_dimension)
    pairs, reduced = _jackknife(cells, totals)
    groups = [(name, (name,)) for name in dimensions] + [
        (group.name, group.dimensions) for group in dimension_groups(dimensions)
    ]
    for name, paths in groups:
        chosen = np.array([dimensions.index(each) for each in paths])
        if not own.has[chosen].any(axis=0).all():
            continue  # a dimension that one round lacks
        values = own.samples(chosen).combine(weights[chosen])[0]
        touched = np.isin(pairs[:, 1], chosen)
        samples = own.samples(chosen, pairs[touched], reduced.select(touched)).combine(weights[chosen])
        contributions = _contributions(values, samples, level)
        scenarios = _scenario_shares(by_dimension[chosen[0]]) if len(paths) == 1 else {}
        yield Fluctuation(
            candidate, name, float(100 * values[0]), float(100 * values[1]), contributions[0],
            dict(zip(CHANGE_PARTS, contributions[1:], strict=True)), len(samples), scenarios,
        )  # fmt: skip


def _jackknife(cells: _Cells, totals: Floats) -> tuple[Codes, _Changes]:
    """Return each pair of cluster and dimension, and that dimension's changes without the cluster."""
    keys, places = np.unique(cells.cluster * (len(totals) // 12) + cells.code // 12, return_inverse=True)
    cluster, dimension = np.divmod(keys, len(totals) // 12)
    sums = totals.reshape(-1, 12, 2)[dimension]
    sums[places, cells.code % 12] -= cells.sums
    return np.column_stack([cluster, dimension]), _Changes.from_sums(sums.reshape(-1, 2, 3, 2, 2))


@dataclass(slots=True, frozen=True)
class _Changes:
    """Changes of dimensions, or of samples × dimensions.

    `ratios` are those of both rounds, `parts` are the four parts, and `has` says whether a round contains the
    dimension.
    """

    ratios: Floats
    parts: Floats
    has: NDArray[np.bool_]

    @classmethod
    def from_sums(cls, sums: Floats) -> _Changes:
        """Compute the changes from `sums`: … × round × question × grader × (given, attainable)."""
        sums = np.where(sums[..., 1:] > _ROUNDING, sums, 0.0)
        earned, attainable = sums[..., 0], sums[..., 1]
        total = attainable.sum(axis=(-2, -1))
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.nan_to_num(earned.sum(axis=(-2, -1)) / total)
            questions = np.nan_to_num(attainable.sum(axis=-1) / total[..., None])
            graders = attainable / attainable.sum(axis=-1, keepdims=True)
            averages = earned / attainable
        parts = _split_change(questions[..., 0, :], questions[..., 1, :], graders[..., 0, :, :], graders[..., 1, :, :],
                       averages[..., 0, :, :], averages[..., 1, :, :])  # fmt: skip
        has = total > 0
        return cls(ratios, np.where(has.all(axis=-1)[..., None], parts, 0.0), has)

    def select(self, rows: NDArray[np.bool_]) -> _Changes:
        """Return a subset of the changes."""
        return _Changes(self.ratios[rows], self.parts[rows], self.has[rows])

    def samples(self, chosen: Codes, pairs: Codes | None = None, reduced: _Changes | None = None) -> _Changes:
        """Return these dimensions as one sample, or with each cluster left out in turn.

        `pairs` are pairs (cluster, dimension), and `reduced` has the changes without the cluster.
        """
        if pairs is None or reduced is None:
            return _Changes(self.ratios[None, chosen], self.parts[None, chosen], self.has[None, chosen])
        left_out, sample = np.unique(pairs[:, 0], return_inverse=True)
        column = np.zeros(len(self.ratios), dtype=np.int64)
        column[chosen] = np.arange(len(chosen))
        at = sample, column[pairs[:, 1]]
        wide = np.tile(chosen, (len(left_out), 1))
        ratios, parts, has = self.ratios[wide], self.parts[wide], self.has[wide]
        ratios[at], parts[at], has[at] = reduced.ratios, reduced.parts, reduced.has
        return _Changes(ratios, parts, has)

    def combine(self, weights: Floats) -> Floats:
        """Combine samples × dimensions with these weights: before, after and the four parts, by sample."""
        weighed = self.has * weights[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.nan_to_num(weighed / weighed.sum(axis=1, keepdims=True))
        before, after = ((shares[..., side] * self.ratios[..., side]).sum(axis=1) for side in (0, 1))
        parts = (self.parts * (shares[..., 0] * self.has.all(axis=-1))[..., None]).sum(axis=1)
        # Effect of the dimensions themselves: a removed dimension keeps its ratio, so that it affects nothing else.
        kept_ratios = np.where(self.has[..., 1], self.ratios[..., 1], self.ratios[..., 0])
        parts[:, 0] += after - (shares[..., 0] * kept_ratios).sum(axis=1)
        return np.column_stack([before, after, parts])


def _split_change(
    questions: Floats, new_questions: Floats, graders: Floats, new_graders: Floats, averages: Floats, new: Floats
) -> Floats:
    """Return the four parts (appendix F.2) from W_q `questions`, W_p `graders` given q, and Avg `averages`.

    The average of an empty cell never counts. If a cell is empty in the later round, its average is that of the earlier
    round; if a kind of question has disappeared, its shares of graders are also those of the earlier round. The loss
    then appears in the terms of the changed shares, not as a change of grades. In the first two parts the paper weighs
    all graders with W_p1; the sum of the parts needs W_pj, which is used here.
    """
    new_graders = np.where(np.isnan(new_graders), graders, new_graders)
    new = np.where(np.isnan(new), averages, new)
    new, new_graders = np.nan_to_num(new), np.nan_to_num(new_graders)
    # A cell that was empty before has weight 0, so the new average can be used without causing a change.
    averages, graders = np.where(np.isnan(averages), new, averages), np.nan_to_num(graders)
    changed = questions[..., None] * graders * (new - averages)
    shift_of_questions = ((new_questions - questions)[..., None] * new_graders * new).sum(axis=(-2, -1))
    shift_of_graders = (questions[..., None] * (new_graders - graders) * new).sum(axis=(-2, -1))
    return np.stack(
        [
            changed[..., 0, :].sum(axis=-1) + shift_of_questions,
            changed[..., 1, :].sum(axis=-1),
            changed[..., 2, 0],
            changed[..., 2, 1] + shift_of_graders,
        ],
        axis=-1,
    )


def _contributions(values: Floats, jackknifed: Floats, level: float) -> list[Contribution]:
    """Return the change and the four parts with Student's intervals, by the jackknife over clusters."""
    changes = np.concatenate([[values[1] - values[0]], values[2:]])
    samples = np.column_stack([jackknifed[:, 1] - jackknifed[:, 0], jackknifed[:, 2:]])
    n = len(samples)
    errors = np.sqrt((n - 1) / n * ((samples - samples.mean(axis=0)) ** 2).sum(axis=0))
    half = student_half(1.0, max(1, n - 1), level) * errors
    return [
        Contribution(100 * float(value), *((None, None) if error <= 1e-12 else
                     (float(max(-100.0, 100 * (value - reach))), float(min(100.0, 100 * (value + reach))))))
        for value, error, reach in zip(changes, errors, half, strict=True)
    ]  # fmt: skip


def _scenario_shares(sums: Floats) -> dict[tuple[str, str], tuple[FluctuationScenario, FluctuationScenario]]:
    """Return the scenarios before and after from `sums`: round × question × grader × (given, attainable)."""
    totals = sums[..., 1].sum(axis=(1, 2))
    scenarios = {}
    for i, question in enumerate(QUESTIONS):
        for j, grader in enumerate(GRADERS):
            first, second = (
                FluctuationScenario(
                    float(sums[side, i, j, 1] / totals[side]),
                    float(100 * sums[side, i, j, 0] / sums[side, i, j, 1]) if sums[side, i, j, 1] > 0 else None,
                )
                for side in (0, 1)
            )
            scenarios[question, grader] = (first, second)
    return scenarios

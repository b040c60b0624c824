"""Disputes of graders over answers, and the dispute levels of graders and questions.

An answer is one candidate's to one question. A missing grade disputes nothing, and the others are compared without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from viva.engine.errors import ConfigurationError

from .dispute_criteria import ROUNDING, DisputeCriteria
from .graders import Codes, Floats, GradeTable

Flags = NDArray[np.bool_]


@dataclass(slots=True, frozen=True)
class DisputeFlags:
    """Disputes of a table.

    For each row of the table: `rows`, whether its grader disputes the answer (F), and `answer`, the position of its
    answer, -1 for a missing grade. For each graded answer: its `question` and `candidate` (positions in the table's
    lists), its number of `graders`, whether it is `divided` (G), whether its grades differ (`differs`), and how many
    graders dispute it (`alone`).
    """

    rows: Flags
    answer: Codes
    question: Codes
    candidate: Codes
    graders: Codes
    divided: Flags
    differs: Flags
    alone: Codes

    @property
    def disputed(self) -> Flags:
        """Mask of answers in dispute, divided or by a grader."""
        return self.divided | (self.alone > 0)


def find_disputes(table: GradeTable, criteria: DisputeCriteria | None = None) -> DisputeFlags:
    """Return which graders dispute an answer (F), and which answers are in dispute as a whole (G).

    Use the original grades: grades that were decided later no longer disagree.
    """
    rule = criteria or DisputeCriteria()
    present = ~np.isnan(table.values)
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    answers, places = np.unique(keys, return_inverse=True)
    values = table.values[present]
    n = np.bincount(places, minlength=len(answers))
    right = np.bincount(places, values > rule.wrong, minlength=len(answers)).astype(np.int64)
    low, high = np.full(len(answers), np.inf), np.full(len(answers), -np.inf)
    np.minimum.at(low, places, values)
    np.maximum.at(high, places, values)
    rows = np.zeros(len(table), dtype=np.bool_)
    if rule.of_grader is not None or rule.of_answer is not None or rule.grader == "apart":
        order = np.lexsort((values, places))
        grouped = np.split(values[order], np.cumsum(n)[:-1]) if len(n) else []
    if rule.of_grader is not None:
        flags = np.array([rule.of_grader(float(own), _other_grades(group, at)) if len(group) > 1 else False
                          for group in grouped for at, own in enumerate(group)], dtype=np.bool_)  # fmt: skip
        rows[np.flatnonzero(present)[order]] = flags
    elif rule.grader == "apart":
        distances = np.abs(values[order] - _medians_of_others(grouped))
        rows[np.flatnonzero(present)[order]] = distances >= rule.distance - ROUNDING
    else:
        rows[present] = (n[places] > 1) & (np.where(values > rule.wrong, right[places], (n - right)[places]) == 1)
    if rule.of_answer is not None:
        divided = np.array(
            [len(group) > 1 and rule.of_answer(tuple(group.tolist())) for group in grouped], dtype=np.bool_
        )
    elif rule.answer == "spread":
        divided = (n > 1) & (high - low >= rule.distance - ROUNDING)
    else:
        smaller = np.minimum(right, n - right)
        divided = (smaller > 0) & (2 * smaller == n) | (smaller > 1) & (2 * smaller == n - 1)
    answer_of_row = np.full(len(table), -1, dtype=np.int64)
    answer_of_row[present] = places
    question, candidate = np.divmod(answers, max(1, len(table.candidates)))
    alone = np.bincount(places, rows[present], minlength=len(answers)).astype(np.int64)
    return DisputeFlags(rows, answer_of_row, question, candidate, n.astype(np.int64), divided, high > low, alone)


def _other_grades(sorted_grades: Floats, at: int) -> tuple[float, ...]:
    return tuple(np.delete(sorted_grades, at).tolist())


def _medians_of_others(grouped: Sequence[Floats]) -> Floats:
    """Return, for each grade of each answer, sorted, the median of the answer's other grades; nan if there are none."""
    results = [np.empty(len(group)) for group in grouped]
    for size in {len(group) for group in grouped}:
        alike = [at for at, group in enumerate(grouped) if len(group) == size]
        grades = np.array([grouped[at] for at in alike])
        for left_out in range(size):
            other_grades = np.delete(grades, left_out, axis=1)
            medians = np.median(other_grades, axis=1) if size > 1 else np.full(len(alike), np.nan)
            for at, median in zip(alike, medians, strict=True):
                results[at][left_out] = median
    return np.concatenate(results) if results else np.empty(0)


@dataclass(slots=True, frozen=True)
class GraderLevels:
    """Dispute levels of graders.

    `by_dimension`: C(i,j), graders × dimensions, nan if i graded nothing of j; `disputed` and `graded`: its
    numerators and denominators. `level`: C(i), nan if nothing was graded.
    """

    by_dimension: Floats
    disputed: Codes
    graded: Codes
    level: Floats


def grader_levels(table: GradeTable, flags: DisputeFlags, weights: Mapping[str, float] | None = None) -> GraderLevels:
    """Compute C(i,j), the fraction of the answers of dimension j graded by i that i disputes; C(i) = sum of w_j C(i,j).

    If everybody grades everything, the denominator is K_j Q, as in Sun et al. 2024; otherwise it is what i graded,
    because i cannot dispute an answer that i never saw. Weights are normalised over the dimensions that i graded;
    default: equal.
    """
    graders, dimensions = len(table.graders), len(table.dimensions)
    present = flags.answer >= 0
    cells = table.grader * max(1, dimensions) + table.dimension
    graded = np.bincount(cells[present], minlength=graders * max(1, dimensions)).reshape(graders, -1)
    disputed = np.bincount(cells[flags.rows], minlength=graders * max(1, dimensions)).reshape(graders, -1)
    with np.errstate(invalid="ignore"):
        shares = disputed / graded
        cell_weights = (graded > 0) * dimension_weights(table.dimensions, weights)
        level = np.nansum(np.where(graded > 0, shares, 0.0) * cell_weights, axis=1) / cell_weights.sum(axis=1)
    return GraderLevels(shares, disputed, graded, level)


@dataclass(slots=True, frozen=True)
class QuestionLevels:
    """Dispute levels of questions, in the table's order.

    `level` is C(k), nan if nobody graded the question. `divided` counts answers (sum of G), `alone` grades (sum of F),
    and `graders` the question's graders.
    """

    level: Floats
    divided: Codes
    alone: Codes
    graders: Codes


def question_levels(table: GradeTable, flags: DisputeFlags, criteria: DisputeCriteria | None = None) -> QuestionLevels:
    """Compute C(k) = w1 · sum over candidates of G + w2 · sum over graders and candidates of F / n.

    n is the number of graders of the question.
    """
    first, second = (criteria or DisputeCriteria()).weights
    questions = len(table.questions)
    divided = np.bincount(flags.question, flags.divided, minlength=questions).astype(np.int64)
    alone = np.bincount(flags.question, flags.alone, minlength=questions).astype(np.int64)
    present = flags.answer >= 0
    pairs = np.unique(table.question[present] * max(1, len(table.graders)) + table.grader[present])
    graders = np.bincount(pairs // max(1, len(table.graders)), minlength=questions)
    with np.errstate(invalid="ignore"):
        level = first * divided + second * alone / graders
    return QuestionLevels(level, divided, alone, graders.astype(np.int64))


def dimension_weights(dimensions: Sequence[str], weights: Mapping[str, float] | None) -> Floats:
    """Return the weight of each dimension; default: all equal.

    Raises:
        ConfigurationError: if a dimension has no weight, or an invalid one.
    """
    if not weights:
        return np.ones(len(dimensions))
    for name in dimensions:
        if name not in weights:
            raise ConfigurationError(f"dimension '{name}' has no weight; there are weights for: {', '.join(weights)}")
    values = np.array([float(weights[name]) for name in dimensions])
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ConfigurationError(f"weights: {values.tolist()}; expected numbers of at least 0")
    return values

"""The four-dimensional table of a graded round (Sun and others 2024, Table 2): what each grader gave each candidate.

What never belongs here: figures, and writing files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from viva.scoring.grade_table import GradeTable

from ..graded_round import GradedRound

Row = dict[str, Any]


def grade_columns(graded: GradedRound) -> list[str]:
    """The columns of the four-dimensional table: dimension, question, grader, and each candidate's grade."""
    return ["dimension", "question", "grader", *(f"grade of {name}" for name in graded.original.candidates)]


def grade_rows(graded: GradedRound) -> Iterator[Row]:
    """The rows of original grades, None where there is none."""
    yield from _rows(graded, graded.original)


def first_grade_rows(graded: GradedRound, count: int) -> tuple[list[Row], int]:
    """So many of these rows, and how many there are."""
    table = graded.original
    keys = (table.dimension * len(table.questions) + table.question) * len(table.graders) + table.grader
    found = np.unique(keys)
    chosen = np.isin(keys, found[:count])
    return list(_rows(graded, table.chosen(chosen))), len(found)


def _rows(graded: GradedRound, table: GradeTable) -> Iterator[Row]:
    columns = grade_columns(graded)
    cells: dict[tuple[int, int, int], Row] = {}
    for j, k, i, q, value in zip(table.dimension.tolist(), table.question.tolist(), table.grader.tolist(),
                                 table.candidate.tolist(), table.values.tolist(), strict=True):  # fmt: skip
        row = cells.setdefault((j, k, i), dict.fromkeys(columns) | {
            "dimension": table.dimensions[j], "question": table.questions[k], "grader": table.graders[i]
        })  # fmt: skip
        row[columns[3 + q]] = None if value != value else value
    for place in sorted(cells):
        yield cells[place]

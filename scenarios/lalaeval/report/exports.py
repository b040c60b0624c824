"""Files of a graded round's report: every figure as a row, scores for Inspect.

What never belongs here: computing figures, and writing files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..graded_round import GradedRound
from .figures import Whose, rows_of

Record = Mapping[str, Any]
Row = dict[str, Any]
COLUMNS = (
    "part",
    "dimension",
    "candidate",
    "against",
    "grader",
    "question",
    "measure",
    "value",
    "low",
    "high",
    "p",
    "n",
)
TEXTS = ("part", "dimension", "candidate", "against", "grader", "question", "measure")


def figure_rows(report: Record) -> Iterator[Row]:
    """Every figure of a report, one a row."""
    for one in report["candidates"]:
        for measure in ("grade", "accuracy", "corrected"):
            for name, figure in one[measure].items():
                yield _row(
                    "candidates", measure, figure, dimension=name, candidate=one["candidate"], n=figure["grades"]
                )
    for one in report["differences"]:
        yield _row("differences", "grade", one, dimension=one["group"], candidate=one["first"], against=one["second"],
                   p=one["p_corrected"], n=one["questions"])  # fmt: skip
    for one in report["graders"]:
        place = {"grader": one["grader"]}
        for measure, n in (("disputes", one["grades"]), ("severity", one["compared"]), ("consistency", one["answers"])):
            yield _row("graders", measure, one[measure], n=n, **place)
        for name, cell in one["by_dimension"].items():
            yield _row("graders", "disputes", cell, dimension=name, n=cell["graded"], **place)
    for one in report["disputes"]:
        for measure in ("differs", "disputed"):
            yield _row("disputes", measure, one[measure], dimension=one["dimension"], n=one["answers"])
    for one in report["agreement"]["people"]:
        for measure in ("same", "alpha", "alpha_nominal", "ac1", "ac2"):
            yield _row("agreement", measure, one[measure], dimension=one["dimension"], n=one["answers"])
    for one in report["agreement"]["models"]:
        for measure in ("same", "people", "alpha_with", "alpha_people"):
            yield _row("models", measure, one[measure], grader=one["grader"], n=one["answers"])
    for one in report["questions"]:
        yield _row("questions", "level", {"value": one["level"]}, question=one["question"], n=one["graders"])
    for one in (report["fluctuation"] or {"changes": []})["changes"]:
        place = {"dimension": one["dimension"], "candidate": one["candidate"], "n": one["questions"]}
        yield _row("fluctuation", "before", {"value": one["before"]}, **place)
        yield _row("fluctuation", "after", {"value": one["after"]}, **place)
        yield _row("fluctuation", "change", one["change"], **place)
        for name, part in one["parts"].items():
            yield _row("fluctuation", f"part.{name}", part, **place)
    for name, number in report["counts"].items():
        yield _row("counts", name, {"value": number})


def _row(part: str, measure: str, figure: Record, **place: Any) -> Row:
    numbers = {name: figure.get(name) for name in ("value", "low", "high")}
    return dict.fromkeys(COLUMNS) | {"part": part, "measure": measure} | numbers | place


def inspect_scores(graded: GradedRound, whose: Whose = "people") -> dict[str, list[Row]]:
    """By candidate the records that Inspect's scorer ``precomputed_scores`` reads: a question's mean grade as a share
    of the highest, 0–1, of ``whose`` grades the report is made of; with these as metadata. Sample ids are those of
    questions.
    """
    kept, _ = rows_of(graded.table, whose)
    table, original = graded.table.chosen(kept), graded.original.values[kept]
    present = ~np.isnan(table.values)
    found: dict[str, list[Row]] = {}
    for at, candidate in enumerate(table.candidates):
        by_question: dict[int, list[int]] = {}
        for row in np.flatnonzero(present & (table.candidate == at)).tolist():
            by_question.setdefault(int(table.question[row]), []).append(row)
        records = []
        for k, rows in sorted(by_question.items()):
            given = {
                table.graders[table.grader[row]]: float(original[row]) for row in rows if original[row] == original[row]
            }
            metadata: Row = {"dimension": table.dimensions[table.dimension[rows[0]]], "grades": given,
                             "highest": float(table.tops[rows[0]])}  # fmt: skip
            if (table.questions[k], candidate) in graded.decided:
                metadata["decided"] = graded.decided[table.questions[k], candidate]
            value = float(table.values[rows].sum() / table.tops[rows].sum()) if table.tops[rows].sum() else None
            if value is not None:
                records.append({"id": table.questions[k], "value": round(value, 6), "metadata": metadata})
        found[candidate] = records
    return found

"""``viva grade check``: whether a project can be used, what it has, and how far its rounds have come.

What never belongs here: changing anything, and grades' figures (``viva grade report``).
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..project import Project


def check(project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")]) -> None:
    """Check a project's file and bank, and say how far its rounds have come; no model is asked."""
    from viva.cli.output import print_tables, print_text
    from viva.reports.controls import one_line
    from viva.reports.text import Table, percent

    from ..bank import STATES, Bank
    from ..findings import near_duplicates, plan_rows, problems
    from ..project import Project

    opened, today = Project.open(project), date.today()
    with Bank.open(opened) as bank:
        entries, rubrics = bank.entries(), bank.rubrics()
    graders = ", ".join(f"{one.name} ({one.role})" if one.role != "grader" else one.name for one in opened.file.graders)
    counts = ", ".join(f"{sum(one.state == state for one in entries)} {state}" for state in STATES)
    evaluated = sorted((priority, path) for path, priority in opened.domains.items() if priority)
    lines = [
        f"{opened.file.title}: {len(opened.dimensions)} graded dimensions, rubric version {rubrics[-1].number}",
        f"graders: {graders or 'none yet'}; {opened.file.overlap} for each question",
        f"bank: {counts}",
        "domains: " + "; ".join(f"{priority} {path}" for priority, path in evaluated),
    ]
    print_text("".join(f"{one_line(line)}\n" for line in lines) + "\n")
    missing = dict.fromkeys(opened.dimensions, 0)
    for row in plan_rows(entries, opened, today):
        missing[row.dimension] += max(0, row.wanted - row.accepted)
    have = {path: sum(one.state == "accepted" and one.pair.dimension == path for one in entries) for path in missing}
    dimensions: Table = (
        "Dimensions",
        ["dimension", "weight", "grades", "accepted", "missing in the plan"],
        [[path, percent(one.weight), f"{min(one.grades)}–{max(one.grades)}", str(have[path]), str(missing[path])]
         for path, one in opened.dimensions.items()],
    )  # fmt: skip
    print_tables([dimensions, _rounds(opened)])
    notes = [f"question {one.pair.id}: {problem}" for one in entries for problem in problems(one.pair, opened, today)]
    notes += [
        f"{two.first} and {two.second} are nearly the same question (likeness {two.likeness:.2f})"
        for two in near_duplicates([one.pair for one in entries], opened.file.duplicates)
    ]
    for note in notes:
        print(f"viva: note: {one_line(note)}", file=sys.stderr)


def _rounds(project: Project) -> tuple[str, list[str], list[list[str]]]:
    """How far each round has come."""
    from viva.orchestration.grading.schema import FILE
    from viva.orchestration.grading.seats import whole_standing
    from viva.orchestration.grading.store import GradeStore

    from .rounds import is_drawn, open_round

    rows = []
    for path in filter(is_drawn, project.rounds()):
        drawn = open_round(path)
        come = "answers are collected: viva grade collect goes on"
        if (path / FILE).is_file():
            with GradeStore.open(path) as store:
                seats = whole_standing(store)
                grades = sum(one.value is not None for one in store.grades())
            come = f"{grades:,} grades; {seats.finished} seats finished, {seats.begun} begun, {seats.left} free"
        rows.append([drawn.record.name, drawn.record.kind, str(len(drawn.pairs)), str(len(drawn.gold)), come])
    return "Rounds", ["round", "kind", "questions", "gold", "how far"], rows

"""``viva grade check``: whether a project can be used, what it has, and how far its rounds have come.

What never belongs here: changing anything, and grades' figures (``viva grade report``).
"""

from __future__ import annotations

import sys
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from viva.reports.text import Table

    from ..bank import RubricVersion
    from ..project import Project


def check(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")],
    rubrics_: Annotated[
        bool, typer.Option("--rubrics", help="Also print every version of the rubric, with what changed.")
    ] = False,
) -> None:
    """Check a project's file and bank, and say how far its rounds have come; no model is asked."""
    from viva.cli.output import print_tables, print_text
    from viva.reports.controls import one_line
    from viva.reports.text import percent

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
    if rubrics_:
        print_text("\n" + "".join(f"{one_line(line)}\n" for line in _versions(rubrics)))
    kept = [one.pair for one in entries if one.state != "returned"]
    notes = [f"question {pair.id}: {problem}" for pair in kept for problem in problems(pair, opened, today)]
    notes += [
        f"{two.first} and {two.second} are nearly the same question (likeness {two.likeness:.2f})"
        for two in near_duplicates(kept, opened.file.duplicates)
    ]
    for note in notes:
        print(f"viva: note: {one_line(note)}", file=sys.stderr)


def _versions(rubrics: list[RubricVersion]) -> Iterator[str]:
    """The history of the rubric: each dimension that is new, changed or gone, and the words that changed."""
    before: dict[str, Any] = {}
    for one in rubrics:
        yield f"rubric version {one.number}, from {datetime.fromtimestamp(one.at):%Y-%m-%d %H:%M} on"
        for path in dict.fromkeys([*before, *one.rubric]):
            then, now = before.get(path), one.rubric.get(path)
            if then != now:
                kind = "gone" if now is None else "new" if then is None else "changed"
                yield f"  {path}, {kind}: {_difference(then or {}, now or {})}"
        before = one.rubric


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    grades, earlier = now.get("grades", {}), then.get("grades", {})
    parts = [f"{grade}: {text}" for grade, text in grades.items() if earlier.get(grade) != text]
    parts += [f"{grade}: no longer" for grade in earlier if grade not in grades]
    if now.get("principle", "") != then.get("principle", ""):
        parts.append("principle: " + (" ".join(now["principle"].split()) if now.get("principle") else "none"))
    return "; ".join(parts)


def _rounds(project: Project) -> Table:
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

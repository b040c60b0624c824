"""Commands `viva grade init` and `check`: make a small project; check its file and bank, and show its rounds."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.cli.exit_codes import print_note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from viva.reports.tables import Table

    from ..project import Project
    from ..question_bank import RubricVersion

_TEMPLATE_FILES = ("project.yaml", "questions.jsonl")
TEMPLATES = Path(__file__).parent.parent / "templates"


def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")]) -> None:
    """Create a small commented project, with questions to import into its bank."""
    import shlex

    from viva.engine.errors import ConfigurationError

    existing = [name for name in _TEMPLATE_FILES if (folder / name).exists()]
    if existing:
        raise ConfigurationError(f"{folder}: already contains {', '.join(existing)}; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _TEMPLATE_FILES:
            (folder / name).write_text((TEMPLATES / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be created: {error.strerror}") from None
    quoted = shlex.quote(str(folder))
    typer.echo(
        f"{folder / _TEMPLATE_FILES[0]}: the project, with comments\n{folder / _TEMPLATE_FILES[1]}: eight questions "
        f"for its bank"
    )
    typer.echo(
        f"next steps:\n  viva grade bank import {quoted} {shlex.quote(str(folder / _TEMPLATE_FILES[1]))}\n"
        f"  viva grade bank inspect {quoted} --all\n  viva grade bank accept {quoted} --all\n"
        f"  viva grade check {quoted}"
    )


def check(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")],
    rubrics_: Annotated[
        bool, typer.Option("--rubrics", help="Also print every version of the rubric, with the changes.")
    ] = False,
) -> None:
    """Check a project's file and bank, and show the progress of its rounds; no model is called."""
    from viva.cli.output import print_tables, print_text
    from viva.reports.tables import one_line, percent

    from ..project import Project
    from ..question_bank import STATES, Bank, compare_with_plan, find_near_duplicates, pair_problems

    opened, today = Project.open(project), date.today()
    with Bank.open(opened) as bank:
        entries, rubrics = bank.entries(), bank.rubrics()
    graders = ", ".join(
        f"{grader.name} ({grader.role})" if grader.role != "grader" else grader.name for grader in opened.file.graders
    )
    counts = ", ".join(f"{sum(entry.state == state for entry in entries)} {state}" for state in STATES)
    evaluated = sorted((priority, path) for path, priority in opened.domains.items() if priority)
    lines = [
        f"{opened.file.title}: {len(opened.dimensions)} graded dimensions, rubric version {rubrics[-1].number}",
        f"graders: {graders or 'none yet'}; {opened.file.overlap} per question",
        f"bank: {counts}",
        "domains: " + "; ".join(f"{priority} {path}" for priority, path in evaluated),
    ]
    print_text("".join(f"{one_line(line)}\n" for line in lines) + "\n")
    missing = dict.fromkeys(opened.dimensions, 0)
    for row in compare_with_plan(entries, opened, today):
        missing[row.dimension] += max(0, row.wanted - row.accepted)
    have = {
        path: sum(entry.state == "accepted" and entry.pair.dimension == path for entry in entries) for path in missing
    }
    dimensions: Table = (
        "Dimensions",
        ["dimension", "weight", "grades", "accepted", "still to add"],
        [
            [
                path,
                percent(dimension.weight),
                f"{min(dimension.grades)}–{max(dimension.grades)}",
                str(have[path]),
                str(missing[path]),
            ]
            for path, dimension in opened.dimensions.items()
        ],
    )
    print_tables([dimensions, _round_table(opened)])
    if rubrics_:
        print_text("\n" + "".join(f"{one_line(line)}\n" for line in _rubric_history(rubrics)))
    active = [entry.pair for entry in entries if entry.state != "returned"]
    notes = [f"question {pair.id}: {problem}" for pair in active for problem in pair_problems(pair, opened, today)]
    notes += [
        f"{duplicate.first} and {duplicate.second} are nearly the same question (likeness {duplicate.likeness:.2f})"
        for duplicate in find_near_duplicates(active, opened.file.duplicates)
    ]
    for note in notes:
        print_note(note)


def _rubric_history(rubrics: list[RubricVersion]) -> Iterator[str]:
    """Yield the history of the rubric: new, changed and removed dimensions with the changed texts."""
    before: dict[str, Any] = {}
    for version in rubrics:
        yield f"rubric version {version.number}, from {datetime.fromtimestamp(version.at):%Y-%m-%d %H:%M} on"
        for path in dict.fromkeys([*before, *version.rubric]):
            then, now = before.get(path), version.rubric.get(path)
            if then != now:
                kind = "removed" if now is None else "new" if then is None else "changed"
                yield f"  {path}, {kind}: {_changed_words(then or {}, now or {})}"
        before = version.rubric


def _changed_words(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    grades, earlier = now.get("grades", {}), then.get("grades", {})
    parts = [f"{grade}: {text}" for grade, text in grades.items() if earlier.get(grade) != text]
    parts += [f"{grade}: no longer" for grade in earlier if grade not in grades]
    if now.get("principle", "") != then.get("principle", ""):
        parts.append("principle: " + (" ".join(now["principle"].split()) if now.get("principle") else "none"))
    return "; ".join(parts)


def _round_table(project: Project) -> Table:
    """Return a table with the progress of each round."""
    from viva.grading.assignments import overall_progress
    from viva.grading.store import GRADES_FILE, GradeStore

    from ..rounds import is_round, open_round

    rows = []
    for path in filter(is_round, project.rounds()):
        round_ = open_round(path)
        status = "collecting answers: resume with viva grade collect"
        if (path / GRADES_FILE).is_file():
            with GradeStore.open(path) as store:
                progress = overall_progress(store)
                grades = sum(grade.value is not None for grade in store.grades())
            status = f"{grades:,} grades; assignments: {progress.finished} finished, {progress.begun} begun, "
            status += f"{progress.left} open"
        rows.append([round_.record.name, round_.record.kind, str(len(round_.pairs)), str(len(round_.gold)), status])
    return "Rounds", ["round", "kind", "questions", "gold", "progress"], rows

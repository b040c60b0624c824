"""Commands `viva grade bank …`: import and export of question–answer pairs, and their review."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viva.cli.app import HELP, CommandGroup, command
from viva.cli.exit_codes import print_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from viva.reports.tables import Table

    from ..project import Project
    from ..question_bank import Bank, BankEntry, State

app = typer.Typer(
    cls=CommandGroup,
    name="bank",
    help="Question bank: import, review and export question–answer pairs.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)
ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Question ids.")]
Author = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Your name (default: your login name).")]
Every = Annotated[bool, typer.Option("--all", help="All eligible questions.")]
Today = Annotated[str | None, typer.Option("--day", metavar="DATE", help="Day for validity periods (default: today).")]


def import_(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSONL of question–answer pairs.")],
    author: Author = None,
) -> None:
    """Import pairs as drafts; a known id with new content becomes a draft again, and its earlier versions are kept."""
    from ..project import Project
    from ..question_bank import Bank, read_pairs

    opened = Project.open(project)
    pairs = read_pairs(file, opened)
    with Bank.open(opened) as bank:
        result = bank.put(pairs, _author(author))
        print(f"{bank.path}: {len(result.new)} new, {len(result.changed)} changed, {len(result.unchanged)} unchanged")
        affected = {*result.new, *result.changed}
        _print_problems(opened, bank, date.today(), only=affected)


def export(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSONL file to write.")],
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="draft|inspected|accepted|returned", help="Only questions in this state."),
    ] = None,
) -> None:
    """Export pairs to a file that `import` can read."""
    from ..project import Project
    from ..question_bank import Bank, write_pairs

    with Bank.open(Project.open(project)) as bank:
        count = write_pairs(file, [(entry.pair, entry.state) for entry in bank.entries(_parse_state(state))])
    print(f"{file}: {count:,} questions")


def list_(
    project: ProjectFolder,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="draft|inspected|accepted|returned", help="Only questions in this state."),
    ] = None,
    dimension: Annotated[
        str | None, typer.Option("--dimension", metavar="PATH", help="Only this dimension and those below it.")
    ] = None,
    day: Today = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the questions, what the plan still needs, and problems: no source, expired, near duplicates."""
    from viva.cli.output import print_json, print_tables

    from ..project import Project
    from ..question_bank import Bank, compare_with_plan, find_near_duplicates, pair_problems

    opened, on = Project.open(project), _parse_day(day)
    with Bank.open(opened) as bank:
        entries = bank.entries()
        selected = [
            entry for entry in entries if _parse_state(state) in (None, entry.state) and _is_within(entry, dimension)
        ]
        plan = compare_with_plan(entries, opened, on)
        duplicates = find_near_duplicates([entry.pair for entry in entries], opened.file.duplicates)
        problems_by_id = {entry.pair.id: pair_problems(entry.pair, opened, on) for entry in entries}
        reasons = {entry.pair.id: bank.reason(entry.pair.id) for entry in selected if entry.state == "returned"}
    if json:
        print_json({
            "questions": [entry.pair.to_record() | {"state": entry.state, "problems": problems_by_id[entry.pair.id]}
                          for entry in selected],
            "plan": [asdict(row) for row in plan],
            "near_duplicates": [asdict(duplicate) for duplicate in duplicates],
        })  # fmt: skip
        return
    header = ["id", "state", "dimension", "difficulty", "question", "notes"]
    remarks = {
        name: "; ".join([*problems, *filter(None, [reasons.get(name)])]) for name, problems in problems_by_id.items()
    }
    rows = [[entry.pair.id, entry.state, entry.pair.dimension, entry.pair.difficulty, _shorten(entry.pair.text),
        remarks[entry.pair.id]]
            for entry in selected]  # fmt: skip
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    tables: list[Table] = [(f"Questions of {opened.file.title}", header, rows), (
        f"Plan compared with the bank on {on}",
        ["dimension", "difficulty", "planned", "accepted", "missing", "under way"],
        [[row.dimension, row.difficulty, str(row.wanted), str(row.accepted),
          str(max(0, row.wanted - row.accepted)), str(row.under_way)] for row in plan],
    ), (
        "Near duplicates",
        ["question", "similar to", "likeness"],
        [[duplicate.first, duplicate.second, f"{duplicate.likeness:.2f}"] for duplicate in duplicates],
    )]  # fmt: skip
    print_tables(tables)


def show(project: ProjectFolder, name: Annotated[str, typer.Argument(metavar="ID", help="The question's id.")]) -> None:
    """Show a question with its history: every version, and who did what and when."""
    from viva.cli.output import print_text
    from viva.reports.tables import escape_controls

    from ..project import Project
    from ..question_bank import Bank

    with Bank.open(Project.open(project)) as bank:
        entry, history = bank.entry(name), bank.history(name)
    pair = entry.pair
    lines = [f"{pair.id}: {entry.state}, {pair.dimension}, {pair.difficulty}"]
    lines += [f"  round {number}: {text}" if len(pair.question) > 1 else f"  question: {text}"
              for number, text in enumerate(pair.question, 1)]  # fmt: skip
    lines += [f"  standard answer: {pair.standard_answer}", f"  source: {pair.source or 'none'}"]
    lines += [f"  gold answer, grade {answer.grade}: {answer.answer}" for answer in pair.gold]
    lines.append("history:")
    for event in history:
        when = datetime.fromtimestamp(event.at).strftime("%Y-%m-%d %H:%M")
        lines.append(f"  {when} {event.action} by {event.actor}" + (f": {event.reason}" if event.reason else ""))
    print_text("".join(f"{escape_controls(line)}\n" for line in lines))


def inspect(
    project: ProjectFolder,
    ids: Ids = None,
    every: Every = False,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Note for the history.")] = "",
    author: Author = None,
) -> None:
    """Mark drafts as inspected; --all skips those with a problem."""
    from ..question_bank import pair_problems

    def is_ready(opened: Project, entry: BankEntry) -> bool:
        return entry.state == "draft" and not pair_problems(entry.pair, opened, date.today())

    _move_pairs(
        project,
        ids,
        every,
        is_ready,
        lambda bank, names: bank.inspect(names, _author(author), note),
        "inspected",
        "no draft without a problem (see viva grade bank list)",
    )


def accept(
    project: ProjectFolder,
    ids: Ids = None,
    every: Every = False,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Note for the history.")] = "",
    author: Author = None,
) -> None:
    """Accept inspected questions, from which evaluations draw. A question without a source is never accepted."""

    def is_ready(opened: Project, entry: BankEntry) -> bool:
        return entry.state == "inspected"

    _move_pairs(
        project,
        ids,
        every,
        is_ready,
        lambda bank, names: bank.accept(names, _author(author), note),
        "accepted",
        "no question has been inspected (see viva grade bank inspect)",
    )


def return_(
    project: ProjectFolder,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Question ids.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What the designer should fix.")],
    author: Author = None,
) -> None:
    """Return questions to their designers with a reason; a new import with new content makes them drafts."""
    _move_pairs(
        project,
        ids,
        False,
        lambda _, __: False,
        lambda bank, names: bank.return_for_revision(names, _author(author), reason),
        "returned",
    )


def _move_pairs(
    project: Path,
    ids: Sequence[str] | None,
    every: bool,
    is_ready: Callable[[Project, BankEntry], bool],
    move: Callable[[Bank, Sequence[str]], None],
    state: str,
    none: str = "",
) -> None:
    """Move pairs to another state; `none` is the message if --all selects nothing."""
    from viva.engine.errors import ConfigurationError

    from ..project import Project
    from ..question_bank import Bank

    if bool(ids) == every:
        raise ConfigurationError("give question ids, or --all")
    opened = Project.open(project)
    with Bank.open(opened) as bank:
        names = list(ids or [entry.pair.id for entry in bank.entries() if is_ready(opened, entry)])
        move(bank, names)
    print(f"{len(names)} {state}" + ("" if names else f"; {none}"))


def _print_problems(opened: Project, bank: Bank, on: date, only: set[str]) -> None:
    """Print the problems of these questions on stderr."""
    from ..question_bank import find_near_duplicates, pair_problems

    entries = bank.entries()
    for entry in entries:
        if entry.pair.id in only:
            for problem in pair_problems(entry.pair, opened, on):
                print_note(f"{entry.pair.id}: {problem}")
    for duplicate in find_near_duplicates([entry.pair for entry in entries], opened.file.duplicates, only):
        print_note(
            f"{duplicate.first} and {duplicate.second} are nearly the same question (likeness {duplicate.likeness:.2f})"
        )


def _author(name: str | None) -> str:
    try:
        return name or getpass.getuser()
    except (OSError, KeyError):  # no login name, as in a container
        return "unknown"


def _parse_state(state: str | None) -> State | None:
    """Parse the name of a state.

    Raises:
        ConfigurationError: There is no such state.
    """
    from viva.engine.errors import ConfigurationError

    from ..question_bank import STATES

    match = next((candidate for candidate in STATES if candidate == state), None)
    if state is not None and match is None:
        raise ConfigurationError(f"--state {state}: expected one of {', '.join(STATES)}")
    return match


def _parse_day(day: str | None) -> date:
    """Parse a day; today if None.

    Raises:
        ConfigurationError: It is not a day.
    """
    from viva.engine.errors import ConfigurationError

    try:
        return date.today() if day is None else date.fromisoformat(day)
    except ValueError:
        raise ConfigurationError(f"--day {day}: expected a day such as 2026-06-30") from None


def _is_within(entry: BankEntry, dimension: str | None) -> bool:
    return dimension is None or f"{entry.pair.dimension}/".startswith(f"{dimension.rstrip('/')}/")


def _shorten(text: str) -> str:
    line = " / ".join(text.splitlines())
    return line if len(line) <= 60 else f"{line[:59]}…"


command("import", "viva grade bank import library questions.csv --by Ada", group=app)(import_)
command("export", group=app)(export)
command("list", group=app)(list_)
command("show", group=app)(show)
command("inspect", "viva grade bank inspect library q1 q2 --by Ben", group=app)(inspect)
command("accept", group=app)(accept)
command("return", "viva grade bank return library q7 --reason 'no source'", group=app)(return_)

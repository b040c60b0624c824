"""``viva grade bank …``: pairs into the question bank and out of it, and their way from draft to accepted."""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viva.cli.app import HELP, CommandGroup, example_epilog
from viva.cli.exit_codes import handle_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from viva.reports.tables import Table

    from ..project import Project
    from ..question_bank import Bank, BankEntry, State

app = typer.Typer(
    cls=CommandGroup,
    name="bank",
    help="The question bank: pairs in and out, and their way from draft to accepted.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)
ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="Project folder.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Questions by their ids.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it (default: your login name).")]
Every = Annotated[bool, typer.Option("--all", help="All questions of which it can be done.")]
Today = Annotated[str | None, typer.Option("--day", help="The day for validity periods (default: today).")]


def import_(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSONL of question–answer pairs.")],
    by: By = None,
) -> None:
    """Take pairs in as drafts; a known id with other content is a draft again, and its earlier versions stay."""
    from ..project import Project
    from ..question_bank import Bank, read_pairs

    opened = Project.open(project)
    pairs = read_pairs(file, opened)
    with Bank.open(opened) as bank:
        done = bank.put(pairs, _author(by))
        print(f"{bank.path}: {len(done.new)} new, {len(done.changed)} changed, {len(done.unchanged)} as they were")
        moved = {*done.new, *done.changed}
        _print_problems(opened, bank, date.today(), only=moved)


def export(
    project: ProjectFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV or JSONL file to write.")],
    state: Annotated[str | None, typer.Option("--state", help="Only draft, inspected, accepted or returned.")] = None,
) -> None:
    """Write pairs to a file that `import` reads back."""
    from ..project import Project
    from ..question_bank import Bank, write_pairs

    with Bank.open(Project.open(project)) as bank:
        count = write_pairs(file, [(one.pair, one.state) for one in bank.entries(_parse_state(state))])
    print(f"{file}: {count:,} questions")


def list_(
    project: ProjectFolder,
    state: Annotated[str | None, typer.Option("--state", help="Only draft, inspected, accepted or returned.")] = None,
    dimension: Annotated[str | None, typer.Option("--dimension", help="Only this dimension, or below it.")] = None,
    day: Today = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the questions, what the plan still wants, and what stands out: no source, expired, near duplicates."""
    from viva.cli.output import print_json, print_tables

    from ..project import Project
    from ..question_bank import Bank, compare_with_plan, find_near_duplicates, pair_problems

    opened, on = Project.open(project), _parse_day(day)
    with Bank.open(opened) as bank:
        entries = bank.entries()
        chosen = [one for one in entries if _parse_state(state) in (None, one.state) and _is_within(one, dimension)]
        plan = compare_with_plan(entries, opened, on)
        alike = find_near_duplicates([one.pair for one in entries], opened.file.duplicates)
        against = {one.pair.id: pair_problems(one.pair, opened, on) for one in entries}
        reasons = {one.pair.id: bank.reason(one.pair.id) for one in chosen if one.state == "returned"}
    if json:
        print_json({
            "questions": [one.pair.to_record() | {"state": one.state, "problems": against[one.pair.id]}
                          for one in chosen],
            "plan": [asdict(one) for one in plan],
            "near_duplicates": [asdict(one) for one in alike],
        })  # fmt: skip
        return
    header = ["id", "state", "dimension", "difficulty", "question", "to be said"]
    said = {name: "; ".join([*found, *filter(None, [reasons.get(name)])]) for name, found in against.items()}
    rows = [[one.pair.id, one.state, one.pair.dimension, one.pair.difficulty, _shorten(one.pair.text),
        said[one.pair.id]]
            for one in chosen]  # fmt: skip
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    tables: list[Table] = [(f"Questions of {opened.file.title}", header, rows), (
        f"Plan against the bank on {on}",
        ["dimension", "difficulty", "wanted", "accepted", "missing", "under way"],
        [[one.dimension, one.difficulty, str(one.wanted), str(one.accepted),
          str(max(0, one.wanted - one.accepted)), str(one.under_way)] for one in plan],
    ), (
        "Near duplicates",
        ["question", "and", "likeness"],
        [[one.first, one.second, f"{one.likeness:.2f}"] for one in alike],
    )]  # fmt: skip
    print_tables(tables)


def show(project: ProjectFolder, name: Annotated[str, typer.Argument(metavar="ID", help="The question's id.")]) -> None:
    """Print a question with its history: every version, and who did what when."""
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
    lines += [f"  gold answer, grade {one.grade}: {one.answer}" for one in pair.gold]
    lines.append("history:")
    for deed in history:
        when = datetime.fromtimestamp(deed.at).strftime("%Y-%m-%d %H:%M")
        lines.append(f"  {when} {deed.what} by {deed.by}" + (f": {deed.reason}" if deed.reason else ""))
    print_text("".join(f"{escape_controls(line)}\n" for line in lines))


def inspect(
    project: ProjectFolder,
    ids: Ids = None,
    every: Every = False,
    note: Annotated[str, typer.Option("--note", help="What was seen.")] = "",
    by: By = None,
) -> None:
    """Record that drafts were looked at and keep the criteria; --all leaves out those with a problem."""
    from ..question_bank import pair_problems

    def able(opened: Project, one: BankEntry) -> bool:
        return one.state == "draft" and not pair_problems(one.pair, opened, date.today())

    _move_pairs(project, ids, every, able, lambda bank, names: bank.inspect(names, _author(by), note), "inspected",
           "there is no draft without a problem (viva grade bank list)")  # fmt: skip


def accept(
    project: ProjectFolder,
    ids: Ids = None,
    every: Every = False,
    note: Annotated[str, typer.Option("--note", help="What was seen.")] = "",
    by: By = None,
) -> None:
    """Accept inspected questions: evaluations draw from these. None is accepted without a source."""

    def able(opened: Project, one: BankEntry) -> bool:
        return one.state == "inspected"

    _move_pairs(project, ids, every, able, lambda bank, names: bank.accept(names, _author(by), note), "accepted",
           "no question is inspected and waits (viva grade bank inspect)")  # fmt: skip


def return_(
    project: ProjectFolder,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Questions by their ids.")],
    reason: Annotated[str, typer.Option("--reason", help="What the designer should mend.")],
    by: By = None,
) -> None:
    """Return questions to their designers, with the reason; imported again with other content they are drafts."""
    _move_pairs(project, ids, False, lambda _, __: False, lambda bank, names: bank.give_back(names, _author(by),
        reason),
           "returned")  # fmt: skip


def _move_pairs(
    project: Path,
    ids: Sequence[str] | None,
    every: bool,
    able: Callable[[Project, BankEntry], bool],
    move: Callable[[Bank, Sequence[str]], None],
    state: str,
    none: str = "",
) -> None:
    """``none``: what is said where --all chooses nothing."""
    from viva.engine.errors import ConfigurationError

    from ..project import Project
    from ..question_bank import Bank

    if bool(ids) == every:
        raise ConfigurationError("name questions by their ids, or give --all")
    opened = Project.open(project)
    with Bank.open(opened) as bank:
        names = list(ids or [one.pair.id for one in bank.entries() if able(opened, one)])
        move(bank, names)
    print(f"{len(names)} {state}" + ("" if names else f"; {none}"))


def _print_problems(opened: Project, bank: Bank, on: date, only: set[str]) -> None:
    """Point out on stderr what is to be said of these questions."""
    from viva.reports.tables import one_line

    from ..question_bank import find_near_duplicates, pair_problems

    entries = bank.entries()
    for one in entries:
        if one.pair.id in only:
            for problem in pair_problems(one.pair, opened, on):
                print(f"viva: note: {one_line(one.pair.id)}: {problem}", file=sys.stderr)
    for two in find_near_duplicates([one.pair for one in entries], opened.file.duplicates, only):
        said = f"{two.first} and {two.second} are nearly the same question (likeness {two.likeness:.2f})"
        print(f"viva: note: {one_line(said)}", file=sys.stderr)


def _author(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):  # nobody is logged in, as in a container
        return "unknown"


def _parse_state(state: str | None) -> State | None:
    """:raises ConfigurationError: there is no such state."""
    from viva.engine.errors import ConfigurationError

    from ..question_bank import STATES

    found = next((one for one in STATES if one == state), None)
    if state is not None and found is None:
        raise ConfigurationError(f"--state {state}: expected one of {', '.join(STATES)}")
    return found


def _parse_day(day: str | None) -> date:
    """:raises ConfigurationError: it is no day."""
    from viva.engine.errors import ConfigurationError

    try:
        return date.today() if day is None else date.fromisoformat(day)
    except ValueError:
        raise ConfigurationError(f"--day {day}: expected a day such as 2026-06-30") from None


def _is_within(one: BankEntry, dimension: str | None) -> bool:
    return dimension is None or f"{one.pair.dimension}/".startswith(f"{dimension.rstrip('/')}/")


def _shorten(text: str) -> str:
    line = " / ".join(text.splitlines())
    return line if len(line) <= 60 else f"{line[:59]}…"


app.command("import", epilog=example_epilog("viva grade bank import library questions.csv --by Ada"))(
    handle_errors(import_)
)
app.command("export")(handle_errors(export))
app.command("list")(handle_errors(list_))
app.command("show")(handle_errors(show))
app.command("inspect", epilog=example_epilog("viva grade bank inspect library q1 q2 --by Ben"))(handle_errors(inspect))
app.command("accept")(handle_errors(accept))
app.command("return", epilog=example_epilog("viva grade bank return library q7 --reason 'no source'"))(
    handle_errors(return_)
)

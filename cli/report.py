"""``viva report``, ``viva score`` and ``viva show``: looking at runs. No model is ever called here.

What never belongs here: computing results.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .failing import guarded

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("report")(guarded(_report))
    app.command("score")(guarded(_score))
    app.command("show")(guarded(_show))


def _report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN|SWEEP...", help="Folders of runs and sweeps.")],
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs) instead of tables.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Also write every figure to this Parquet file (extra `parquet`).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")] = None,
    scorer: Annotated[str | None, typer.Option("--scorer", help="official, linear or corrected.")] = None,
) -> None:
    """Print the tables of a run as far as it has come; of several, or of a sweep, a study of all together."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.sweep.results import is_sweep

    from .studying import Wanted, show_study

    if json + markdown + latex > 1:
        raise ConfigurationError("--json, --markdown and --latex exclude each other: each prints on stdout")
    wanted = Wanted(json=json, markdown=markdown, latex=latex, csv=csv, parquet=parquet, html=html)
    # Of one run its own tables are shown, whatever files are written beside; markup and other scorers are a study's.
    alone = len(folders) == 1 and scorer is None and not (markdown or latex or is_sweep(folders[0]))
    if not alone or wanted.files:
        show_study(folders, scorer, wanted, print_it=not alone)
    if alone:
        _print(*_results(folders[0], {}), json)


def _score(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    scorer: Annotated[str | None, typer.Option("--scorer", help="official, linear or corrected.")] = None,
    no_decay: Annotated[bool, typer.Option("--no-decay", help="Let all rounds weigh the same.")] = False,
    no_early_stop: Annotated[
        bool, typer.Option("--no-early-stop", help="Ignore stop flags (of talks that went on after them).")
    ] = False,
    early_stop: Annotated[
        bool, typer.Option("--early-stop", help="Cut talks at the first stop flag, though they went on.")
    ] = False,
    json: Json = False,
) -> None:
    """Score a run's recorded verdicts in another way."""
    from viva.engine.errors import ConfigurationError

    if no_early_stop and early_stop:
        raise ConfigurationError("--early-stop and --no-early-stop exclude each other")
    options = {
        "scorer": scorer,
        "decay": False if no_decay else None,
        "early_stop": False if no_early_stop else True if early_stop else None,
    }
    results, damaged = _results(run, options)
    if no_early_stop and results.report().get("recorded_with_early_stop"):
        note = "talks of this run really ended at their stop flags; rounds after them were never held"
        print(f"viva: note: {note}", file=sys.stderr)
    _print(results, damaged, json)


def _results(run: Path, options: dict[str, Any]) -> tuple[Any, list[str]]:
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import results_and_damage

    return results_and_damage(RunFolder.open(run), options)


def _print(results: Any, damaged: list[str], json: bool) -> None:
    from .output import print_json, print_tables

    if json:
        print_json(results.report() | ({"damaged": damaged} if damaged else {}))
    else:
        print_tables(results.tables())


def _show(
    run: Annotated[Path, typer.Argument(help="Folder of the run, or of a sweep.")],
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Number, key, or the end of a key that only one has.")
    ] = None,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Show the thoughts before each answer.")] = False,
    json: Json = False,
) -> None:
    """List a run's conversations (a sweep's cells), or print the transcript of one (with --json: all, one a line)."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.folder import RunFolder
    from viva.engine.history import History
    from viva.engine.thoughts import with_thoughts
    from viva.orchestration.launch import recorded_settings
    from viva.orchestration.sweep.place import is_sweep
    from viva.scoring.failures import reason_of

    from .output import print_json, print_tables

    if is_sweep(run):
        _show_sweep(run, conversation, json)
        return
    folder = RunFolder.open(run)
    which, _ = recorded_settings(folder)
    with History(folder.journal) as history:
        if conversation is None and not json:
            ended = {one.number: reason_of(one.result) if one.failed else "" for one in history.ended()}
            rows = [
                [str(number), started[0], _state(ended.get(number)), ended.get(number, "")]
                for number in history.numbers()
                if (started := history.started(number)) is not None
            ]
            shown = 4 if any(ended.values()) else 3
            header = ["number", "key", "state", "reason"][:shown]
            print_tables([(f"{len(rows)} conversations", header, [row[:shown] for row in rows])])
            return
        failed = {one.number: one.result for one in history.ended() if one.failed}
        if conversation is None:
            numbers = list(history.numbers())
        else:
            is_number = conversation.isascii() and conversation.isdigit() and len(conversation) < 18
            number = int(conversation) if is_number else history.number_of(conversation)
            if number is None or history.started(number) is None:
                raise ConfigurationError(f"{run}: no conversation '{conversation}'; `viva show {run}` lists them")
            numbers = [number]
        for number in numbers:
            key, item = history.started(number) or ("", None)
            calls = history.calls(number)
            for call in calls if thoughts else ():
                call.completion.text = with_thoughts(call.completion)
            talk = which.transcript(item, calls)
            if json:
                told = {"number": number, "key": key, "talk": [{"party": p, "text": t} for p, t in talk]}
                told |= {"failed": failed[number]} if number in failed else {}
                told |= {"damaged": True} if number in history.broken else {}  # the talk ends before a damaged call
                print_json(told, line=conversation is None)
            else:
                _print_talk(
                    number, key, [*talk, *([("failed", reason_of(failed[number]))] if number in failed else [])]
                )


def _show_sweep(sweep: Path, conversation: str | None, json: bool) -> None:
    """List the cells of a sweep, each a run of its own.

    :raises ConfigurationError: a conversation is asked for: it is one of a cell's.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.sweep.results import cells_of

    from .output import print_json, print_tables

    cells = cells_of(sweep)
    begun = [cell for cell in cells if cell.folder is not None]
    example = f"viva show {shlex.quote(str(sweep / (begun or cells)[0].name))}"
    if conversation is not None:
        raise ConfigurationError(f"{sweep}: a sweep; its conversations are those of its cells, for example: {example}")
    if json:
        print_json([{"cell": cell.name, "planned": cell.planned, "begun": cell.folder is not None} for cell in cells])
        return
    rows = [[cell.name, "–" if cell.planned is None else str(cell.planned)] for cell in cells]
    print_tables([(f"{len(rows)} cells", ["cell", "conversations planned"], rows)])
    print(f"conversations of one: {example}", file=sys.stderr)


def _state(reason: str | None) -> str:
    """Of a conversation: None stands for one that has not ended, "" for one that did not fail."""
    return "interrupted" if reason is None else "failed" if reason else "finished"


def _print_talk(number: int, key: str, talk: list[tuple[str, str]]) -> None:
    from rich.rule import Rule
    from rich.text import Text

    from viva.reports.controls import harmless

    from .output import print_rich

    colours = {"candidate": "green", "interactor": "cyan", "evaluator": "yellow", "failed": "red"}
    parts: list[Rule | Text] = [Rule(Text(harmless(f"{number}: {key}")), align="left")]
    for party, text in talk:
        parts.append(Text(f"[{party}]", style=f"bold {colours.get(party, 'white')}"))
        parts.append(Text(harmless(text) + "\n"))
    print_rich(*parts, width=120)

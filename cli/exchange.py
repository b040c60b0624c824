"""`viva export` and `viva import`: runs in the formats of other tools, and their results as runs and datasets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .app import add_lazy_command, app, example_epilog
from .exit_codes import handle_errors, print_error, print_message, print_note
from .options import Json

if TYPE_CHECKING:
    from viva.exchange.files import TransferResult

_EXPORT = "Write a run or a sweep in the format of another tool."
_IMPORT = "Import another tool's results as a run or a dataset."


def _export_help() -> str:
    from viva.exchange.exports.formats import FORMATS

    formats = {name: writer.summary for name, writer in FORMATS.items()}
    calls = example_epilog("viva export runs/a --format inspect --out logs", "viva export runs/sweep --format parquet")
    return f"{_format_list(formats)}\n\n{calls}"


def _import_help() -> str:
    from viva.exchange.imports import import_formats

    calls = example_epilog(
        "viva import logs/a.eval --from inspect --out dialogs.jsonl",
        "viva import samples_arc_challenge_2026-05-01.jsonl --from lm-eval \\\n    --model candidate=openai:gpt-4o",
        models=True,
    )
    return f"{_format_list(import_formats())}\n\n{calls}"


def _format_list(formats: dict[str, str]) -> str:
    width = max(map(len, formats))
    return "\b\nFormats:\n" + "\n".join(f"  {name:<{width}}  {summary}" for name, summary in formats.items())


def _export(
    run: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of the run, or of a sweep.")],
    format_: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="One of the formats below.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PATH", help="File or folder to create (default: RUN-FORMAT in the current folder)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run or a sweep in the format of another tool."""
    from viva.exchange.exports.formats import FORMATS, export
    from viva.reports.page import count_of

    if format_ is None:
        _refuse_without_format(
            "name a format with --format", {name: writer.summary for name, writer in FORMATS.items()}
        )
    result = export(run, format_, out)
    record = {"export": 1, "to": format_, "records": result.records}
    _print_outcome(
        record, result, f"{count_of(result.records, 'record')} in {count_of(len(result.files), 'file')}", json=json
    )


def _import(
    file: Annotated[Path, typer.Argument(help="The other tool's file.")],
    source: Annotated[str | None, typer.Option("--from", metavar="FORMAT", help="One of the formats below.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Run folder or file to create (default: runs/FILE, or FILE.jsonl for dialogs).",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Benchmark that contains the items; the run then records the benchmark's name and item ids.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="ROLE=NAME", help="Name to record for the model in a role."),
    ] = None,
    json: Json = False,
) -> None:
    """Import another tool's results as a run or a dataset."""
    from viva.exchange.imports import import_file, import_formats
    from viva.reports.page import count_of
    from viva.scenarios.contract import ImportOptions

    if source is None:
        _refuse_without_format(f"name the format of {file} with --from", import_formats())
    result = import_file(file, source, out, ImportOptions(dataset, _models(model or [])))
    record = {"import": 1, "from": source, "records": result.records, "run": result.run}
    unit = "conversation" if result.run else "dialog"
    _print_outcome(record, result, count_of(result.records, unit), json=json)


def _refuse_without_format(advice: str, formats: dict[str, str]) -> NoReturn:
    print_error(advice)
    print(f"\n{_format_list(formats).removeprefix(chr(8) + chr(10))}", file=sys.stderr)
    raise typer.Exit(2)


def _models(options: list[str]) -> dict[str, str]:
    from viva.engine.errors import ConfigurationError

    models: dict[str, str] = {}
    for option in options:
        role, sign, name = option.partition("=")
        if not sign or not role or not name:
            raise ConfigurationError(f"--model {option}: expected ROLE=NAME, e.g. candidate=openai:gpt-4o")
        if role in models:
            raise ConfigurationError(f"--model {role}=…: given twice; a role has one model")
        models[role] = name
    return models


def _print_outcome(record: dict[str, Any], result: TransferResult, summary: str, *, json: bool) -> None:
    from viva.reports.tables import one_line

    from .output import print_json, print_text

    if json:
        print_json(record | {"files": [str(file) for file in result.files], "notes": result.notes})
        return
    print_text("".join(f"{one_line(str(file))}\n" for file in result.files))
    print_message(f"viva: {summary}")
    for note in result.notes:
        print_note(note)


add_lazy_command(app, "export", _EXPORT, lambda: handle_errors(_export), _export_help)
add_lazy_command(app, "import", _IMPORT, lambda: handle_errors(_import), _import_help)

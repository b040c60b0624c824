"""Command `viva grade report`: results of a grading folder in sentences, tables, files and a page."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..graded_round import GradedRound

EXAMPLE = """\b
Examples:
  viva grade report library/rounds/2026-06
  viva grade report library/rounds/2026-09 \\
      --against library/rounds/2026-06 --html report.html"""
_WIDTH = 80
_SOURCES = ("people", "models", "all")


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder, such as a round's.")],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FOLDER", help="Earlier round, to decompose changes.")
    ] = None,
    tags: Annotated[
        Path | None,
        typer.Option("--tags", help="Table of responses equal in both rounds: question, candidate, same (yes or no)."),
    ] = None,
    grader: Annotated[
        str, typer.Option("--grader", metavar="people|models|all", help="Graders whose grades count.")
    ] = "people",
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Python file: grader_dispute(grade, others), answer_dispute(grades).")
    ] = None,
    retrain: Annotated[
        float | None,
        typer.Option(
            "--retrain", metavar="SHARE", min=0, max=1, help="Dispute level above which graders are to be retrained."
        ),
    ] = None,
    review: Annotated[
        int | None, typer.Option("--review", min=0, help="Number of questions to list for review.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="SHARE", min=0, max=1, help="Required consistency of graders."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a self-contained HTML page.")] = None,
    grades: Annotated[
        Path | None,
        typer.Option("--grades", help="Also write the table of grades, one row per question and grader."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Also write the table of grades as Parquet (extra `parquet`).")
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option(
            "--inspect", metavar="FOLDER", help="Folder for Inspect's precomputed_scores, one file per candidate."
        ),
    ] = None,
) -> None:
    """Report grades with intervals, disputes, severity, agreement, and changes since an earlier round."""
    from viva.cli.output_files import check_output_files
    from viva.engine.errors import ConfigurationError
    from viva.grading.store import GRADES_FILE
    from viva.reports.studies.export import check_parquet

    from ..round_figures import ReportOptions, make_report
    from .grading_folder import read_round

    if grader not in _SOURCES:
        raise ConfigurationError(f"--grader: found '{grader}', expected one of: {', '.join(_SOURCES)}")
    if tags is not None and against is None:
        raise ConfigurationError("--tags compares with an earlier round: also give --against")
    inputs = [path / GRADES_FILE for path in (folder, against) if path is not None] + [
        path for path in (tags, rules) if path
    ]
    check_output_files({"--csv": csv, "--html": html, "--grades": grades, "--parquet": parquet}, read=inputs)
    if parquet is not None:
        check_parquet()
    graded = read_round(folder, rules, tags)
    earlier = None if against is None else read_round(against, rules)
    record = make_report(graded, earlier, ReportOptions(_parse_source(grader), retrain, review, threshold))
    _write_files(record, graded, csv, html, grades, parquet)
    if inspect is not None:
        _write_inspect(graded, _parse_source(grader), inspect)
    _print_report(record, json)


def _parse_source(name: str) -> Any:
    return name


def _write_files(
    record: dict[str, Any],
    graded: GradedRound,
    csv: Path | None,
    html: Path | None,
    grades: Path | None,
    parquet: Path | None,
) -> None:
    from viva.cli.output_files import print_file, write_page_file
    from viva.reports.studies.export import write_rows

    from ..round_figures import FIGURE_COLUMNS, TEXT_COLUMNS, figure_rows, grade_columns, grade_rows

    if csv is not None:
        write_rows(figure_rows(record), FIGURE_COLUMNS, TEXT_COLUMNS, csv)
        print_file("table", csv)
    if grades is not None:
        write_rows(grade_rows(graded), grade_columns(graded), ("dimension", "question", "grader"), grades)
        print_file("table", grades)
    if parquet is not None:
        _write_parquet(graded, parquet)
        print_file("table", parquet)
    if html is not None:
        from ..round_report import grade_page

        write_page_file(grade_page(record), html)


def _write_parquet(graded: GradedRound, file: Path) -> None:
    """Write the four-dimensional table as Parquet: texts, and grades as doubles.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    import io
    from importlib import import_module

    from ..round_figures import grade_columns, grade_rows

    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns, rows = grade_columns(graded), list(grade_rows(graded))
    schema = arrow.schema([(name, arrow.string() if at < 3 else arrow.float64()) for at, name in enumerate(columns)])
    sink = io.BytesIO()
    parquet.write_table(arrow.table({name: [row[name] for row in rows] for name in columns}, schema=schema), sink)
    _write_file(file, sink.getvalue())


def _write_inspect(graded: GradedRound, source: Any, folder: Path) -> None:
    """Write a file of JSON lines for each candidate.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    import re

    import orjson

    from viva.engine.errors import ConfigurationError

    from ..round_figures import inspect_scores

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--inspect {folder}: cannot be created: {error.strerror}") from None
    used_names: set[str] = set()
    for candidate, records in inspect_scores(graded, source).items():
        name = plain = re.sub(r"[^\w.-]+", "-", candidate).strip("-.") or "candidate"
        suffix = 1
        while name.casefold() in used_names:
            suffix += 1
            name = f"{plain}-{suffix}"
        used_names.add(name.casefold())
        lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        _write_file(folder / f"{name}.jsonl", lines)


def _write_file(file: Path, data: bytes) -> None:
    from viva.engine.errors import ConfigurationError
    from viva.engine.files import write_atomically

    try:
        write_atomically(file, data)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}; choose another file") from None


def _print_report(record: dict[str, Any], json: bool) -> None:
    from viva.cli.output import print_json, print_tables, print_text
    from viva.reports.tables import one_line

    from ..round_report import report_tables, summary_sentences

    if json:
        print_json({"answer": summary_sentences(record), **record})
        return
    print_text(textwrap.fill(one_line(" ".join(summary_sentences(record))), _WIDTH) + "\n\n")
    print_tables(report_tables(record))

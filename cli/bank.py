"""`viva bank`: item banks for adaptive exams, and items to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viva.engine.errors import ConfigurationError

from .app import command, command_group
from .options import Json

if TYPE_CHECKING:
    from viva.data.bank_file import Matrix
    from viva.reports.studies.item_banks import BankReport

bank = command_group("bank", "Fit item banks to models' scores, and list items to look at.")
BankArgument = Annotated[Path, typer.Argument(metavar="BANK", help="File made by `viva bank fit`.")]


@command("fit", "viva bank fit sweeps/mine --out bank.json", "viva bank fit scores.csv --out bank.json", group=bank)
def _fit(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|SWEEP|MATRIX...",
            help="Runs and sweeps, or one matrix: CSV, TSV or Parquet with models in the first column and a column "
            "for each item, or npz with X, names and items.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.json", help="Write the bank to this file.")],
    scenario: Annotated[str | None, typer.Option("--scenario", help="Only runs of this scenario.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only runs on this dataset.")] = None,
    json: Json = False,
) -> None:
    """Fit difficulty and discrimination of items to the scores of at least ten models.

    Scores in a matrix are from 0 to 1; those of runs are scaled to it.
    """
    from viva.data.bank_file import fit_bank_file, write_bank_file
    from viva.reports.studies.item_banks import BankReport

    from .output import print_json, print_paragraphs
    from .output_files import check_output_files

    check_output_files({"--out": out}, [path for path in sources if path.is_file()])
    matrix = _matrix(sources, scenario, dataset)
    try:
        file = fit_bank_file(matrix, [str(path) for path in sources])
    except ValueError as error:
        raise ConfigurationError(f"{', '.join(map(str, sources))}: {error}") from None
    write_bank_file(out, file)
    report = BankReport(file, str(out))
    if json:
        print_json(report.report())
    else:
        print_paragraphs([*report.sentences(), *report.check_sentences()[:1]])


def _matrix(sources: Sequence[Path], scenario: str | None, dataset: str | None) -> Matrix:
    from viva.data.bank_file import read_matrix
    from viva.reports.studies.item_banks import run_matrix

    files = [path for path in sources if not path.is_dir()]
    if not files:
        return run_matrix(sources, scenario, dataset)
    if len(sources) > 1:
        raise ConfigurationError(f"{files[0]}: a matrix is fitted alone; join the scores in one file")
    if scenario or dataset:
        raise ConfigurationError(f"--scenario and --dataset choose runs; {files[0]} is a matrix")
    return read_matrix(files[0])


def _report(path: Path) -> BankReport:
    from viva.data.bank_file import read_bank_file
    from viva.reports.studies.item_banks import BankReport

    return BankReport(read_bank_file(path), str(path))


@command("show", "viva bank show bank.json", group=bank)
def _show(path: BankArgument, json: Json = False) -> None:
    """Print the items of a bank by difficulty."""
    from .output import print_paragraphs, print_report

    report = _report(path)
    if not json:
        print_paragraphs(report.sentences())
    print_report(report, json=json)


@command("check", "viva bank check bank.json", group=bank)
def _check(path: BankArgument, json: Json = False) -> None:
    """List items to look at, such as those that better models get wrong."""
    from .output import print_json, print_paragraphs, print_tables

    report = _report(path)
    if json:
        print_json(report.check_report())
    else:
        print_paragraphs(report.check_sentences())
        print_tables(report.check_tables())

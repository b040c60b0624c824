"""Output files of commands: checks before the work, plots, and HTML pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viva.engine.errors import ConfigurationError

from .exit_codes import print_message

if TYPE_CHECKING:
    from viva.reports.page import Page
    from viva.reports.row_plots import NamedBar
    from viva.reports.tables import Table
    from viva.scoring.correlation import DatasetLine, ModelScores

_JOURNAL_FILES = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm")
_RECORD_FILES = ("manifest.json", "sweep.json", "lock", "corrections.jsonl", "merged.json", *_JOURNAL_FILES)


def check_output_files(targets: Mapping[str, Path | None], read: Iterable[Path] = ()) -> None:
    """Check that output files can be written without losing another file.

    Args:
        targets: The file that each option names, or None.
        read: Files that the command reads.

    Raises:
        ConfigurationError: Two options name the same file, or an option names a record of a run or sweep, a file that
            is read, a folder, or a file in a missing folder.
    """
    inputs = {_real_path(path) for path in read}
    options: dict[Path, str] = {}
    for option, path in targets.items():
        if path is None:
            continue
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: there is no folder {path.parent}; create it")
        if path.exists() and not path.is_file():  # a device loses nothing
            continue
        target = _real_path(path)
        if target in options:
            raise ConfigurationError(f"{options[target]} and {option} name the same file, {path}; name two files")
        if target in inputs:
            raise ConfigurationError(f"{option} {path}: this command reads that file; name another one")
        if target.name in _RECORD_FILES and _is_run(target.parent):
            raise ConfigurationError(f"{option} {path}: the run keeps a record in that file; name another one")
        options[target] = option


def _real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))  # works for circular links, too, which Path.resolve refuses


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("manifest.json", "sweep.json"))


def check_plot_file(file: Path) -> None:
    """Raise ConfigurationError if the plot cannot be written; called before the work begins."""
    from viva.reports import plot_style

    if file.suffix not in plot_style.ENDINGS:
        raise ConfigurationError(f"--plot {file}: expected a name that ends in {' or '.join(plot_style.ENDINGS)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {file}: cannot be written there; name a file in a folder that exists")
    plot_style.load_matplotlib()


def print_file(kind: str, file: Path) -> None:
    """Print on stderr that a file was written; `kind` says what it is, such as `page`."""
    print_message(f"{kind}: {file}")


def write_page_file(page: Page, html: Path) -> None:
    """Write an HTML page and print where it is."""
    from viva.web.report.html_page import write_page

    write_page(page, html)
    print_file("page", html)


def write_report_page(html: Path, folders: Sequence[Path]) -> None:
    """Write the report of runs and sweeps as one HTML page."""
    from viva.reports.studies.page import study_page
    from viva.reports.studies.study import Study

    study = Study(folders)
    write_page_file(study_page(study.report(), study.provenance()), html)


def write_tables_page(html: Path, heading: str, sentences: Sequence[str], tables: Iterable[Table]) -> None:
    """Write tables as one HTML page, below sentences that summarize them."""
    from viva.reports.page import Page, PageSection

    section = PageSection("tables", "Tables", list(tables))
    write_page_file(Page(heading, [], [], [section], [], "", {}, [], verdict=list(sentences)), html)


def write_plot(
    file: Path, figures: Iterable[ModelScores], lines: Mapping[str, DatasetLine | None], excluded: Collection[str] = ()
) -> None:
    """Draw one panel for each dataset, with its regression line."""
    from viva.reports.line_plots import draw_regressions

    _draw(file, lambda: draw_regressions(file, figures, lines, excluded))


def write_forest_plot(file: Path, title: str, rows: Sequence[NamedBar], axis: str) -> None:
    """Draw values with their intervals, one row each."""
    from viva.reports.row_plots import save_forest_plot

    _draw(file, lambda: save_forest_plot(file, title, rows, axis))


def _draw(file: Path, draw: Callable[[], None]) -> None:
    try:
        draw()
    except OSError as error:
        raise ConfigurationError(f"--plot {file}: cannot be written: {error.strerror}") from None
    print_file("plot", file)

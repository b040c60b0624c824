"""Output files of commands: checked before the work so that nothing is overwritten; plots."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viva.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from viva.reports.row_plots import NamedBar
    from viva.reports.tables import Table
    from viva.scoring.correlation import DatasetLine, ModelScores

_JOURNAL_FILES = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm")
_RECORD_FILES = ("manifest.json", "sweep.json", "lock", "corrections.jsonl", "merged.json", *_JOURNAL_FILES)


def check_output_files(targets: Mapping[str, Path | None], read: Iterable[Path] = ()) -> None:
    """See that the files of these options can be written, and that no file is lost then.

    :param targets: the option's name with the file it names; None where it is not given.
    :param read: files that the command reads and that must outlast it.
    :raises ConfigurationError: two options name one file, or an option names a record of a run or sweep, one of the
        files that are read, a folder, or a file in a folder that does not exist.
    """
    kept = {_real_path(path) for path in read}
    options: dict[Path, str] = {}
    for option, path in targets.items():
        if path is None:
            continue
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: there is no folder {path.parent}; make it")
        if path.exists() and not path.is_file():  # a device takes whatever comes
            continue
        place = _real_path(path)
        if place in options:
            raise ConfigurationError(f"{options[place]} and {option} name the same file, {path}; name two files")
        if place in kept:
            raise ConfigurationError(f"{option} {path}: this command reads that file; name another one")
        if place.name in _RECORD_FILES and _is_run(place.parent):
            raise ConfigurationError(f"{option} {path}: a record of the run there; name another file")
        options[place] = option


def _real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))  # of links in a circle, too, which Path.resolve refuses


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("manifest.json", "sweep.json"))


def check_plot_file(file: Path) -> None:
    """Say before the work whether there can be a drawing."""
    from viva.reports import plot_style

    if file.suffix not in plot_style.ENDINGS:
        raise ConfigurationError(f"--plot {file}: expected a name that ends in {' or '.join(plot_style.ENDINGS)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {file}: cannot be written there; name a file in a folder that exists")
    plot_style.load_matplotlib()


def write_report_page(html: Path, folders: Sequence[Path]) -> None:
    """Write the report of runs and sweeps as one HTML page."""
    from viva.reports.studies.study import Study
    from viva.web.report.html_page import write_html

    write_html(Study(folders).report(), html)


def write_tables_page(html: Path, heading: str, sentences: Sequence[str], tables: Iterable[Table]) -> None:
    """Write tables as one HTML page, below the sentences that sum them up."""
    from viva.reports.page import Page, PageSection
    from viva.web.report.html_page import write_page

    section = PageSection("tables", "Tables", list(tables))
    write_page(Page(heading, [], [], [section], [], "", {}, [], verdict=list(sentences)), html)


def write_plot(
    file: Path, figures: Iterable[ModelScores], lines: Mapping[str, DatasetLine | None], without: Collection[str] = ()
) -> None:
    """Draw a panel for each dataset, with its line."""
    from viva.reports.line_plots import draw_regressions

    _draw(file, lambda: draw_regressions(file, figures, lines, without))


def write_forest_plot(file: Path, title: str, rows: Sequence[NamedBar], axis: str) -> None:
    """:raises ConfigurationError: the file cannot be written."""
    from viva.reports.row_plots import save_forest_plot

    _draw(file, lambda: save_forest_plot(file, title, rows, axis))


def _draw(file: Path, draw: Callable[[], None]) -> None:
    try:
        draw()
    except OSError as error:
        raise ConfigurationError(f"--plot {file}: cannot be written: {error.strerror}") from None

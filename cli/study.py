"""``viva report`` over several runs and sweeps: the study on stdout and in files, in the forms that were asked for.

What never belongs here: what a study says, and how a form looks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Wanted:
    """What to print on stdout (tables, if nothing else), and which files to write; ``fresh``: from the journals alone,
    not from what an earlier report has kept.
    """

    json: bool = False
    markdown: bool = False
    latex: bool = False
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    fresh: bool = False

    @property
    def files(self) -> bool:
        """Whether any file is to be written."""
        return not (self.csv is None and self.parquet is None and self.html is None)


def show_study(folders: Sequence[Path], scorer: str | None, wanted: Wanted, *, print_it: bool = True) -> None:
    """Read the folders, write the files, print.

    :raises ConfigurationError, JournalError: a folder, the scorer or a file is wrong, or a package is missing.
    """
    from viva.engine.collector import tuned_collector
    from viva.reports.controls import harmless
    from viva.reports.markup import latex, markdown
    from viva.study.cache import user_cache
    from viva.study.exports import check_parquet, write_csv, write_parquet
    from viva.study.study import Study, sentences_of

    from .output import print_json, print_tables, print_text
    from .targets import check_targets

    check_targets({"--csv": wanted.csv, "--parquet": wanted.parquet, "--html": wanted.html})
    if wanted.parquet is not None:
        check_parquet()
    with tuned_collector():  # columns and tables hold no cycles, and there are many of them
        study = Study(folders, scorer, None if wanted.fresh else user_cache())
        report = study.report()
    if wanted.csv is not None:
        write_csv(report, wanted.csv)
    if wanted.parquet is not None:
        write_parquet(report, wanted.parquet)
    if wanted.html is not None:
        from viva.web.report.page import write_html

        write_html(report, wanted.html)
    if not print_it:
        pass
    elif wanted.json:
        print_json(report)
    elif wanted.latex:
        print_text(latex(study.tables()))
    elif wanted.markdown:
        print_text(markdown(study.tables()))
    else:
        print_tables(study.tables())
        # The answer stands last, where a terminal is at the end of long tables.
        told = [
            line for about, sentences in sentences_of(report) for line in ([f"{about}:"] if about else []) + sentences
        ]
        if told:
            print_text(harmless("\n".join(told)) + "\n")
    for note in report["notes"]:
        print(f"viva: note: {harmless(note)}", file=sys.stderr)

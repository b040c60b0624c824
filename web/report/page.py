"""A study as one HTML file that needs nothing else: no network, no font, and no script for its content.

What never belongs here: computing figures (``Study.report()`` has them), and drawing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.reports.controls import harmless
from viva.reports.text import numeric

from . import words
from .plots import Plot, plots

Record = Mapping[str, Any]
_TEMPLATES = Path(__file__).with_name("templates")
_MAIN, _CELLS, _PLOTS, _FURTHER = "results", "cells", "plots", "further"
# Sections of tables in their order, and how the titles of their tables begin. A table of another title stays with the
# one before it.
_SECTIONS = {
    _MAIN: ("Results", r"KIEval on|Aspects"),
    "contamination": ("Contamination", r"Contamination|Probed"),
    _PLOTS: ("Plots", r"(?!)"),
    "comparisons": ("Comparisons", r"KIEval compared"),
    "agreement": ("Agreement", r"Agreement"),
    "difficulty": ("Difficulty of items", r"Hardest"),
    "correlations": ("Correlations", r"KIEval against"),
    "ablation": ("Scorer variants", r"KIEval with"),
    "reasons": ("Early stops", r"Why talks"),
    "failures": ("Failures", r"Why conversations failed"),
    "costs": ("Tokens and cost", r"Tokens"),
    _FURTHER: ("Further tables", r"(?!)"),
    _CELLS: ("Cells and transcripts", r"\d+ cells?\b"),
}


@dataclass(slots=True, frozen=True)
class Table:
    """A titled table; ``numeric`` says of each column whether it holds numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]


@dataclass(slots=True)
class Section:
    """A heading with the tables below it."""

    anchor: str
    heading: str
    tables: list[Table] = field(default_factory=list)


def write_html(study: dict[str, Any], file: Path) -> None:
    """Write the report of a study (``Study.report()``) as a page. The same study gives the same bytes.

    Without matplotlib it has no plots, and says how to get them.

    :raises ConfigurationError: the file cannot be written.
    """
    try:
        write_atomically(file, page(study).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"{file}: the page cannot be written: {error.strerror}; name another file") from None


def page(study: Record) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from viva.scoring.plots.style import COLOURS

    drawn: list[Plot] = []
    missing = ""
    try:
        drawn = plots(study)
    except ConfigurationError as error:
        missing = str(error)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    script = (_TEMPLATES / "sorting.js").read_text(encoding="utf-8")
    transcripts = words.transcripts(study)
    sections = _sections(study["tables"], plotted=bool(drawn or missing), shown=bool(transcripts))
    return environment.get_template("page.html").render(
        heading=words.heading(study),
        facts=words.facts(study),
        notes=list(study.get("notes") or ()),
        origin=words.circumstances(study),
        sections=sections,
        plots=drawn,
        no_plots=missing,
        transcripts=transcripts,
        methods=words.methods(study),
        colours=COLOURS,
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        # Should a name ever get through as markup, the browser still runs and loads nothing but this very script.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _shown(value: Any) -> Any:
    """What stands in the page for a value: control characters of a name or reason are visible, too."""
    return harmless(value) if type(value) is str else value


def _sections(tables: Sequence[Record], plotted: bool, shown: bool) -> list[Section]:
    """The sections that hold something."""
    found = {anchor: Section(anchor, heading) for anchor, (heading, _) in _SECTIONS.items()}
    place = _FURTHER
    for told in tables:
        title = str(told["title"])
        place = next((anchor for anchor, (_, begin) in _SECTIONS.items() if re.match(begin, title)), place)
        rows = [[str(cell) for cell in row] for row in told["rows"]]
        if rows:
            header = [str(name) for name in told["header"]]
            found[place].tables.append(Table(title, header, rows, [numeric(rows, at) for at in range(len(header))]))
    kept = {_PLOTS: plotted, _CELLS: shown}
    return [one for anchor, one in found.items() if one.tables or kept.get(anchor)]

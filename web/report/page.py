"""A study as one HTML file that needs nothing else: no network, no font, and no script for its content.

What never belongs here: what stands on the page (``study.page``), and drawing.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.reports.controls import harmless
from viva.reports.page import Page
from viva.reports.text import numeric
from viva.study.page import page_of

from .inline import inlined

_TEMPLATES = Path(__file__).with_name("templates")


def write_html(report: dict[str, Any], file: Path) -> None:
    """Write the report of a study (``Study.report()``) as a page. The same study gives the same bytes.

    :raises ConfigurationError: the file cannot be written, or a scenario of the report is not registered here.
    """
    write_page(page_of(report), file)


def write_page(page: Page, file: Path) -> None:
    """Write any page.

    :raises ConfigurationError: the file cannot be written.
    """
    try:
        write_atomically(file, html(page).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"{file}: the page cannot be written: {error.strerror}; name another file") from None


def html(page: Page) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from viva.scoring.plots.style import COLOURS

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    script = (_TEMPLATES / "tables.js").read_text(encoding="utf-8")
    panels = {
        plot.anchor: [inlined(svg, f"{plot.anchor}{at}-", label) for at, (svg, label) in enumerate(plot.panels)]
        for plot in [*page.plots, *([page.decisive] if page.decisive else [])]
    }
    return environment.get_template("page.html").render(
        page=page,
        panels=panels,
        numbers=lambda header, rows: [numeric(rows, at) for at in range(len(header))],
        colours=COLOURS,
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        # Should a name ever get through as markup, the browser still runs and loads nothing but this very script.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _shown(value: Any) -> Any:
    """What stands in the page for a value: control characters of a name or reason are visible, too."""
    return harmless(value) if type(value) is str else value

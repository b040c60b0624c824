"""Report pages as self-contained HTML: they load nothing, embed no font, and show their content without scripts.

Drawings become part of the page as SVG in the page's colours, with ids that are unique on the page. Among other pages
(`Site`), a page has a bar that leads to them, and its names are links to conversations.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup, escape

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.reports import plot_style
from viva.reports.page import Evidence, Page, Reference
from viva.reports.studies.page import study_page
from viva.reports.tables import escape_controls, is_numeric_column, to_latex, to_markdown

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_TEXTS = (f"{_SVG}text", f"{_SVG}tspan", f"{_SVG}title")
_IDS = re.compile(r"#([^)\s]+)")
_FRACTION = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_FONTS = re.compile(r"font-family: [^;]*")
_COLOUR = re.compile("#[0-9a-f]{6}")
_RIGHT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_RIGHT_TO_LEFT = re.compile(rf"[{_RIGHT}]+(?:[ _.'-]+[{_RIGHT}]+)*")
_COORDINATES = ("d", "x", "y", "transform")  # attributes that hold coordinates
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in plot_style.COLOURS.items()}


def inline_svg(svg: str, prefix: str, label: str) -> Markup:
    """Return the drawing as an element of an HTML page, as wide as its container.

    Coordinates are rounded to hundredths of a point.

    Args:
        svg: The drawing.
        prefix: Prefix of its ids; must be unique on the page.
        label: Description for screen readers.
    """
    ElementTree.register_namespace("", _SVG[1:-1])
    root = ElementTree.fromstring(svg)
    _remove(root, {f"{_SVG}metadata", f"{_SVG}style"})
    referenced = {name for element in root.iter() for name in _referenced_ids(element)}
    for element in root.iter():
        if element.attrib.get("id") in referenced:
            element.attrib["id"] = prefix + element.attrib["id"]
        else:
            element.attrib.pop("id", None)
        if _LINK in element.attrib:
            element.attrib["href"] = "#" + prefix + element.attrib.pop(_LINK)[1:]
        if "clip-path" in element.attrib:
            element.attrib["clip-path"] = _IDS.sub(rf"#{prefix}\1", element.attrib["clip-path"])
        for name in _COORDINATES:
            if name in element.attrib:
                element.attrib[name] = _FRACTION.sub(_rounded, element.attrib[name]).replace("\n", "")
        if "style" in element.attrib:
            style = _FONTS.sub("font-family: inherit", element.attrib["style"])
            element.attrib["style"] = _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), style)
        if element.tag not in _TEXTS:
            element.text = None  # line breaks between elements
        element.tail = None
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    # An image may contain nothing to focus. In a group, the label and the marks' titles tell all that is drawn.
    marks = root.find(f"{_SVG}g[@class='marks']")
    root.attrib.update({"role": "img" if marks is None else "group", "aria-label": label})
    for child in root if marks is not None else ():
        if child is not marks:
            child.attrib["aria-hidden"] = "true"
    # A parser makes the elements and a serializer writes them, so names cannot become markup.
    return Markup(escape_controls(ElementTree.tostring(root, encoding="unicode")))


def isolated(text: str) -> Markup:
    """Return a sentence as HTML in which names in right-to-left scripts do not move the figures beside them."""
    return Markup(_RIGHT_TO_LEFT.sub(r"<bdi>\g<0></bdi>", str(escape(escape_controls(text)))))


def _referenced_ids(element: ElementTree.Element) -> list[str]:
    return _IDS.findall(element.attrib.get(_LINK, "")) + _IDS.findall(element.attrib.get("clip-path", ""))


def _remove(element: ElementTree.Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags:
            element.remove(child)
        else:
            _remove(child, tags)


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".") or "0"


_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Site:
    """The pages around a report: their common name, and the title and address of each; the report's own is the last.

    `address` returns where the conversations behind a name are shown, "" if nowhere.
    """

    name: str
    pages: Sequence[tuple[str, str]]
    address: Callable[[Evidence], str] = lambda evidence: ""


def write_html(report: dict[str, Any], file: Path) -> None:
    """Write the report of a study (`Study.report()`) as a page. The same study gives the same bytes."""
    write_page(study_page(report), file)


def write_page(page: Page, file: Path, site: Site | None = None) -> None:
    """Write the page to a file, for opening by itself or at its address in a site."""
    try:
        write_atomically(file, page_html(page, site).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot write the page: {error.strerror}; choose another file") from None


def page_html(page: Page, site: Site | None = None) -> str:
    """Render the page."""
    return frame_html(page.heading, site) + opening_html(page, site) + body_html(page, site)


def frame_html(heading: str, site: Site | None = None) -> str:
    """Render the beginning of a page, up to its first content."""
    return _render("frame.html", site, heading=heading)


def opening_html(page: Page, site: Site | None = None) -> str:
    """Render what a page begins with, which needs no plot: warnings, verdict and the table with the answer."""
    return _render("opening.html", site, page=page)


def body_html(page: Page, site: Site | None = None) -> str:
    """Render the page after its opening."""
    panels = {
        plot.anchor: [
            svg if isinstance(svg, plot_style.Sentence) else inline_svg(svg, f"{plot.anchor}{at}-", label)
            for at, (svg, label) in enumerate(plot.panels)
        ]
        for plot in [*page.plots, *([page.decisive] if page.decisive else [])]
    }
    markups = {"LaTeX": to_latex, "Markdown": to_markdown}
    texts = [(name, markups[name](tables)) for name, tables in page.appendix.items()]
    return _render(
        "body.html",
        site,
        page=page,
        panels=panels,
        is_sentence=lambda panel: isinstance(panel, plot_style.Sentence),
        texts=texts,
    )


def _render(template: str, site: Site | None, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def link(text: str) -> str:
        address = site.address(text.evidence) if site is not None and isinstance(text, Reference) else ""
        return (
            Markup('<a href="{}">{}</a>').format(escape_controls(address), escape_controls(text)) if address else text
        )

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    environment.filters |= {"linked": link, "hash": _content_hash, "isolated": isolated}
    scripts = ["tables.js", *([] if site is None else ["theme.js"])]
    return environment.get_template(template).render(
        **values,
        site=site,
        numbers=lambda header, rows: [is_numeric_column(rows, at) for at in range(len(header))],
        colours=plot_style.COLOURS,
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
        # If a name should become markup after all, the browser still runs only these scripts and loads nothing.
        scripts=[Markup((_TEMPLATES / name).read_text(encoding="utf-8")) for name in scripts],
    )


def _content_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

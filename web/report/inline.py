"""Drawings made part of a page: SVG whose colours follow the page's, whose ids clash with no other's, and which say
what they show.

What never belongs here: drawing, and what is drawn.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup

from viva.reports.controls import harmless
from viva.scoring.plots import style

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_IDS = re.compile(r"#([^)\s]+)")
_FRACTION = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_FONTS = re.compile(r"font-family: [^;]*")
_COLOUR = re.compile("#[0-9a-f]{6}")
_DRAWN = ("d", "x", "y", "transform")  # attributes that hold coordinates
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in style.COLOURS.items()}


def inlined(svg: str, prefix: str, label: str) -> Markup:
    """The drawing as an element of an HTML page, as wide as its place.

    ``prefix`` goes before its ids and must be another for each drawing of the page; ``label`` tells what it shows to
    those who do not see it. Coordinates are rounded to hundredths of a point.
    """
    ElementTree.register_namespace("", _SVG[1:-1])
    root = ElementTree.fromstring(svg)
    _remove(root, {f"{_SVG}metadata", f"{_SVG}style"})
    wanted = {name for element in root.iter() for name in _referred(element)}
    for element in root.iter():
        if element.attrib.get("id") in wanted:
            element.attrib["id"] = prefix + element.attrib["id"]
        else:
            element.attrib.pop("id", None)
        if _LINK in element.attrib:
            element.attrib["href"] = "#" + prefix + element.attrib.pop(_LINK)[1:]
        if "clip-path" in element.attrib:
            element.attrib["clip-path"] = _IDS.sub(rf"#{prefix}\1", element.attrib["clip-path"])
        for name in _DRAWN:
            if name in element.attrib:
                element.attrib[name] = _FRACTION.sub(_rounded, element.attrib[name]).replace("\n", "")
        if "style" in element.attrib:
            told = _FONTS.sub("font-family: inherit", element.attrib["style"])
            element.attrib["style"] = _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), told)
        if element.tag != f"{_SVG}text":
            element.text = None  # line breaks between elements
        element.tail = None
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "img", "aria-label": label})
    # Elements made by a parser and written by a serialiser: whatever a name holds is text.
    return Markup(harmless(ElementTree.tostring(root, encoding="unicode")))


def _referred(element: ElementTree.Element) -> list[str]:
    return _IDS.findall(element.attrib.get(_LINK, "")) + _IDS.findall(element.attrib.get("clip-path", ""))


def _remove(element: ElementTree.Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags:
            element.remove(child)
        else:
            _remove(child, tags)


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".") or "0"

"""Control characters made visible, wherever a text of a model, an endpoint or a dataset is shown to a person.

What never belongs here: escaping for a form (``markup``).
"""

from __future__ import annotations

import re

# What could move a cursor, set a title, hide text or turn its direction, were it shown as a model wrote it.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r")  # how a cell begins that is computed


def harmless(text: str) -> str:
    """The text with its control characters made visible, those that turn the direction of writing included."""
    return _CONTROLS.sub(lambda match: _visible(ord(match.group())), text)


def one_line(text: str) -> str:
    """The text made harmless and kept on one line: what a model or an endpoint says cannot pass for a line of ours."""
    return harmless(text).replace("\n", "\\n")


def spreadsheet_cell(text: str, *, lines: bool = False) -> str:
    """The text as a spreadsheet program and a terminal may be given it: an apostrophe stands before what would be taken
    for a formula, control characters are made visible, and so are ends of lines unless ``lines`` are kept.
    """
    shown = harmless(text) if lines else one_line(text)
    return f"'{shown}" if text.startswith(_FORMULA) else shown


def _visible(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

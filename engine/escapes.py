"""Halves of surrogate pairs, in text and as JSON escapes, which neither a journal nor a request can carry.

Models write them inside the JSON of their answers (``"\\ud83d"`` without its other half), browsers where a text is cut
within a character. What never belongs here: reading JSON.
"""

from __future__ import annotations

import re
from typing import Any

# A pair, half of one, or any other escape, so that a backslash is never taken for the beginning of the next escape.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)


def readable(text: str) -> str:
    """Text that UTF-8, SQLite and JSON can hold: halves of surrogate pairs become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_halves(text: str) -> str:
    """JSON with U+FFFD in place of each escaped half of a surrogate pair; of the same length."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)


def in_utf8(data: Any, otherwise: str = "replace") -> Any:
    """The same plain data with texts that UTF-8 can hold; ``otherwise`` is how ``str.encode`` is to write the rest."""
    if isinstance(data, str):
        return data.encode("utf-8", otherwise).decode()
    if isinstance(data, dict):
        return {in_utf8(name, otherwise): in_utf8(value, otherwise) for name, value in data.items()}
    return [in_utf8(value, otherwise) for value in data] if isinstance(data, list | tuple) else data

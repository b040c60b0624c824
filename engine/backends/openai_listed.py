"""Whether an endpoint lists the model that is to be asked: a name that is mistyped is best seen before the run.

Endpoints may serve what they do not list (routers, adapters, other spellings), so a warning is all that comes of it.
"""

from __future__ import annotations

import difflib
from typing import Any

import orjson

from .secrets import Redactor

_SHOWN = 3
_LONGEST_NAME = 80
_MOST_NAMES = 2_000


def unlisted(data: bytes, model: str, redact: Redactor) -> str:
    """What to say of a model that is not in the endpoint's list; nothing if it is there or the list cannot be read."""
    names = _names(data)
    if not names or any(name in (model, f"{model}:latest") for name in names):
        return ""
    close = difflib.get_close_matches(model, names, _SHOWN, 0.0)
    shown = ", ".join(_harmless(redact.cut(name, _LONGEST_NAME)) for name in close)
    more = f", and {len(names) - len(close)} more" if len(names) > len(close) else ""
    return f"the endpoint does not list the model '{model}'; it lists {shown}{more}"


def _names(data: bytes) -> list[str]:
    try:
        answer: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return []
    listed = (answer.get("data") or answer.get("models")) if isinstance(answer, dict) else answer
    if not isinstance(listed, list):
        return []
    names = [
        entry[field]
        for entry in listed
        if isinstance(entry, dict)
        for field in ("id", "name", "model")
        if isinstance(entry.get(field), str)
    ]
    return list(dict.fromkeys(names))[:_MOST_NAMES]


def _harmless(name: str) -> str:
    """Printable on a terminal, and not longer than a name is."""
    return "".join(one if one.isprintable() else "?" for one in name)

"""A model whose place is a JSON object in its own name: ``http:{"url": …}#fragment?option=value``.

Such a place may hold any character, so it is cut out before the rest of the name is read. What never belongs here: what
the object means.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..errors import ConfigurationError

_KINDS = ("http",)  # of which a place may be an object; of others a brace is part of a path or a name


class InlinePlace(NamedTuple):
    """``text`` is the object as written, ``behind`` what follows it in the name."""

    kind: str
    text: str
    value: dict[str, Any]
    behind: str


def inline_place(name: str) -> InlinePlace | None:
    """The object that is a model's place; None for a name whose place is none.

    :raises ConfigurationError: it is not one JSON object, followed by nothing, ``#fragment`` or ``?options``. The
        message does not repeat the name, which may hold a key.
    """
    kind, _, rest = name.partition(":")
    if kind not in _KINDS or not rest.startswith("{"):
        return None
    try:
        value, end = json.JSONDecoder(object_pairs_hook=_unique).raw_decode(rest)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"a model of kind '{kind}': its mapping in braces is not JSON: {error.msg} at character {error.pos + 1}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"a model of kind '{kind}': its mapping in braces cannot be read: {error}") from None
    behind = rest[end:]
    if behind and behind[0] not in "#?":
        raise ConfigurationError(
            f"a model of kind '{kind}': behind its mapping in braces stands '{behind[:20]}'; expected nothing, #name "
            "or ?option=value"
        )
    return InlinePlace(kind, rest[:end], value, behind)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' is given twice; leave one of the two out")
    return found

"""One line of JSON as its value, strictly: a key that is given twice has no one value, so the line is refused.

What never belongs here: what a line means, and files.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


class KeyTwice(ValueError):
    """An object holds a key twice; ``key`` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {json.dumps(key, ensure_ascii=False)} is given twice; leave one of the two out")
        self.key = key


def parse_line(line: str) -> Any:
    """The value of a line.

    :raises orjson.JSONDecodeError: it is not JSON.
    :raises KeyTwice: an object in it, at any depth, holds a key twice.
    """
    value = orjson.loads(line)
    if isinstance(value, dict) and line.count(":") == len(value) and line.count("{") == 1:
        return value  # one object, as many colons as keys: none is given twice
    try:
        _STRICT.decode(line)  # orjson takes the last of two; the line is JSON, so nothing else can be wrong
    except KeyTwice:
        raise
    except (ValueError, RecursionError):  # a number of too many digits; nested deeper than is ever meant
        pass
    return value


def _single(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise KeyTwice(key)
            seen.add(key)


_STRICT = json.JSONDecoder(object_pairs_hook=_single, parse_int=str, parse_float=str)

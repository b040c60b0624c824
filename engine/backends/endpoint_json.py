"""JSON as endpoints write it: some spell numbers as JSON does not (NaN, Infinity), or larger than any double.

What never belongs here: what an answer means.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from ..errors import AnswerTooLarge

MOST_VALUES = 2_000_000  # in one JSON text; 90 bytes and 0.4 µs each, while the event loop stands still
_LONGEST_WHOLE = 19  # characters of numbers that are kept as whole ones; orjson makes longer ones floats, too


def text_at(value: Any) -> str:
    """A value in the place of a text.

    :raises TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__} in the place of a text")
    return value


def decoded(data: bytes, label: str) -> Any:
    """The value that ``data`` spells. Numbers that JSON does not know come as floats, infinite or none.

    :raises orjson.JSONDecodeError: it is no JSON otherwise, or holds text that no journal can.
    :raises AnswerTooLarge: it may hold more than ``MOST_VALUES`` lists, objects and entries of them (commas and
        brackets within texts count, too: counting is all that is cheap).
    """
    if len(data) > MOST_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise AnswerTooLarge(f"the answer holds more than {MOST_VALUES:,} values", model=label)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        problem = error
    try:
        value = json.loads(data, parse_int=_whole)
        orjson.dumps(value)  # halves of surrogate pairs, and nesting beyond what is ever meant
        return value
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        raise problem
    finally:
        del problem


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)

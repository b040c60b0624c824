"""What a scenario's function returned, as the plain JSON data that is recorded, counted and given back.

What never belongs here: adding values up (``measures``).
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import orjson
from pydantic import BaseModel

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_MOST_BYTES = 64 * 2**20


def plain_value(value: Any, name: str) -> Any:
    """The value as JSON gives it back: tuples and sets as lists, pydantic models and dataclasses as dicts, numbers that
    are not finite as None. ``name`` is the scenario's, for the error.

    :raises TypeError: it is no such data; the message says what to return.
    """
    if value is None or value is True or value is False:
        return value
    try:
        data = orjson.dumps(value, default=_plain, option=_OPTIONS)
    except (TypeError, RecursionError) as error:
        raise TypeError(
            f"{name} returned what cannot be recorded ({type(value).__name__}): {error}; return a number, or a dict of "
            "numbers, truth values and texts"
        ) from None
    if len(data) > _MOST_BYTES:
        raise TypeError(f"{name} returned {len(data)} bytes of JSON; at most {_MOST_BYTES} are recorded")
    return orjson.loads(data)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # in one order, whatever the process
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")

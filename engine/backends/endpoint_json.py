"""JSON as endpoints write it: some spell numbers as JSON does not (NaN, Infinity), or larger than any double, and some
cut texts within a character.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from ..errors import AnswerTooLarge
from ..escapes import readable, without_halves

MOST_VALUES = 2_000_000  # in one JSON text; 90 bytes and 0.4 µs each, while the event loop stands still
# At the end of a text: the first half of a pair; the first bytes of a character, as ``surrogateescape`` writes them.
_BEGUN_PAIR = re.compile("[\ud800-\udbff]\\Z")
_BEGUN_BYTES = re.compile("(?:[\udcc2-\udcdf]|[\udce0-\udcef][\udc80-\udcbf]?|[\udcf0-\udcf4][\udc80-\udcbf]{0,2})\\Z")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONGEST_WHOLE = 19  # characters of numbers that are kept as whole ones; orjson makes longer ones floats, too


def text_at(value: Any) -> str:
    """A value in the place of a text.

    :raises TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__} in the place of a text")
    return value


class Halves:
    """Parts of characters at the ends of a stream's texts, each joined with its rest where the next text of its place
    begins with it. What has no rest becomes U+FFFD; a part at the end of all is left out.

    A part is a half of a surrogate pair, or some bytes of UTF-8. Texts are of one place if they stand at the same path,
    where an object is known by its ``index`` rather than by where it stands in a list.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[Any, ...], str] = {}

    def joined(self, value: Any, *, in_bytes: bool = False, path: tuple[Any, ...] = ()) -> Any:
        """The value with texts that UTF-8 can hold. ``in_bytes``: what is no UTF-8 stands in it as ``surrogateescape``
        writes it.

        :raises ValueError: it holds bytes that are no part of a character.
        """
        if isinstance(value, str):
            return self._text(value, path, in_bytes) if value else value
        if isinstance(value, dict):
            index = value.get("index")
            path = (*path, index) if isinstance(index, int) else path
            return {
                readable(name): self.joined(one, in_bytes=in_bytes, path=(*path, name)) for name, one in value.items()
            }
        if isinstance(value, list):
            return [
                self.joined(
                    one,
                    in_bytes=in_bytes,
                    path=path if isinstance(one, dict) and "index" in one else (*path, place),
                )
                for place, one in enumerate(value)
            ]
        return value

    def _text(self, text: str, path: tuple[Any, ...], in_bytes: bool) -> str:
        text = self.held.pop(path, "") + text
        if text.isascii():
            return text
        begun = (_BEGUN_BYTES if in_bytes else _BEGUN_PAIR).search(text)
        if begun is not None:
            self.held[path] = begun[0]
            text = text[: begun.start()]
        if in_bytes:
            text = _BYTES.sub(lambda found: found[0].encode("utf-8", "surrogateescape").decode(), text)
        return readable(text)


def decoded(data: bytes, label: str, halves: Halves | None = None) -> Any:
    """The value that ``data`` spells. Numbers that JSON does not know come as floats, infinite or none; a half of a
    surrogate pair as U+FFFD, but in a stream it waits in ``halves`` for the other.

    :raises orjson.JSONDecodeError: it is no JSON otherwise.
    :raises AnswerTooLarge: it may hold more than ``MOST_VALUES`` lists, objects and entries of them (commas and
        brackets within texts count, too: counting is all that is cheap).
    """
    if len(data) > MOST_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise AnswerTooLarge(f"the answer holds more than {MOST_VALUES:,} values", model=label)
    try:
        value = orjson.loads(data)
        return halves.joined(value) if halves is not None and halves.held else value
    except orjson.JSONDecodeError as error:
        problem = error
    try:
        in_bytes, text = False, ""
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            if halves is None:
                raise
            in_bytes, text = True, data.decode("utf-8", "surrogateescape")
        value = json.loads(
            text if halves is not None else without_halves(readable(text)), parse_int=_whole, strict=False
        )
        if halves is not None:
            value = halves.joined(value, in_bytes=in_bytes)
        orjson.dumps(value)  # nesting beyond what is ever meant
        return value
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        raise problem
    finally:
        del problem


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)

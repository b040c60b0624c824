"""The values of a JSON file one by one, in bounded memory: those of one long list, or values that follow each other.

Files of JSON lines are read by ``reading``; this is for the others. What never belongs here: what a value means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import orjson

from viva.engine.errors import DatasetError

from .fields import Raw, shown
from .json_lines import KeyTwice, parse_line
from .lines import LIMIT, check_regular, refuse_other_formats

Record = tuple[int, Raw | DatasetError]  # a record with its 1-based line

_PIECE = 2**18


def is_list(path: Path) -> bool:
    """Whether a file of JSON is one list: its first character that is no white space is an opening bracket.

    :raises DatasetError: the file cannot be read.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    return head.startswith(b"[")


def read_values(path: Path) -> Iterator[Record]:
    """The objects of a file with the 1-based lines in which they begin. A value that is no object comes as its error;
    where a text is no JSON, it is not known where the next value begins, and the rest of the file is refused.

    :raises DatasetError: the file, or the rest of it, cannot be read.
    """
    check_regular(path)
    try:
        with path.open("rb") as raw:
            refuse_other_formats(path, raw.read(4096))
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _Scan(path, file).values()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


class _Scan:
    """A window on the file's text that is moved over it; ``line`` is that of the window's position."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._at, self._line, self._ended = "", 0, 1, False
        self._decoder = json.JSONDecoder()

    def values(self) -> Iterator[Record]:
        in_list = self._next() == "["
        if in_list:
            self._skip(1)
        first = True
        while (letter := self._next()) != ("]" if in_list else ""):
            if in_list and not first:
                if letter != ",":
                    raise self._error(f"expected a comma or the end of the list, found {shown(letter or 'the end')}")
                self._skip(1)
                self._next()
            first = False
            line = self._line
            end = self._end_of_value()
            text = self._text[self._at : end]
            self._skip(end - self._at)
            yield line, self._record(text, line)
        if in_list:
            self._skip(1)
            if letter := self._next():
                raise self._error(f"expected the end of the file behind its list, found {shown(letter)}")

    def _record(self, text: str, line: int) -> dict[str, object] | DatasetError:
        try:
            value = parse_line(text)
        except KeyTwice as error:
            return DatasetError(str(error), path=str(self._path), line=line)
        except orjson.JSONDecodeError as error:
            return DatasetError(f"not valid JSON: {error.msg}", path=str(self._path), line=line)
        if isinstance(value, dict):
            return value
        return DatasetError(f"expected a JSON object, found {type(value).__name__}", path=str(self._path), line=line)

    def _end_of_value(self) -> int:
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:
                    return end
                problem = None
            except json.JSONDecodeError as error:
                problem = f"not valid JSON: {error.msg} (line {self._line + self._newlines(self._at, error.pos)})"
            except RecursionError:
                raise self._error("lists and objects nested too deeply") from None
            if problem is not None and self._ended:
                raise self._error(f"{problem}; the rest of the file is not read")
            if len(self._text) - self._at > LIMIT:
                raise self._error(f"{problem or 'a value without an end'}; a value may have {LIMIT:,} characters")
            self._more(len(self._text) - self._at)

    def _next(self) -> str:
        """Move to the next character that is no white space, and return it; empty at the end of the file."""
        while True:
            while self._at < len(self._text):
                letter = self._text[self._at]
                if letter not in " \t\r\n":
                    return letter
                self._skip(1)
            if self._ended:
                return ""
            self._more(_PIECE)

    def _skip(self, count: int) -> None:
        self._line += self._newlines(self._at, self._at + count)
        self._at += count

    def _newlines(self, begin: int, end: int) -> int:
        return self._text.count("\n", begin, end)

    def _more(self, count: int) -> None:
        """Read on: at least as much as stands there, so that trying again costs no more than twice the text."""
        try:
            piece = self._file.read(max(count, _PIECE))
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8 text behind this line ({error.reason}); save the file as UTF-8") from None
        self._ended = not piece
        self._text, self._at = self._text[self._at :] + piece, 0

    def _error(self, message: str) -> DatasetError:
        return DatasetError(message, path=str(self._path), line=self._line)

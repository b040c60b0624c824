"""Raw records of data files in bounded memory: lines, JSON lines and lists, CSV, TSV and Parquet.

Text is UTF-8 with or without a byte order mark. A line ends with a line feed. For an invalid line or record its error
is returned, and reading continues with the next one. If it is unknown where the next one begins (for example after a
quote that is never closed), the rest of the file is refused. JSON is read strictly: an object with a repeated key is
refused.
"""

from __future__ import annotations

import csv
import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import orjson

from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean
from viva.engine.permissions import permissions

from .items import FieldError, Raw, preview

MAX_LINE_BYTES = 8 * 2**20
_LINE_CHUNK = 2**20
_BOM = b"\xef\xbb\xbf"
# UTF-32 before UTF-16, because its mark begins with that of UTF-16.
_OTHER_FORMATS: list[tuple[bytes, str]] = [
    (b"\xff\xfe\0\0", "UTF-32 text; save it as UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text; save it as UTF-8"),
    (b"\xff\xfe", "UTF-16 text; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text; save it as UTF-8"),
    (b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (b"BZh", "compressed by bzip2; unpack it first"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"),
    (b"PK\3\4", "a zip archive or a spreadsheet; unpack it, or save it as CSV in UTF-8"),
    (b"PAR1", "a Parquet file; name it .parquet"),
]


@dataclass(slots=True)
class BadLine:
    """An unusable line: the reason, and its number of double quotes (needed for CSV)."""

    message: str
    quotes: int


def read_lines(path: Path) -> Iterator[tuple[int, str | BadLine]]:
    """Yield the lines of a file with their 1-based numbers, line ends included.

    Raises:
        DatasetError: The file cannot be read, is no regular file, or does not begin with UTF-8 text.
    """
    require_regular_file(path)
    try:
        with path.open("rb") as file:
            reject_other_formats(path, file.peek(4096)[:4096])
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) <= MAX_LINE_BYTES:
                    yield number, line_text(line.removeprefix(_BOM) if number == 1 else line)
                    continue
                length, quotes = len(line), line.count(b'"')
                while line and not line.endswith(b"\n"):
                    line = file.readline(_LINE_CHUNK)
                    length, quotes = length + len(line), quotes + line.count(b'"')
                yield number, BadLine(f"has {length:,} bytes; a line may have {MAX_LINE_BYTES:,}", quotes)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


def require_regular_file(path: Path) -> None:
    """Refuse a missing file, and anything that would hang or change between two passes.

    Raises:
        DatasetError: The file cannot be found or accessed, or is a folder, pipe or device.
    """
    permissions().check_file(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        near = permissions().similar_name(path) if isinstance(error, FileNotFoundError) else ""
        raise DatasetError(f"cannot be read: {reason}{near}", path=str(path)) from None
    if stat.S_ISDIR(mode):
        raise DatasetError("is a folder; expected a file", path=str(path))
    if not stat.S_ISREG(mode):
        raise DatasetError("is a pipe or a device; a dataset is read more than once: save it as a file", path=str(path))


def reject_other_formats(path: Path, head: bytes) -> None:
    """Raise `DatasetError` for a file that begins like another format; the message says what to do."""
    for magic, description in _OTHER_FORMATS:
        if head.startswith(magic):
            raise DatasetError(f"is {description}", path=str(path), line=1)
    # UTF-16 without a mark: most characters have a NUL, always as the first or always as the second byte.
    nuls = sorted((head[0::2].count(0), head[1::2].count(0)))
    if nuls[1] > len(head) / 5 and nuls[0] < len(head) / 50:
        raise DatasetError("is UTF-16 text; save it as UTF-8", path=str(path), line=1)


def line_text(line: bytes) -> str | BadLine:
    """Return the text of a line's bytes, or why they are invalid."""
    if b"\0" in line:
        return BadLine(f"contains a NUL byte at position {line.index(0) + 1}", line.count(b'"'))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        location = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        return BadLine(f"is not UTF-8 text ({location}); save the file as UTF-8", line.count(b'"'))


class DuplicateKeyError(ValueError):
    """An object has a repeated key; `key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {json.dumps(key, ensure_ascii=False)} is given twice; remove one of them")
        self.key = key


def parse_json_line(line: str) -> Any:
    """Return the JSON value of a line.

    Raises:
        orjson.JSONDecodeError: The line is not JSON.
        DuplicateKeyError: An object in the line, at any depth, has a repeated key.
    """
    value = orjson.loads(line)
    if isinstance(value, dict) and line.count(":") == len(value) and line.count("{") == 1:
        return value  # one object with as many colons as keys: no key is repeated
    try:
        _STRICT_DECODER.decode(line)  # orjson accepts repeated keys; the line is JSON, so nothing else can be wrong
    except DuplicateKeyError:
        raise
    except (ValueError, RecursionError):  # a number with too many digits; nested too deep
        pass
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise DuplicateKeyError(key)
            keys.add(key)


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, parse_int=str, parse_float=str)


Record = tuple[int, Raw | DatasetError]  # a record with its 1-based line

_JSON_CHUNK = 2**18


def is_json_list(path: Path) -> bool:
    """Return True if a JSON file is one list: its first character after white space is an opening bracket.

    Raises:
        DatasetError: The file cannot be read.
    """
    require_regular_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    return head.startswith(b"[")


def read_json_values(path: Path) -> Iterator[Record]:
    """Yield the objects of a file with the 1-based lines in which they begin.

    For a value that is no object, its error is returned. After invalid JSON it is unknown where the next value begins,
    so the rest of the file is refused.

    Raises:
        DatasetError: The file, or the rest of it, cannot be read.
    """
    require_regular_file(path)
    try:
        with path.open("rb") as raw:
            reject_other_formats(path, raw.read(4096))
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _JsonScanner(path, file).values()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


class _JsonScanner:
    """A moving window on the file's text; `line` is the line at the window's position."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._at, self._line, self._ended = "", 0, 1, False
        self._decoder = json.JSONDecoder()

    def values(self) -> Iterator[Record]:
        in_list = self._next_character() == "["
        if in_list:
            self._skip(1)
        first = True
        while (letter := self._next_character()) != ("]" if in_list else ""):
            if in_list and not first:
                if letter != ",":
                    raise self._error(f"expected a comma or the end of the list, found {preview(letter or 'the end')}")
                self._skip(1)
                self._next_character()
            first = False
            line = self._line
            end = self._end_of_value()
            text = self._text[self._at : end]
            self._skip(end - self._at)
            yield line, self._record(text, line)
        if in_list:
            self._skip(1)
            if letter := self._next_character():
                raise self._error(f"expected the end of the file after its list, found {preview(letter)}")

    def _record(self, text: str, line: int) -> dict[str, object] | DatasetError:
        try:
            value = parse_json_line(text)
        except DuplicateKeyError as error:
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
            if len(self._text) - self._at > MAX_LINE_BYTES:
                raise self._error(
                    f"{problem or 'a value without an end'}; a value may have {MAX_LINE_BYTES:,} characters"
                )
            self._read_more(len(self._text) - self._at)

    def _next_character(self) -> str:
        """Move to the next character that is not white space, and return it; "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                letter = self._text[self._at]
                if letter not in " \t\r\n":
                    return letter
                self._skip(1)
            if self._ended:
                return ""
            self._read_more(_JSON_CHUNK)

    def _skip(self, count: int) -> None:
        self._line += self._newlines(self._at, self._at + count)
        self._at += count

    def _newlines(self, begin: int, end: int) -> int:
        return self._text.count("\n", begin, end)

    def _read_more(self, count: int) -> None:
        """Read at least as much as is buffered, so that all parsing retries together cost at most twice the text."""
        try:
            piece = self._file.read(max(count, _JSON_CHUNK))
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8 text after this line ({error.reason}); save the file as UTF-8") from None
        self._ended = not piece
        self._text, self._at = self._text[self._at :] + piece, 0

    def _error(self, message: str) -> DatasetError:
        return DatasetError(message, path=str(self._path), line=self._line)


JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv")
_INDENTED_KEY = re.compile(r"\s+\"[^\"]*\"\s*:")
_PYTHON_VALUE = re.compile(r"(-?(?:NaN|Infinity)|None\b)|True\b|False\b")  # written by Python
_BEGINNING = re.compile("invalid literal|expected a (JSON value|string key)")  # errors where a value or key begins
_UNQUOTED_TEXT = re.compile(r"'?([^\W\d_][^\"',:{}\[\]\r\n]{0,39})")
DATA_SUFFIXES = (*JSON_SUFFIXES, *TABLE_SUFFIXES, ".parquet")


def read_records(path: Path, columns: Sequence[str] = (), required: Sequence[str] = ()) -> Iterator[Record]:
    """Return the records of a file, each with its 1-based first line, or row for Parquet.

    Args:
        path: The file.
        columns: Column names of a CSV or TSV file without header.
        required: Columns that a header must have, in upper or lower case.

    Raises:
        DatasetError: The file, or the rest of it, cannot be read, or the file's ending is unknown.
        ConfigurationError: The file is a Parquet file, and the library for it is not installed.
    """
    if path.suffix in JSON_SUFFIXES:
        return read_json_values(path) if is_json_list(path) or _is_pretty_printed(path) else read_jsonl(path)
    if path.suffix in TABLE_SUFFIXES:
        return _read_table(path, columns, required)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    suffixes = ", ".join(DATA_SUFFIXES)
    raise DatasetError(f"unknown kind of file '{path.suffix}'; known: {suffixes}", path=str(path))


def _is_pretty_printed(path: Path) -> bool:
    """Return True if a file begins with a brace alone on its line, and an indented key on the next one."""
    first, second = islice(chain((line for _, line in read_lines(path)), ("", "")), 2)
    if isinstance(first, BadLine) or isinstance(second, BadLine):
        return False
    return first.strip() == "{" and _INDENTED_KEY.match(second) is not None


def read_jsonl(path: Path) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, with any file ending; empty lines are skipped."""
    for number, line in read_lines(path):
        if isinstance(line, BadLine):
            yield number, DatasetError(line.message, path=str(path), line=number)
        elif line.strip():
            yield number, json_record(path, number, line)


def json_record(path: Path, number: int, line: str) -> Raw | DatasetError:
    """Return the object in a line, or what is wrong with it."""
    try:
        raw = parse_json_line(line)
    except DuplicateKeyError as error:
        return DatasetError(str(error), path=str(path), line=number)
    except orjson.JSONDecodeError as error:
        return DatasetError(json_fault(line, error), path=str(path), line=number)
    if isinstance(raw, dict):
        return raw
    return DatasetError(f"expected a JSON object, found {type(raw).__name__}", path=str(path), line=number)


def json_fault(line: str, error: orjson.JSONDecodeError) -> str:
    """Return where a line is not JSON, why, and what to write instead if that is clear."""
    reason = error.msg
    if error.pos >= len(line) - 1 and not line.endswith("\n"):
        reason += "; the file ends in the middle of this line"
    elif match := _PYTHON_VALUE.match(line, error.pos):
        reason += f" ({match[0]} is no JSON; write {'null' if match[1] else match[0].lower()})"
    elif _BEGINNING.search(error.msg) and (match := _UNQUOTED_TEXT.match(line, error.pos)):
        reason = f'put text in double quotes: "{match[1].rstrip()}"'
    return f"not valid JSON at position {error.pos + 1}: {reason}"


def sound_records(records: Iterable[Record]) -> Iterator[tuple[int, Raw]]:
    """Yield the records of a file, each with its line; raise `DatasetError` if one is invalid."""
    for line, raw in records:
        if isinstance(raw, DatasetError):
            raise raw
        yield line, raw


@contextmanager
def located_errors(path: Path, line: int) -> Iterator[None]:
    """Convert a `FieldError` to a `DatasetError` with file and line."""
    try:
        yield
    except FieldError as error:
        raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None


class _UnusableLine(Exception):
    """The csv reader requested a line that is unusable."""


class _LineFeed(Iterator[str]):
    """Lines for csv's reader; remembers where the row began and how many quotes it has so far."""

    def __init__(self, path: Path) -> None:
        self._lines = read_lines(path)
        self.begin()

    def begin(self) -> None:
        self.first = self.last = self.quotes = 0

    def __next__(self) -> str:
        self.last, line = next(self._lines)
        self.first = self.first or self.last
        if isinstance(line, BadLine):
            self.quotes += line.quotes
            raise _UnusableLine(line.message)
        self.quotes += line.count('"')
        return line


def table_rows(path: Path) -> Iterator[tuple[int, list[str] | DatasetError]]:
    """Yield the rows of a CSV or TSV file, its header included, each with the 1-based number of its first line.

    Empty lines are skipped. For a broken row with an even number of quotes its error is yielded; the row ends with its
    line, and the next row can be read.

    Raises:
        DatasetError: The file cannot be read, or a broken row has an odd number of quotes.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # process-wide; a cell may be as long as a line
    feed = _LineFeed(path)
    reader = csv.reader(feed, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    while True:
        feed.begin()
        try:
            row = next(reader)
        except StopIteration:
            return
        except _UnusableLine as error:
            problem, line = str(error), feed.last
        except csv.Error as error:
            problem, line = f"not valid CSV: {_describe_csv_error(error)}", feed.first
        else:
            if row:
                yield feed.first, row
            continue
        if feed.quotes % 2:
            problem += "; an unclosed quote: the rest of the file cannot be split into rows"
            raise DatasetError(problem, path=str(path), line=line)
        yield feed.first, DatasetError(problem, path=str(path), line=line)


def misspelt_field_hint(field: str, names: Iterable[str]) -> str:
    """Return `; unknown field 'anwser'; did you mean 'answer'?` for a record that lacks a field, or ""."""
    hints = ((name, did_you_mean(name, [field], cutoff=0.75)) for name in names)
    return next((f"; unknown field '{name}'{hint}" for name, hint in hints if hint), "")


def _describe_csv_error(error: csv.Error) -> str:
    text = str(error)
    if text.startswith("new-line character"):
        return "a carriage return within the row; lines end with \\n or \\r\\n"
    if text.startswith("field larger"):
        return f"a field of more than {csv.field_size_limit():,} characters, or a quote that is not closed"
    if text.startswith("unexpected end"):
        return "the file ends within quotes"
    return text


def _read_table(path: Path, columns: Sequence[str], required: Sequence[str]) -> Iterator[Record]:
    header = list(columns)
    for line, row in table_rows(path):
        if isinstance(row, DatasetError):
            if not header:
                raise row
            yield line, row
        elif header:
            if any(map(str.strip, row)):  # spreadsheets may have rows of empty cells
                yield line, _table_record(path, line, header, row)
        else:
            header = row
            _check_header(path, line, header, required)


def _check_header(path: Path, line: int, header: list[str], required: Sequence[str]) -> None:
    names = {name.strip().casefold() for name in header}
    header_line = ",".join(header)
    separator = max(";\t|", key=header_line.count)  # names may contain commas, too
    incomplete = not names.issuperset(name.casefold() for name in required) if required else len(header) == 1
    if incomplete and header_line.count(separator) >= len(header):
        expected = "tabs" if path.suffix == ".tsv" else "commas"
        actual = {";": "semicolons", "\t": "tabs", "|": "bars"}[separator]
        rename = "; or name it .tsv" if separator == "\t" else ""
        message = f"the columns are separated by {actual}; save the file with {expected} between them{rename}"
        raise DatasetError(message, path=str(path), line=line)
    for name in required:
        if name.casefold() not in names:
            hint = misspelt_field_hint(name, header)
            message = f"is missing from the header, which has: {_header_names(header)}{hint}"
            raise DatasetError(message, path=str(path), line=line, field=name)
    for name in header:
        if name and header.count(name) > 1:
            raise DatasetError("occurs twice in the header", path=str(path), line=line, field=name)


def _table_record(path: Path, line: int, header: list[str], row: list[str]) -> Raw | DatasetError:
    if len(row) == len(header):
        return dict(zip(header, row, strict=True))
    field = header[len(row)] if len(row) < len(header) else None
    message = f"expected {len(header)} columns ({_header_names(header)}), found {len(row)}"
    return DatasetError(message, path=str(path), line=line, field=field)


def _header_names(header: list[str]) -> str:
    text = ", ".join(header[:30])
    return text if len(text) <= 120 and len(header) <= 30 else text[:119] + "…"


def _read_parquet(path: Path) -> Iterator[Record]:
    require_regular_file(path)
    parquet, problems = _parquet_library(path)
    row = 0
    try:
        with parquet(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for raw in batch.to_pylist():
                    row += 1
                    yield row, raw
    except problems as error:
        message = f"not readable as Parquet: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise DatasetError(message, path=str(path), line=row + 1) from None


def _parquet_library(path: Path) -> tuple[Callable[[Path], Any], tuple[type[Exception], ...]]:
    try:
        return import_module("pyarrow.parquet").ParquetFile, (import_module("pyarrow").ArrowException, OSError)
    except ImportError:
        message = f"{path}: reading Parquet needs pyarrow; install it with: pip install 'viva-exam[parquet]'"
        raise ConfigurationError(message) from None

"""Raw records from benchmark files: JSON lines and lists, CSV, TSV and Parquet, one record at a time.

A record that cannot be read comes as its error and the next one follows. Where it cannot be known where the next one
begins (a quote that is never closed, say), the rest of the file is refused.

What never belongs here: what a record means (``forms``), and lines as such (``lines``).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, DatasetError

from .fields import Raw
from .json_lines import KeyTwice, parse_line
from .json_values import Record as Record
from .json_values import is_list, read_values
from .lines import LIMIT, BadLine, check_regular, read_lines

JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
TABLE_ENDINGS = (".csv", ".tsv")
_INDENTED_KEY = re.compile(r"\s+\"[^\"]*\"\s*:")
_NO_JSON = re.compile(r"-?(?:NaN|Infinity)")  # what Python writes
ENDINGS = (*JSON_ENDINGS, *TABLE_ENDINGS, ".parquet")


def read_records(path: Path, columns: Sequence[str] = (), required: Sequence[str] = ()) -> Iterator[Record]:
    """The records of a file, each with its 1-based line (of its beginning), or row in the case of Parquet.

    :param columns: the names of the columns of a CSV or TSV file that has no header.
    :param required: columns that the header of one that has a header must name, in upper or lower case.
    :raises DatasetError: the file, or the rest of it, cannot be read; or its ending is not a known one.
    :raises ConfigurationError: it is a Parquet file, and the library for it is not installed.
    """
    if path.suffix in JSON_ENDINGS:
        return read_values(path) if is_list(path) or _is_pretty_printed(path) else read_jsonl(path)
    if path.suffix in TABLE_ENDINGS:
        return _read_table(path, columns, required)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    known = ", ".join(ENDINGS)
    raise DatasetError(f"unknown kind of file '{path.suffix}'; known: {known}", path=str(path))


def _is_pretty_printed(path: Path) -> bool:
    """Return True if a file begins with a brace alone on its line, and an indented key on the next one."""
    first, second = islice(chain((line for _, line in read_lines(path)), ("", "")), 2)
    if isinstance(first, BadLine) or isinstance(second, BadLine):
        return False
    return first.strip() == "{" and _INDENTED_KEY.match(second) is not None


def read_jsonl(path: Path) -> Iterator[Record]:
    """The records of a file of JSON lines, whatever its ending; empty lines are left out.

    :raises DatasetError: the file cannot be read.
    """
    for number, line in read_lines(path):
        if isinstance(line, BadLine):
            yield number, DatasetError(line.message, path=str(path), line=number)
        elif line.strip():
            yield number, json_record(path, number, line)


def json_record(path: Path, number: int, line: str) -> Raw | DatasetError:
    """The object that a line holds, or what is wrong with it."""
    try:
        raw = parse_line(line)
    except KeyTwice as error:
        return DatasetError(str(error), path=str(path), line=number)
    except orjson.JSONDecodeError as error:
        hint = ""
        if found := _NO_JSON.match(line, error.pos):
            hint = f" ({found[0]} is no JSON; write null)"
        if not line.endswith("\n"):
            hint = "; the file ends in the middle of this line" if error.pos >= len(line) - 1 else ""
        message = f"not valid JSON at position {error.pos + 1}: {error.msg}{hint}"
        return DatasetError(message, path=str(path), line=number)
    if isinstance(raw, dict):
        return raw
    return DatasetError(f"expected a JSON object, found {type(raw).__name__}", path=str(path), line=number)


class _Unusable(Exception):
    """A line that csv's reader was to be given cannot be used."""


class _Feed(Iterator[str]):
    """Gives csv's reader its lines, and remembers where the row began and how many quotes it holds so far."""

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
            raise _Unusable(line.message)
        self.quotes += line.count('"')
        return line


def table_rows(path: Path) -> Iterator[tuple[int, list[str] | DatasetError]]:
    """The rows of a CSV or TSV file with the lines they begin in; empty lines are left out.

    A row that is broken but holds an even number of quotes ends with its line, and the next row can be read.

    :raises DatasetError: it cannot be read, or a broken row holds an odd number of quotes.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # the process's; a cell may be as long as a line
    feed = _Feed(path)
    reader = csv.reader(feed, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    while True:
        feed.begin()
        try:
            row = next(reader)
        except StopIteration:
            return
        except _Unusable as error:
            problem, line = str(error), feed.last
        except csv.Error as error:
            problem, line = f"not valid CSV: {_in_words(error)}", feed.first
        else:
            if row:
                yield feed.first, row
            continue
        if feed.quotes % 2:
            problem += "; a quote stays open, so the rest of the file cannot be told apart into rows"
            raise DatasetError(problem, path=str(path), line=line)
        yield feed.first, DatasetError(problem, path=str(path), line=line)


def _in_words(error: csv.Error) -> str:
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
            if any(map(str.strip, row)):  # spreadsheets leave rows of empty cells behind
                yield line, _table_record(path, line, header, row)
        else:
            header = row
            _check_header(path, line, header, required)


def _check_header(path: Path, line: int, header: list[str], required: Sequence[str]) -> None:
    known = {name.strip().casefold() for name in header}
    joined = ",".join(header)
    other = max(";\t|", key=joined.count)  # within the names there may be commas, too
    lacking = not known.issuperset(name.casefold() for name in required) if required else len(header) == 1
    if lacking and joined.count(other) >= len(header):
        wanted = "tabs" if path.suffix == ".tsv" else "commas"
        found = {";": "semicolons", "\t": "tabs", "|": "bars"}[other]
        rename = "; or name it .tsv" if other == "\t" else ""
        message = f"the columns are separated by {found}; save the file with {wanted} between them{rename}"
        raise DatasetError(message, path=str(path), line=line)
    for name in required:
        if name.casefold() not in known:
            near = get_close_matches(name.casefold(), known, 1, 0.75)
            hint = f"; unknown field '{near[0]}': did you mean '{name}'?" if near else ""
            message = f"is missing from the header, which has: {_names(header)}{hint}"
            raise DatasetError(message, path=str(path), line=line, field=name)
    for name in header:
        if name and header.count(name) > 1:
            raise DatasetError("stands twice in the header", path=str(path), line=line, field=name)


def _table_record(path: Path, line: int, header: list[str], row: list[str]) -> Raw | DatasetError:
    if len(row) == len(header):
        return dict(zip(header, row, strict=True))
    field = header[len(row)] if len(row) < len(header) else None
    message = f"expected {len(header)} columns ({_names(header)}), found {len(row)}"
    return DatasetError(message, path=str(path), line=line, field=field)


def _names(header: list[str]) -> str:
    text = ", ".join(header[:30])
    return text if len(text) <= 120 and len(header) <= 30 else text[:119] + "…"


def _read_parquet(path: Path) -> Iterator[Record]:
    check_regular(path)
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

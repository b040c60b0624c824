"""Reading benchmark files line by line, and turning a raw line into an item of whichever known form it has.

A form is a function from a raw record to an item; it raises ``FieldError`` naming the field that is wrong. Files are
never held whole. What never belongs here: choosing items (``selection``).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import DatasetError

from ..items import Item

Raw = Mapping[str, Any]
Form = Callable[[Raw], Item]


class FieldError(Exception):
    """A raw record is not an item: which field, what was found, what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_raw(path: Path) -> Iterator[tuple[int, Raw | DatasetError]]:
    """The records of a JSONL or CSV file with their 1-based line numbers; a broken line comes as its error.

    :raises DatasetError: the file cannot be read at all, or its ending is not a known one.
    """
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        yield from _read_jsonl(path)
    elif path.suffix in (".csv", ".tsv"):
        yield from _read_csv(path, "\t" if path.suffix == ".tsv" else ",")
    else:
        raise DatasetError(f"unknown kind of file '{path.suffix}'; known: .jsonl, .csv, .tsv", path=str(path))


def _read_jsonl(path: Path) -> Iterator[tuple[int, Raw | DatasetError]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not text.strip():
                    continue
                try:
                    raw = orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    yield number, DatasetError(f"not valid JSON: {error}", path=str(path), line=number)
                    continue
                if isinstance(raw, dict):
                    yield number, raw
                else:
                    message = f"expected a JSON object, found {type(raw).__name__}"
                    yield number, DatasetError(message, path=str(path), line=number)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


def _read_csv(path: Path, delimiter: str) -> Iterator[tuple[int, Raw | DatasetError]]:
    try:
        # Bytes that are not UTF-8 come through as surrogates and are found row by row.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header: list[str] | None = None
            while True:
                line = reader.line_num + 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    # Quoting is broken: where the next row begins is anybody's guess, so no line can be skipped.
                    message = f"not valid CSV from this row on: {error}"
                    raise DatasetError(message, path=str(path), line=line) from None
                if header is None:
                    header = row
                elif row:
                    yield line, _csv_record(path, line, header, row)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


def _csv_record(path: Path, line: int, header: list[str], row: list[str]) -> Raw | DatasetError:
    if len(row) != len(header):
        message = f"expected {len(header)} columns as in the header, found {len(row)}"
        return DatasetError(message, path=str(path), line=line)
    if not all(value.isascii() or _is_text(value) for value in row):
        return DatasetError("not UTF-8 text", path=str(path), line=line)
    return dict(zip(header, row, strict=True))


def _is_text(value: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in value)


def text_field(raw: Raw, name: str, within: str = "") -> str:
    """A field that must hold text; ``within`` is the path of the object it stands in, for errors.

    :raises FieldError: it is missing, empty or of another type.
    """
    value = raw.get(name)
    if value is None:
        raise FieldError(within + name, "is missing")
    if not isinstance(value, str) or not value.strip():
        raise FieldError(within + name, f"expected text, found {_shown(value)}")
    return value


def choice_list(values: Any, field: str) -> list[str]:
    """The texts of the choices: at least two, all of them text.

    :raises FieldError: otherwise.
    """
    if not isinstance(values, list) or not all(isinstance(value, str) and value.strip() for value in values):
        raise FieldError(field, f"expected a list of texts, found {_shown(values)}")
    if not 2 <= len(values) <= 26:
        raise FieldError(field, f"expected 2 to 26 choices, found {len(values)}")
    return values


def answer_index(answer: Any, labels: list[str], field: str) -> int:
    """The position of the answer's label among the choices' labels.

    :raises FieldError: the answer names none of them.
    """
    label = str(answer).strip() if answer is not None else ""
    if label not in labels:
        raise FieldError(field, f"the answer {_shown(answer)} is not among the choices ({', '.join(labels)})")
    return labels.index(label)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

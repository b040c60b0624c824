"""The records of a file of ratings or scores: CSV, TSV, JSONL, Parquet, or one JSON array, each with its line.

Nested objects are flattened (``scores.fluency``), lists numbered from 1 (``annotators.2``). What never belongs here:
what a field means (``columns``).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from viva.data.lines import check_regular
from viva.data.passes import wrapping_hint
from viva.data.reading import read_records
from viva.engine.errors import DatasetError

Flat: TypeAlias = dict[str, Any]
_LARGEST = 512 * 2**20  # bytes of a JSON array, which is read at once
_LONGEST_LIST = 64
_LONGEST_TEXT = 4_000  # characters of a list in a text
NOTHING = ("", "nan", "none", "null", "n/a", "n.a.", "na", "#n/a")  # no rating, in lower case
_RATING = re.compile(
    r"""["']?(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|none|null|n/?a)["']?""", re.IGNORECASE
)
_ARRAY = re.compile(r"(?:np\.|numpy\.)?array\((\[.*\])(?:, dtype=\S+)?\)")
_RATINGS = re.compile(rf"\s*(?:{_RATING.pattern}(?:\s*[,;]\s*|\s+|\s*$))*", re.IGNORECASE)


def flat_records(path: Path) -> list[tuple[int, Flat]]:
    """The records of a file with the lines that they begin in.

    :raises DatasetError: the file or a record cannot be read; the message names the line.
    :raises ConfigurationError: it is a Parquet file, and the library for it is not installed.
    """
    found: list[tuple[int, Flat]] = []
    for line, raw in _array_records(path) if _is_array(path) else read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        found.append((line, dict(flattened(raw))))
    if len(found) == 1 and _are_columns(found[0][1]):
        message = "holds a column in each field; save a record for each row (pandas: to_json(..., orient='records'))"
        raise DatasetError(message, path=str(path))
    if not found:
        raise DatasetError("holds no record", path=str(path))
    return found


def form_hint(path: Path) -> str:
    """Return what to save instead of a file that is one object around all records; empty for other files."""
    _, raw = next(iter(_array_records(path) if _is_array(path) else read_records(path)))
    return "" if isinstance(raw, DatasetError) else wrapping_hint(raw)


def _are_columns(record: Flat) -> bool:
    """Return True if a file's only record has the same places, three or more, in each of its fields."""
    places: dict[str, list[str]] = {}
    for name in record:
        field, _, place = name.partition(".")
        places.setdefault(field, []).append(place)
    first = next(iter(places.values()))
    numbered = len(first) > 2 and all(map(str.isdecimal, first))
    return len(places) > 1 and numbered and all(one == first for one in places.values())


def _is_array(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    check_regular(path)
    with path.open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _array_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if path.stat().st_size > _LARGEST:
        message = f"is an array of more than {_LARGEST // 2**20} MiB; save it as JSON lines, one object a line"
        raise DatasetError(message, path=str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DatasetError("is not UTF-8 text; save it as UTF-8", path=str(path)) from None
    decoder = json.JSONDecoder()
    place, line = text.index("[") + 1, 1 + text.count("\n", 0, text.index("[") + 1)
    expects = False  # a comma came before
    while True:
        begin = _past_blanks(text, place)
        line, place = line + text.count("\n", place, begin), begin
        sign = text[place : place + 1]
        if sign == "]" and not expects:
            return
        try:
            value, after = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            message = f"not valid JSON: {error.msg if isinstance(error, json.JSONDecodeError) else 'nested too deep'}"
            raise DatasetError(message, path=str(path), line=line) from None
        if not isinstance(value, dict):
            raise DatasetError(f"expected a JSON object, found {type(value).__name__}", path=str(path), line=line)
        yield line, value
        line, place = line + text.count("\n", place, after), after
        begin = _past_blanks(text, place)
        line, place = line + text.count("\n", place, begin), begin
        sign = text[place : place + 1]
        if sign == "]":
            return
        if sign != ",":
            raise DatasetError("expected a comma or the array's end here", path=str(path), line=line)
        place, expects = place + 1, True


def _past_blanks(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def unfolded(text: str) -> Any:
    """The list or object of ratings or labels that a text is, in JSON, or as Python or numpy prints it; None of other
    texts.
    """
    text = text.strip()
    text = found[1] if (found := _ARRAY.fullmatch(text)) is not None else text
    if not 2 <= len(text) <= _LONGEST_TEXT or text[0] + text[-1] not in ("[]", "()", "{}"):
        return None
    if text[0] != "{" and (inner := _RATINGS.fullmatch(text[1:-1])) is not None:
        return [_rated(one) for one in _RATING.findall(inner[0])]
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        value = list(value) if isinstance(value, tuple) else value
        return value if isinstance(value, list | dict) and _are_ratings(value) else None
    return None


def _rated(text: str) -> Any:
    text = text.strip("\"'")
    return None if text.lower() in NOTHING else float(text)


def _are_ratings(value: Any) -> bool:
    """Return True if nothing but numbers, labels and texts stands in a list or object."""
    if isinstance(value, dict):
        return bool(value) and all(map(_are_ratings, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_are_ratings, value))
    return value is None or isinstance(value, int | float | str)


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A nested value's fields, each with its full name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and 0 < len(value) <= _LONGEST_LIST:
        for number, inner in enumerate(value, 1):
            yield from flattened(inner, f"{name}.{number}")
    else:
        yield name, value

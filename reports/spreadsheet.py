"""Spreadsheet tables that people edit and send back: written as TSV, read back however they were saved.

Cells are escaped so that each row is one line, nothing is taken for a formula, and `unescape_cell` returns the original
text. Tabs, line ends, backslashes, control characters and lone surrogates are written as in a Python string; a cell
that begins like a formula, or with an apostrophe, gets an apostrophe before it. The file is UTF-8 with a byte order
mark, or Excel would read it in the local code page. A cell that is too long for Excel is cut, with a mark.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.files import write_atomically

# An Excel cell holds 32,767 UTF-16 units; a character may take two.
_MAX_CELL_UNITS = 32_000
_CUT = " [cut]"
# Including full-width forms, which some spreadsheet programs treat like the plain ones.
_FORMULA = "=+-@＝＋－＠'"
_SPECIAL = re.compile("[\\\\\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(?:([tnr\\])|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"}
_LONG = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
_DELIMITERS = "\t,;"


def escape_cell(text: str) -> str:
    """Return a cell's text on one line, harmless to spreadsheet programs; `unescape_cell` reverses it."""
    safe = _SPECIAL.sub(lambda match: _SHORT.get(match.group()) or _escape_code(ord(match.group())), text)
    return f"'{safe}" if safe.startswith(tuple(_FORMULA)) else safe


def unescape_cell(cell: str) -> str:
    """Return the original text of `escape_cell`."""
    bare = cell.removeprefix("'")
    return _ESCAPED.sub(lambda match: _LONG.get(match[1] or "") or chr(int(match[2] or match[3], 16)), bare)


def _escape_code(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write_spreadsheet(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    """Write a table as TSV with escaped cells and return the number of rows; replace an existing file."""
    cells = ([_cut_cell(cell) for cell in row] for row in rows)
    return write_table(path, header, cells, delimiter="\t", line_end="\r\n", mark=True)


def write_table(
    path: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    delimiter: str = ",",
    line_end: str = "\n",
    mark: bool = False,
    option: str = "",
    advice: str = "",
) -> int:
    """Write a table whose cells are already harmless and return the number of rows; replace an existing file.

    `mark` adds a byte order mark, without which Excel assumes the local code page. If the file cannot be written,
    `option` begins the error and `advice` ends it.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=line_end)
    writer.writerow(header)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    try:
        write_atomically(path, text.getvalue().encode("utf-8-sig" if mark else "utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"{option}{path}: cannot be written: {error.strerror}{advice}") from None
    return count


def _cut_cell(text: str) -> str:
    cell = escape_cell(text)
    units = cell.encode("utf-16-le")
    if len(units) <= 2 * _MAX_CELL_UNITS:
        return cell
    return units[: 2 * _MAX_CELL_UNITS].decode("utf-16-le", "ignore") + _CUT


def read_spreadsheet(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table by column name, each with the 1-based line in which it begins.

    Reads UTF-8 and UTF-16 text, separated by tabs, commas or semicolons, with any line ends and quotes. Column names
    are case-insensitive; columns may stand in any order, and optional ones may be missing. Cells stay escaped; missing
    cells at the end of a row are empty. Empty rows are skipped.

    Raises:
        DatasetError: if the file is no such table, or a required column is missing or duplicated.
    """
    text = _read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    header: list[str] = []
    begins = 1
    try:
        for row in reader:
            line, begins = begins, reader.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if header:
                if any(cell.strip() for cell in row[len(header) :]):
                    message = f"has {len(row)} cells where the header has {len(header)}; is a quote missing?"
                    raise DatasetError(message, path=str(path), line=line)
                padded = [*row, *[""] * (len(header) - len(row))]
                yield line, dict(zip(header, padded, strict=False))
                continue
            header = [cell.strip().lower() for cell in row]
            for name in required:
                if header.count(name) != 1:
                    problem = "occurs twice in the header" if name in header else f"is missing from the header: {row}"
                    raise DatasetError(problem, path=str(path), line=line, field=name)
    except csv.Error as error:
        raise DatasetError(f"cannot be read as a table: {error}", path=str(path), line=begins) from None
    if not header:
        raise DatasetError("is empty; expected a table with a header", path=str(path))


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    if data.startswith(b"PK\3\4"):
        raise DatasetError("is a spreadsheet or a zip archive; save it as 'CSV UTF-8'", path=str(path))
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        message = "is neither UTF-8 nor UTF-16 text; save it as 'Unicode Text' or 'CSV UTF-8'"
        line = data[: error.start].count(b"\n") + 1
        raise DatasetError(message, path=str(path), line=None if wide else line) from None


def _delimiter(text: str) -> str:
    first = next(iter(text.lstrip("\r\n").splitlines()), "")
    return max(_DELIMITERS, key=first.count)

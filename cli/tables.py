"""Titled tables laid out for a terminal's width: numbers are never wrapped, truncated or dropped.

A table that is too wide gets narrower gaps between its columns. If that is not enough, it is split into parts below one
another; each part repeats the labels that identify the rows.
Labels may wrap. A column of numbers that is wider than the terminal is printed in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from viva.reports.tables import is_numeric_column

if TYPE_CHECKING:
    from rich.table import Table

_NUMBER = re.compile(r"\D{0,2}\d[\d.,:/%e+−–-]*\D{0,2}")
_LABEL_WIDTH = 12  # minimum width of a column of words
_NARROW_WIDTH = 80
_WORD_WIDTH = 40  # shorter words in labels, such as keys, are broken only in a narrow terminal
_FIGURE_WIDTH = 36  # longer cells that contain a number are sentences, which may wrap
_ATTACHED_HEADERS = ("±", "SE", "p")  # columns that stay beside the preceding one
_FRAME, _GAP = 2, 3  # width of the box: at both edges together, and beside each further column
_DENSE_GAP = 2


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """Yield the table as one part, or as several if it is wider than `width` cells."""
    longest = _WORD_WIDTH if width >= _NARROW_WIDTH else _LABEL_WIDTH
    columns = [_Column(name, [row[number] for row in rows], longest) for number, name in enumerate(header)]
    if _table_width(minimum := [column.min_width for column in columns]) > width >= _dense_width(minimum):
        yield _rich_table(columns, width, dense=True)
        return
    for numbers in _parts(columns, width):
        yield _rich_table([columns[number] for number in numbers], width)


class _Column:
    """A column: its texts, its minimum width, and whether it belongs to the column before it."""

    def __init__(self, name: str, cells: Sequence[str], unbroken: int) -> None:
        from rich.cells import cell_len

        self.name, self.cells = name, cells
        self.is_right = all(text[:1].isdigit() or text[:1] in "–-" for text in cells)
        self.is_label = not is_numeric_column([[text] for text in cells], 0)
        self.is_attached = name in _ATTACHED_HEADERS
        longest = max(map(cell_len, cells), default=0)
        self.full_width = max(longest, cell_len(name))
        words = [word for text in cells for word in text.split() if _NUMBER.fullmatch(word)]
        # A short cell with a number among words, such as an interval after its name, does not wrap either.
        figures = [
            text for text in cells if cell_len(text) <= _FIGURE_WIDTH and any(map(_NUMBER.fullmatch, text.split()))
        ]
        floor = max(map(cell_len, [*words, *figures]), default=0) if self.is_label else longest
        labels = [cell_len(word) for text in cells for word in text.split()] if self.is_label else []
        floor = max([floor, *(length for length in labels if length <= unbroken)])
        title = max(map(cell_len, name.split()), default=0)
        self.min_width = max(
            floor, min(title, _LABEL_WIDTH), min(self.full_width, _LABEL_WIDTH) if self.is_label else 0
        )


def _parts(columns: Sequence[_Column], width: int) -> list[list[int]]:
    """Return the indices of the columns of each part."""
    all_indices = list(range(len(columns)))
    if _table_width([column.min_width for column in columns]) <= width:
        return [all_indices]
    keys = _keys(columns, width)
    parts = [list(keys)]
    groups: list[list[int]] = []
    for number in all_indices:
        if number in keys:
            continue
        pair = [*groups[-1], number] if groups and columns[number].is_attached else []
        if len(pair) == 2 and _table_width([columns[index].min_width for index in (*keys, *pair)]) <= width:
            groups[-1] = pair
        else:
            groups.append([number])
    for group in groups:
        if (
            len(parts[-1]) > len(keys)
            and _table_width([columns[index].min_width for index in (*parts[-1], *group)]) > width
        ):
            parts.append(list(keys))
        parts[-1] += group
    return [sorted(part) for part in parts]


def _keys(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the indices of the columns that each part repeats: leading labels, and others that distinguish rows.

    Labels that take up most of the line are repeated only if rows cannot be distinguished without them.
    """

    def count_distinct(indices: Sequence[int]) -> int:
        return len(set(zip(*(columns[index].cells for index in indices), strict=True)))

    def min_width(indices: Sequence[int]) -> int:
        return _table_width([columns[index].min_width for index in indices])

    all_indices = list(range(len(columns)))
    leading = next((number for number in all_indices if not columns[number].is_label), len(columns))
    keys = all_indices[: max(1, leading)]
    last = max((number for number in all_indices if columns[number].is_label), default=0)
    for end in range(len(keys), last + 1):
        if count_distinct(all_indices[:end]) == len(columns[0].cells):
            keys = all_indices[:end]
            break
    while min_width(keys) > width // 2:
        needless = [
            index
            for index in keys
            if len(keys) > 1 and count_distinct([key for key in keys if key != index]) == count_distinct(keys)
        ]
        if not needless:
            break
        keys.remove(min(needless, key=lambda index: (len(set(columns[index].cells)), -index)))
    while len(keys) > 1 and any(min_width([*keys, number]) > width for number in all_indices if number not in keys):
        keys.pop()
    return keys


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + _FRAME + _GAP * (len(widths) - 1) + 2


def _dense_width(widths: Sequence[int]) -> int:
    return sum(widths) + _FRAME + _DENSE_GAP * (len(widths) - 1)


def _rich_table(columns: Sequence[_Column], width: int, *, dense: bool = False) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    widths = [column.min_width for column in columns]
    spare = width - (_dense_width(widths) if dense else _table_width(widths))
    while spare > 0 and any(current < column.full_width for current, column in zip(widths, columns, strict=True)):
        for number, column in enumerate(columns):
            if spare > 0 and widths[number] < column.full_width:
                widths[number] += 1
                spare -= 1
    table = Table(box=SIMPLE, padding=(0, 0, 0, _DENSE_GAP - 1), pad_edge=False) if dense else Table(box=SIMPLE)
    for column, current in zip(columns, widths, strict=True):
        table.add_column(
            Text(column.name), justify="right" if column.is_right else "left", overflow="fold", width=current
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table

"""Titled tables laid out for a terminal's width: numbers are never folded, cut or dropped.

A table that is too wide is split into parts that stand below one another and repeat the labels that identify
their rows. Labels may fold, numbers may not; a column that is still too wide goes over the edge rather than
lose a digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from viva.reports.tables import is_numeric_column

if TYPE_CHECKING:
    from rich.table import Table

_NUMBER = re.compile(r"\D{0,2}\d[\d.,:/%e+−–-]*\D{0,2}")
_LABEL_WIDTH = 12  # a column of words is not made narrower than this, unless it is by nature
_WORD_WIDTH = (
    40  # a word of a label, such as a key, is not broken unless it is longer, or the terminal is narrower than …
)
_NARROW_WIDTH = 80
_FIGURE_WIDTH = 36  # a cell of words with a number that is longer than this is a sentence, which may fold
_ATTACHED_HEADERS = ("±", "SE", "p")  # columns about the one before them
_FRAME, _GAP = 2, 3  # what the box takes of a line: at its edges, and beside each further column


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """The table as one part, or as several if it is wider than ``width`` cells of a terminal."""
    longest = _WORD_WIDTH if width >= _NARROW_WIDTH else _LABEL_WIDTH
    columns = [_Column(name, [row[place] for row in rows], longest) for place, name in enumerate(header)]
    for places in _parts(columns, width):
        yield _rich_table([columns[place] for place in places], width)


class _Column:
    """One column: its texts, how narrow it may become, and whether it tells nothing without the one before it."""

    def __init__(self, name: str, cells: Sequence[str], whole: int) -> None:
        """``whole``: words of labels up to this length are not broken."""
        from rich.cells import cell_len

        self.name, self.cells = name, cells
        self.right = all(text[:1].isdigit() or text[:1] in "–-" for text in cells)
        self.label = not is_numeric_column([[text] for text in cells], 0)
        self.belongs = name in _ATTACHED_HEADERS
        longest = max(map(cell_len, cells), default=0)
        self.natural = max(longest, cell_len(name))
        words = [word for text in cells for word in text.split() if _NUMBER.fullmatch(word)]
        # A figure among words, such as an interval behind its name, is not folded either; sentences are.
        figures = [
            text for text in cells if cell_len(text) <= _FIGURE_WIDTH and any(map(_NUMBER.fullmatch, text.split()))
        ]
        floor = max(map(cell_len, [*words, *figures]), default=0) if self.label else longest
        labels = [cell_len(word) for text in cells for word in text.split()] if self.label else []
        floor = max([floor, *(length for length in labels if length <= whole)])
        title = max(map(cell_len, name.split()), default=0)
        self.least = max(floor, min(title, _LABEL_WIDTH), min(self.natural, _LABEL_WIDTH) if self.label else 0)


def _parts(columns: Sequence[_Column], width: int) -> list[list[int]]:
    """Which columns stand in which part."""
    every = list(range(len(columns)))
    if _taken([column.least for column in columns]) <= width:
        return [every]
    keys = _keys(columns, width)
    parts = [list(keys)]
    groups: list[list[int]] = []
    for place in every:
        if place in keys:
            continue
        pair = [*groups[-1], place] if groups and columns[place].belongs else []
        if len(pair) == 2 and _taken([columns[at].least for at in (*keys, *pair)]) <= width:
            groups[-1] = pair
        else:
            groups.append([place])
    for group in groups:
        if len(parts[-1]) > len(keys) and _taken([columns[at].least for at in (*parts[-1], *group)]) > width:
            parts.append(list(keys))
        parts[-1] += group
    return [sorted(part) for part in parts]


def _keys(columns: Sequence[_Column], width: int) -> list[int]:
    """The columns that each part repeats: the leading labels, and those that tell rows of the same labels apart.

    Labels that take most of the line are repeated only as far as rows cannot be told apart without them.
    """

    def told(places: Sequence[int]) -> int:
        return len(set(zip(*(columns[at].cells for at in places), strict=True)))

    def least(places: Sequence[int]) -> int:
        return _taken([columns[at].least for at in places])

    every = list(range(len(columns)))
    leading = next((place for place in every if not columns[place].label), len(columns))
    keys = every[: max(1, leading)]
    last = max((place for place in every if columns[place].label), default=0)
    for end in range(len(keys), last + 1):
        if told(every[:end]) == len(columns[0].cells):
            keys = every[:end]
            break
    while least(keys) > width // 2:
        needless = [at for at in keys if len(keys) > 1 and told([one for one in keys if one != at]) == told(keys)]
        if not needless:
            break
        keys.remove(min(needless, key=lambda at: (len(set(columns[at].cells)), -at)))
    while len(keys) > 1 and any(least([*keys, place]) > width for place in every if place not in keys):
        keys.pop()
    return keys


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _FRAME + _GAP * (len(widths) - 1) + 2


def _rich_table(columns: Sequence[_Column], width: int) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    widths = [column.least for column in columns]
    spare = width - _taken(widths)
    while spare > 0 and any(now < column.natural for now, column in zip(widths, columns, strict=True)):
        for place, column in enumerate(columns):
            if spare > 0 and widths[place] < column.natural:
                widths[place] += 1
                spare -= 1
    table = Table(box=SIMPLE)
    for column, now in zip(columns, widths, strict=True):
        table.add_column(Text(column.name), justify="right" if column.right else "left", overflow="fold", width=now)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table

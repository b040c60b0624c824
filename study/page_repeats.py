"""What a page would say in every section is said once: where figures come from, and what all rows of a table share.

What never belongs here: what figures and titles say, and markup.
"""

from __future__ import annotations

from dataclasses import replace

from viva.reports.page import Page
from viva.reports.text import Table, numeric

_FEWEST_ROWS = 3  # of fewer, a value that all share is no repetition worth a word
_LEAST_COLUMNS = 3


def said_once(page: Page) -> None:
    """Move to ``page.origin`` the origin that all sections and plots share, out of titles what it says already, and
    from columns to titles what is the same in all rows.
    """
    plots = [*page.plots, *([page.decisive] if page.decisive else [])]
    origins = {*(plot.origin for plot in plots), *(section.origin for section in page.sections)} - {""}
    if len(origins) == 1:
        page.origin = origins.pop()
        for section in page.sections:
            section.origin = ""
        page.plots = [replace(plot, origin="") for plot in page.plots]
        page.decisive = page.decisive and replace(page.decisive, origin="")
    said = page.origin.split(" · ") if page.origin else []
    for section in page.sections:
        section.tables = [_narrow(_title_without(table, said)) for table in section.tables]


def _title_without(table: Table, said: list[str]) -> Table:
    """The table with a title that leaves out those of its parts, between commas, that are said already."""
    title, header, rows = table
    head, colon, tail = title.partition(": ")
    tail = f", {tail},"
    for part in said:
        tail = tail.replace(f", {part},", ",").replace(f", {part};", ";")
    tail = tail.strip(",; ")
    return (f"{head}{colon}{tail}" if tail else head, header, rows)


def _narrow(table: Table) -> Table:
    """The table without columns of words that are the same in every row: its title names them."""
    title, header, rows = table
    same: list[int] = []
    for at in range(len(header)):
        cells = {row[at] for row in rows}
        left = len(header) - len(same)
        if len(rows) >= _FEWEST_ROWS and len(cells) == 1 and left > _LEAST_COLUMNS and not numeric(rows, at):
            same.append(at)
    if not same:
        return table
    kept = [at for at in range(len(header)) if at not in same]
    told = ", ".join(f"{header[at]} {rows[0][at]}" for at in same)
    return (f"{title} · {told}", [header[at] for at in kept], [[row[at] for at in kept] for row in rows])

"""The section of systems that have no sections of their own: the tables of their runs' reports, run beside run.

What never belongs here: figures over several runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from viva.reports.page import Record
from viva.reports.text import Table

from .sections import Material, Section, Subject

if TYPE_CHECKING:
    from ..contract import Scenario


class OwnTables(Section[Material]):
    """Each table of the runs' own reports once, with the rows of all runs that have it."""

    subject = Subject.RESULTS

    def __init__(self, which: Scenario[Any, Any]) -> None:
        self.key = self.anchor = which.name
        self.heading = (which.plural or which.name).capitalize()

    def compute(self, material: Material, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """For each run its name and its tables."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for reading in material.readings:
            if reading.own_tables is not None and reading.cell.folder not in runs:
                runs[reading.cell.folder] = [
                    {"title": title, "header": list(header), "rows": [list(row) for row in rows]}
                    for title, header, rows in reading.own_tables()
                    if rows
                ]
        return [{"run": name, "tables": tables} for name, tables in runs.items()]

    def tables(self, report: Record) -> list[Table]:
        runs = report[self.key]
        groups: dict[tuple[Any, ...], list[tuple[str, Mapping[str, Any]]]] = {}
        for run in runs:
            met: dict[tuple[str, ...], int] = {}
            for table in run["tables"]:
                header = tuple(table["header"])
                met[header] = met.get(header, 0) + 1  # tables with the same columns are numbered
                groups.setdefault((header, met[header]), []).append((run["run"], table))
        made: list[Table] = []
        for (header, _), found in groups.items():
            title = _common_title([str(table["title"]) for _, table in found])
            if len(runs) == 1:
                made.append((title, list(header), [list(row) for _, table in found for row in table["rows"]]))
            else:
                rows = [[name, *row] for name, table in found for row in table["rows"]]
                made.append((title, ["run", *header], rows))
        return made


def _common_title(titles: list[str]) -> str:
    """What all titles say, part by part between commas; "…" stands where they go different ways."""
    parts = [title.split(", ") for title in titles]
    if len({len(found) for found in parts}) > 1:
        return titles[0]
    kept = []
    for found in zip(*parts, strict=True):
        words = takewhile(lambda same: len(set(same)) == 1, zip(*(part.split() for part in found), strict=False))
        kept.append(found[0] if len(set(found)) == 1 else " ".join([*(same[0] for same in words), "…"]))
    return ", ".join(kept)

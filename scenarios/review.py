"""Verdicts as a sheet for people, and their corrections taken back: what ``viva review`` needs of a system.

What never belongs here: the columns of a sheet (a system's own).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from viva.engine.folder import RunFolder


@dataclass(slots=True)
class Applied:
    """What came of a sheet that was taken back: corrections ``added``, those that were ``known`` before, and notes."""

    added: int
    known: int
    notes: list[str] = field(default_factory=list)


class ReviewSheet(Protocol):
    """A run's graded outputs as a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to fill in."""

    def write(self, run: RunFolder, file: Path) -> int:
        """Write the sheet; how many outputs stand in it.

        :raises ConfigurationError: nothing in this run was graded, or the file cannot be written.
        """

    def apply(self, run: RunFolder, file: Path) -> Applied:
        """Take over the corrections that stand in a sheet.

        :raises ConfigurationError, DatasetError: the file is no such sheet; the message names line and column.
        """

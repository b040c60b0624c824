"""Recorded cells as a study opens them, what was read of each, and those of one candidate taken together.

What never belongs here: finding cells (the room ``study``), and what one system keeps of its conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.engine.folder import RunFolder
from viva.reports.text import Table

from ..models import model_labels
from .items import ItemCatalogue


@dataclass(slots=True)
class StudyCell:
    """What one candidate did on one dataset under one seed and evaluator: a cell of a sweep, or one candidate of a run.

    ``run`` is None where it has not begun; ``folder`` is what ``viva show`` is given, seen from beside the folders that
    were named; ``planned`` counts conversations; ``until`` tells of a stop rule, where one is set; ``compared`` is the
    role that the candidate plays.
    """

    name: str
    folder: str
    scenario: str
    candidate: str
    model: str
    dataset: str
    seed: int
    evaluator: str | None = None
    run: RunFolder | None = None
    planned: int | None = None
    until: dict[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    compared: str = "candidate"

    @property
    def stopped_at(self) -> int | None:
        """How many conversations count, the first of the seeded order; None: all that there are."""
        return None if self.until is None else self.until.get("stopped_at")

    def settings(self, name: str) -> Any:
        """One of the run's settings, None where it has not begun."""
        return self.manifest.get("settings", {}).get(name)

    def repeats(self, role: str) -> bool:
        """Whether another run's words stand in for this role, as in a fork."""
        model = self.model if role == self.compared else self.manifest.get("models", {}).get(role)
        return model is not None and model.startswith("replay:")

    def label(self, role: str) -> str | None:
        """The name in tables of the model in another role than the candidate's; None where a recording plays it."""
        model = self.manifest.get("models", {}).get(role)
        return None if model is None or self.repeats(role) else next(iter(model_labels([model])))


@dataclass(slots=True)
class RunReading:
    """A cell with what was read of its journal.

    ``columns`` is what its system keeps of the conversations, None where it keeps nothing; ``result`` what the run's
    own report says of the candidate, None where the cell has not begun; ``own_tables`` gives that report's tables;
    ``ended`` counts conversations, failed ones too, and ``failed`` these alone;
    ``usage`` has calls, tokens and cost (None where it is not known) by role; ``damaged`` names records of the run that
    could not be used.
    """

    cell: StudyCell
    columns: Any = None
    result: dict[str, Any] | None = None
    ended: int = 0
    failed: int = 0
    usage: dict[str, dict[str, float | None]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    own_tables: Callable[[], list[Table]] | None = None

    @property
    def state(self) -> str:
        """``done``, ``part``, ``not begun``, or ``stopped`` by a rule."""
        if self.cell.run is None or self.result is None:
            return "not begun"
        if self.cell.stopped_at is not None:
            return "stopped"
        return "done" if self.cell.planned is not None and self.ended >= self.cell.planned else "part"


@dataclass(slots=True)
class Pool:
    """One candidate's cells over seeds and evaluators; ``dataset`` None stands for all datasets."""

    candidate: str
    dataset: str | None
    readings: list[RunReading]
    catalogue: ItemCatalogue


def pools(readings: Sequence[RunReading], catalogue: ItemCatalogue) -> Iterator[Pool]:
    """A pool for each candidate and dataset, and of all datasets where there are several; in the cells' order."""
    datasets: dict[str, list[str]] = {}
    groups: dict[tuple[str, str], list[RunReading]] = {}
    for one in readings:
        names = datasets.setdefault(one.cell.candidate, [])
        if one.cell.dataset not in names:
            names.append(one.cell.dataset)
        groups.setdefault((one.cell.candidate, one.cell.dataset), []).append(one)
    several = len({one.cell.dataset for one in readings}) > 1
    for candidate, names in datasets.items():
        for dataset in names:
            yield Pool(candidate, dataset, groups[candidate, dataset], catalogue)
        if several:
            everything = [one for dataset in names for one in groups[candidate, dataset]]
            yield Pool(candidate, None, everything, catalogue)

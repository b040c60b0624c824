"""Recorded cells as a study opens them, what was read of each, and those of one candidate taken together.

What never belongs here: finding cells (the room ``study``), and what one system keeps of its conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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


Circumstances: TypeAlias = tuple[tuple[str, str], ...]  # names and values


@dataclass(slots=True)
class Pool:
    """One candidate's cells over seeds and evaluators; ``dataset`` None stands for all datasets. Where a dataset's
    cells were told apart (``pools``), it is the name of those taken together.
    """

    candidate: str
    dataset: str | None
    readings: list[RunReading]
    catalogue: ItemCatalogue


def pools(
    readings: Sequence[RunReading],
    catalogue: ItemCatalogue,
    circumstances_of: Callable[[RunReading], Circumstances | None] = lambda _: None,
) -> Iterator[Pool]:
    """A pool for each candidate and dataset, and of all datasets where there are several; in the cells' order.

    ``circumstances_of``: what besides candidate, items and seed decides about figures; None: nothing. Where not all
    candidates of a dataset have met the same, each set of candidates that have is pooled by itself, under a name that
    says which circumstances these are: figures of other scales are not to be compared.
    """
    told_apart = _told_apart(readings, circumstances_of)
    candidates: dict[str, dict[str, list[RunReading]]] = {}
    for one, names in zip(readings, told_apart, strict=True):
        for name in names:
            candidates.setdefault(one.cell.candidate, {}).setdefault(name, []).append(one)
    several = len({name for names in told_apart for name in names}) > 1
    for candidate, groups in candidates.items():
        for name, group in groups.items():
            yield Pool(candidate, name, group, catalogue)
        if several:  # each cell once, whichever groups it is in
            everything = {id(one): one for group in groups.values() for one in group}
            yield Pool(candidate, None, list(everything.values()), catalogue)


def _told_apart(
    readings: Sequence[RunReading], circumstances_of: Callable[[RunReading], Circumstances | None]
) -> list[list[str]]:
    """Of each reading the names of what it is pooled under: its dataset's, or those of circumstances on the dataset;
    a reading without circumstances stands beside all others of its candidate.
    """
    found = [circumstances_of(one) for one in readings]
    met: dict[str, dict[Circumstances, set[str]]] = {}
    for one, circumstances in zip(readings, found, strict=True):
        if circumstances is not None:
            met.setdefault(one.cell.dataset, {}).setdefault(circumstances, set()).add(one.cell.candidate)
    names: dict[tuple[str, Circumstances], str] = {}
    of_candidate: dict[tuple[str, str], dict[str, None]] = {}
    for dataset, candidates in met.items():
        groups: dict[frozenset[str], list[Circumstances]] = {}
        for circumstances, who in candidates.items():
            groups.setdefault(frozenset(who), []).append(circumstances)
        common = set.intersection(*map(set, candidates))
        for members, group in groups.items():
            told = " and ".join(" ".join(f"{n} {v}" for n, v in one if (n, v) not in common) for one in group)
            name = dataset if len(groups) == 1 else f"{dataset} ({told})"
            names |= {(dataset, one): name for one in group}
            for candidate in members:
                of_candidate.setdefault((dataset, candidate), {})[name] = None
    return [
        [names[one.cell.dataset, circumstances]]
        if circumstances is not None
        else list(of_candidate.get((one.cell.dataset, one.cell.candidate), [one.cell.dataset]))
        for one, circumstances in zip(readings, found, strict=True)
    ]

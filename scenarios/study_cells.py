"""Recorded cells as a study reads them: item numbers, readings of runs, and pools of a candidate's cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from viva.engine.errors import JournalError, VivaError
from viva.engine.journal_reader import EndedConversation, History
from viva.engine.run_folder import RunFolder
from viva.reports.figures import Codes
from viva.reports.tables import Table
from viva.scoring.aggregates import Failures

from .models import label_of_key, model_labels

if TYPE_CHECKING:
    from .contract import Aggregate, Scenario

_T = TypeVar("_T")
_MAX_PASSES = 3  # a later one refuses a result only if that depends on other results
_MAX_REASON = 120  # characters of an exception's text
_CLUSTER = "\x1fcluster"  # suffix of cluster names, so that no item has the same name


class ItemNumbers:
    """Numbers of the items and clusters of one dataset, in order of occurrence; columns hold the numbers."""

    __slots__ = ("_numbers", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name; a new name gets the next number."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def cluster(self, name: str, cluster: str) -> int:
        """Return the number of an item's cluster, or the item's own number if `cluster` is empty."""
        return self.number(f"{cluster}{_CLUSTER}" if cluster else name)


class ItemCatalogue:
    """The items of all datasets with consecutive numbers, after all cells are read; `labels` are DATASET/ITEM.

    If at least one run names an item's cluster, the item belongs to that cluster (`join`).
    """

    __slots__ = ("_before", "_joined", "labels")

    def __init__(self, items: Mapping[str, ItemNumbers]) -> None:
        self.labels: list[str] = []
        self._before: dict[str, int] = {}
        self._joined: dict[int, int] = {}
        for dataset, numbers in items.items():
            self._before[dataset] = len(self.labels)
            self.labels += [f"{dataset}/{name}" for name in numbers.names]

    def codes(self, dataset: str, items: Codes) -> Codes:
        """Convert numbers of items from their dataset's `ItemNumbers` to the catalogue's."""
        return self._before[dataset] + items

    def join(self, items: Codes, clusters: Codes) -> None:
        """Join items with their clusters, both as numbers of the catalogue."""
        pairs = np.unique(np.stack((items, clusters)), axis=1).T
        for item, cluster in pairs[pairs[:, 0] != pairs[:, 1]].tolist():
            first, second = self._root(item), self._root(cluster)
            if first != second:
                self._joined[first] = second

    def clusters(self, codes: Codes) -> Codes:
        """Return the clusters of items, or of clusters, over all runs."""
        if not self._joined:
            return codes
        distinct, positions = np.unique(codes, return_inverse=True)
        return np.array([self._root(code) for code in distinct.tolist()], dtype=np.int64)[positions]

    def _root(self, code: int) -> int:
        while (joined := self._joined.get(code)) is not None:
            code = joined
        return code

    def labels_of(self, codes: Codes) -> list[str]:
        labels = self.labels
        return [labels[code] for code in codes.tolist()]


@dataclass(slots=True)
class StudyCell:
    """The conversations of one candidate on one dataset with one seed and evaluator: a cell of a sweep or run.

    `run` is None if it has not begun; `folder` is the argument for `viva show`, relative to the folders that were
    named; `planned` counts conversations; `until` is the record of a stop rule, if there is one; `compared` is the
    candidate's role, and `labels` are the labels of all candidates of the run. If `is_adaptive`, an exam chooses the
    items.
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
    labels: list[str] = field(default_factory=list)
    is_adaptive: bool = False

    @property
    def stopped_at(self) -> int | None:
        """The number of conversations that count, from the first in seeded order; None for all."""
        return None if self.until is None else self.until.get("stopped_at")

    def settings(self, name: str) -> Any:
        """Return one of the run's settings, None if it has not begun."""
        return self.manifest.get("settings", {}).get(name)

    def repeats(self, role: str) -> bool:
        """Return True if a replay plays this role, as in a fork."""
        model = self.model if role == self.compared else self.manifest.get("models", {}).get(role)
        return model is not None and model.startswith("replay:")

    def label(self, role: str) -> str | None:
        """Return the label of the model in another role than the candidate's; None for a replay."""
        model = self.manifest.get("models", {}).get(role)
        return None if model is None or self.repeats(role) else next(iter(model_labels([model])))


@dataclass(slots=True)
class RunReading:
    """A cell with the contents of its journal.

    `columns` is the scenario's own data about the conversations, None if it keeps none; `result` is the candidate's
    part of the run's report, None if the cell has not begun; `own_tables` returns that report's tables; `ended` counts
    all ended conversations and `failed` the failed ones; `usage` has calls, tokens and cost (None if unknown) by role;
    `damaged` names unusable records of the run.
    """

    cell: StudyCell
    columns: Any = None
    result: dict[str, Any] | None = None
    ended: int = 0
    failed: int = 0
    usage: dict[str, dict[str, float | None]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    own_tables: Callable[[], list[Table]] | None = None

    def fill(self, aggregate: Aggregate, result: dict[str, Any], damaged: list[str], columns: Any = None) -> None:
        """Set the figures read from the cell's run; `result` is the candidate's part of its report."""
        self.result, self.columns, self.damaged = result, columns, damaged
        self.own_tables, self.failed = aggregate.tables, result["failed"]

    @property
    def state(self) -> str:
        """The state `done`, `part`, `not begun`, or `stopped` by a rule."""
        if self.cell.run is None or self.result is None:
            return "not begun"
        if self.cell.stopped_at is not None:
            return "stopped"
        return "done" if self.cell.planned is not None and self.ended >= self.cell.planned else "part"


Conditions: TypeAlias = tuple[tuple[str, str], ...]  # names and values


@dataclass(slots=True)
class Pool:
    """The cells of a candidate over seeds and evaluators; `dataset` None means all datasets.

    If a dataset's cells were pooled in several groups (`pools`), `dataset` names the group.
    """

    candidate: str
    dataset: str | None
    readings: list[RunReading]
    catalogue: ItemCatalogue


def pools(
    readings: Sequence[RunReading],
    catalogue: ItemCatalogue,
    circumstances_of: Callable[[RunReading], Conditions | None] = lambda _: None,
) -> Iterator[Pool]:
    """Yield a pool for each candidate and dataset, and for all datasets if there are several, in the cells' order.

    `circumstances_of` returns the circumstances that affect figures besides candidate, items and seed; None without
    any. If the candidates of a dataset have different circumstances, candidates with equal ones are pooled separately,
    under a name that states them: figures on different scales must not be compared.
    """
    told_apart = _pool_names(readings, circumstances_of)
    candidates: dict[str, dict[str, list[RunReading]]] = {}
    for reading, names in zip(readings, told_apart, strict=True):
        for name in names:
            candidates.setdefault(reading.cell.candidate, {}).setdefault(name, []).append(reading)
    several = len({name for names in told_apart for name in names}) > 1
    for candidate, groups in candidates.items():
        for name, group in groups.items():
            yield Pool(candidate, name, group, catalogue)
        if several:  # each cell once, even if it is in several groups
            everything = {id(reading): reading for group in groups.values() for reading in group}
            yield Pool(candidate, None, list(everything.values()), catalogue)


def _pool_names(
    readings: Sequence[RunReading], circumstances_of: Callable[[RunReading], Conditions | None]
) -> list[list[str]]:
    """Return the names of the pools of each reading: its dataset, or its circumstances on the dataset.

    A reading without circumstances belongs to all pools of its candidate.
    """
    conditions = [circumstances_of(reading) for reading in readings]
    met: dict[str, dict[Conditions, set[str]]] = {}
    for reading, circumstances in zip(readings, conditions, strict=True):
        if circumstances is not None:
            met.setdefault(reading.cell.dataset, {}).setdefault(circumstances, set()).add(reading.cell.candidate)
    names: dict[tuple[str, Conditions], str] = {}
    of_candidate: dict[tuple[str, str], dict[str, None]] = {}
    for dataset, candidates in met.items():
        groups: dict[frozenset[str], list[Conditions]] = {}
        for circumstances, names_of_candidates in candidates.items():
            groups.setdefault(frozenset(names_of_candidates), []).append(circumstances)
        common = set.intersection(*map(set, candidates))
        for members, group in groups.items():
            description = " and ".join(
                " ".join(f"{n} {v}" for n, v in condition if (n, v) not in common) for condition in group
            )
            name = dataset if len(groups) == 1 else f"{dataset} ({description})"
            names |= {(dataset, condition): name for condition in group}
            for candidate in members:
                of_candidate.setdefault((dataset, candidate), {})[name] = None
    return [
        [names[reading.cell.dataset, circumstances]]
        if circumstances is not None
        else list(of_candidate.get((reading.cell.dataset, reading.cell.candidate), [reading.cell.dataset]))
        for reading, circumstances in zip(readings, conditions, strict=True)
    ]


def add_results(
    journal: Path,
    make: Callable[[], _T],
    add: Callable[[_T, EndedConversation], None],
    stopped_at: int | None = None,
) -> tuple[_T, list[str]]:
    """Add a journal's ended conversations to what `make` returns; return it and the damaged records, left out.

    A result that `add` refuses counts as damaged. Since it may have been added in part, the others are added again.

    Args:
        journal: Journal of the run.
        make: Makes an aggregate without results.
        add: Adds a conversation to the aggregate.
        stopped_at: Number of the first conversation that does not count.

    Raises:
        JournalError: The journal is missing or damaged, or `add` refuses each result.
    """
    refused: set[int] = set()
    with History(journal) as history:
        for _ in range(_MAX_PASSES):
            total, added, error = make(), 0, ""
            for ended in history.ended():
                if stopped_at is not None and ended.number >= stopped_at:
                    break
                if ended.number in refused:
                    continue
                try:
                    add(total, ended)
                    added += 1
                except VivaError:
                    raise
                except Exception as problem:
                    refused.add(ended.number)
                    error = brief_error(problem)
                    history.damage[f"result of conversation {ended.number} ({error})"] = None
            if not error:
                return total, list(history.damage)
            if not added:
                break
    raise JournalError(f"{journal}: the recorded results cannot be read: {error}")


def brief_error(error: Exception) -> str:
    """Return type and text of an exception on one line, clipped."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def add_ended(aggregate: Aggregate, ended: EndedConversation) -> None:
    """Add an ended conversation to an aggregate."""
    if ended.failed:
        aggregate.add_failure(ended.key, ended.result)
    else:
        aggregate.add(ended.key, ended.result)


def read_results(scenario: Scenario[Any, Any], readings: Sequence[RunReading], scoring: Any) -> None:
    """Fill the readings of one run's cells with each candidate's part of the run's report.

    Raises:
        JournalError: The journal is missing or damaged.
    """
    from .contract import SupportsReviews

    cell = readings[0].cell
    assert cell.run is not None
    labels, path = cell.labels, cell.run.path

    def make() -> tuple[Aggregate, dict[str, int], dict[str, Failures]]:
        aggregate = scenario.aggregate(cell.manifest, scoring)
        if isinstance(aggregate, SupportsReviews):
            aggregate.beside(path)
        return aggregate, dict.fromkeys(labels, 0), {label: Failures() for label in labels}

    def add(total: tuple[Aggregate, dict[str, int], dict[str, Failures]], conversation: EndedConversation) -> None:
        aggregate, ended, failures = total
        label = label_of_key(conversation.key, labels)
        ended[label] += 1
        if conversation.failed:
            failures[label].add(conversation.result)
        add_ended(aggregate, conversation)

    (aggregate, ended, failures), damaged = add_results(cell.run.journal, make, add, cell.stopped_at)
    report = aggregate.report()
    candidates = report.get("candidates")
    for reading in readings:
        label = reading.cell.candidate
        own = candidates.get(label) if isinstance(candidates, dict) else report
        result = {**own} if isinstance(own, dict) else {}
        result["failed"] = failures[label].total
        if failures[label].total:
            result |= failures[label].to_record()
        if len(labels) == 1:
            result.setdefault("headline", aggregate.headline())
        reading.fill(aggregate, result, damaged)
        reading.ended = ended[label]
        used = result.get("usage")
        reading.usage = used if isinstance(used, dict) else {}

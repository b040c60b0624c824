"""Early stopping of cells: watches that receive scores from journals or from running cells.

The decision depends only on the conversations, so it can be recomputed from the journals at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from viva.engine.errors import JournalError
from viva.engine.events import ConversationFailed, ConversationFinished, Event
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Runner
from viva.scenarios.registry import get_scenario
from viva.scoring.aggregates import ItemClusters
from viva.scoring.early_stopping import StoppingRule, StoppingWatch

from .cells import Cell


class CellWatch:
    """Stopping rule for cells that stop together: one cell, or all candidates on the same items.

    `clusters` are the clusters of items, if items are taken cluster by cluster.
    """

    def __init__(self, until: StoppingRule, group: Sequence[Cell], planned: int, clusters: ItemClusters | None) -> None:
        self.watch = StoppingWatch(until, [cell.candidate for cell in group], planned, clusters=clusters)
        self._runners: list[Runner] = []

    @property
    def stopped(self) -> bool:
        """True once the rule is met."""
        return self.watch.stopped_at is not None

    def read(self, cell: Cell, folder: RunFolder) -> None:
        """Add the scores recorded in a cell's journal."""
        for number, score in _recorded_scores(cell, folder):
            self.watch.add(cell.candidate, number, score)

    def on_begin(self, runner: Runner) -> None:
        """Register the runner of a cell; it is drained when the rule is met."""
        self._runners.append(runner)
        if self.stopped:
            runner.drain()

    def listener(self, cell: Cell) -> Callable[[Event], None]:
        """Return a listener for a cell's run; it also gets the results that are restored from the journal."""
        score_of = _scoring_function(cell)

        def on_event(event: Event) -> None:
            match event:
                case ConversationFinished():
                    score = score_of(event.result)
                case ConversationFailed():
                    score = None
                case _:
                    return
            before = self.stopped
            self.watch.add(cell.candidate, event.number, score)
            if self.stopped and not before:
                for runner in self._runners:
                    runner.drain()

        return on_event


def read_clusters(manifest: Mapping[str, Any]) -> ItemClusters | None:
    """Return the clusters of items in a run's manifest; None if items are taken one by one.

    Raises:
        JournalError: The record of the clusters is damaged.
    """
    record = manifest["dataset"].get("clusters")
    if record is None:
        return None
    try:
        clusters = ItemClusters.from_record(record)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"the manifest's dataset.clusters cannot be used: {error!r}") from None
    if sum(clusters.sizes) != manifest["dataset"]["chosen"] or min(clusters.sizes) < 1:
        raise JournalError("the manifest's dataset.clusters do not match the number of chosen items")
    return clusters


def _recorded_scores(cell: Cell, folder: RunFolder) -> Iterator[tuple[int, float | None]]:
    score_of = _scoring_function(cell)
    with History(folder.journal) as history:
        for ended in history.ended():
            yield ended.number, None if ended.failed else score_of(ended.result)


def _scoring_function(cell: Cell) -> Callable[[Any], float | None]:
    score_of = get_scenario(cell.scenario).score_of(cell.settings)
    assert score_of is not None, f"{cell.scenario} has no score that a rule could watch"
    return score_of

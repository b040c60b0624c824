"""A recorded run read through its system's own aggregate: the results of each candidate, as every study needs them.

What never belongs here: columns of numbers by conversation (a system's own).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from viva.engine.history import History
from viva.scoring.failures import Failures

from ..models import label_of
from .cells import RunReading

if TYPE_CHECKING:
    from ..contract import Scenario


def read_results(which: Scenario[Any, Any], readings: Sequence[RunReading], scoring: Any) -> None:
    """Fill in the readings of one run's cells: each candidate's part of the run's report.

    :raises JournalError: the journal is missing or damaged.
    """
    from ..contract import TakesReviews

    cell = readings[0].cell
    assert cell.run is not None
    aggregate = which.aggregate(cell.manifest, scoring)
    if isinstance(aggregate, TakesReviews):
        aggregate.beside(cell.run.path)
    labels = list(cell.manifest["models"][cell.compared])
    ended = dict.fromkeys(labels, 0)
    failures = {label: Failures() for label in labels}
    with History(cell.run.journal) as history:
        for one in history.ended():
            if cell.stopped_at is not None and one.number >= cell.stopped_at:
                break
            label = label_of(one.key, labels)
            ended[label] += 1
            if one.failed:
                failures[label].add(one.result)
                aggregate.add_failure(one.key, one.result)
            else:
                aggregate.add(one.key, one.result)
        damaged = list(history.damage)
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
        reading.result, reading.own_tables, reading.damaged = result, aggregate.tables, damaged
        reading.ended, reading.failed = ended[label], failures[label].total
        used = result.get("usage")
        reading.usage = used if isinstance(used, dict) else {}

"""Probes pooled over cells: accuracies by item, losses and detectors by text; the figures that they lend to others.

What never belongs here: reading journals (``columns``), and figures of conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from viva.reports.figures import Codes, Floats, clustered_rate, estimate_record, mean_record, rounded
from viva.scoring.contamination import DIRECTIONS, loss_gap
from viva.scoring.stream import ClusteredStream

from ...study.cells import Pool, RunReading
from ..report import ACCURACIES, detector_records
from .columns import TO_BE_READ, ProbeColumns, averaged_scores

_SAID = {"text": "probed by options' texts", "letter": "probed by letters", "generate": "probed by generating"}
_EXPLAINED = (
    "Loss is nats per token. AUC is the chance that a member is ranked over another text by the detector; 0.5 "
    "is chance; its interval is Newcombe's (2006). Min-K% averages the k% least likely tokens (Shi et al. "
    "2024)."
)


class ProbeFigures:
    """What probes lend to studies of other systems (``StaticFigures``)."""

    methods = tuple(ACCURACIES)
    preferred = ("text", "letter", "generate")

    def holds(self, reading: RunReading) -> bool:
        return isinstance(reading.columns, ProbeColumns)

    def pooled(self, pool: Pool) -> dict[str, Any]:
        record: dict[str, Any] = {"accuracy": {}, "unanswered": {}}
        for method in ACCURACIES:
            right, _ = self.right(pool, method)
            if len(right):
                silent = sum(columns.unanswered.get(method, 0) for _, columns in _columns(pool))
                if method in TO_BE_READ:
                    record["unanswered"][method] = {
                        "unanswered": silent,
                        "unanswered_rate": rounded(silent / len(right)),
                    }
                record["accuracy"][method] = clustered_rate(right, pool.catalogue.named(self._clusters(pool, method)))
        record |= {"loss": None, "loss_against": None, "loss_gap": None, "members": None, "detectors": None}
        if pool.dataset is not None:
            record |= _signals(pool.readings)
        return record

    def right(self, pool: Pool, method: str) -> tuple[Floats, Codes]:
        found = [(dataset, columns.right[method]) for dataset, columns in _columns(pool) if method in columns.right]
        codes = [
            pool.catalogue.codes(dataset, np.fromiter(right, dtype=np.int64, count=len(right)))
            for dataset, right in found
        ]
        values = [np.fromiter(right.values(), dtype=np.float64, count=len(right)) for _, right in found]
        if not found:
            return np.empty(0), np.empty(0, dtype=np.int64)
        return np.concatenate(values), np.concatenate(codes).astype(np.int64)

    def clusters(self, pool: Pool) -> dict[int, int]:
        found: dict[int, int] = {}
        for dataset, columns in _columns(pool):
            pairs = np.array(list(columns.clusters.items()), dtype=np.int64).reshape(-1, 2)
            items, clusters = (pool.catalogue.codes(dataset, pairs[:, side]) for side in (0, 1))
            found |= dict(zip(items.tolist(), pool.catalogue.clusters(clusters).tolist(), strict=True))
        return found

    def _clusters(self, pool: Pool, method: str) -> Codes:
        known, (_, codes) = self.clusters(pool), self.right(pool, method)
        return np.array([known[code] for code in codes.tolist()], dtype=np.int64)

    def said(self, method: str) -> str:
        return _SAID.get(method, method)

    def explained(self) -> list[tuple[str, str]]:
        return [("Probes", _EXPLAINED)]


def _columns(pool: Pool) -> list[tuple[str, ProbeColumns]]:
    """The probes of a pool, each with its dataset."""
    return [(one.cell.dataset, one.columns) for one in pool.readings if isinstance(one.columns, ProbeColumns)]


def _signals(readings: Sequence[RunReading]) -> dict[str, Any]:
    """Losses and detectors over seeds; where one cell alone has them they are those of its own report."""
    read = [one for one in readings if isinstance(one.columns, ProbeColumns) and one.columns.signals]
    columns: list[ProbeColumns] = [one.columns for one in read]
    names = ("loss", "loss_against", "loss_gap", "detectors")
    members = {"against" if one.members_are_second else "dataset" for one in columns}
    known = {"members": members.pop()} if len(members) == 1 else {}
    if len(read) == 1 and read[0].result is not None:
        return {name: read[0].result.get(name) for name in names} | known
    scores = averaged_scores(columns)
    if not scores:
        return dict.fromkeys(names)
    labels = {place: label for one in columns for place, label in one.labels.items()}
    losses = {second: ClusteredStream() for second in (False, True)}
    for place, one in scores.items():
        losses[place[0]].add(DIRECTIONS["loss"] * one["loss"], labels[place])
    record: dict[str, Any] = dict.fromkeys(names) | known
    for name, second in (("loss", False), ("loss_against", True)):
        if losses[second].n:
            record[name] = mean_record(losses[second])
    second = columns[0].members_are_second
    several = losses[False].clusters > 1 and losses[True].clusters > 1
    if several and all(one.members_are_second == second for one in columns):
        record["loss_gap"] = estimate_record(loss_gap(losses[not second], losses[second]))
        record["detectors"] = detector_records(scores, labels, second)
    return record

"""Studies of probes: cells read as columns, pooled by item, and also used by studies of other scenarios."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from viva.engine.journal_reader import EndedConversation
from viva.reports.figures import Codes, Floats, clustered_rate, estimate_record, mean_record, round_figure
from viva.reports.page import Record
from viva.reports.run_tables import add_usage, usage_record
from viva.reports.tables import DASH, Row, interval, record_rows
from viva.scoring.aggregates import ClusteredStream
from viva.scoring.contamination import DIRECTIONS, Signals, loss_gap

from ..models import recorded_price
from ..study_cells import ItemNumbers, Pool, RunReading, add_ended, add_results
from ..study_sections import SystemStudy
from .probe_report import ACCURACIES, ProbeAggregate, answers_of, cluster_label, detector_records

GENERATED_METHODS = ("generate", "free")  # answering methods that may name no answer


@dataclass(slots=True)
class ProbeColumns:
    """The probes of one candidate by item, numbered by `ItemNumbers`.

    Attributes:
        right: By answering method, whether each item was answered correctly.
        signals: Signals of the probed set (False) and of the set `against` (True), by the item's own id.
        usage: Calls, prompt and completion tokens by role.
        unanswered: By answering method, the number of items whose answer named no choice.
        clusters: The number of each item's cluster.
        labels: The cluster of each text of `signals`.
    """

    seed: int
    members_are_second: bool
    right: dict[str, dict[int, bool]] = field(default_factory=dict)
    signals: dict[tuple[bool, str], Signals] = field(default_factory=dict)
    usage: dict[str, list[int]] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    clusters: dict[int, int] = field(default_factory=dict)
    labels: dict[tuple[bool, str], str] = field(default_factory=dict)
    ended: int = 0

    def add(self, result: dict[str, Any], items: ItemNumbers) -> None:
        self.ended += 1
        if not result["second"] and "shard" not in result:
            item = items.number(result["item"])
            self.clusters[item] = items.cluster(result["item"], result.get("cluster", ""))
            for name, right, answered in answers_of(result):
                self.right.setdefault(name, {})[item] = right
                if not answered:
                    self.unanswered[name] = self.unanswered.get(name, 0) + 1
        if "signals" in result:
            self.signals[result["second"], result["item"]] = Signals(**result["signals"])
            self.labels[result["second"], result["item"]] = cluster_label(result)
        add_usage(self.usage, result.get("usage", {}))


def average_scores(cells: Sequence[ProbeColumns]) -> dict[tuple[bool, str], dict[str, float]]:
    """Return the scores of detectors that score all texts, averaged over cells, by the texts' keys in `signals`."""
    scores_by_text: dict[tuple[bool, str], list[dict[str, float]]] = {}
    for cell in cells:
        for key, signals in cell.signals.items():
            scores_by_text.setdefault(key, []).append(signals.scores())
    common = (
        set.intersection(*(set(text_scores) for scores in scores_by_text.values() for text_scores in scores))
        if scores_by_text
        else set()
    )
    names = [name for name in next(iter(scores_by_text.values()))[0] if name in common] if scores_by_text else []
    return {
        key: {name: math.fsum(text_scores[name] for text_scores in scores) / len(scores) for name in names}
        for key, scores in sorted(scores_by_text.items())
    }


_METHOD_LABELS = {
    "text": "probed by options' texts",
    "letter": "probed by letters",
    "generate": "probed by generating",
    "free": "probed by free answers",
}
_EXPLANATION = (
    "Loss is nats per token. AUC is the probability that the detector ranks a member above a non-member; 0.5 "
    "is chance; its interval is Newcombe's (2006). Min-K% averages the k% least likely tokens (Shi et al. "
    "2024)."
)


class ProbeFigures:
    """Static accuracy from probe runs, for the studies of other scenarios (`StaticFigures`)."""

    methods = tuple(ACCURACIES)
    preferred = ("text", "letter", "generate", "free")

    def holds(self, reading: RunReading) -> bool:
        return isinstance(reading.columns, ProbeColumns)

    def pooled(self, pool: Pool) -> dict[str, Any]:
        record: dict[str, Any] = {"accuracy": {}, "unanswered": {}}
        for method in ACCURACIES:
            right, _ = self.right(pool, method)
            if len(right):
                silent = sum(columns.unanswered.get(method, 0) for _, columns in _pool_columns(pool))
                if method in GENERATED_METHODS:
                    record["unanswered"][method] = {
                        "unanswered": silent,
                        "unanswered_rate": round_figure(silent / len(right)),
                    }
                record["accuracy"][method] = clustered_rate(
                    right, pool.catalogue.labels_of(self._clusters(pool, method))
                )
        record |= {"loss": None, "loss_against": None, "loss_gap": None, "members": None, "detectors": None}
        if pool.dataset is not None:
            record |= _signals(pool.readings)
        return record

    def right(self, pool: Pool, method: str) -> tuple[Floats, Codes]:
        answers = [
            (dataset, columns.right[method]) for dataset, columns in _pool_columns(pool) if method in columns.right
        ]
        codes = [
            pool.catalogue.codes(dataset, np.fromiter(right, dtype=np.int64, count=len(right)))
            for dataset, right in answers
        ]
        values = [np.fromiter(right.values(), dtype=np.float64, count=len(right)) for _, right in answers]
        if not answers:
            return np.empty(0), np.empty(0, dtype=np.int64)
        return np.concatenate(values), np.concatenate(codes).astype(np.int64)

    def clusters(self, pool: Pool) -> dict[int, int]:
        cluster_of: dict[int, int] = {}
        for dataset, columns in _pool_columns(pool):
            pairs = np.array(list(columns.clusters.items()), dtype=np.int64).reshape(-1, 2)
            items, clusters = (pool.catalogue.codes(dataset, pairs[:, side]) for side in (0, 1))
            cluster_of |= dict(zip(items.tolist(), pool.catalogue.clusters(clusters).tolist(), strict=True))
        return cluster_of

    def _clusters(self, pool: Pool, method: str) -> Codes:
        cluster_of, (_, codes) = self.clusters(pool), self.right(pool, method)
        return np.array([cluster_of[code] for code in codes.tolist()], dtype=np.int64)

    def method_label(self, method: str) -> str:
        return _METHOD_LABELS.get(method, method)

    def explanations(self) -> list[tuple[str, str]]:
        return [("Probes", _EXPLANATION)]


def _pool_columns(pool: Pool) -> list[tuple[str, ProbeColumns]]:
    return [
        (reading.cell.dataset, reading.columns)
        for reading in pool.readings
        if isinstance(reading.columns, ProbeColumns)
    ]


def _signals(readings: Sequence[RunReading]) -> dict[str, Any]:
    """Return losses and detectors over seeds; if there is only one cell, they come from its report."""
    read = [reading for reading in readings if isinstance(reading.columns, ProbeColumns) and reading.columns.signals]
    columns: list[ProbeColumns] = [reading.columns for reading in read]
    names = ("loss", "loss_against", "loss_gap", "detectors")
    members = {"against" if column.members_are_second else "dataset" for column in columns}
    members_record = {"members": members.pop()} if len(members) == 1 else {}
    if len(read) == 1 and read[0].result is not None:
        return {name: read[0].result.get(name) for name in names} | members_record
    scores = average_scores(columns)
    if not scores:
        return dict.fromkeys(names)
    labels = {key: label for column in columns for key, label in column.labels.items()}
    losses = {second: ClusteredStream() for second in (False, True)}
    for key, text_scores in scores.items():
        losses[key[0]].add(DIRECTIONS["loss"] * text_scores["loss"], labels[key])
    record: dict[str, Any] = dict.fromkeys(names) | members_record
    for name, second in (("loss", False), ("loss_against", True)):
        if losses[second].n:
            record[name] = mean_record(losses[second])
    second = columns[0].members_are_second
    several = losses[False].clusters > 1 and losses[True].clusters > 1
    if several and all(column.members_are_second == second for column in columns):
        record["loss_gap"] = estimate_record(loss_gap(losses[not second], losses[second]))
        record["detectors"] = detector_records(scores, labels, second)
    return record


class ProbeStudy(SystemStudy):
    """The study of probes, beside interviews or alone."""

    by_item: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("shots",)

    @property
    def static(self) -> ProbeFigures:
        return ProbeFigures()

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        cell = readings[0].cell
        assert cell.run is not None
        second = cell.settings("members") == "against"

        def make() -> tuple[ProbeAggregate, dict[str, ProbeColumns]]:
            aggregate = ProbeAggregate(cell.manifest)
            return aggregate, {label: ProbeColumns(cell.seed, second) for label in aggregate.candidates}

        def add(total: tuple[ProbeAggregate, dict[str, ProbeColumns]], ended: EndedConversation) -> None:
            aggregate, columns = total
            add_ended(aggregate, ended)
            if not ended.failed:
                columns[ended.result["candidate"]].add(ended.result, items)

        (aggregate, columns), damaged = add_results(cell.run.journal, make, add, cell.stopped_at)
        results = aggregate.report()["candidates"]
        for reading in readings:
            own, result = columns[reading.cell.candidate], results[reading.cell.candidate]
            reading.fill(aggregate, result, damaged, own)
            reading.ended = own.ended + result["failed"]
            price = recorded_price(reading.cell.manifest, reading.cell.model)
            reading.usage = {role: usage_record(used, price) for role, used in sorted(own.usage.items())}

    def shown_result(self, cell: Record) -> str:
        accuracy = (cell["result"] or {}).get("accuracy")
        return f"accuracy {interval(next(iter(accuracy.values())))}" if accuracy else DASH

    def cell_rows(self, cell: Record, prefix: Row) -> Iterator[Row]:
        yield from record_rows(prefix, "", cell["result"] or {})
        yield from record_rows(prefix, "usage", cell["usage"])

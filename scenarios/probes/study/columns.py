"""The probes of a cell, read once: the scenario's own aggregate, and by item what several cells are pooled from.

What never belongs here: how an item is probed, and statistics over several cells (``figures``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.reports.usage import add_counts
from viva.scoring.contamination import Signals

from ...models import label_of
from ...study.items import ItemNumbers
from ..report import ACCURACIES, ProbeAggregate, cluster_label

TO_BE_READ = ("generate",)  # ways of answering that may name no choice


@dataclass(slots=True)
class ProbeColumns:
    """What one candidate's probes showed, by item (as ``ItemNumbers`` has them).

    ``right`` holds, by way of answering, whether each item was answered rightly; ``signals`` are those of the probed
    set (False) and of the set it was held against (True), by the item's own id; ``usage`` counts calls, prompt and
    completion tokens by role; ``unanswered``, by way of answering, items whose answer named no choice. ``clusters`` has
    the number of each item's cluster, ``labels`` the cluster of each text of ``signals``.
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
        """One item's record."""
        self.ended += 1
        if not result["second"]:
            item = items.number(result["item"])
            self.clusters[item] = items.cluster(result["item"], result.get("cluster", ""))
            for name in ACCURACIES:
                answer = result.get("text" if name == "text_normalised" else name)
                if answer is not None:
                    right = answer["normalised_right" if name == "text_normalised" else "right"]
                    self.right.setdefault(name, {})[item] = bool(right)
                    if name in TO_BE_READ and answer["choice"] is None:
                        self.unanswered[name] = self.unanswered.get(name, 0) + 1
        if "signals" in result:
            self.signals[result["second"], result["item"]] = Signals(**result["signals"])
            self.labels[result["second"], result["item"]] = cluster_label(result)
        for role, used in result.get("usage", {}).items():
            add_counts(self.usage.setdefault(role, [0, 0, 0]), used)


@dataclass(slots=True)
class ReadProbes:
    """A run of probes read once; ``damaged`` names the records that are not in it."""

    aggregate: ProbeAggregate
    columns: dict[str, ProbeColumns]
    damaged: list[str]


def read_probes(run: RunFolder, items: ItemNumbers) -> ReadProbes:
    """All ended probes of a run.

    :raises JournalError: the journal is missing or damaged.
    """
    manifest = run.manifest
    aggregate = ProbeAggregate(manifest)
    second = manifest["settings"]["members"] == "against"
    columns = {label: ProbeColumns(manifest["seed"], second) for label in aggregate.candidates}
    with History(run.journal) as history:
        for ended in history.ended():
            if ended.failed:
                aggregate.add_failure(ended.key, ended.result)
                columns[label_of(ended.key, list(columns))].ended += 1
            else:
                aggregate.add(ended.key, ended.result)
                columns[ended.result["candidate"]].add(ended.result, items)
        return ReadProbes(aggregate, columns, list(history.damage))


def averaged_scores(cells: Sequence[ProbeColumns]) -> dict[tuple[bool, str], dict[str, float]]:
    """Detectors' scores of each text, averaged over cells; of each detector that all texts have a score of."""
    found: dict[tuple[bool, str], list[dict[str, float]]] = {}
    for cell in cells:
        for place, signals in cell.signals.items():
            found.setdefault(place, []).append(signals.scores())
    common = set.intersection(*(set(one) for scores in found.values() for one in scores)) if found else set()
    names = [name for name in next(iter(found.values()))[0] if name in common] if found else []
    return {
        place: {name: math.fsum(one[name] for one in scores) / len(scores) for name in names}
        for place, scores in sorted(found.items())
    }

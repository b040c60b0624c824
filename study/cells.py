"""Cells read: what each one's journal says, as columns for what is pooled, and as the record that a report shows of it.

What never belongs here: anything over several cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.reports.usage import usage_record
from viva.scenarios.kieval.score import Scorer
from viva.scenarios.models import recorded_price

from .names import Names
from .recall import Probes, Recall, read_probes
from .rounds import by_round
from .sequences import with_sequence
from .sources import INTERVIEWS, Cell
from .talks import Interviews, Talks, keys_of, read_interviews


@dataclass(slots=True)
class Filled:
    """A cell with what was read of it: talks of interviews, recall of probes, neither where it has not begun.

    ``result`` is what the run's own report says of the candidate; ``ended`` counts conversations, failed ones too;
    ``damaged`` names records of the run that could not be used.
    """

    cell: Cell
    talks: Talks | None = None
    recall: Recall | None = None
    result: dict[str, Any] | None = None
    ended: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """``done``, ``part``, ``not begun``, or ``stopped`` by a rule."""
        if self.cell.run is None or self.result is None:
            return "not begun"
        if self.cell.stopped_at is not None:
            return "stopped"
        return "done" if self.cell.planned is not None and self.ended >= self.cell.planned else "part"

    @property
    def usage(self) -> dict[str, dict[str, float | None]]:
        """Calls, tokens and cost (None where it is not known) by role."""
        if self.recall is not None:
            price = recorded_price(self.cell.manifest, self.cell.model)
            return {role: usage_record(used, price) for role, used in sorted(self.recall.usage.items())}
        return {} if self.result is None else self.result["usage"]


def fill(cells: Sequence[Cell], scorer: Scorer, items: dict[str, Names]) -> list[Filled]:
    """Read every cell, each journal once. ``items`` takes up the items' names by dataset.

    :raises JournalError: a journal is damaged.
    """
    filled = [Filled(cell) for cell in cells]
    runs: dict[Path, list[Filled]] = {}
    for one in filled:
        if one.cell.run is not None and one.cell.run.begun:
            runs.setdefault(one.cell.run.path, []).append(one)
    for group in runs.values():
        cell = group[0].cell
        assert cell.run is not None
        names = items.setdefault(cell.dataset, Names())
        if cell.scenario == INTERVIEWS:
            _take_interviews(group, read_interviews(cell.run, scorer, names, cell.stopped_at))
        else:
            _take_probes(group, read_probes(cell.run, names))
    return filled


def record(one: Filled, scorer: Scorer) -> dict[str, Any]:
    """A cell as the report shows it."""
    cell, talks = one.cell, one.talks
    manifest = cell.manifest
    told: dict[str, Any] = {
        "name": cell.name,
        "scenario": cell.scenario,
        "candidate": cell.candidate,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "evaluator": cell.evaluator,
        "interactor": cell.label("interactor"),
        "tier": manifest.get("tier"),
        "scorer": scorer.describe() if cell.scenario == INTERVIEWS else None,
        "pack": manifest.get("pack"),
        "rounds": cell.settings("rounds"),
        "shots": cell.settings("shots"),
        "planned": cell.planned,
        "ended": one.ended,
        "state": one.state,
        "result": one.result,
        "usage": one.usage,
        "until": cell.until,
    }
    if one.damaged:
        told["damaged"] = one.damaged
    if talks is not None and cell.run is not None:
        if one.result is not None and cell.stopped_at is not None:
            told["result"] = one.result | {"score": with_sequence(one.result["score"], [cell], scorer)}
        told["by_round"] = by_round([talks], [talks.items], scorer)
        told["running"] = talks.running()
        told["transcripts"] = {"folder": cell.folder, "examples": keys_of(cell.run, talks.examples())}
    return told


def _take_interviews(group: Sequence[Filled], read: Interviews) -> None:
    results = read.aggregate.report()["candidates"]
    for one in group:
        one.damaged = read.damaged
        one.talks = read.talks[one.cell.candidate]
        one.result = results[one.cell.candidate]
        one.ended = results[one.cell.candidate]["interviews"] + results[one.cell.candidate]["failed"]


def _take_probes(group: Sequence[Filled], read: Probes) -> None:
    results = read.aggregate.report()["candidates"]
    for one in group:
        one.damaged = read.damaged
        one.recall = read.recall[one.cell.candidate]
        one.result = results[one.cell.candidate]
        one.ended = one.recall.ended

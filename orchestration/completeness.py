"""Completeness of a recorded run: how many of its conversations have ended, and whether the ended ones are shorter.

A report of an interrupted run says first that it is incomplete: conversations that end early are no random sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.errors import VivaError
from viva.engine.files import shell_path
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.scenarios.contract import count_tasks
from viva.scenarios.models import lineup_labels
from viva.scenarios.registry import scenario_of_manifest
from viva.scenarios.run_settings import repeats_of

from .launch import results_and_damage
from .prepared_run import Shard


def planned_conversations(run: RunFolder, label: str | None = None) -> int:
    """Return the number of conversations that a run plans for one candidate; for a shard, only those in the shard.

    If dropped tasks are replaced, candidates may differ: it is that of `label`, by default the largest.
    """
    if run.manifest.get("bank") is not None:
        return _planned_in_exam(run)
    shard, total = Shard.from_manifest(run.manifest), planned_in_all_shards(run)
    replaced = run.manifest.get("replaced", {})
    total += max(replaced.values(), default=0) if label is None else replaced.get(label, 0)
    return total if shard is None else shard.count(total)


def planned_in_all_shards(run: RunFolder) -> int:
    """Return the number of conversations that a run plans for one candidate, in all its shards together."""
    scenario = scenario_of_manifest(run.manifest)
    settings = scenario.settings.model_construct(**run.manifest["settings"])
    return count_tasks(scenario, run.manifest) * repeats_of(settings)


def planned_in_total(run: RunFolder) -> int | None:
    """Return the number of planned conversations of all candidates of a run; None if unknown."""
    try:
        scenario, shard = scenario_of_manifest(run.manifest), Shard.from_manifest(run.manifest)
        if run.manifest.get("bank") is not None:
            return _planned_in_exams(run)
        total = planned_in_all_shards(run) * max(1, len(lineup_labels(scenario.roles, run.manifest)))
        total += sum(run.manifest.get("replaced", {}).values())
    except (VivaError, KeyError, TypeError, ValueError):
        return None  # the scenario is not installed, or another version recorded the run
    return total if shard is None else shard.count(total)


def _planned_in_exams(run: RunFolder) -> int:
    """Return the number of chosen conversations if all exams of an adaptive run have ended, else the largest number."""
    from viva.scenarios.exam_report import count_steps

    labels = _candidates(run)
    with History(run.journal) as history:
        chosen, ended = count_steps(history)
    return chosen if ended >= len(labels) else _most_items(run) * len(labels)


def _planned_in_exam(run: RunFolder) -> int:
    """Return the number of conversations of each candidate: the chosen ones of a single exam that has ended."""
    return _planned_in_exams(run) if run.begun and len(_candidates(run)) == 1 else _most_items(run)


def _candidates(run: RunFolder) -> list[str]:
    return list(lineup_labels(scenario_of_manifest(run.manifest).roles, run.manifest))


def _most_items(run: RunFolder) -> int:
    return int(min(run.manifest["settings"].get("n") or math.inf, run.manifest["bank"]["items"]))


@dataclass(frozen=True, slots=True)
class MissingConversations:
    """Counts of an unfinished run's conversations: `planned`, `ended`, and `begun` (started and not ended).

    `calls_of_ended` and `calls_of_begun` are mean recorded calls per conversation; None without such conversations.
    """

    planned: int
    ended: int
    begun: int = 0
    calls_of_ended: float | None = None
    calls_of_begun: float | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the field `unfinished` of a report."""
        record: dict[str, Any] = {"planned": self.planned, "ended": self.ended, "begun": self.begun}
        if self.calls_of_ended is not None and self.calls_of_begun is not None:
            record |= {"calls_of_ended": round(self.calls_of_ended, 2), "calls_of_begun": round(self.calls_of_begun, 2)}
        return record


def unfinished_text(record: Mapping[str, Any], folder: Path, *, running: bool = False) -> str:
    """Return a report's field `unfinished` as a sentence; it says to resume `folder` unless the run is `running`."""
    planned, ended = record["planned"], record["ended"]
    remaining = "the run is in progress" if running else f"viva resume {shell_path(folder)}"
    text = f"{ended:,} of {planned:,} conversations; {planned - ended:,} not finished: {remaining}"
    of_ended, of_begun = record.get("calls_of_ended"), record.get("calls_of_begun")
    if of_ended is not None and of_begun is not None and of_begun > of_ended:
        text += f"\nfinished ones are shorter: {of_ended:.1f} calls on average; begun ones already have {of_begun:.1f}"
    return text


def missing_conversations(folder: RunFolder) -> MissingConversations | None:
    """Return the counts of an unfinished run; None if all conversations have ended, or their number is unknown.

    A run imported from another tool cannot be resumed, so it also gives None.

    Raises:
        JournalError: The journal cannot be read.
    """
    planned = None if folder.manifest.get("imported") is not None else planned_in_total(folder)
    if planned is None:
        return None
    with History(folder.journal) as history:
        ended = history.ended_numbers()
        if len(ended) >= planned:
            return None
        begun = set(history.numbers()) - ended
        counts = history.call_counts() if begun and ended else {}
    means = [sum(counts.get(number, 0) for number in group) / len(group) if group and counts else None
             for group in (ended, begun)]  # fmt: skip
    return MissingConversations(planned, len(ended), len(begun), *means)


def recorded_report(folder: RunFolder, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a run's report. If something is missing, its fields `unfinished` and `damaged` say what.

    Raises:
        ConfigurationError: The folder or a scoring option is invalid.
        JournalError: The journal cannot be read.
    """
    aggregate, damaged = results_and_damage(folder, options)
    missing = missing_conversations(folder)
    report = aggregate.report() | ({} if missing is None else {"unfinished": missing.to_record()})
    return report | ({"damaged": damaged} if damaged else {})

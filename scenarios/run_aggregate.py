"""Base class of run reports: results by compared model, and the tables of every report.

This module does not import numpy, so that runs whose scores are summed exactly start faster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from viva.engine.conversation import Conversation
from viva.engine.journal_reader import History, has_tables
from viva.engine.run_folder import RunFolder
from viva.reports.page import TIER_NAMES
from viva.reports.run_tables import (
    Irregular,
    add_irregular,
    add_usage,
    failure_table,
    irregular_answers,
    irregular_record,
    usage_by_role,
    usage_table,
)
from viva.reports.tables import Table
from viva.scoring.aggregates import Failures, Tally

from .models import label_of_key, role_prices

if TYPE_CHECKING:
    from .exam_report import ExamResults


@runtime_checkable
class SupportsTimes(Protocol):
    """An aggregate with measured times, which differ between runs with equal answers and so stay out of reports."""

    def add_times(self) -> None:
        """Add the times to the report and its tables from now on."""


def model_hours(folder: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measured hours in which each model of a run had at least one call under way, from the journal.

    Of a model that has a GPU for itself, these are GPU hours. Waiting for a free slot and pauses of the run do not
    count; replayed calls belong to the original run.
    """
    models: Mapping[str, Any] = manifest["models"]
    spans: dict[str, list[tuple[float, float]]] = {}
    roles: dict[str, set[str]] = {}
    journal = RunFolder.open(folder).journal
    if not has_tables(journal):
        return []
    with History(journal) as history:
        keys = {number: key for key, number in history.keys().items()}
        for number, role, began, ended in history.spans():
            name = models.get(role)
            if isinstance(name, Mapping):
                name = name[label_of_key(keys[number], list(name))] if number in keys else None
            if isinstance(name, str) and not name.startswith("replay:"):
                spans.setdefault(name, []).append((began, ended))
                roles.setdefault(name, set()).add(role)
    order = list(models)
    return [
        {
            "model": name,
            "roles": sorted(roles[name], key=order.index),
            "calls": len(own),
            "hours": round(_covered(own) / 3600.0, 6),
        }
        for name, own in sorted(spans.items(), key=lambda entry: (min(map(order.index, roles[entry[0]])), entry[0]))
    ]


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how many seconds are in at least one of the spans."""
    total, latest = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, latest))
        latest = max(latest, ended)
    return total


def hours_table(records: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of `model_hours`."""
    rows = [[record["model"], ", ".join(record["roles"]), f"{record['calls']:,}", f"{record['hours']:.3g}"]
            for record in records]  # fmt: skip
    title = "Measured hours with calls under way, by model: GPU hours if it has a GPU for itself"
    return (title, ["model", "roles", "calls", "hours"], rows)


def conversation_costs(conversation: Conversation) -> dict[str, Any]:
    """Return the last fields of a conversation's record: usage by role, and irregular answers if any."""
    usage = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
    return {"usage": usage} | ({"irregular": conversation.irregular} if conversation.irregular else {})


def tier_name(tier: str) -> str:
    """Return how reproducible a run of this tier is."""
    return TIER_NAMES.get(tier, f"tier {tier}")


_MAX_HEADLINE = 4  # models in a progress line


class ModelResults:
    """The common results of a compared model: failures, early ends, usage, and irregular answers."""

    def __init__(self) -> None:
        self.failures, self.stops = Failures(), Tally()
        self.usage: dict[str, list[int]] = {}
        self.irregular: Irregular = {}

    def add_usage(self, record: Mapping[str, Any]) -> None:
        """Count a conversation's calls, tokens and irregular answers."""
        add_usage(self.usage, record["usage"])
        add_irregular(self.irregular, record.get("irregular", {}))

    def warnings(self) -> list[str]:
        """Return what readers must know before they look at the figures."""
        return []

    def common_figures(self, prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
        """Return failures by type and reason, irregular answers, and usage by role."""
        return {
            **self.failures.to_record(),
            "irregular": irregular_record(self.irregular),
            "usage": usage_by_role(self.usage, prices),
        }


R = TypeVar("R", bound=ModelResults)


class RunAggregate(ABC, Generic[R]):
    """Aggregate of a run: the results of each compared model, by label.

    `fields` are the first fields of the report, in order, from `facts` or the manifest.
    """

    fields: ClassVar[tuple[str, ...]] = ("scenario", "seed", "tier", "models", "dataset", "pack")

    def __init__(
        self, manifest: dict[str, Any], make: Callable[[], R], lineups: Mapping[str, Mapping[str, str]] | str
    ) -> None:
        """Create empty results for each lineup; `lineups` is the compared role, or the result of `models.lineups`."""
        if isinstance(lineups, str):
            lineups = {label: {lineups: label} for label in manifest["models"][lineups]}
        self.manifest, self.lineups = manifest, lineups
        self.candidates: dict[str, R] = {label: make() for label in lineups}
        self.exams: ExamResults | None = None  # of an adaptive run
        if manifest.get("bank") is not None:
            from .exam_report import ExamResults

            self.exams = ExamResults(manifest, [*lineups])

    def model_of(self, key: str) -> R:
        """Return the results that a conversation belongs to."""
        return self.candidates[label_of_key(key, list(self.candidates))]

    def beside(self, folder: Path) -> None:
        """Remember the run's folder, in which the steps of adaptive exams are recorded."""
        if self.exams is not None:
            self.exams.folder = folder

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        self.model_of(key).failures.add(error)
        if self.exams is not None:
            self.exams.add(key, None)

    def headline(self) -> str:
        if (exams := self.exams) is not None:  # a mean over chosen items would mislead
            return join_headline((label, f"{exams.count(label)} items") for label in self.candidates)
        return join_headline((label, self.in_brief(results)) for label, results in self.candidates.items())

    def remarks(self) -> list[str]:
        own = [f"{label}: {text}." for label, results in self.candidates.items() for text in results.warnings()]
        return own if self.exams is None else [*self.exams.remarks(self.report()), *own]

    @abstractmethod
    def in_brief(self, results: R) -> str:
        """Return a model's score so far in a few words, "" if it has none."""

    def facts(self) -> dict[str, Any]:
        """Return the values of `fields` that are not in the manifest."""
        return {}

    @abstractmethod
    def figures(self, label: str, results: R) -> dict[str, Any]:
        """Return everything about one model as plain data."""

    def report(self) -> dict[str, Any]:
        values = {**self.manifest, **self.facts()}
        candidates = {label: self.figures(label, results) for label, results in self.candidates.items()}
        report = {**{name: values[name] for name in self.fields}, "candidates": candidates}
        if self.exams is None:
            return report
        for label, figures in self.exams.figures().items():
            candidates[label]["adaptive"] = figures
        return report | {"adaptive": self.exams.summary()}

    def prices(self, label: str) -> dict[str, list[float] | None]:
        """Return the prices of tokens by role in the conversations of a model."""
        return role_prices(self.manifest, self.lineups[label])


def join_headline(parts: Iterable[tuple[str, str]], limit: int = _MAX_HEADLINE) -> str:
    """Join the first `limit` pairs (label, text) for the progress line; pairs with empty texts are left out."""
    texts = [f"{label} {text}" for label, text in parts if text]
    more = len(texts) - limit
    return " · ".join([*texts[:limit], *[f"and {more} more"] * (more > 0)])


def common_tables(report: dict[str, Any], compared: str = "candidate") -> list[Table]:
    """Return the last tables of a run's report: failures, irregular answers, and usage.

    `compared` is the header of the first column, which names the compared models.
    """
    tables = [failure_table(report), irregular_answers(report), usage_table(report)]
    return [(title, [compared, *header], rows) for title, (_, *header), rows in tables]

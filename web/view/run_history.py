"""Runs of one study over time: a candidate's mean in each run, and its change since the run before.

Only runs on the same scale are compared: the same scenario, dataset, judge, prompts and settings. A change is claimed
only if the interval of the difference, item by item, excludes 0. Intervals are 95% for all changes of one dataset
together, so that with many candidates a change is not found by chance.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import VivaError
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.reports.plot_style import axis_range
from viva.scenarios.contract import SCORE
from viva.scoring.clustered_means import MIN_CLUSTERS, clustered_mean
from viva.scoring.comparison import compare
from viva.scoring.intervals import Estimate

from .queries import IndexReader, RunFigures

_LEVEL = 0.95
_MAX_RUNS = 12  # latest runs of a candidate that are drawn
_MAX_CACHED = 4_000  # figures
# Settings that change the course of a run, but not the scale of its scores.
_COURSE = frozenset(
    {
        *("seed", "concurrency", "max_tokens_total", "max_calls", "max_cost", "max_seconds", "patience", "durability"),
        *("chaos", "strict", "n", "ids", "in_order", "shuffled", "skip_bad_items"),
    }
)


@dataclass(slots=True)
class RunPoint:
    """A candidate's mean in one run, with the ends of its interval (None without one); `date` is that of its start."""

    run: str
    date: str
    model: str
    n: int
    value: float
    low: float | None
    high: float | None


@dataclass(slots=True)
class CandidateHistory:
    """A candidate's runs, the oldest first, and a sentence on its change since the run before."""

    candidate: str
    points: list[RunPoint]
    sentence: str = ""
    changed: bool = False
    scale: tuple[float, float] = (0.0, 100.0)


@dataclass(slots=True)
class _RunFacts:
    """Facts about a run: what sets its scale, its models, the range of its scores, and whether items are clustered."""

    scale: str
    models: dict[str, str]
    range: tuple[float, float]
    clustered: bool


Scores = dict[tuple[str, str], float | None]


class RunHistories:
    """The histories of an index's runs. Figures are cached by the number of a run's ended conversations."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._facts: dict[tuple[str, int], _RunFacts | None] = {}
        self._means: dict[tuple[Any, ...], Estimate | None] = {}
        self._changes: dict[tuple[Any, ...], tuple[str, bool]] = {}

    def histories(self, runs: Sequence[RunFigures], paths: dict[str, Path]) -> list[CandidateHistory]:
        """Return the histories of candidates with at least two comparable runs among these, on one dataset."""
        groups: dict[tuple[str, str], list[tuple[float, RunFigures, _RunFacts]]] = {}
        starts = self._reader.starts()
        for run in runs:
            path = paths.get(run.name)
            facts = None if path is None else self._facts_of(path)
            if facts is None or run.adaptive or run.name not in starts:  # an adaptive run has no mean over its items
                continue
            for name, figures in run.candidates.items():
                if figures.scored:
                    groups.setdefault((f"{facts.scale}/{run.digest}/{run.judge}", name), []).append(
                        (starts[run.name], run, facts)
                    )
        several = {key: sorted(group, key=lambda entry: entry[0]) for key, group in groups.items() if len(group) > 1}
        histories = []
        for (_, name), group in several.items():
            history = CandidateHistory(name, [self._point(name, *entry) for entry in group[-_MAX_RUNS:]])
            history.sentence, history.changed = self._change(name, group[-2], group[-1], len(several))
            histories.append(history)
        ends = [
            end
            for history in histories
            for point in history.points
            for end in (point.value, point.low, point.high)
            if end is not None
        ]
        ranges = {facts.range for group in several.values() for _, _, facts in group}
        known = next(iter(ranges)) if len(ranges) == 1 else (-math.inf, math.inf)
        scale = axis_range(ends, known if all(map(math.isfinite, known)) else None)
        for history in histories:
            history.scale = scale
        return histories

    def _point(self, candidate: str, start: float, run: RunFigures, facts: _RunFacts) -> RunPoint:
        figures = run.candidates[candidate]
        key = (run.name, start, candidate, run.running, figures.finished + figures.failed)
        if run.running:  # its interval would be computed again at each change
            self._means[key] = None
        elif key not in self._means:
            _shrink(self._means)
            scores = self._reader.scores(run.name, candidate)
            mean = clustered_mean(list(scores.values()), list(scores))
            self._means[key] = None if mean is None or facts.clustered else mean.ends(*facts.range)
        estimate, date = self._means[key], time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
        low, high = (None, None) if estimate is None else (estimate.low, estimate.high)
        return RunPoint(run.name, date, facts.models.get(candidate, ""), figures.scored, figures.mean or 0.0, low, high)

    def _change(
        self,
        candidate: str,
        before: tuple[float, RunFigures, _RunFacts],
        after: tuple[float, RunFigures, _RunFacts],
        comparisons: int,
    ) -> tuple[str, bool]:
        """Return a sentence on the difference between two runs, and True if it claims a change."""
        (_, old, old_facts), (_, new, new_facts) = before, after
        if new.running or old.running:
            return f"since {old.name}: not compared while a run is in progress", False
        if new_facts.clustered:
            return f"since {old.name}: items are clustered; the report has the errors", False
        key = (candidate, comparisons, *((run.name, start, run.ended) for start, run, _ in (before, after)))
        if key not in self._changes:
            _shrink(self._changes)
            models = [facts.models.get(candidate, "") for facts in (old_facts, new_facts)]
            text, changed = self._difference(candidate, old, new, new_facts.range, comparisons)
            same = "" if models[0] == models[1] else f"; the model was {models[0]}"
            self._changes[key] = f"since {old.name}: {text}{same}", changed
        return self._changes[key]

    def _difference(
        self, candidate: str, old: RunFigures, new: RunFigures, bounds: tuple[float, float], comparisons: int
    ) -> tuple[str, bool]:
        level = 1 - (1 - _LEVEL) / comparisons
        first, second = (self._reader.scores(run.name, candidate) for run in (new, old))
        shared = sorted(first.keys() & second.keys())
        if not shared:
            return "no common items", False
        estimate: Estimate | None
        if all(map(math.isfinite, bounds)):
            scores = {"new": _keyed(first), "old": _keyed(second)}
            result = compare("new", "old", scores, level, bounds[1] - bounds[0])
            estimate = result.difference
        else:
            mean = clustered_mean([first[item] - second[item] for item in shared], shared)
            enough = mean is not None and mean.clusters >= MIN_CLUSTERS and bool(mean.se)
            estimate = mean.interval(level) if mean is not None and enough else None
        count = f"n = {len(shared):,} common item{'s' * (len(shared) != 1)}"
        if estimate is None:
            return f"too few to tell ({count})", False
        interval = f"{estimate.value:+.1f}, interval {estimate.low:+.1f} to {estimate.high:+.1f}, {count}"
        if estimate.low > 0:
            return f"higher ({interval})", True
        if estimate.high < 0:
            return f"lower ({interval})", True
        if estimate.low == estimate.high == 0:
            return f"the same scores ({count})", False
        return f"too few to tell ({interval})", False

    def _facts_of(self, path: Path) -> _RunFacts | None:
        try:
            key = (str(path), (path / "manifest.json").stat().st_mtime_ns)
        except OSError:
            return None
        if key not in self._facts:
            _shrink(self._facts)
            self._facts[key] = _read_facts(path)
        return self._facts[key]


def _read_facts(path: Path) -> _RunFacts | None:
    """Return the facts of a run; None if its scenario is not available."""
    try:
        folder = RunFolder.open(path)
        scenario, settings = recorded_settings(folder)
        manifest = folder.manifest
        compared = {role: models for role, models in manifest["models"].items() if isinstance(models, dict)}
        scale = {
            name: value
            for name, value in manifest["settings"].items()
            if name not in _COURSE and name not in compared and name != scenario.data
        }
        scale["prompts"] = (manifest.get("pack") or {}).get("digest")
        # Models of other roles are part of the scale; a replay only repeats recorded answers.
        digest = hashlib.blake2b(
            orjson.dumps([scenario.name, scale], default=str, option=orjson.OPT_SORT_KEYS), digest_size=8
        ).hexdigest()
        dataset = manifest.get("dataset") or {}
        names = {str(label): str(name) for models in compared.values() for label, name in models.items()}
        clustered = bool(dataset.get("clusters") or dataset.get("repeats") or getattr(settings, "cluster", None))
        return _RunFacts(digest, names, scenario.ranges.get(SCORE, (-math.inf, math.inf)), clustered)
    except (VivaError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _keyed(scores: dict[str, float]) -> Scores:
    return {(item, ""): score for item, score in scores.items()}


def _shrink(cache: dict[Any, Any]) -> None:
    if len(cache) >= _MAX_CACHED:
        cache.clear()


@dataclass(slots=True)
class BlockFailure:
    """Failed conversations of one block with one type of error, an example of its text, and the runs."""

    error: str
    reason: str
    count: int
    runs: list[str] = field(default_factory=list)


def block_failures(rows: Iterable[tuple[str, str, str, int]], runs: Sequence[RunFigures]) -> list[BlockFailure]:
    """Return the failures of these runs, most frequent first; `rows` are (run, error, reason, count)."""
    names = {run.name for run in runs}
    failures: dict[str, BlockFailure] = {}
    for run, error, reason, count in rows:
        if run in names:
            text = reason.removeprefix(f"{error}:").strip()
            failure = failures.setdefault(error, BlockFailure(error, text, 0))
            failure.count += count
            failure.runs.append(run)
    return sorted(failures.values(), key=lambda failure: -failure.count)

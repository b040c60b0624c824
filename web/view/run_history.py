"""Runs of one study over time: a candidate's mean in each run, and its change since the run before.

Only runs on the same scale are compared: the same scenario, dataset, judge, prompts and settings. A change is claimed
only if the interval of the difference, item by item, excludes 0. Intervals are 95% for all changes of one dataset
together, so that with many candidates a change is not found by chance.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any

import orjson

from viva.reports.plot_style import axis_range
from viva.scoring.clustered_means import MIN_CLUSTERS, clustered_mean
from viva.scoring.comparison import compare
from viva.scoring.intervals import Estimate

from .queries import IndexReader
from .run_figures import ItemScores, MeanScore, RunFigures, decimals, mean_score

_LEVEL = 0.95
_MAX_RUNS = 12  # latest runs of a candidate that are drawn
_MAX_CACHED = 4_000  # figures
_MOST_ENDS = 60  # ways to end that a block shows


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
    digits: int = 1


@dataclass(slots=True)
class _RunFacts:
    """Facts about a run: what sets its scale, its models, and whether its items are declared to be clustered."""

    scale: str
    models: dict[str, str]
    clustered: bool


_Entry = tuple[float, RunFigures, _RunFacts]  # a run with its start


class RunHistories:
    """The histories of an index's runs. Figures are kept as long as a run's scores stay the same.

    `scores` returns a run's scores by candidate and whether their items are of a second set.
    """

    def __init__(
        self, reader: IndexReader, scores: Callable[[RunFigures], Mapping[tuple[str, bool], ItemScores]] | None = None
    ) -> None:
        self._reader = reader
        self._scores = scores or (lambda run: reader.scores(run.id))
        self._means: dict[tuple[Any, ...], MeanScore | None] = {}
        self._changes: dict[tuple[Any, ...], tuple[str, bool]] = {}

    def histories(self, runs: Sequence[RunFigures]) -> list[CandidateHistory]:
        """Return the histories of candidates with at least two comparable runs among these, on one dataset."""
        groups: dict[tuple[str, str], list[_Entry]] = {}
        starts = self._reader.starts()
        for run in runs:
            if run.problem or run.adaptive or run.name not in starts:  # an adaptive run has no mean over its items
                continue
            facts = _read_facts(run)
            for name, figures in run.candidates.items():
                if figures.scored:
                    groups.setdefault((facts.scale, name), []).append((starts[run.name], run, facts))
        several = {
            key: sorted(group, key=itemgetter(0))[-_MAX_RUNS:] for key, group in groups.items() if len(group) > 1
        }
        for run in runs:  # each run's scores are read once for all candidates
            for (_, name), group in several.items():
                if any(run is member for _, member, _ in group):
                    self._mean(name, run)
        histories = []
        for (_, name), group in several.items():
            history = CandidateHistory(name, [self._point(name, *entry) for entry in group])
            history.digits = decimals(_ends(history), group[-1][1])
            history.sentence, history.changed = self._change(name, group[-2], group[-1], len(several), history.digits)
            histories.append(history)
        ends = [end for history in histories for end in _ends(history)]
        ranges = {run.range for group in several.values() for _, run, _ in group}
        known = next(iter(ranges)) if len(ranges) == 1 else (-math.inf, math.inf)
        scale = axis_range(ends, known if all(map(math.isfinite, known)) else None)
        for history in histories:
            history.scale = scale
        return histories

    def _mean(self, candidate: str, run: RunFigures) -> MeanScore | None:
        figures = run.candidates[candidate]
        key = (run.id, candidate, figures.scored, figures.sum)
        if key not in self._means:
            _shrink(self._means)
            own = self._scores(run).get((candidate, False))
            self._means[key] = None if own is None else mean_score(candidate, [own], run)
        return self._means[key]

    def _point(self, candidate: str, start: float, run: RunFigures, facts: _RunFacts) -> RunPoint:
        figures, mean = run.candidates[candidate], self._mean(candidate, run)
        date, model = time.strftime("%Y-%m-%d %H:%M", time.localtime(start)), facts.models.get(candidate, "")
        if mean is None:
            return RunPoint(run.name, date, model, figures.scored, figures.mean or 0.0, None, None)
        is_known = mean.has_interval and not self._lacks_clusters(candidate, run, facts)
        low, high = (mean.estimate.low, mean.estimate.high) if is_known else (None, None)
        return RunPoint(run.name, date, model, mean.n, mean.estimate.value, low, high)

    def _lacks_clusters(self, candidate: str, run: RunFigures, facts: _RunFacts) -> bool:
        """Return True if the dataset declares clusters, but the index does not know those of the items."""
        mean = self._mean(candidate, run)
        return facts.clustered and (mean is None or mean.clusters == mean.n)

    def _change(self, candidate: str, before: _Entry, after: _Entry, comparisons: int, digits: int) -> tuple[str, bool]:
        """Return a sentence on the difference between two runs, and True if it claims a change."""
        (_, old, old_facts), (_, new, new_facts) = before, after
        if new.running or old.running:
            return f"since {old.name}: not compared while a run is in progress", False
        if any(self._lacks_clusters(candidate, run, facts) for _, run, facts in (before, after)):
            return f"since {old.name}: items are clustered; the report has the errors", False
        figures = [(run.id, run.candidates[candidate]) for run in (old, new)]
        key = (candidate, comparisons, *((number, own.scored, own.sum) for number, own in figures))
        if key not in self._changes:
            _shrink(self._changes)
            models = [facts.models.get(candidate, "") for facts in (old_facts, new_facts)]
            text, changed = self._difference(candidate, old, new, comparisons, digits)
            same = "" if models[0] == models[1] else f"; the model was {models[0]}"
            self._changes[key] = f"since {old.name}: {text}{same}", changed
        return self._changes[key]

    def _difference(
        self, candidate: str, old: RunFigures, new: RunFigures, comparisons: int, digits: int
    ) -> tuple[str, bool]:
        level, bounds = 1 - (1 - _LEVEL) / comparisons, new.range
        first, second = (self._scores(run).get((candidate, False), ItemScores()) for run in (new, old))
        scores = {
            name: dict(zip(zip(own.items, repeat(""), strict=False), own.values, strict=True))
            for name, own in (("new", first), ("old", second))
        }
        clusters = dict(zip(first.items, first.clusters, strict=True))
        shared = sorted(scores["new"].keys() & scores["old"].keys())
        if not shared:
            return "no common items", False
        estimate: Estimate | None
        if all(map(math.isfinite, bounds)):
            estimate = compare("new", "old", scores, level, bounds[1] - bounds[0], clusters=clusters).difference
        else:
            differences = [scores["new"][item] - scores["old"][item] for item in shared]
            mean = clustered_mean(differences, [clusters[item] for item, _ in shared])
            enough = mean is not None and mean.clusters >= MIN_CLUSTERS and bool(mean.se)
            estimate = mean.interval(level) if mean is not None and enough else None
        number = len({clusters[item] for item, _ in shared})
        count = f"n = {len(shared):,} common item{'s' * (len(shared) != 1)}"
        if number < len(shared):
            count = f"n = {len(shared):,} common conversations in {number:,} cluster{'s' * (number != 1)}"
        if estimate is None:
            return f"too few to tell ({count})", False
        value, low, high = (f"{end:+.{digits}f}" for end in (estimate.value, estimate.low, estimate.high))
        interval = f"{value}, interval {low} to {high}, {count}"
        if estimate.low > 0:
            return f"higher ({interval})", True
        if estimate.high < 0:
            return f"lower ({interval})", True
        if estimate.low == estimate.high == 0:
            return f"the same scores ({count})", False
        return f"no significant change ({interval})", False


def _read_facts(run: RunFigures) -> _RunFacts:
    likeness = orjson.loads(run.likeness)
    likeness.pop("chaos", None)  # injected faults change the course of a run, but not the scale of its scores
    scale = orjson.dumps([likeness, run.digest, run.judge], option=orjson.OPT_SORT_KEYS).decode()
    by_role = orjson.loads(run.models).values()
    names = {str(label): str(name) for models in by_role for label, name in (models or {}).items()}
    return _RunFacts(scale, names, bool(likeness.get("cluster")))


def _ends(history: CandidateHistory) -> list[float]:
    ends = [end for point in history.points for end in (point.value, point.low, point.high)]
    return [end for end in ends if end is not None]


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


def block_ends(rows: Iterable[tuple[str, str, int]], runs: Sequence[RunFigures]) -> list[tuple[str, int]]:
    """Return how often conversations of these runs have ended in which way; `rows` are (run, end, count)."""
    names = {run.name for run in runs}
    counts: Counter[str] = Counter()
    for run, end, count in rows:
        if run in names:
            counts[end] += count
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_ENDS]

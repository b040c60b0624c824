"""Figures of the overview that are computed from the index: mean scores with intervals, and runs over time.

They take about a second for 100,000 conversations, so the server computes them in a thread of their own, with its own
connection to the index, and pages show those that were computed last.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from viva.scenarios.contract import Findings, RankedCandidate

from .findings import Updater
from .queries import IndexReader
from .run_figures import ItemScores, MeanScore, RunFigures, RunGroup, decimals, mean_score, scale_text
from .run_history import CandidateHistory, RunHistories

_MOST_SCORES = 250_000  # maximum scores in memory, besides those of the last two runs
_MOST_CACHED = 4_000  # groups
RunScores = dict[tuple[str, bool], ItemScores]


class ScoreCache:
    """The scores of the runs that were read last, from an index."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._runs: OrderedDict[int, RunScores] = OrderedDict()

    def scores(self, run: RunFigures) -> RunScores:
        """Return a run's scores by candidate and set."""
        if run.id not in self._runs:
            while len(self._runs) > 1 and self._count() > _MOST_SCORES:
                self._runs.popitem(last=False)
            self._runs[run.id] = self._reader.scores(run.id)
        self._runs.move_to_end(run.id)
        return self._runs[run.id]

    def _count(self) -> int:
        return sum(len(own.values) for scores in self._runs.values() for own in scores.values())

    def clear(self) -> None:
        self._runs.clear()


def mean_findings(group: RunGroup, means: Sequence[MeanScore]) -> dict[str, Any]:
    """Return the mean scores of a group of runs in the form of findings, the highest first.

    There is no test, so no sentence compares the candidates. Further keys: `tested` is False, `set` is as in a filter,
    `matrix` names the group, `digits` and `scale` are those of the scores (None if unknown), `clusters` is the number
    of clusters, "" if each conversation is one.
    """
    first = group.runs[0]
    of_set = "second" if group.second else "benchmark" if any(run.has_second for run in group.runs) else ""
    so_far = "" if all(run.is_complete for run in group.runs) else " so far"
    items = f" on the {group.apart[-1]}" if group.second else f" on the {of_set}" if of_set else ""
    digits = decimals([end for mean in means for end in (mean.estimate.value, *_ends(mean))], first)
    ranked = sorted(means, key=lambda mean: -mean.estimate.value)
    if len(ranked) == 1:
        only = ranked[0]
        value, *ends = (f"{end:.{digits}f}" for end in (only.estimate.value, *_ends(only)))
        interval = f"95% interval {ends[0]} to {ends[1]}, " if only.has_interval else ""
        sentence = f"{only.candidate}: mean score{items}{so_far} {value} ({interval}n = {only.n:,})."
    else:
        sentence = f"Mean scores only{',' * bool(so_far)}{so_far}: no test compares the candidates{items}."
    scale = scale_text(first.low, first.high, first.unit)
    standings = []
    for mean in ranked:
        low, high = _ends(mean) if mean.has_interval else (None, None)
        standings.append(RankedCandidate(mean.candidate, mean.estimate.value, low, high, mean.n))
    about = f"{first.dataset} ({', '.join(group.apart)})" if group.apart else first.dataset
    measure = f"mean score{so_far}" + (f", {scale}" if scale else "")
    part = asdict(Findings([sentence], measure, standings, about, first.scenario))
    counts = sorted({mean.clusters for mean in ranked})
    clusters = "–".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    return part | {
        "tested": False,
        "set": of_set,
        "matrix": group.id,
        "clusters": clusters if any(mean.clusters != mean.n for mean in ranked) else "",
        "digits": digits,
        "scale": first.range if all(map(math.isfinite, first.range)) else None,
    }


def _ends(mean: MeanScore) -> tuple[float, float]:
    return mean.estimate.low, mean.estimate.high


@dataclass(slots=True)
class IndexFigures:
    """Mean scores as findings (`mean_findings`), histories by scenario and dataset, ends as (run, end, count).

    `ended` counts the conversations that had ended when they were computed.
    """

    means: list[dict[str, Any]]
    histories: dict[tuple[str, str], list[CandidateHistory]]
    ends: list[tuple[str, str, int]]
    ended: int


class IndexAnalysis:
    """Computes the figures of an index; those of groups and runs that have not changed are not computed again."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._scores = ScoreCache(reader)
        self._histories = RunHistories(reader, self._scores.scores)
        self._means: dict[tuple[Any, ...], list[MeanScore]] = {}

    def figures(self) -> IndexFigures:
        """Compute the figures. Adaptive runs have none, because they chose other items for each candidate."""
        runs = self._reader.runs()
        blocks: dict[tuple[str, str], list[RunFigures]] = {}
        for run in runs:
            blocks.setdefault((run.scenario, run.dataset), []).append(run)
        groups = [group for group in self._reader.groups() if not any(run.adaptive for run in group.runs)]
        try:
            means = [mean_findings(group, own) for group in groups if (own := self._means_of(group))]
            histories = {key: self._histories.histories(members) for key, members in blocks.items()}
        finally:
            self._scores.clear()
        return IndexFigures(means, histories, self._reader.ends(), sum(run.ended for run in runs))

    def _means_of(self, group: RunGroup) -> list[MeanScore]:
        counts = [
            (run.id, own.name, *((own.second_scored, own.second_sum) if group.second else (own.scored, own.sum)))
            for run in group.runs
            for own in run.candidates.values()
        ]
        key = (group.id, *counts)
        if key not in self._means:
            if len(self._means) >= _MOST_CACHED:
                self._means.clear()
            self._means[key] = self._compute(group)
        return self._means[key]

    def _compute(self, group: RunGroup) -> list[MeanScore]:
        scores: dict[str, list[ItemScores]] = {}
        for run in group.runs:
            for (candidate, second), own in self._scores.scores(run).items():
                if second == group.second:
                    scores.setdefault(candidate, []).append(own)
        means = (mean_score(candidate, own, group.runs[0]) for candidate, own in scores.items())
        return [mean for mean in means if mean is not None]


class FiguresUpdater(Updater):
    """Keeps the figures of an index up to date, computed in a thread of its own; `figures` are the latest."""

    def __init__(self, file: Path, on_change: Callable[[], None] = lambda: None) -> None:
        super().__init__(on_change, least_pause=0.0)
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-view-figures")
        self._reader: IndexReader | None = None
        self._analysis: IndexAnalysis | None = None
        self._version = -1
        self.figures: IndexFigures | None = None

    async def compute(self) -> bool:
        figures, self.cpu_seconds = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed)
        self.figures = figures or self.figures
        return figures is not None

    def _timed(self) -> tuple[IndexFigures | None, float]:
        began = time.thread_time()
        return self._new_figures(), time.thread_time() - began

    def _new_figures(self) -> IndexFigures | None:
        """Return the figures if the index has changed."""
        if self._reader is None or self._analysis is None:
            self._reader = IndexReader(self._file)
            self._analysis = IndexAnalysis(self._reader)
        version = self._reader.version
        if version == self._version:
            return None
        figures = self._analysis.figures()
        self._version = version
        return figures

    async def close(self) -> None:
        await super().close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

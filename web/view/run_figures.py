"""Figures of runs in the viewer's index: counts and means by candidate, and groups of runs whose scores are alike.

The benchmark's items and those of a second set never have a common mean.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from viva.scenarios.default_aggregate import measure_interval
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.intervals import Estimate

SECOND_SET = "-second"  # ends the name of a matrix of the second sets of its runs


@dataclass(slots=True)
class CandidateFigures:
    """Counts of a candidate's conversations in one or more runs.

    `scored` and `sum` are of the benchmark's items only, and so is `mean`, None without scores. `second` counts
    finished conversations on second sets, `second_scored` and `second_sum` their scores.
    """

    name: str
    total: int = 0
    finished: int = 0
    failed: int = 0
    scored: int = 0
    sum: float = 0.0
    tokens: int = 0
    calls: int = 0
    retries: int = 0
    unscored: int = 0
    second: int = 0
    second_scored: int = 0
    second_sum: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.scored if self.scored else None

    @property
    def second_mean(self) -> float | None:
        return self.second_sum / self.second_scored if self.second_scored else None

    def add(self, figures: CandidateFigures) -> None:
        """Add the figures of another run."""
        for count in fields(self)[1:]:
            setattr(self, count.name, getattr(self, count.name) + getattr(figures, count.name))


@dataclass(slots=True)
class CallUsage:
    """Usage of calls of one role. `first` is when the first one began, `last` when the last one ended, if known."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first: float | None = None
    last: float | None = None

    def count(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int, calls: int = 1) -> None:
        """Count calls with these tokens."""
        self.calls += calls
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cached_tokens += cached_tokens

    def span(self, first: float, last: float) -> None:
        """Extend the time from the first call to the last."""
        if self.first is None or first < self.first:
            self.first = first
        if self.last is None or last > self.last:
            self.last = last

    def add(self, more: CallUsage) -> None:
        """Add the usage of further calls."""
        self.count(more.prompt_tokens, more.completion_tokens, more.cached_tokens, more.calls)
        if more.first is not None and more.last is not None:
            self.span(more.first, more.last)


@dataclass(slots=True)
class RunFigures:
    """A run and counts of its conversations. `planned` is None if unknown; `digest` is its dataset's.

    `low`, `high` and `unit` describe its scores. `likeness` has the settings that runs of one matrix share, `models`
    the compared models by role and label, both as JSON. `adaptive`: the items depend on earlier answers; `rate`: each
    score is one end of its range. `second_name` and `second_digest` are those of the second set, "" without one.
    """

    name: str
    scenario: str
    dataset: str
    seed: int | None
    judge: str
    planned: int | None
    problem: str
    running: bool
    digest: str = ""
    id: int = 0
    low: float | None = None
    high: float | None = None
    unit: str = ""
    likeness: str = "{}"
    models: str = "{}"
    adaptive: bool = False
    rate: bool = False
    second_name: str = ""
    second_digest: str = ""
    candidates: dict[str, CandidateFigures] = field(default_factory=dict)

    @property
    def total(self) -> CandidateFigures:
        total = CandidateFigures("")
        for candidate in self.candidates.values():
            total.add(candidate)
        return total

    @property
    def ended(self) -> int:
        return self.total.finished + self.total.failed

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the scale, infinite if they are unknown."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    @property
    def is_complete(self) -> bool:
        """True if all conversations have ended."""
        return not self.running and self.ended >= (self.planned or self.total.total)

    @property
    def has_second(self) -> bool:
        """True if a conversation on the second set has finished."""
        return any(figures.second for figures in self.candidates.values())


@dataclass(frozen=True, slots=True)
class Kind:
    """The facts that conversations share if their scores can be sorted together; `second`: items of a second set."""

    scenario: str
    dataset: str
    judge: str
    scale: str
    second: bool

    @property
    def title(self) -> str:
        judge = f"judged by {self.judge}" if self.judge else ""
        parts = (self.scenario, self.dataset, "second set" if self.second else "", judge)
        return " · ".join(filter(None, parts)) + (f", {self.scale}" if self.scale else "")


@dataclass(slots=True)
class ItemScores:
    """A candidate's scores in one run: items, their clusters and the scores, in parallel.

    The cluster of an item without one is its task, which its repeats share.
    """

    items: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class MeanScore:
    """A candidate's mean over `n` conversations in `clusters` clusters, with the ends of its interval if it has one."""

    candidate: str
    n: int
    clusters: int
    estimate: Estimate
    has_interval: bool


def mean_score(candidate: str, scores: Sequence[ItemScores], run: RunFigures) -> MeanScore | None:
    """Return a candidate's mean over its scores in some runs like `run`, None without scores.

    The interval is that of the run's report and of the matrix.
    """
    values = [value for own in scores for value in own.values]
    mean = clustered_mean(values, [cluster for own in scores for cluster in own.clusters])
    if mean is None:
        return None
    ends = measure_interval(mean, values, run.range, rate=run.rate)
    estimate = ends or Estimate(mean.mean, mean.mean, mean.mean)
    return MeanScore(candidate, mean.n, mean.clusters, estimate, ends is not None)


def decimals(values: Iterable[float], run: RunFigures) -> int:
    """Return the decimals of scores like `run`'s; `values` are those to be shown, for a scale without known ends."""
    low, high = run.range
    size = high - low if math.isfinite(high - low) else max(map(abs, values), default=0.0)
    return 1 if size > 10 else 2


@dataclass(slots=True)
class RunGroup:
    """Runs whose scores belong into one matrix; `second`: those on one second set.

    `title` says what the runs share, as far as it tells this group from others; `apart` has only what distinguishes it
    from others of its scenario and dataset. `id` names it in addresses.
    """

    id: str
    title: str
    runs: list[RunFigures]
    second: bool = False
    apart: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]


def scale_text(low: float | None, high: float | None, unit: str) -> str:
    """Return the ends of a scale and its unit, as far as they are known."""
    if low is not None and high is not None:
        ends = f"{low:g}–{high:g}"
    else:
        ends = f"from {low:g}" if low is not None else f"to {high:g}" if high is not None else ""
    return " ".join(filter(None, (ends, unit)))


_MOST_DIFFERENCES = 3  # settings named in a title
_LONGEST_VALUE = 80  # characters of a setting in a title


def run_groups(runs: Sequence[RunFigures]) -> list[RunGroup]:
    """Put runs into groups: same scenario, dataset, prompts and settings, and one model for each label."""
    keys: dict[tuple[str, ...], list[tuple[dict[Any, Any], list[RunFigures]]]] = {}
    for run in runs:
        key: tuple[str, ...] = (run.scenario, run.dataset, run.digest, run.likeness, f"{run.low} {run.high} {run.unit}")
        models = {(role, label): name for role, of_role in orjson.loads(run.models).items()
                  for label, name in (of_role or {}).items()}  # fmt: skip
        parts = keys.setdefault(key, [])
        # One label may stand for different models in different runs; these are not one column.
        part = next((part for part in parts if all(part[0].get(label, name) == name for label, name in models.items())),
                    None)  # fmt: skip
        if part is None:
            parts.append(part := ({}, []))
        part[0].update(models)
        part[1].append(run)
    groups = [(key, at, members) for key, parts in keys.items() for at, (_, members) in enumerate(parts)]
    groups.sort(key=lambda group: runs.index(group[2][0]))
    words = _distinctions([members[0] for _, _, members in groups])
    made = []
    for (key, at, members), own in zip(groups, words, strict=True):
        name = hashlib.blake2b(repr((key, at)).encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
        title = " · ".join([members[0].scenario, members[0].dataset, *own])
        made.append(RunGroup(name, title, members, apart=own))
        seconds: dict[tuple[str, str], list[RunFigures]] = {}
        for run in members:
            if run.has_second:
                seconds.setdefault((run.second_name, run.second_digest), []).append(run)
        names = [of_set for of_set, _ in seconds]
        for number, ((of_set, digest), of_runs) in enumerate(seconds.items()):
            label = f"{of_set} {digest[:6]}".strip() if names.count(of_set) > 1 else of_set
            ending = f"-{number}{SECOND_SET}" if number else SECOND_SET
            ending_title = f"second set {label}" if len(seconds) > 1 else "second set"
            more = [*own, f"second set {label}".rstrip()]
            made.append(RunGroup(name + ending, f"{title} · {ending_title}", of_runs, True, more))
    return made


def _distinctions(firsts: Sequence[RunFigures]) -> list[list[str]]:
    """Return for each group, given its first run, what distinguishes it from groups on its dataset, for its title."""
    titles: list[list[str]] = [[] for _ in firsts]
    for words in (
        lambda run: [f"data {run.digest[:6]}"] if run.digest else [],
        lambda run: [f"judged by {run.judge}"] if run.judge else [],
        None,
        lambda run: [f"from {run.name}"],
    ):
        alike: dict[tuple[str, ...], list[int]] = {}
        for at, (run, title) in enumerate(zip(firsts, titles, strict=True)):
            alike.setdefault((run.scenario, run.dataset, *title), []).append(at)
        for places in alike.values():
            if len(places) > 1:
                added = (
                    _differences([firsts[at] for at in places])
                    if words is None
                    else [words(firsts[at]) for at in places]
                )
                if len({*map(tuple, added)}) > 1:
                    for at, more in zip(places, added, strict=True):
                        titles[at] += more
    return titles


def _differences(runs: Sequence[RunFigures]) -> list[list[str]]:
    """Return for each run the first settings in which the runs differ."""
    settings = [orjson.loads(run.likeness) for run in runs]
    names = [name for name in settings[0] if len({orjson.dumps(own.get(name)) for own in settings}) > 1]
    visible = [name for name in names if not (name == "pack" and len(names) > _MOST_DIFFERENCES)][:_MOST_DIFFERENCES]
    return [[f"{name.replace('_', ' ')} {_shorten(str(own.get(name)))}" for name in visible] for own in settings]


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"

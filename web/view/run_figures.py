"""Figures of runs in the viewer's index: counts by candidate, and groups of runs whose scores belong into one matrix.

The benchmark's items and those of a second set never have a common mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

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
    def is_complete(self) -> bool:
        """True if all conversations have ended."""
        return not self.running and self.ended >= (self.planned or self.total.total)

    @property
    def has_second(self) -> bool:
        """True if a conversation on the second set has finished."""
        return any(figures.second for figures in self.candidates.values())


@dataclass(slots=True)
class RunGroup:
    """Runs whose scores belong into one matrix; `second`: those on their second sets.

    `title` says what the runs share, as far as it tells this group from others. `id` names it in addresses.
    """

    id: str
    title: str
    runs: list[RunFigures]
    second: bool = False

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
    titles = _titles([members[0] for _, _, members in groups])
    made = []
    for (key, at, members), title in zip(groups, titles, strict=True):
        name = hashlib.blake2b(repr((key, at)).encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
        made.append(RunGroup(name, title, members))
        if any(run.has_second for run in members):
            made.append(RunGroup(name + SECOND_SET, f"{title} · second set", members, True))
    return made


def _titles(firsts: Sequence[RunFigures]) -> list[str]:
    """Return a title for each group, given its first run: what is shared, then what differs from groups like it."""
    titles = [f"{run.scenario} · {run.dataset}" for run in firsts]
    for words in (
        lambda run: f" ({run.digest[:6]})" if run.digest else "",
        lambda run: f" · judged by {run.judge}" if run.judge else "",
        None,
        lambda run: f" · from {run.name}",
    ):
        alike: dict[str, list[int]] = {}
        for at, title in enumerate(titles):
            alike.setdefault(title, []).append(at)
        for places in alike.values():
            if len(places) > 1:
                added = (
                    _differences([firsts[at] for at in places])
                    if words is None
                    else [words(firsts[at]) for at in places]
                )
                if len({*added}) > 1:
                    for at, more in zip(places, added, strict=True):
                        titles[at] += more
    return titles


def _differences(runs: Sequence[RunFigures]) -> list[str]:
    """Return for each run the first settings in which the runs differ."""
    settings = [orjson.loads(run.likeness) for run in runs]
    names = [name for name in settings[0] if len({orjson.dumps(own.get(name)) for own in settings}) > 1]
    visible = [name for name in names if not (name == "pack" and len(names) > _MOST_DIFFERENCES)][:_MOST_DIFFERENCES]
    return ["".join(f" · {name.replace('_', ' ')} {str(own.get(name))[:40]}" for name in visible) for own in settings]

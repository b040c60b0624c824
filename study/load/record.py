"""The record of a load test: work, judges, and for each judge its steps with judgement and speed, as plain data.

Everything that is printed, drawn or written is made from it. Its form is documented in ``schema``. What never belongs
here: computing figures, words and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from viva.orchestration.load.judged_passes import JudgedPasses, asked_of
from viva.orchestration.load.records import LoadStep
from viva.orchestration.load.work import OpenedWork
from viva.reports.figures import rounded

from .judged import judged_record

VERSION = 1
_POINTS = 60  # of a distribution in the record


class Distributions(Protocol):
    """Latencies by name, each of which tells its cumulative distribution."""

    @property
    def latencies(self) -> Mapping[str, Any]: ...


class StepSpeed(Protocol):
    """The speed of one judge in one step (``orchestration.load.measured``)."""

    @property
    def step(self) -> LoadStep: ...

    @property
    def judge(self) -> str: ...

    @property
    def speed(self) -> Distributions: ...

    @property
    def record(self) -> Mapping[str, Any]: ...


def load_record(
    work: OpenedWork,
    passes: Mapping[str, JudgedPasses],
    steps: Sequence[LoadStep],
    measured: Iterable[StepSpeed] = (),
    *,
    models: Mapping[str, str] | None = None,
    tiers: Mapping[str, str] | None = None,
    objective: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    alpha: float = 0.05,
) -> dict[str, Any]:
    """Everything as plain data.

    ``models``: the models' names by judge; ``tiers``: "C" where a judge's answers are the same at any load, "A" where
    nothing promises that. ``objective`` and ``settings`` are kept as they are: what was asked for with the highest rate
    that met it, and how the test was set up. ``alpha``: the share of sound judges that are flagged at any load.
    """
    speeds = {(one.judge, one.step.index): one for one in measured}
    asked, scales = asked_of(work.requests), work.scales
    judges = []
    for label, judged in passes.items():
        own = ascending(step for step in steps if label in step.judges)
        judgement = judged_record(judged, own, asked, scales, alpha)
        judges.append({
            "judge": label,
            "model": (models or {}).get(label, label),
            "tier": (tiers or {}).get(label, "A"),
            "judgement": judgement,
            "unloaded_speed": _speed(speeds.get((label, -1))),
            "steps": [_step(one, speeds.get((label, one["step"]))) for one in judgement["steps"]],
        })  # fmt: skip
    return {
        "kind": "load",
        "version": VERSION,
        "alpha": alpha,
        "work": work.to_record(),
        "settings": None if settings is None else dict(settings),
        "objective": None if objective is None else dict(objective),
        "judges": judges,
    }


def ascending(steps: Iterable[LoadStep]) -> list[LoadStep]:
    """Steps from the lowest to the highest load: a search tries rates in another order."""
    return sorted(steps, key=lambda step: (step.concurrency or 0, step.rate or 0.0, step.index))


def _step(judgement: Mapping[str, Any], measured: StepSpeed | None) -> dict[str, Any]:
    speed = _speed(measured)
    throughput = None if speed is None else speed.get("throughput")
    unreadable = judgement["unreadable"]
    verdicts = None if throughput is None or unreadable is None else 60.0 * throughput * (1.0 - unreadable)
    return {
        "step": judgement["step"],
        "judgement": judgement,
        "verdicts_per_minute": rounded(verdicts),
        "speed": speed,
    }


def _speed(measured: StepSpeed | None) -> dict[str, Any] | None:
    """The record of speed with the distribution of latencies, as pairs of seconds and shares."""
    if measured is None:
        return None
    shares = {
        name: [[rounded(seconds), rounded(share)] for seconds, share in histogram.shares(_POINTS)]
        for name, histogram in measured.speed.latencies.items()
    }
    return {**measured.record, "distributions": {name: points for name, points in shares.items() if points}}

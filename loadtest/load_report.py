"""Record of a load test's report as plain data: workload, judges, each step with judgement and speed, objective.

Everything that is printed, drawn or exported is made from this record. `load_schema` documents its form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from viva.orchestration.prepared_run import breaks_identity
from viva.reports.figures import round_figure
from viva.scoring.load_schedule import RateResult, highest_rate

from .load_log import LoadHistory
from .load_records import LoadStep
from .run_load_test import LoadTest
from .step_judgement import JudgePasses, describe_requests, judgement_record, read_passes
from .workload import Workload

REPORT_VERSION = 1
_POINTS = 60  # points of a distribution in the record


class SupportsDistributions(Protocol):
    """Latencies by name, with a cumulative distribution of each."""

    @property
    def latencies(self) -> Mapping[str, Any]: ...


class SupportsSpeed(Protocol):
    """Speed of one judge in one step (`step_speed.StepMeasurement`)."""

    @property
    def step(self) -> LoadStep: ...

    @property
    def judge(self) -> str: ...

    @property
    def speed(self) -> SupportsDistributions: ...

    @property
    def record(self) -> Mapping[str, Any]: ...


def make_load_record(
    work: Workload,
    passes: Mapping[str, JudgePasses],
    steps: Sequence[LoadStep],
    measured: Iterable[SupportsSpeed] = (),
    *,
    models: Mapping[str, str] | None = None,
    tiers: Mapping[str, str] | None = None,
    objective: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    alpha: float = 0.05,
) -> dict[str, Any]:
    """Return the report as plain data.

    `models` has the models' names by judge. `tiers`: by judge, "C" if answers are the same at every load, "A" if this
    is not guaranteed. `objective` and `settings` are stored unchanged. `alpha` is the share of unaffected judges that
    are flagged at one load or more.
    """
    speeds = {(entry.judge, entry.step.index): entry for entry in measured}
    requests, scales = describe_requests(work.requests), work.scales
    judges = []
    for label, judge_passes in passes.items():
        own = sort_by_load(step for step in steps if label in step.judges)
        judgement = judgement_record(judge_passes, own, requests, scales, alpha)
        judges.append({
            "judge": label,
            "model": (models or {}).get(label, label),
            "tier": (tiers or {}).get(label, "A"),
            "judgement": judgement,
            "unloaded_speed": _speed_record(speeds.get((label, -1))),
            "steps": [_step_with_speed(entry, speeds.get((label, entry["step"]))) for entry in judgement["steps"]],
        })  # fmt: skip
    return {
        "kind": "load",
        "version": REPORT_VERSION,
        "alpha": alpha,
        "work": work.to_record(),
        "settings": None if settings is None else dict(settings),
        "objective": None if objective is None else dict(objective),
        "judges": judges,
    }


def sort_by_load(steps: Iterable[LoadStep]) -> list[LoadStep]:
    """Return steps from the lowest to the highest load; a search runs them in another order."""
    return sorted(steps, key=lambda step: (step.concurrency or 0, step.rate or 0.0, step.index))


def _step_with_speed(judgement: Mapping[str, Any], measured: SupportsSpeed | None) -> dict[str, Any]:
    speed = _speed_record(measured)
    throughput = None if speed is None else speed.get("throughput")
    unreadable = judgement["unreadable"]
    verdicts = None if throughput is None or unreadable is None else 60.0 * throughput * (1.0 - unreadable)
    return {
        "step": judgement["step"],
        "judgement": judgement,
        "verdicts_per_minute": round_figure(verdicts),
        "speed": speed,
    }


def _speed_record(measured: SupportsSpeed | None) -> dict[str, Any] | None:
    """Return the record of speed; latency distributions are lists of (seconds, share)."""
    if measured is None:
        return None
    distributions = {
        name: [[round_figure(seconds), round_figure(fraction)] for seconds, fraction in histogram.shares(_POINTS)]
        for name, histogram in measured.speed.latencies.items()
    }
    return {**measured.record, "distributions": {name: points for name, points in distributions.items() if points}}


def report_of_test(test: LoadTest, work: Workload) -> dict[str, Any]:
    """Return the report of a test's ended steps."""
    with LoadHistory(test.folder, checked=True) as history:
        passes = read_passes(history, work)
        steps = [logged.step for logged in history.steps() if logged.ends is not None]
    most_sent = max((result.measured.record["sent"] for result in test.results.values()), default=0)
    record = make_load_record(
        work,
        passes,
        steps,
        [result.measured for result in test.results.values()],
        models={judge.label: judge.model for judge in test.judges},
        tiers={judge.label: "A" if breaks_identity([judge.model]) else "C" for judge in test.judges},
        settings=test.settings.model_dump(mode="json"),
        objective=objective_record(test),
    )
    if most_sent > 2 * len(work.requests):
        record["work"]["notes"] = [
            *record["work"]["notes"],
            f"each of the {len(work.requests):,} requests was sent up to {-(-most_sent // len(work.requests)):,} "
            "times in a step: a server that caches prompts answers repeated ones faster",
        ]
    return record


def objective_record(test: LoadTest) -> dict[str, Any] | None:
    """Return the objective, each step's result, and each judge's highest load that met it; None without an objective.

    `met`: every step met the objective; in a search, at least one rate met it.
    """
    if not test.objective.terms:
        return None
    steps, results = [], dict[tuple[str, str], list[RateResult]]()
    for (index, judge), result in sorted(test.results.items()):
        step = result.measured.step
        if step.unloaded:
            continue
        kind = "concurrency" if step.arrivals == "closed" else "rate"
        load = float(step.concurrency or 0) if step.arrivals == "closed" else step.rate or 0.0
        results.setdefault((judge, kind), []).append(RateResult(load, result.met, result.measured.saturated))
        steps.append(
            {
                "step": index,
                "judge": judge,
                kind: load,
                "met": result.met,
                "missed": [term.text for term in result.missed],
                "saturated": result.measured.saturated,
                "figures": {term.figure: result.figures.get(term.figure) for term in test.objective.terms},
            }
        )
    best = [{"judge": judge, kind: highest_rate(rates)} for (judge, kind), rates in results.items()]
    searched = test.settings.search is not None
    # In a search some rates are expected to fail; one that meets the objective is enough.
    met = (
        bool(best)
        and all(next(value for name, value in entry.items() if name != "judge") is not None for entry in best)
        and (searched or all(entry["met"] for entry in steps))
    )
    return {"text": str(test.objective), "met": met, "highest": best, "steps": steps}

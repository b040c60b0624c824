"""A load test that was carried out, or as far as it has come, as the record of its report.

What never belongs here: figures, words.
"""

from __future__ import annotations

from typing import Any

from viva.orchestration.load.judged_steps import all_passes
from viva.orchestration.load.log_reading import LoadHistory
from viva.orchestration.load.steps import LoadTest
from viva.orchestration.load.work import OpenedWork
from viva.orchestration.prepared_run import breaks_identity
from viva.scoring.load.search import Tried, highest

from .record import load_record


def held_record(test: LoadTest, work: OpenedWork) -> dict[str, Any]:
    """The record of a test's ended steps."""
    with LoadHistory(test.folder, checked=True) as history:
        passes = all_passes(history, work)
        steps = [one.step for one in history.steps() if one.ends is not None]
    most = max((result.measured.record["sent"] for result in test.results.values()), default=0)
    record = load_record(
        work,
        passes,
        steps,
        [result.measured for result in test.results.values()],
        models={judge.label: judge.model for judge in test.judges},
        tiers={judge.label: "A" if breaks_identity([judge.model]) else "C" for judge in test.judges},
        settings=test.settings.model_dump(mode="json"),
        objective=objective_record(test),
    )
    if most > 2 * len(work.requests):
        record["work"]["notes"] = [
            *record["work"]["notes"],
            f"each of the {len(work.requests):,} requests was sent up to {-(-most // len(work.requests)):,} times in a "
            "step: a server that caches prompts answers them faster than new ones",
        ]
    return record


def objective_record(test: LoadTest) -> dict[str, Any] | None:
    """What was asked for, what each step came to, and the highest load of each judge that met it; None if nothing was
    asked for. ``met``: every step met it or, of a search, some rate did.
    """
    if not test.objective.terms:
        return None
    steps, tried = [], dict[tuple[str, str], list[Tried]]()
    for (index, judge), result in sorted(test.results.items()):
        step = result.measured.step
        if step.unloaded:
            continue
        kind = "concurrency" if step.arrivals == "closed" else "rate"
        load = float(step.concurrency or 0) if step.arrivals == "closed" else step.rate or 0.0
        tried.setdefault((judge, kind), []).append(Tried(load, result.met, result.measured.saturated))
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
    best = [{"judge": judge, kind: highest(each)} for (judge, kind), each in tried.items()]
    searched = test.settings.search is not None
    # Of a search some rates must fail: what counts is that one does not.
    met = (
        bool(best)
        and all(next(value for name, value in one.items() if name != "judge") is not None for one in best)
        and (searched or all(one["met"] for one in steps))
    )
    return {"text": str(test.objective), "met": met, "highest": best, "steps": steps}

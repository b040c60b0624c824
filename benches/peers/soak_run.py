"""A long run over real HTTP against an endpoint that fails now and then: the engine's own process in ``soak.py``.

Many conversations in flight, most of them waiting; prints its memory a hundred times, then how late the loop was, and
what was called. Run again in the same folder, it goes on where it was killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import workload
from engine_run import make_dataset

from viva.engine.event_loop import gc_tuned
from viva.engine.events import CallFinished, ConversationFinished, Event
from viva.orchestration.launch import empty_results, new_run, resumed_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

# What endpoints do, in small shares: each of these passes, so no conversation may be lost to it.
CHAOS = """seed: 3
faults:
  - {kind: throttled, share: 0.002, seconds: 0.1}
  - {kind: unavailable, share: 0.002}
  - {kind: cut, share: 0.002}
  - {kind: slow, share: 0.002, seconds: 5}
  - {kind: gone, from: 40, to: 45}
"""


def resident_mb() -> float:
    """What this process holds now, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """Run and print one JSON line."""
    parser = argparse.ArgumentParser(description="the engine's side of the soak")
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--url", required=True, help="base address of the mock endpoint (with /v1)")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--calm", action="store_true", help="no faults")
    options = parser.parse_args()
    dataset, chaos, run = options.folder / "items.jsonl", options.folder / "chaos.yaml", options.folder / "run"
    if run.exists():
        launch = resumed_run(run)
    else:
        make_dataset(dataset, options.conversations)
        chaos.write_text(CHAOS)
        models = {role: f"openai:{options.url}#{role}" for role in workload.REPLIES}
        settings = KievalSettings(
            dataset=str(dataset),
            candidate=[models["candidate"]],
            interactor=models["interactor"],
            evaluator=models["evaluator"],
            concurrency=options.concurrency,
            rounds=1,
            chaos=None if options.calm else str(chaos),
        )
        launch = new_run("kieval", settings, run)
    aggregate = empty_results(launch.folder)
    finished = calls = 0

    def hear(event: Event) -> None:
        nonlocal finished, calls
        if isinstance(event, ConversationFinished):
            aggregate.add(event.conversation, event.result)
            finished += 1
            if finished % max(1, options.conversations // 100) == 0:
                in_flight = 0 if launch.runner is None else launch.runner.in_flight
                print(json.dumps({"finished": finished, "mb": resident_mb(), "in_flight": in_flight}), flush=True)
        elif isinstance(event, CallFinished):
            calls += 1

    launch.events.listen(hear)
    meter = workload.Meter()
    with meter, gc_tuned():
        outcome = launch.clock.run(launch.run)
    report = aggregate.report()["candidates"]["candidate"]
    print(
        meter.line("viva", options.conversations, calls, lag=outcome.loop_lag, scored=report["scored"],
                   failed=outcome.failed, how=outcome.how)
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""How well a plan foretells a sweep: 5% of it is run as a pilot, the rest is planned, then run and timed.

Sweeps against an endpoint that is served over HTTP by a process of its own, with answers after log-normal waits: where
a model takes few calls at once, where it takes few calls a second, and where the sweep's own slots are what is scarce.
And sweeps with a llama model in this process, the judge and examiner simulated, or the model in all three roles: of so
many interviews that their pilots take half a minute, for the speed of a shared machine is another one from one second
to the next. A sweep's time is that of its event loop, from the first model opened to the last one closed.

``halves`` says by how much the second half of a sweep's calls took longer than the first: what changed within the sweep
itself, and no pilot can know.

``--quick`` runs four of the five sweeps, once, with fewer items; the llama sweep's pilot is then a larger share of it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import table
import yaml
from running import PEERS, ROOT, note

sys.path.insert(0, str(ROOT / "tests" / "models"))
from small_sweeps import dataset
from tiny_gguf import SHORT_PACK, make_model

from viva.sweeps.pilot import open_pilot
from viva.sweeps.plan import Plan
from viva.sweeps.plan_report import PlanReport
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep import open_sweep

SHARE, QUICK_LOCAL_SHARE = 0.05, 0.4
MEDIAN, SIGMA = 0.06, 0.3
STUCK_SECONDS = 1800.0  # far beyond what any sweep takes: all threads' stacks are printed then, and it ends
REACH: table.Reach = {"endpoint_worst_pct": ("<=", 10), "llama_worst_pct": ("<=", 10), "tokens_worst_pct": ("<=", 10)}


@contextmanager
def endpoint(seed: int) -> Iterator[str]:
    """The URL of an endpoint in a process of its own, while entered."""
    command = [sys.executable, "mock_endpoint.py", "--median", str(MEDIAN), "--sigma", str(SIGMA), "--seed", str(seed)]
    with subprocess.Popen(command, cwd=PEERS, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}/v1"
        finally:
            server.terminate()


def over_http(url: str, candidate: str, evaluator: str, concurrency: int) -> dict[str, Any]:
    """A sweep's file with all roles at an endpoint; the first two arguments are options of these models."""
    interviews = {
        "interactor": f"openai:{url}#interactor",
        "evaluator": f"openai:{url}#evaluator{evaluator}",
        "rounds": 3,
    }
    return {"candidates": [f"openai:{url}#candidate{candidate}"], "interviews": interviews, "concurrency": concurrency}


def local(model: Path, *, everywhere: bool) -> dict[str, Any]:
    """A sweep's file with a llama model as the candidate, or in every role.

    It computes in one thread: with two on two cores the event loop's own thread holds up each layer of so small a
    model, and equal pilots then differ by 7% (standard deviation), with one thread by 3%.
    """
    name = f"llama:{model}?lanes=16&threads=1&ctx=2048"
    other = "simulated:other?latency=0.05"
    interviews = {
        "interactor": name if everywhere else other,
        "evaluator": name if everywhere else other,
        "pack": str(model.with_name("short.yaml")),
        "rounds": 2,
        "candidate_tokens": 24,
        "interactor_tokens": 16,
        "evaluator_tokens": 48,
    }
    return {"candidates": [f"{name}&label=local"], "interviews": interviews, "concurrency": 16}


def foretold(folder: Path, items: int, seed: int, settings: dict[str, Any], share: float) -> dict[str, Any]:
    """A pilot, the plan of the rest, and the rest: what was foretold and what it took."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    folder.mkdir()
    dataset(folder / "items.jsonl", items)
    file, out = folder / "grid.yaml", folder / "out"
    file.write_text(yaml.safe_dump({"datasets": ["items.jsonl"], "seeds": [seed], "patience": 20, **settings}))
    pilot = open_pilot(file, out, share)
    pilot.clock.run(pilot.run)
    piloted = _tokens(out)
    began = time.perf_counter()
    plan = Plan(file, out)
    report = PlanReport(plan)
    planning = time.perf_counter() - began
    sweep = open_sweep(file, out)
    began = time.perf_counter()
    sweep.clock.run(sweep.run)
    seconds = time.perf_counter() - began
    halves = _second_half_longer(out, seconds)
    wrong = [str(run.error or run.failed) for run in sweep.runs if run.error is not None or run.failed]
    if wrong:
        raise SystemExit(f"plan: a sweep did not end well: {wrong}")
    tokens = _tokens(out) - piloted
    return {
        "share": share,
        "outlook": plan.prediction,
        "seconds": seconds,
        "tokens": tokens,
        "error": 100 * abs(plan.prediction.seconds.value / seconds - 1),
        "halves": halves,
        "tokens_error": 100 * abs(plan.prediction.tokens.value / tokens - 1),
        "bottleneck": report.bottleneck(),
        "planning": planning,
    }


def _second_half_longer(out: Path, seconds: float) -> float:
    """By how many percent the second half of the calls of the last ``seconds`` took longer than the first half."""
    ends: list[float] = []
    for cell in recorded_cells(out):
        assert cell.folder is not None
        with closing(sqlite3.connect(cell.folder.journal)) as journal:
            ends += [row[0] for row in journal.execute("select at from calls")]
    last = max(ends)
    ends = sorted(end for end in ends if end > last - seconds)
    middle = ends[len(ends) // 2]
    return 100 * ((last - middle) / (middle - ends[0]) - 1)


def _tokens(out: Path) -> int:
    total = 0
    for cell in recorded_cells(out):
        assert cell.folder is not None
        with closing(sqlite3.connect(cell.folder.journal)) as journal:
            total += journal.execute("select sum(prompt_tokens + completion_tokens) from calls").fetchone()[0]
    return total


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each sweep once, under a minute")
    quick = parser.parse_args().quick
    items, local_items, times = (240, 240, 1) if quick else (1000, 12_000, 2)
    began = time.perf_counter()
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        # As in real models, weights outweigh the KV of a conversation, and several heads share keys. Where small heads
        # read KV most of the time, its speed is that of the cache that a machine shares with its neighbours: steps of
        # eight rows took between 2.5 and 4.3 ms in one and the same sweep.
        model = make_model(folder / "m.gguf", width=256, heads=4, kv_heads=1, feed_forward=2048, quantised=True,
                           quote_bias=6.0)  # fmt: skip
        model.with_name("short.yaml").write_text(SHORT_PACK)
        for seed in range(1, times + 1):
            with endpoint(seed) as url:
                sweeps = {
                    "endpoint: 12 at once": (items, over_http(url, "?concurrency=12", "", 100)),
                    "endpoint: 120 a second": (items, over_http(url, "", "?rps=120", 100)),
                    "endpoint: 16 slots": (items, over_http(url, "", "", 16)),
                    "llama: candidate": (local_items, local(model, everywhere=False)),
                }
                if not quick:
                    sweeps["llama: all roles"] = local_items // 3, local(model, everywhere=True)
                for name, (count, settings) in sweeps.items():
                    note(f"{name}, seed {seed}: {count} interviews")
                    path = folder / f"{[*sweeps].index(name)}-{seed}"
                    share = QUICK_LOCAL_SHARE if quick and name.startswith("llama") else SHARE
                    results.setdefault(name, []).append(foretold(path, count, seed, settings, share))
    rows = []
    for name, some in results.items():
        for row in some:
            outlook = row["outlook"].seconds
            inside = "yes" if outlook.low <= row["seconds"] <= outlook.high else "no"
            span = f"{outlook.low:.1f} to {outlook.high:.1f}"
            rows.append([name, f"{row['share']:.0%}", f"{outlook.value:.1f}", span, f"{row['seconds']:.1f}",
                         f"{row['error']:.1f}%", inside, f"{row['halves']:+.1f}%", f"{row['tokens_error']:.1f}%",
                         row["bottleneck"], f"{row['planning']:.1f}"])  # fmt: skip
    header = ["sweep", "pilot", "foretold s", "90%", "took s", "off", "inside", "halves", "tokens off", "bottleneck",
              "planned s"]  # fmt: skip
    table.show("The rest of sweeps after a pilot", header, rows)
    every = [row for some in results.values() for row in some]
    figures = {
        f"{kind}_worst_pct": max(
            row["error"] for name, some in results.items() if name.startswith(kind) for row in some
        )
        for kind in ("endpoint", "llama")
    }
    figures["mean_pct"] = sum(row["error"] for row in every) / len(every)
    figures["tokens_worst_pct"] = max(row["tokens_error"] for row in every)
    figures["inside_share"] = sum(
        row["outlook"].seconds.low <= row["seconds"] <= row["outlook"].seconds.high for row in every
    ) / len(every)
    figures["planning_longest_s"] = max(row["planning"] for row in every)
    table.conclude("plan", figures, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

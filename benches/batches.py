"""Cost of kills of runs by batch APIs, counted at the provider: calls paid twice or lost, reports that differ.

One process serves the batch APIs of OpenAI, Anthropic and Google (``tests/servers/batch_server.py``) and counts what
is paid for. The same interviews run once by single calls, then by batches, killed with SIGKILL again and again, at a
request or at a random moment after one, while some answers to the creation of a batch are lost.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import table
from running import ROOT, note

sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "tests" / "servers")]
import batch_process  # noqa: E402 - in a folder of its own
from small_sweeps import dataset  # noqa: E402

REACH: table.Reach = {"calls_paid_twice": ("<=", 0), "calls_lost": ("<=", 0), "reports_different": ("<=", 0)}
_LOSSES = ["lost", "ok", "late_500", "500", "ok", "garbage", "ok", "ok"] * 500
_KINDS = ("openai", "anthropic", "gemini")
_CHECKS = 3  # requests with which a process begins


def command(server: batch_process.BatchServer, folder: Path, name: str, count: int, **options: object) -> list[str]:
    """The command that begins the run called ``name`` in ``folder``, or resumes it if it has begun."""
    run = folder / name
    if (run / "manifest.json").exists():
        return [sys.executable, "-m", "viva", "resume", str(run), "--json"]
    roles = zip(("candidate", "interactor", "evaluator"), _KINDS, strict=True)
    models = [text for role, kind in roles for text in (f"--{role}", server.model(kind, role, **options))]
    words = ["run", "kieval", "--dataset", str(folder / "items.jsonl"), "--rounds", "3", *models, "--no-qualify"]
    return [sys.executable, "-m", "viva", *words, "--concurrency", str(count), "--json", "--out", str(run)]


def run_whole(words: list[str]) -> Any:
    """Run a command to its end; return the report without the models' names."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"batches: a run ended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)["candidates"]


def run_killed(
    server: batch_process.BatchServer, folder: Path, name: str, count: int, kills: int, draw: random.Random
) -> tuple[Any, int]:
    """Kill a run up to ``kills`` times; return its report and the number of kills."""
    for number in range(kills):
        before = server.number()
        silent: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command(server, folder, name, count), **silent) as process:
            moment = before + draw.randint(1, _CHECKS + 4)
            while process.poll() is None and server.number() < moment:
                time.sleep(0.001)
            time.sleep(draw.choice([0.0, draw.random() * 0.3]))
            process.send_signal(signal.SIGKILL)
            output, _ = process.communicate()
        if process.returncode != -signal.SIGKILL:
            return json.loads(output)["candidates"], number
    return run_whole(command(server, folder, name, count)), kills


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="40 interviews in place of 1,000, 10 kills in place of 100"
    )
    quick = parser.parse_args().quick
    count, kills = (40, 10) if quick else (1000, 100)
    draw = random.Random(7)
    figures = dict.fromkeys(("calls", "kills", "batches", *REACH), 0.0)
    rows: list[list[str]] = []
    with batch_process.running() as server, tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        dataset(folder / "items.jsonl", count)
        whole = run_whole(command(server, folder, "single", count, batch="off"))
        paid = server.log()["paid"]
        figures["calls"] = len(paid)
        note(f"{len(paid):,} calls; {kills} kills")
        number = 0
        while figures["kills"] < kills:
            number += 1
            server.replan({"create": _LOSSES, "polls": 2})
            before, began = len(server.log()["batches"]), time.monotonic()
            report, times = run_killed(server, folder, f"run-{number}", count, kills - int(figures["kills"]), draw)
            log = server.log()
            twice = sum(times - 1 for times in log["paid"].values())
            lost = len(paid.keys() ^ log["paid"].keys())
            sizes = log["batches"][before:]
            figures["kills"] += times
            figures["batches"] += len(sizes)
            figures["calls_paid_twice"] += twice
            figures["calls_lost"] += lost
            figures["reports_different"] += report != whole
            rows.append([str(number), str(times), str(len(sizes)), f"{max(sizes):,}", str(twice), str(lost),
                         "no" if report != whole else "yes", f"{time.monotonic() - began:.0f}"])  # fmt: skip
            note(f"run {number}: {times} kills")
    header = ["run", "kills", "batches", "largest", "calls paid twice", "calls lost", "same report", "seconds"]
    table.show(f"Runs of {len(paid):,} calls by batches, killed", header, rows)
    table.conclude("batches", figures, REACH)


if __name__ == "__main__":
    main()

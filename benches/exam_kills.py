"""Adaptive exams of interviews, killed with SIGKILL at random moments and resumed, beside undisturbed ones.

For each number of conversations at once, ``viva run kieval --adaptive`` runs undisturbed, then once more with kills
between which ``viva resume`` goes on. The moments are drawn by seed: one kill in five comes while a process starts, the
others a few milliseconds after the journal has a random number of further rows. Items, probabilities and predictions of
all waves, the report, and what the last process prints must be those of the undisturbed run, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import table
from running import ROOT, note

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import recorded_report

sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "tests" / "servers")]
from exam_banks import make_bank  # noqa: E402 - in a folder of its own
from viva_process import recorded_rows  # noqa: E402

LATENCIES = {1: 0.001, 16: 0.01, 256: 0.05}  # of all models by conversations at once, so that runs last a few seconds
REACH: table.Reach = {
    "kills": (">=", 100), "steps_different": ("<=", 0), "reports_different": ("<=", 0), "outputs_different": ("<=", 0),
    "different_undisturbed_runs": ("<=", 1),
}  # fmt: skip
_ITEMS, _CANDIDATES, _LIMIT = 200, 32, 40  # in waves of 8: 256 conversations at once
_COUNTED = ("kills", "steps_different", "reports_different", "outputs_different")
_TABLES = ("started", "calls", "control", "ended")
_AT_START = 0.2
_LATEST = 0.02  # seconds between the row that a kill waits for and the kill


@dataclass
class Killed:
    """Kills of a run: their number, those before a process had recorded anything, and the last output."""

    kills: int = 0
    at_start: int = 0
    printed: bytes = b""


def started(folder: Path, run: Path, concurrency: int) -> subprocess.Popen[bytes]:
    """Begin the run, or resume it if it has begun."""
    words = ["resume", run, "--json", "--concurrency", str(concurrency)]
    if not (run / "manifest.json").exists():
        words = ["run", "kieval", "--config", "run.yaml", "--json", "--concurrency", str(concurrency), "--out", run]
    command = [sys.executable, "-m", "viva", *map(str, words)]
    with (folder / "stdout").open("wb") as output:  # not a pipe, which nobody reads before the kill
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.DEVNULL)


def finished(folder: Path, process: subprocess.Popen[bytes]) -> bytes:
    """Return what a process prints until it ends well."""
    if code := process.wait():
        raise SystemExit(f"exam_kills: a run ended with {code}")
    return (folder / "stdout").read_bytes()


def rows(run: Path) -> int:
    """Return the number of rows of a journal."""
    return sum(recorded_rows(run, name) for name in _TABLES)


def killed(
    folder: Path, run: Path, concurrency: int, kills: int, total: int, start: float, draw: random.Random
) -> Killed:
    """Run with so many kills; the run has ``total`` rows, and a process takes ``start`` seconds until its first row."""
    result = Killed()
    for left in range(kills, 0, -1):
        process, before = started(folder, run, concurrency), rows(run)
        if before and draw.random() < _AT_START:
            time.sleep(draw.uniform(0.0, start))
        else:
            target = before + draw.randint(1, max(1, round(1.5 * (total - before) / (left + 1))))
            while process.poll() is None and rows(run) < target:
                time.sleep(0.002)
            time.sleep(draw.uniform(0.0, _LATEST))
        process.kill()
        if (code := process.wait()) >= 0:
            note(f"a process ended with {code} before its kill")
            continue
        result.kills += 1
        result.at_start += rows(run) == before
    result.printed = finished(folder, started(folder, run, concurrency))
    return result


def steps(run: Path) -> list[Any]:
    """Return the recorded steps of all exams, by candidate: candidates need not be in step with each other."""
    with History(run / "journal.sqlite") as history:
        own = [step for record in history.control() for step in record["steps"]]
    return sorted(own, key=lambda step: step["candidate"])


def settings(source: Path, bank: Path, latency: float) -> dict[str, Any]:
    """Return the settings of the run."""
    skills = [number / _CANDIDATES for number in range(_CANDIDATES)]
    fields = {"dataset": str(source), "adaptive": str(bank), "n": _LIMIT, "until": "half_width=16", "rounds": 1}
    fields["candidate"] = [f"simulated:c{at}?knowledge={skill}&latency={latency}" for at, skill in enumerate(skills)]
    return fields | {role: f"simulated:{role}?latency={latency}" for role in ("interactor", "evaluator")}


def report(run: Path) -> str:
    """Return a run's report as JSON."""
    return json.dumps(recorded_report(RunFolder.open(run)))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 kills at each concurrency instead of 36")
    kills = 3 if parser.parse_args().quick else 36
    lines: list[list[str]] = []
    totals = dict.fromkeys(_COUNTED, 0.0)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        source, bank = make_bank(folder, items=_ITEMS)
        known: set[str] = set()
        for concurrency, latency in LATENCIES.items():
            note(f"{concurrency} at once: {kills} kills")
            (folder / "run.yaml").write_text(json.dumps(settings(source, bank, latency)))
            whole, run = folder / f"whole-{concurrency}", folder / f"killed-{concurrency}"
            process, began = started(folder, whole, concurrency), time.perf_counter()
            while process.poll() is None and not rows(whole):
                time.sleep(0.002)
            start = time.perf_counter() - began
            calm = finished(folder, process)
            draw, total = random.Random(concurrency), rows(whole)
            began = time.perf_counter()
            result = killed(folder, run, concurrency, kills, total, start, draw)
            seconds = time.perf_counter() - began
            same = [steps(run) == steps(whole), report(run) == report(whole), result.printed == calm]
            for name, value in zip(_COUNTED, (result.kills, *(not equal for equal in same)), strict=True):
                totals[name] += value
            known.add(json.dumps([steps(whole), json.loads(report(whole))["candidates"]]))
            counts = [recorded_rows(run, "calls"), sum("items" in step for step in steps(run)), result.kills]
            lines.append([str(concurrency), *(f"{count:,}" for count in counts), str(result.at_start),
                          *("yes" if equal else "no" for equal in same), f"{seconds:.0f}"])  # fmt: skip
    header = ["at once", "calls", "waves", "kills", "while starting", "items same", "report same", "output same", "s"]
    title = f"Adaptive exams of {_CANDIDATES} candidates on {_ITEMS} items, at most {_LIMIT} each"
    table.show(title, header, lines)
    table.conclude("exam_kills", {**totals, "different_undisturbed_runs": len(known)}, REACH)


if __name__ == "__main__":
    main()

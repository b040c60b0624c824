"""What a suite over finished conversations costs: 50,000 turns with four function metrics, beside upstream's own tool.

``viva suite run`` is measured as a whole process, its worker processes, report and results included. Upstream
(``python-flexeval``) gets the same conversations, in an environment of its own that is made with pip, and its four
functions of the same meaning; it takes fewer of them, for it takes many times as long. Both tools' sums have to agree.
The gate is measured too: false alarms of 1,000 release pairs without a regression, and findings of a planted one.
``--quick`` takes 10,000 turns, fewer of upstream's, and a tenth of the release pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import table
from running import PEERS, ROOT, Line, PeerFailed, last_line, note

sys.path[:0] = [str(PEERS), str(ROOT / "tests" / "models")]
from release_pairs import alarms, continuous, skewed  # noqa: E402 - in a folder of its own
from suites_workload import TURNS, write_conversations  # noqa: E402

REACH: table.Reach = {"seconds_50k": ("<=", 60), "cpu_ratio": (">=", 5), "kb_per_turn": ("<=", 1)}
ALPHA = 0.05
_SUITE = """name: speed
conversations: [talks.jsonl]
complete: none
metrics:
  - {function: length}
  - {function: flesch_reading_ease}
  - {function: is_role, arguments: {role: assistant}, level: turn}
  - {function: tool_calls, level: turn}
"""
# Upstream's names, ours, and that of the value.
_SAME = {"string_length": "length", "flesch_reading_ease": "flesch_reading_ease", "is_role": "is_role.assistant",
         "count_tool_calls": "tool_calls"}  # fmt: skip
# Its newest textstat downloads a dictionary when it is first used; this one brings it.
_PEER = ("python-flexeval", "textstat>=0.7.4,<0.7.8")


def ours(folder: Path, turns: int) -> Line:
    """Seconds, CPU seconds (workers included) and peak memory in MB of one run of a suite, and its sums.

    :raises PeerFailed: it did not end well.
    """
    folder.mkdir()
    write_conversations(folder / "talks.jsonl", turns // TURNS)
    (folder / "suite.yaml").write_text(_SUITE)
    out = folder / "run"
    note(f"viva suite run: {turns:,} turns")
    command = [sys.executable, "-m", "viva", "suite", "run", str(folder / "suite.yaml"), "--out", str(out), "--json"]
    began = time.perf_counter()
    with (folder / "report.json").open("wb") as report, (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=report, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise PeerFailed(f"{' '.join(command)} ended with {process.returncode}: {(folder / 'log').read_text()[-2000:]}")
    [figures] = json.loads((folder / "report.json").read_bytes())["candidates"].values()
    sums = {name: [figure["n"], figure["n"] * figure.get("mean", 0.0)] for name, figure in figures["metrics"].items()}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss * unit / 1e6,
            "values": sums, "turns": turns, "size_mb": _size(out)}  # fmt: skip


def _size(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def peer_python(path: Path | None) -> Path | str:
    """The interpreter of an environment with upstream's tool; in words why there is none."""
    python = path or ROOT / ".peers" / "flexeval" / "bin" / "python"
    if python.exists():
        return python
    if path is not None:
        return f"there is no {path}"
    note(f"pip install {' '.join(_PEER)}")
    folder = python.parent.parent
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *_PEER]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return python


def upstream(folder: Path, python: Path, turns: int) -> Line:
    """Upstream's figures on the first conversations of the same file.

    :raises PeerFailed: it did not end well.
    """
    write_conversations(folder / "few.jsonl", turns // TURNS)
    note(f"python-flexeval: {turns:,} turns")
    return last_line([str(python), "flexeval_run.py", str(folder / "few.jsonl"), str(folder / f"{turns}.db")]) | {
        "turns": turns
    }


def check_same(theirs: Line, same: Line) -> None:
    """See that both tools have computed the same.

    :raises PeerFailed: they have not.
    """
    for name, own in _SAME.items():
        count, total = theirs["values"].get(name, [0, 0.0])
        our_count, our_total = same["values"][own]
        if count != our_count or not math.isclose(total, our_total, rel_tol=1e-6, abs_tol=1e-6):
            raise PeerFailed(f"{name}: {count} values, sum {total}; ours: {our_count}, {our_total}")


def gate(pairs: int) -> dict[str, float]:
    """The shares of simulated release pairs in which the gate is red."""
    note(f"the gate: {pairs:,} release pairs")
    began = time.process_time()
    shares = {
        "one metric, 40 conversations": alarms(continuous, pairs, alpha=ALPHA),
        "one skewed metric, 40 conversations, 3 repeats": alarms(skewed, pairs, repeats=3, alpha=ALPHA),
        "twenty metrics, 40 conversations": alarms(continuous, pairs, metrics=20, alpha=ALPHA),
    }
    alarm_counts = alarms(continuous, pairs, fall=0.5 * math.sqrt(2), alpha=ALPHA)
    rows = [[case, "none", f"{100 * red / pairs:.1f}%"] for case, red in shares.items()]
    rows.append(["one metric, 40 conversations", "0.5 sd of the differences", f"{100 * alarm_counts / pairs:.1f}%"])
    table.show(f"The gate at alpha {ALPHA}: {pairs:,} release pairs", ["what", "regression", "red"], rows)
    once, skew, twenty = (red / pairs for red in shares.values())
    return {
        "false_alarms_one": once,
        "false_alarms_skewed": skew,
        "false_alarms_twenty": twenty,
        "power_half_sd_40": alarm_counts / pairs,
        "ms_per_comparison": 1e3 * (time.process_time() - began) / (23 * pairs),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what a suite over finished conversations costs")
    parser.add_argument("--quick", action="store_true", help="10,000 turns, under a minute")
    parser.add_argument("--flexeval-python", type=Path, help="interpreter of an environment with python-flexeval")
    options = parser.parse_args()
    turns, small_count = (10_000, 100) if options.quick else (50_000, 1_000)
    began = time.perf_counter()
    lines: dict[str, Line] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            small = ours(folder / "small", small_count)
            lines["viva"] = ours(folder / "large", turns)
            python = peer_python(options.flexeval_python)
            if isinstance(python, Path):
                lines["python-flexeval"] = upstream(folder, python, small_count)
                check_same(lines["python-flexeval"], small)
            else:
                print(f"python-flexeval is left out: {python}")
        except PeerFailed as failed:
            raise SystemExit(f"suites: {failed}") from None
    cells = [
        [name, f"{line['turns']:,}", f"{line['seconds']:.1f}", f"{1e6 * line['cpu'] / line['turns']:,.0f}",
         f"{line['peak_mb']:.0f}"]
        for name, line in lines.items()
    ]  # fmt: skip
    table.show("Finished turns with four function metrics", ["tool", "turns", "s", "CPU µs per turn", "peak MB"], cells)
    large = lines["viva"]
    count = f"{turns // 1000}k"
    figures = {
        f"seconds_{count}": large["seconds"],
        f"cpu_seconds_{count}": large["cpu"],
        f"peak_mb_{count}": large["peak_mb"],
        "kb_per_turn": 1e3 * max(0.0, large["peak_mb"] - small["peak_mb"]) / (turns - small_count),
        "us_cpu_per_turn": 1e6 * large["cpu"] / turns,
        "us_per_turn": 1e6 * large["seconds"] / turns,
        "folder_mb": large["size_mb"],
    }
    if (theirs := lines.get("python-flexeval")) is not None:
        figures["upstream_us_cpu_per_turn"] = 1e6 * theirs["cpu"] / small_count
        figures["upstream_us_per_turn"] = 1e6 * theirs["seconds"] / small_count
        figures["cpu_ratio"] = figures["upstream_us_cpu_per_turn"] / figures["us_cpu_per_turn"]
        figures["wall_ratio"] = figures["upstream_us_per_turn"] / figures["us_per_turn"]
    figures |= gate(100 if options.quick else 1_000)
    table.conclude("suites", {name: round(value, 4) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

"""What tool-use dialogs cost compared with interviews: CPU per call, and memory per dialog of ten thousand in flight.

Whole dialogs with a simulated user and tools; if FunctionChat-Bench's files are at hand (``VIVA_DATA``), its single
turns, each a conversation of a single call that is graded; and interviews of KIEval on the same engine, for comparison.
Each program runs as its own process and reports its own CPU time. ``--quick`` measures everything once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

import table
from running import ROOT, Line, PeerFailed, last_line, note

DATA = Path(os.environ.get("VIVA_DATA", ROOT.parent / "shared" / "data")) / "functionchat"
IN_FLIGHT = 10_000
# A call costs what it costs in an interview, measured in the same run; a dialog weighs no more than one may.
REACH: table.Reach = {
    "talks_vs_kieval": ("<=", 1.1),
    "talks_vs_kieval_all_at_once": ("<=", 1.1),
    "kb_per_dialog": ("<=", 30),
}


def dialogs(mode: str, data: str, *options: str) -> Line:
    """Dialogs over canned models."""
    note(f"dialogs_run.py {mode} {' '.join(options)}")
    return last_line([sys.executable, "dialogs_run.py", mode, "--data", data, *options])


def interviews(count: int, width: int, *options: str) -> Line:
    """KIEval interviews over canned models."""
    note(f"engine_run.py {count} {width} {' '.join(options)}")
    size = ["--conversations", str(count), "--concurrency", str(width)]
    return last_line([sys.executable, "engine_run.py", *size, *options])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what tool-use dialogs cost")
    parser.add_argument("--quick", action="store_true", help="everything once, under a minute")
    options = parser.parse_args()
    turns = DATA.is_dir()
    if not turns:
        print(f"single turns are left out: there is no {DATA} (see VIVA_DATA)")
    began = time.perf_counter()
    lines: dict[str, list[Line]] = {}
    weights: dict[str, float] = {}
    repeats = str(-(-IN_FLIGHT // 12))  # four candidates, three tasks
    width_options = ["--concurrency", str(2 * IN_FLIGHT)]
    try:
        for _ in range(1 if options.quick else 3):
            lines.setdefault("talks", []).append(dialogs("user", "examples", "--candidates", "4", "--repeats", "300"))
            if turns:
                lines.setdefault("turns", []).append(dialogs("turns", str(DATA), "--repeats", "60"))
            lines.setdefault("interviews", []).append(interviews(3_000, 1_000))
        user_lines = dialogs("user", "examples", "--candidates", "4", "--repeats", repeats, *width_options, "--memory")
        weights["talks"], lines["talks, all at once"] = user_lines["kb_per_conversation"], [user_lines]
        if turns:
            weights["turns"] = dialogs("turns", str(DATA), "--repeats", "15", *width_options, "--memory")[
                "kb_per_conversation"
            ]
        kieval = interviews(IN_FLIGHT, IN_FLIGHT, "--memory")
        weights["interviews"], lines["interviews, all at once"] = kieval["kb_per_conversation"], [kieval]
    except PeerFailed as failed:
        raise SystemExit(f"dialogs: {failed}") from None
    cost = {name: median(line["us_per_call"] for line in some) for name, some in lines.items()}
    cells = [
        [name, f"{some[0]['conversations']:,}", f"{some[0]['calls']:,}", f"{cost[name]:.1f}"]
        for name, some in lines.items()
    ]
    table.show("CPU per call", ["what", "conversations", "calls", "µs"], cells)
    table.show("Waiting for an answer", ["what", "kB each"], [[state, f"{kb:.1f}"] for state, kb in weights.items()])
    figures = {
        "talks_vs_kieval": cost["talks"] / cost["interviews"],
        "talks_vs_kieval_all_at_once": cost["talks, all at once"] / cost["interviews, all at once"],
        "kb_per_dialog": weights["talks"],
        "dialogs_in_flight": float(user_lines["most_in_flight"]),
        "us_per_call": cost["talks"],
        "us_per_call_all_at_once": cost["talks, all at once"],
    }
    if turns:
        figures |= {"us_per_single_turn": cost["turns"], "kb_per_single_turn": weights["turns"]}
    table.conclude("dialogs", {name: round(value, 2) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

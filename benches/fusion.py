"""Judges with assistants over the 360 replies of Topical-Chat: each mode whole, killed and resumed, byte against byte.

The judge is simulated, the assistants are real: ROUGE-L, BLEU and the token probability of a small llama model with
random weights, made here. Figures are what assistants cost beside the judge, the agreement of each mode's judge with
people, and whether a run that was killed by SIGKILL half-way reports the same bytes (1 or 0). Needs the data
(``VIVA_DATA``). ``--quick`` takes 36 replies.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import orjson
import table
from running import ROOT, Line, PeerFailed, finish, note

DATA = Path(os.environ.get("VIVA_DATA", ROOT.parent / "shared" / "data")) / "topicalchat" / "unieval_predictions.json"
MODES = ("direct", "noplan", "plan")
PREDICTIONS = 8
REACH: table.Reach = {f"{mode}_resumed_identically": (">=", 1) for mode in MODES}
_PLAN = """text: |
  Read the reply first. Take lm for how natural it is, rouge-l and bleu for whether it uses the fact.
use:
  naturalness: [lm]
  understandability: [lm]
  groundedness: [rouge-l, bleu]
"""
_MODEL = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tiny_gguf import make_model
make_model(Path(sys.argv[2]), seed=5)
"""


def arguments(folder: Path, mode: str, rows: int) -> list[str]:
    """The command that runs a mode, without the run's folder."""
    model = f"lm=logprob:llama:{folder / 'tiny.gguf'}?lanes=4&threads=2&ctx=8192"
    command = [
        sys.executable,
        "-m",
        "viva",
        "run",
        "fusion",
        "--task",
        "dialogue",
        "--data",
        str(DATA),
        "-n",
        str(rows),
    ]
    command += ["--judge", "simulated:judge?noise=0.3&malformed=0.05", "--predictions", str(PREDICTIONS)]
    command += ["--mode", mode, "--plan", str(folder / "plan.yaml"), "--concurrency", "32", "--json"]
    return [*command, "--assistant", "rouge-l", "--assistant", "bleu", "--assistant", model]


def killed(command: list[str], run: Path, calls: int) -> int:
    """Begin a run and kill it once so many calls and steps are recorded; how many there are in the end."""
    process = subprocess.Popen(
        [*command, "--out", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    while process.poll() is None and recorded(run) < calls:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return recorded(run)


def recorded(run: Path) -> int:
    """The calls and steps in a run's journal."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{run / 'journal.sqlite'}?mode=ro", uri=True)) as journal,
    ):
        return int(journal.execute("select count(*) from calls").fetchone()[0])
    return 0


def measured(folder: Path, mode: str, rows: int) -> tuple[Line, dict[str, float]]:
    """A mode's report, and its figures."""
    command = arguments(folder, mode, rows)
    note(f"{mode}: {rows} replies")
    began = time.perf_counter()
    whole = finish([*command, "--out", str(folder / f"{mode}-whole")], cwd=ROOT)
    took = time.perf_counter() - began
    total = recorded(folder / f"{mode}-whole")
    cut = folder / f"{mode}-cut"
    before = killed(command, cut, total // 2)
    note(f"{mode}: killed at {before:,} of {total:,} calls and steps")
    resumed = finish([sys.executable, "-m", "viva", "resume", str(cut), "--json"], cwd=ROOT)
    report: Line = orjson.loads(whole)
    return report, {
        f"{mode}_seconds": round(took, 2),
        f"{mode}_killed_at_share": round(before / total, 3),
        f"{mode}_resumed_identically": float(resumed == whole),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="judges with assistants")
    parser.add_argument("--quick", action="store_true", help="36 replies")
    options = parser.parse_args()
    if not DATA.is_file():
        print(f"fusion: nothing is measured: there is no {DATA} (see VIVA_DATA)")
        return
    rows = 36 if options.quick else 360
    figures: dict[str, float] = {"replies": float(rows)}
    cells: dict[str, dict[str, str]] = {}
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "plan.yaml").write_text(_PLAN)
            finish([sys.executable, "-c", _MODEL, str(ROOT / "tests" / "models"), str(folder / "tiny.gguf")])
            for mode in MODES:
                report, measures = measured(folder, mode, rows)
                figures |= measures
                judge = report["candidates"]["judge"]
                gaps = sum(sum(problems.values()) for problems in judge["gaps"].values())
                figures[f"{mode}_gaps"] = float(gaps)
                for criterion, agreement in judge["agreement"].items():
                    sources = agreement["sources"]
                    for source in sources if mode == MODES[-1] else ["judge"]:
                        label = f"judge, {mode}" if source == "judge" else source
                        cell = "–" if sources[source] is None else _spearman(sources[source])
                        cells.setdefault(label, {})[criterion] = cell
                    figures[f"{mode}_spearman_{criterion}"] = sources["judge"]["items"]["spearman"]["value"]
    except PeerFailed as failed:
        raise SystemExit(f"fusion: {failed}") from None
    criteria = list(next(iter(cells.values())))
    lines = [[label, *(row.get(name, "–") for name in criteria)] for label, row in cells.items()]
    table.show("Spearman with people, by reply", ["source", *criteria], lines)
    table.conclude("fusion", figures, REACH)


def _spearman(figures: Line) -> str:
    value = (figures["items"]["spearman"] or {}).get("value")
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()

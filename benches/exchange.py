"""What exports cost: a run of 100,000 conversations in each format, each as a process of its own.

Seconds, records a second and peak memory. The same is done with a tenth of the conversations, so that the memory which
each further conversation takes is told apart from what a package takes when it is imported. Logs of Inspect take many
times as long, so only a fifth of the conversations is exported to them. ``--quick`` exports 4,000.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import table
from running import PeerFailed, note

import viva
from viva.exchange.exports.formats import FORMATS

# Inspect's own recorder holds a summary of every sample until the log is written.
REACH: table.Reach = {f"{name}_kb_per_conversation": ("<=", 16 if name == "inspect" else 4) for name in FORMATS}


class Says(viva.Backend):
    """Answers with a paragraph."""

    def __init__(self, label: str) -> None:
        self.label = label

    async def generate(self, request: viva.Request) -> viva.Completion:
        return viva.Completion(f"Because of {request.ordinal}. " * 20, prompt_tokens=90, completion_tokens=80)


@viva.scenario(many="pupil", judge="examiner")
async def lesson(conversation: viva.Conversation, task: str) -> dict[str, Any]:
    """Two questions, and a word on the answers."""
    view = viva.View()
    for number in range(2):
        view.append("user", f"Question {number} about {task}: why?")
        completion = await conversation.generate("pupil", view, viva.Sampling())
        view.append("assistant", completion.text)
    await conversation.generate("examiner", view, viva.Sampling())
    return {"score": float(len(task) % 101), "care": 3}


def make_run(out: Path, conversations: int) -> None:
    """Run the conversations and record them in a folder."""
    note(f"running {conversations:,} conversations")
    models: Any = {"pupil": [Says("pupil")], "examiner": Says("examiner")}
    tasks = [f"towers, part {number}" for number in range(conversations)]
    viva.run_sync(lesson, models=models, tasks=tasks, out=out, concurrency=200)


def exported(run: Path, form: str, out: Path) -> tuple[float, float, float]:
    """Seconds, peak memory in MB and size in MB of one export.

    :raises PeerFailed: it did not end well.
    """
    note(f"{run.name}: {form}")
    code = "import sys, exchange; from viva.cli.start import main; sys.argv[0] = 'viva'; main()"
    command = [sys.executable, "-c", code, "export", str(run), "--format", form, "--out", str(out)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parent)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        output = log.read().decode(errors="replace")
    seconds = time.perf_counter() - began
    if process.returncode:
        raise PeerFailed(f"{' '.join(command)} ended with {process.returncode}: {output[-2000:]}")
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, used.ru_maxrss * unit / 1e6, sum(path.stat().st_size for path in files) / 1e6


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what exports cost")
    parser.add_argument("--quick", action="store_true", help="4,000 conversations, under a minute")
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--to", action="append", choices=list(FORMATS), help="only this format; may be repeated")
    options = parser.parse_args()
    count_large = 4_000 if options.quick else options.conversations
    count_small = count_large // 10
    figures: dict[str, float] = {"conversations": count_large}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        forms = options.to or list(FORMATS)
        sizes = {form: count_large // 5 if form == "inspect" else count_large for form in forms}
        runs = {count: Path(folder) / f"run-{count}" for count in sorted({count_small, *sizes.values()})}
        for count, run in runs.items():
            make_run(run, count)
        for form, count in sizes.items():
            _, memory_small, _ = exported(runs[count_small], form, Path(folder) / f"few-{form}")
            seconds, memory_large, size = exported(runs[count], form, Path(folder) / f"many-{form}")
            each = 1000 * max(0.0, memory_large - memory_small) / (count - count_small)
            figures |= {
                f"{form}_seconds": seconds,
                f"{form}_peak_mb": memory_large,
                f"{form}_kb_per_conversation": each,
            }
            rows.append([form, f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{memory_small:.0f}",
                         f"{memory_large:.0f}", f"{each:.2f}", f"{size:.0f}"])  # fmt: skip
    header = [
        "format",
        "conversations",
        "seconds",
        "a second",
        f"MB, {count_small:,}",
        "MB, all",
        "KB each",
        "size, MB",
    ]
    table.show(f"exports of {count_large:,} conversations", header, rows)
    table.conclude("exchange", figures, REACH)


if __name__ == "__main__":
    main()

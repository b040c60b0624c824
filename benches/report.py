"""What a report over many conversations costs: seconds and memory of ``viva report`` as a whole process.

One run of ten candidates with 10,000 interviews each is written straight into a journal, by the engine's own journal
but without holding the interviews: verdicts are drawn at random, and the table of calls, which no report reads, stays
empty. Then the plain report, the study as JSON, and the study as an HTML page are each made by a process of its own.
``--quick`` takes a tenth of the interviews; the figures that have a reach are then not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import table
from running import PeerFailed, note

from viva.engine.clock import RealClock
from viva.engine.journal import Journal
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.score import Interview, Round

CANDIDATES = 10
ROUNDS = 5
REACH: table.Reach = {"seconds_100k": ("<=", 10), "peak_mb_100k": ("<=", 500)}
_REASONS = ("off_topic", "repetition", "empty_response")
_BATCH = 2_000


def interview(candidate: str, item: str, ability: float, draw: random.Random) -> Interview:
    """An invented interview: better candidates score higher and are stopped less often."""
    knows = draw.random() < ability
    conversation = Interview(candidate, item, ROUNDS, choice=draw.randrange(4), right=knows)
    for _ in range(ROUNDS):
        round_scores = Round([min(4, max(1, round(draw.gauss(3.2 if knows else 1.9, 0.8)))) for _ in range(6)])
        round_scores.scores = None if draw.random() < 0.01 else round_scores.scores
        conversation.rounds.append(round_scores)
        if draw.random() < (0.03 if knows else 0.15):
            round_scores.stop = draw.choice(_REASONS)
            conversation.ended_by, conversation.reason = "evaluator", round_scores.stop
            break
    n = len(conversation.rounds)
    conversation.usage = {"candidate": [n + 1, 400 * n, 60 * n], "evaluator": [n, 1100 * n, 150 * n]}
    conversation.usage["interactor"] = [n, 450 * n, 30 * n]
    return conversation


def make_run(folder: Path, conversations: int) -> Path:
    """A run folder as ``viva run`` makes it, with a journal of so many interviews."""
    draw = random.Random(7)
    items = folder / "items.jsonl"
    ids = [f"item-{number:05}" for number in range(conversations // CANDIDATES)]
    lines = ({"id": id_, "question": f"Which is {id_}?", "choices": ["a", "b", "c", "d"], "answer": 0} for id_ in ids)
    items.write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = [f"candidate-{number}" for number in range(CANDIDATES)]
    settings = KievalSettings(
        dataset=str(items),
        candidate=[f"simulated:{label}" for label in labels],
        interactor="simulated:interactor?price_in=10&price_out=30",
        evaluator="simulated:evaluator?price_in=10&price_out=30",
    )
    run = new_run("kieval", settings, folder / "run").folder

    async def write(run: RunFolder) -> None:
        async with Journal(run.journal, RealClock()) as journal:
            number = 0
            for id_ in ids:
                record = {"id": id_, "question": f"Which is {id_}?", "choices": ["a", "b", "c", "d"], "answer": 0}
                for position, label in enumerate(labels):
                    journal.record_started(number, f"{label}/{id_}", record | {"subject": ""})
                    conversation = interview(label, id_, 0.3 + 0.06 * position, draw)
                    journal.record_ended(number, "finished", conversation.to_record())
                    number += 1
                    if number % _BATCH == 0:
                        await journal.flush()

    asyncio.run(write(run))
    return run.path


def timed(*arguments: str | Path) -> tuple[float, float, float]:
    """Wall and CPU seconds and peak memory in MB of one ``viva`` command, its interpreter's start included.

    :raises PeerFailed: it did not end well.
    """
    command = [sys.executable, "-m", "viva", *map(str, arguments)]
    note(" ".join(command[2:4]) + f" … {' '.join(map(str, arguments[2:]))}")
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise PeerFailed(f"{' '.join(command)} ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kibibytes elsewhere
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * unit / 1e6


def main() -> None:
    """Write the journal, make the reports, print."""
    parser = argparse.ArgumentParser(description="what a report over many conversations costs")
    parser.add_argument("--quick", action="store_true", help="10,000 interviews")
    options = parser.parse_args()
    conversations = 10_000 if options.quick else 100_000
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = make_run(folder, conversations)
        size = run.joinpath("journal.sqlite").stat().st_size / 1e6
        note(f"a journal of {conversations:,} interviews, {size:.0f} MB, in {time.perf_counter() - began:.0f} s")
        page = folder / "report.html"
        ways: dict[str, list[str | Path]] = {
            "the run's own report, --json": [run, "--json"],
            "study, --scorer official --json": [run, "--scorer", "official", "--json"],
            "study, --html": [run, "--html", page],
        }
        try:
            measured = {name: timed("report", *arguments) for name, arguments in ways.items()}
        except PeerFailed as failed:
            raise SystemExit(f"report: {failed}") from None
        page_mb = page.stat().st_size / 1e6
    rows = [[name, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}"] for name, (wall, cpu, peak) in measured.items()]
    plots = "with plots" if find_spec("matplotlib") else "without plots (matplotlib is not installed)"
    table.show(
        f"viva report over {conversations:,} interviews, {plots}", ["report", "wall s", "CPU s", "peak MB"], rows
    )
    count = "100k" if conversations == 100_000 else f"{conversations // 1000}k"
    figures = {
        f"seconds_{count}": max(wall for wall, _, _ in measured.values()),
        f"peak_mb_{count}": max(peak for _, _, peak in measured.values()),
    }
    for name, short in zip(ways, ("plain", "study", "html"), strict=True):
        wall, cpu, peak = measured[name]
        figures |= {f"{short}_seconds": wall, f"{short}_cpu_seconds": cpu, f"{short}_peak_mb": peak}
    figures |= {"conversations": conversations, "html_mb": page_mb}
    table.conclude("report", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

"""What runs cost on disk and to read again: a repeated report, and a compacted journal.

Twenty runs of interviews are written by the engine's own journal (``report.make_run``); ``viva report`` over all of
them is made by processes of their own: fresh, for the first time with an empty cache, again, and again after one run
has changed. Then one of the runs is compacted, with calls beside its interviews.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import table
from report import make_run
from running import PEERS, PeerFailed, note

from viva.engine.clock import RealClock
from viva.engine.journal import Journal
from viva.engine.journal_compaction import compact_journal
from viva.engine.messages import Completion
from viva.engine.run_folder import RunFolder

sys.path.insert(0, str(PEERS))
CELLS = 20
REACH: table.Reach = {"again_share": ("<=", 0.25), "compacted_share": ("<=", 0.5)}
_WORDS = ("the", "of", "and", "to", "in", "was", "it", "for", "with", "he", "be", "on", "that", "by", "at", "you")


def reported(runs: list[Path], cache: Path, *options: str) -> tuple[float, bytes]:
    """Seconds of ``viva report … --json`` as a whole process, and what it printed.

    :raises PeerFailed: it did not end well.
    """
    command = [sys.executable, "-m", "viva", "report", *map(str, runs), "--json", *options]
    began = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, cwd=runs[0].parent
    )
    if done.returncode:
        raise PeerFailed(done.stderr.decode()[-2000:])
    return time.perf_counter() - began, done.stdout


def settle(run: Path) -> None:
    """As if the files had been written some time ago: runs with files written just now are not cached."""
    for file in run.iterdir():
        os.utime(file, (1_600_000_000, 1_600_000_000))


def add_calls(run: Path, count: int) -> None:
    """Give a run answers, of words that no two have in the same order."""
    draw = random.Random(5)

    async def write() -> None:
        async with Journal(RunFolder.open(run).journal, RealClock()) as journal:
            for number in range(count):
                text = " ".join(draw.choice(_WORDS) + draw.choice(("", "s", "ed", "ing")) for _ in range(90))
                digest = draw.randbytes(16)
                journal.record_call(
                    number // 4, "candidate", number % 4, digest, Completion(text, "stop", 400, 90), 1.5
                )
                if number % 5_000 == 0:
                    await journal.flush()

    asyncio.run(write())


def main() -> None:
    """Write the runs, make the reports, compact, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 runs of 1,000 interviews in place of 5,000")
    each = 1_000 if parser.parse_args().quick else 5_000
    with tempfile.TemporaryDirectory() as scratch:
        runs = []
        for number in range(CELLS):
            folder = Path(scratch) / f"cell-{number:02}"
            folder.mkdir()
            runs.append(make_run(folder, each))
            settle(runs[-1])
        note(f"{CELLS} runs of {each:,} interviews")
        cache = Path(scratch) / "cache"
        fresh, expected = reported(runs, cache, "--fresh")
        first, output = reported(runs, cache)
        same = output == expected
        second, output = reported(runs, cache)
        same = same and output == expected
        with closing(sqlite3.connect(runs[7] / "journal.sqlite")) as journal, journal:
            journal.execute("delete from ended where number % 50 = 0")
        settle(runs[7])
        changed, output = reported(runs, cache)
        same = same and output == reported(runs, cache, "--fresh")[1] != expected
        add_calls(runs[0], 4 * each)
        began = time.perf_counter()
        made = compact_journal(runs[0] / "journal.sqlite")
        seconds = time.perf_counter() - began
    figures = {
        "fresh_s": fresh, "first_s": first, "again_s": second, "changed_s": changed, "again_share": second / fresh,
        "changed_share": changed / fresh, "reports_differ": float(not same), "conversations": float(CELLS * each),
        "before_mb": made.before / 1e6, "after_mb": made.after / 1e6, "compacted_share": made.after / made.before,
        "compact_s": seconds,
    }  # fmt: skip
    table.show("Store", ["figure", "measured"], [[key, f"{value:,.3f}"] for key, value in figures.items()])
    reach = REACH | {"reports_differ": ("<=", 0)}
    table.conclude("store", {key: round(value, 4) for key, value in figures.items()}, reach)


if __name__ == "__main__":
    main()

"""Does a large run last? 100,000 conversations, 20,000 of them in flight, over real HTTP to an endpoint with faults.

The endpoint (``peers/mock_endpoint.py``) answers after a lognormal wait of seconds; the client meets refusals, broken
streams, slow answers and five seconds without a server (``--chaos``). Half-way the process is killed with SIGKILL and
the run resumed. Measured in both halves: how memory grows once the conversations that were first in flight have ended
(until then it must grow, for a conversation holds what has been said in it). Also how late the event loop is, that no
conversation is lost or doubled and no call sent twice except those in flight at the kill; and, without HTTP, calls
journalled a second.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import table
from running import PEERS, PeerFailed, last_line, note

REACH: table.Reach = {
    "conversations_lost_or_doubled": ("<=", 0),
    "conversations_failed": ("<=", 0),
    "growth_mb": ("<=", 100),
    "loop_lag_p99_ms": ("<=", 50),
    "journalled_calls_per_s": (">=", 20_000),
    "begins_again_s": ("<=", 5),
}
Line = dict[str, Any]


def run(folder: Path, url: str, count: int, width: int, kill_at: int | None = None) -> list[Line]:
    """What the run said as it went on, and at its end its own figures, unless it was killed once so many conversations
    had finished.

    :raises PeerFailed: it ended badly by itself.
    """
    command = [sys.executable, str(PEERS / "soak_run.py"), "--conversations", str(count), "--concurrency", str(width)]
    command += ["--url", url, "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PEERS)
    assert process.stdout is not None
    lines: list[Line] = []
    for text in process.stdout:
        lines.append(json.loads(text))
        if kill_at is not None and lines[-1].get("finished", 0) >= kill_at:
            process.kill()
            process.wait()
            return lines
    if process.wait() or "wall_s" not in lines[-1]:
        raise PeerFailed(f"{' '.join(command)} ended with {process.returncode}")
    return lines


def settled_memory(lines: list[Line], width: int) -> tuple[float, float]:
    """MB when the conversations that were first in flight have ended, and the most from then on."""
    samples = [line for line in lines if "mb" in line]
    full = next(line["finished"] for line in samples if line["in_flight"] >= 0.99 * width)
    after = [line["mb"] for line in samples if line["finished"] >= full + width]
    return after[0], max(after)


def begins_again(folder: Path, url: str, count: int, width: int) -> float:
    """Seconds until a resumed run's first call reaches the endpoint; the run is killed then."""
    before = requests_at(url)
    command = [sys.executable, str(PEERS / "soak_run.py"), "--conversations", str(count), "--concurrency", str(width)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, "--url", url, "--folder", str(folder)], stdout=subprocess.DEVNULL, cwd=PEERS)
    while requests_at(url) == before and process.poll() is None:
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    process.kill()
    process.wait()
    return seconds


def requests_at(url: str) -> int:
    """How many calls the endpoint has had."""
    with urlopen(f"{url.removesuffix('/v1')}/stats", timeout=60) as answer:
        return int(json.load(answer)["requests"])


def lost_or_doubled(journal: Path, count: int) -> int:
    """Conversations without an end, and calls that stand in the journal twice."""
    with closing(sqlite3.connect(journal)) as database:
        (ended,) = database.execute("select count(*) from ended").fetchone()
        (twice,) = database.execute(
            "select count(*) from (select 1 from calls group by conversation, role, ordinal having count(*) > 1)"
        ).fetchone()
    return int(count - ended + twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4,000 conversations, 1,000 in flight")
    quick = parser.parse_args().quick
    count, width, wait = (4_000, 1_000, 0.5) if quick else (100_000, 20_000, 4.0)
    command = [sys.executable, str(PEERS / "mock_endpoint.py"), "--median", str(wait), "--sigma", "0.5"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PEERS)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}/v1"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            note(f"{count:,} conversations, {width:,} in flight, killed half-way")
            first = run(folder, url, count, width, kill_at=count // 2)
            killed_at = requests_at(url)
            resumed_run = begins_again(folder, url, count, width)
            second = run(folder, url, count, width)
            request_count = requests_at(url)
            wrong = lost_or_doubled(folder / "run" / "journal.sqlite", count)
    finally:
        server.kill()
        server.wait()
    canned = last_line(
        [sys.executable, str(PEERS / "engine_run.py"), "--conversations", "4000", "--concurrency", "1000"]
    )
    line = second[-1]
    (before_kill, most_before_kill), (resumed, most_resumed) = (
        settled_memory(process, width) for process in (first, second)
    )
    figures = {
        "conversations_lost_or_doubled": wrong,
        "conversations_failed": line["failed"] + (count - line["scored"]),
        "calls_asked": request_count,
        "calls_before_the_kill": killed_at,
        "most_in_flight": max(line["in_flight"] for line in (*first, *second) if "mb" in line),
        "memory_settled_mb": before_kill,
        "memory_settled_resumed_mb": resumed,
        "growth_mb": max(most_before_kill - before_kill, most_resumed - resumed),
        "peak_mb": line["peak_rss_mb"],
        "loop_lag_p99_ms": line["lag"]["p99_ms"],
        "http_calls_per_s": line["calls"] / line["wall_s"],
        "journalled_calls_per_s": canned["calls"] / canned["wall_s"],
        "begins_again_s": resumed_run,
    }
    table.show("Soak", ["figure", "measured"], [[key, f"{value:,.1f}"] for key, value in figures.items()])
    table.conclude("soak", figures, REACH)


if __name__ == "__main__":
    main()

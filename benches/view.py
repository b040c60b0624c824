"""What looking at runs costs: pages over 100,000 conversations, and what 500 readers of news cost a run in progress.

A run of ten candidates with 10,000 interviews each is written straight into a journal by the engine's own journal, with
three calls an interview. ``viva view`` in a process of its own indexes it; then each page is asked for twice, and the
second answer is timed. After that a simulated run, which waits for nothing and so takes a whole core, is timed alone
and with a viewer that 500 connections listen to. ``--quick`` takes a tenth of both.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import table
from report import CANDIDATES, interview, timed
from running import note

from viva.engine.clock import RealClock
from viva.engine.journal import Journal
from viva.engine.messages import Completion
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

READERS = 500
REACH: table.Reach = {
    "slowest_page_ms_100k": ("<=", 300),
    "slowest_first_page_ms_100k": ("<=", 3_000),
    "viewer_peak_mb_100k": ("<=", 300),
    "readers_cost_percent": ("<=", 10),
    "readers_cpu_cost_percent": ("<=", 10),
    "run_page_readers_cost_percent": ("<=", 10),
    "run_page_readers_cpu_cost_percent": ("<=", 10),
}
_WORDS = [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()[:7] for number in range(5_000)]
_ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
_BATCH = 2_000
_BUSY = re.compile("· (verdicts and intervals are being computed|updating)")  # of the overview


def sentence(draw: random.Random, count: int) -> str:
    """Words, one of which stands in every text."""
    return "because " + " ".join(draw.choices(_WORDS, k=count))


def make_run(folder: Path, conversations: int) -> Path:
    """A run folder as ``viva run`` makes it, with a journal of so many interviews and their calls."""
    draw = random.Random(7)
    items = folder / "items.jsonl"
    ids = [f"item-{number:05}" for number in range(conversations // CANDIDATES)]
    records = {
        id_: {"id": id_, "question": f"Which is {id_}? {sentence(draw, 12)}", "choices": ["a", "b", "c", "d"],
              "answer": 0} for id_ in ids
    }  # fmt: skip
    items.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records.values()))
    labels = [f"candidate-{number}" for number in range(CANDIDATES)]
    settings = KievalSettings(
        dataset=str(items),
        candidate=[f"simulated:{label}" for label in labels],
        interactor="simulated:interactor",
        evaluator="simulated:evaluator",
    )
    run = new_run("kieval", settings, folder / "run").folder
    verdict = {name: {"comment": "so it is", "score": 3} for name in _ASPECTS} | {
        "overall_comment": "fine", "overall_score": 3, "stop_conversation": False, "stop_reason": "none"}  # fmt: skip
    verdict_text = orjson.dumps(verdict).decode()

    async def write(run: RunFolder) -> None:
        async with Journal(run.journal, RealClock()) as journal:
            number = 0
            for id_, record in records.items():
                shared = record | {"subject": ""}
                for position, label in enumerate(labels):
                    journal.record_started(number, f"{label}/{id_}", shared)
                    for role, text in (
                        ("candidate", sentence(draw, 30)),
                        ("interactor", sentence(draw, 20)),
                        ("evaluator", verdict_text),
                    ):
                        completion = Completion(text, "stop", 300, 60, draw.expovariate(1.0))
                        journal.record_call(number, role, 0, draw.randbytes(16), completion, 1e9 + number)
                    if draw.random() < 0.002:
                        error = {"type": "BackendTimeout", "message": f"no answer within {draw.randrange(90)} s"}
                        journal.record_ended(number, "failed", error)
                    else:
                        conversation = interview(label, id_, 0.3 + 0.06 * position, draw)
                        journal.record_ended(number, "finished", conversation.to_record())
                    number += 1
                    if number % _BATCH == 0:
                        await journal.flush()

    asyncio.run(write(run))
    return run.path


@contextmanager
def viewer(root: Path, index: Path) -> Iterator[tuple[str, int]]:
    """``viva view`` in a process of its own: its address and process id."""
    command = [sys.executable, "-m", "viva", "view", str(root), "--port", "0", "--index", str(index)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[2].rstrip("/"), process.pid
        finally:
            process.terminate()


def peak_mb(pid: int) -> float:
    """The most memory that a process has had."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def fetched(address: str) -> tuple[float, str]:
    """Milliseconds until a page was there, and the page."""
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=600) as answer:
        text = answer.read().decode()
    return 1e3 * (time.perf_counter() - began), text


def first_bytes(address: str) -> float:
    """Milliseconds until a page began to come."""
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=600) as answer:
        answer.read1(1)
        return 1e3 * (time.perf_counter() - began)


def pages(run: Path, index: Path, conversations: int) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """First and later milliseconds of each page, and other figures.

    The report opens with its frame, timed among the other figures; its first milliseconds here are of the whole page.
    """
    began = time.perf_counter()
    with viewer(run, index) as (site, pid):
        while f"{conversations:,}</b>" not in fetched(f"{site}/conversations")[1]:
            time.sleep(0.2)
        until = re.compile(r'id="ended">([\d,]+)<')
        while (match := until.search(fetched(f"{site}/")[1])) is None or match[1] != f"{conversations:,}":
            time.sleep(0.2)
        took = time.perf_counter() - began
        note(f"indexed in {took:.0f} s")
        # Calls are read after the ends, then verdicts are computed; a page is timed when both have been done.
        while "still reading" in fetched(f"{site}/conversations")[1] or _BUSY.search(fetched(f"{site}/")[1]):
            time.sleep(0.5)
        requests = {
            "overview": "/",
            "list": "/conversations",
            "last page": f"/conversations?page={conversations // 50}",
            "one candidate": "/conversations?candidate=candidate-3",
            "failed": "/conversations?state=failed",
            "stop reason, lowest score": "/conversations?end=evaluator%3A+repetition&sort=low",
            "aspect below 30, lowest first": "/conversations?aspect=logic&high=30&sort=low",
            "most tokens": "/conversations?sort=tokens",
            "by item": "/conversations?sort=item",
            "by aspect, last page": f"/conversations?sort=aspect:logic&page={conversations // 50}",
            "matrix": "/matrix",
            "matrix, hardest items": "/matrix?sort=mean&page=9",
            "matrix, most spread, candidates by mean": "/matrix?sort=spread&candidates=mean",
            "items of a matrix's cell": "/conversations?task=item-00432&candidate=candidate-3",
            "commands for all failed": "/selection?state=failed",
            "commands for all": "/selection",
            "a word of every text": "/conversations?q=because",
            "a word of few texts": f"/conversations?q={_WORDS[17]}&candidate=candidate-2",
            "a conversation": "/c/run/4321",
            "a call": "/call/run/4321/2",
            "two side by side": "/compare?a=run/4320&b=run/4321",
            "a run": "/run/run",
            "matrix of a run": "/matrix?run=run",
            "report": "/report",
        }
        measured = {}
        frame = first_bytes(f"{site}/report")
        for name, path in requests.items():
            first = fetched(site + path)[0]
            measured[name] = (first, statistics.median(fetched(site + path)[0] for _ in range(5)))
        size = sum(entry.stat().st_size for entry in index.iterdir()) / 1e6
        return measured, {
            "report_frame_ms": frame,
            "taken_up_seconds": took,
            "viewer_peak_mb": peak_mb(pid),
            "index_mb": size,
        }


async def listen(site: str, run: str) -> None:
    """Be many readers of news until stdin ends; print how many events and bytes came.

    The news are those of the overview or, with a name, of the page of that run, which begins after "ready" is printed.
    """
    os.nice(10)  # readers are on other machines
    host, port = site.removeprefix("http://").split(":")
    page = f"run&run={run}" if run else "overview"
    counts = [0, 0]

    async def follow() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /events?page={page} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await reader.readuntil(b"hello")
        ready.release()
        while data := await reader.read(1 << 16):
            counts[0] += data.count(b"id: ")
            counts[1] += len(data)
        writer.close()

    ready = asyncio.Semaphore(0)
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    if run:
        print("ready", flush=True)
        await asyncio.to_thread(wait_for, f"{site}/run/{run}")
    tasks = [asyncio.create_task(follow()) for _ in range(READERS)]
    for _ in tasks:
        await ready.acquire()
    if not run:
        print("ready", flush=True)
    await ended
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    print(*counts, flush=True)


def wait_for(address: str) -> None:
    """Wait until a page is served."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=60).close()
        except urllib.error.HTTPError:
            time.sleep(0.05)
        else:
            return


def simulated(folder: Path, conversations: int, name: str) -> tuple[float, float]:
    """Wall and CPU seconds of a run over simulated models in a process of its own."""
    items = folder / "few.jsonl"
    lines = ({"id": f"i{n}", "question": f"Which is {n}?", "choices": ["a", "b"], "answer": 0}
             for n in range(conversations))  # fmt: skip
    items.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    out = folder / "runs" / name
    arguments: list[str | Path] = ["run", "kieval", "--dataset", items, "--out", out, "--json"]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", f"simulated:{role}"]
    wall, cpu, _ = timed(*arguments)
    return wall, cpu


def readers_cost(folder: Path, conversations: int, times: int) -> dict[str, float]:
    """Cost of readers of the overview, and of the run's own page, in per cent of a run's wall and CPU seconds.

    Runs alone and runs that are read take turns, and the fastest of each count: what else this machine does only adds.
    The viewer looks for new runs every five seconds, so a run's own page is read for part of the run.
    """
    (folder / "runs").mkdir()
    alone: list[tuple[float, float]] = []
    read: dict[str, list[tuple[float, float]]] = {"": [], "run_page_": []}
    simulated(folder, 100, "first")
    events = dict.fromkeys(read, 0)
    for turn in range(times):
        alone.append(simulated(folder, conversations, f"alone-{turn}"))
        for page, timings in read.items():
            name = f"{page or 'overview_'}{turn}"
            with viewer(folder / "runs", folder / "index") as (site, _):
                command = [sys.executable, __file__, "--listen", site, "--run", name if page else ""]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as readers:
                    assert readers.stdout is not None
                    assert readers.stdout.readline() == "ready\n"
                    timings.append(simulated(folder, conversations, name))
                    assert readers.stdin is not None
                    readers.stdin.close()
                    events[page] += int(readers.stdout.readline().split()[0])
    figures: dict[str, float] = {f"{page}events": count for page, count in events.items()}
    for at, kind in enumerate(("", "cpu_")):
        fastest = min(timing[at] for timing in alone)
        figures[f"run_alone_{kind}seconds"] = fastest
        for page, timings in read.items():
            fastest_read = min(timing[at] for timing in timings)
            figures[f"{page or 'run_'}read_{kind}seconds"] = fastest_read
            figures[f"{page}readers_{kind}cost_percent"] = 100 * (fastest_read / fastest - 1)
    return figures


def main() -> None:
    """Write the journal, ask for the pages, time the runs, print."""
    parser = argparse.ArgumentParser(description="what looking at runs costs")
    parser.add_argument("--quick", action="store_true", help="a tenth of the conversations")
    parser.add_argument("--listen", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.listen:
        asyncio.run(listen(options.listen, options.run))
        return
    conversations = 10_000 if options.quick else 100_000
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = make_run(folder, conversations)
        size = run.joinpath("journal.sqlite").stat().st_size / 1e6
        note(f"a journal of {conversations:,} interviews, {size:.0f} MB, in {time.perf_counter() - began:.0f} s")
        measured, page_figures = pages(run, folder / "index-of-run", conversations)
        cost = readers_cost(folder, 2_000 if options.quick else 9_000, 1 if options.quick else 5)
    rows = [[name, f"{first:.0f}", f"{later:.1f}"] for name, (first, later) in measured.items()]
    table.show(f"viva view over {conversations:,} interviews", ["page", "first ms", "later ms"], rows)
    count = "100k" if conversations == 100_000 else f"{conversations // 1000}k"
    figures = {
        f"slowest_page_ms_{count}": max(later for _, later in measured.values()),
        f"slowest_first_page_ms_{count}": max(
            page_figures["report_frame_ms"] if name == "report" else first for name, (first, _) in measured.items()
        ),
        f"viewer_peak_mb_{count}": page_figures.pop("viewer_peak_mb"),
        **page_figures,
        **cost,
        "readers": READERS,
        "conversations": conversations,
    }
    if options.quick:  # too short a run to tell a few per cent
        for name in [name for name in figures if name.endswith("cost_percent")]:
            figures[f"{name}_quick"] = figures.pop(name)
    table.conclude("view", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()

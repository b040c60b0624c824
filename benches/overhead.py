"""What the engine itself costs: per model call, per waiting conversation, at the start, with growth, and over HTTP.

Each program of ``peers/`` runs as its own process, one at a time, and reports its own CPU time, so neither imports nor
this program are counted. ``--quick`` repeats nothing but the start and the small size of growth, grows to 10,000
conversations only, and runs inspect_ai only on 200 conversations with 50 in flight, its faster setting; the memory run
goes on at the same time, for memory does not depend on what else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import table
from running import PEERS, ROOT, Line, PeerFailed, finish, last_line, note

ITEMS = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
REPEATS = 3
STARTS = 5
REACH: table.Reach = {
    "us_per_call": ("<=", 60),
    "inspect_ratio": (">=", 20),
    "kb_per_conversation": ("<=", 30),
    "loop_lag_p99_ms": ("<=", 20),
    "first_result_s": ("<=", 1),
    "growth_1k_to_100k": ("<=", 1.15),
    "http_vs_bare": ("<=", 1.15),
}


def peer(program: str, conversations: int, concurrency: int, *options: str, python: str = sys.executable) -> Line:
    """The figures that a program of ``peers/`` prints as its last line."""
    note(f"{program}: {conversations:,} conversations, {concurrency:,} in flight {' '.join(options)}")
    size = ["--conversations", str(conversations), "--concurrency", str(concurrency)]
    return last_line([python, program, *size, *options])


def middle(lines: list[Line], name: str = "us_per_call") -> float:
    """The median of one of the figures."""
    return float(median(line[name] for line in lines))


def inspect_lines(python: Path, quick: bool) -> list[tuple[str, Line]]:
    """inspect_ai's rows, none where it cannot be run."""
    if not python.exists():
        print(f"inspect_ai is left out: there is no {python} (see --inspect-python)")
        return []
    sizes = [("tuned", 200, 50)] if quick else [("tuned", 1_000, 1_000), ("tuned", 1_000, 50), ("defaults", 200, 0)]
    lines = []
    try:
        for mode, count, width in sizes:
            line = peer("inspect_ai_run.py", count, width, "--mode", mode, python=str(python))
            lines.append((f"{width:,}" if width else "–", line))
    except PeerFailed as failed:
        print(f"inspect_ai is left out: {failed}")
        return []
    return lines


def calls_and_memory(options: argparse.Namespace) -> dict[str, float]:
    """CPU per call beside the floor and inspect_ai; what a waiting conversation weighs; how late the loop is."""
    repeats = 1 if options.quick else REPEATS
    floor = [peer("floor.py", 4_000, 1_000) for _ in range(repeats)]
    ours = [peer("engine_run.py", 4_000, 1_000) for _ in range(repeats)]
    cost = middle(ours)
    figures = {"us_per_call": cost, "floor_us_per_call": middle(floor)}
    rows = [("bare asyncio", "1,000", floor[0], figures["floor_us_per_call"]), ("viva", "1,000", ours[0], cost)]

    with ThreadPoolExecutor(1) as beside:
        weighing = beside.submit(peer, "engine_run.py", 10_000, 10_000, "--memory")
        if not options.quick:
            weighing.result()  # beside something else in --quick alone
        theirs = inspect_lines(options.inspect_python, options.quick)
    rows += [(line["name"], width, line, line["us_per_call"]) for width, line in theirs]
    tuned = [line for _, line in theirs if line["name"] == "inspect_ai tuned"]
    if tuned:
        figures["inspect_ratio"] = min(line["us_per_call"] for line in tuned) / cost
        figures["inspect_conversations"] = tuned[0]["conversations"]
    header = ["program", "conversations", "in flight", "CPU µs per call", "times viva", "peak MB"]
    cells = [
        [name, f"{line['conversations']:,}", width, f"{us:,.1f}", f"{us / cost:.2f}", f"{line['peak_rss_mb']:.0f}"]
        for name, width, line, us in rows
    ]
    table.show(f"CPU per model call (floor and viva: median of {repeats})", header, cells)

    weight = weighing.result()["kb_per_conversation"]
    lags = [peer("engine_run.py", 4_000, 2_000)["lag"] for _ in range(repeats)]
    figures["kb_per_conversation"] = weight
    # A run of two seconds is some forty samples, so its p99 is its worst moment: hence the median of several.
    figures["loop_lag_p99_ms"] = middle(lags, "p99_ms")
    cells = [["kB per conversation", "10,000", f"{weight:.1f}"]]
    for lag in lags:
        each = " / ".join(f"{lag[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        cells.append(["event-loop lag, ms: p50 / p99 / max", "2,000", each])
    table.show("In flight", ["what", "in flight", "measured"], cells)
    return figures


def start() -> dict[str, float]:
    """Wall time of a small run from the command line, its interpreter's start and its report included."""
    note(f"viva run kieval: {STARTS} times")
    command = [sys.executable, "-m", "viva", "run", "kieval", "--dataset", str(ITEMS), "-n", "10"]
    for role in ("candidate", "interactor", "evaluator"):
        command += [f"--{role}", f"simulated:{role}"]
    walls = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(STARTS):
            began = time.perf_counter()
            finish([*command, "--out", f"{folder}/{number}"], Path(folder))
            walls.append(time.perf_counter() - began)
    cells = [[f"{median(walls):.3f}", f"{min(walls):.3f}", f"{max(walls):.3f}"]]
    title = f"From the command to the end of a run of 10 items, s ({STARTS} times)"
    table.show(title, ["median", "fastest", "slowest"], cells)
    return {"first_result_s": median(walls)}


def growth(limit: int, sides: int) -> dict[str, float]:
    """Whether a call costs more in a long run than in a short one; short ones on both sides even out drift."""
    small_runs = [peer("engine_run.py", 1_000, 1_000) for _ in range(sides)]
    large_run = peer("engine_run.py", limit, 1_000)
    small_runs += [peer("engine_run.py", 1_000, 1_000) for _ in range(sides)]
    ratio = large_run["us_per_call"] / middle(small_runs)
    cells = [
        [
            f"{count:,}",
            f"{middle(lines):.1f}",
            f"{middle(lines, 'peak_rss_mb'):.0f}",
            f"{middle(lines) / middle(small_runs):.3f}",
        ]
        for count, lines in ((1_000, small_runs), (limit, [large_run]))
    ]
    header = ["conversations", "CPU µs per call", "peak MB", "ratio"]
    table.show(f"Growth, 1,000 in flight (the small size: median of {2 * sides})", header, cells)
    return {"growth_1k_to_100k": ratio, "growth_conversations": limit}


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """The base address of a mock endpoint that lives as long as the block."""
    with subprocess.Popen([sys.executable, "mock_endpoint.py"], cwd=PEERS, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            hello = server.stdout.readline()
            if not hello:
                raise PeerFailed("mock_endpoint.py did not come up")
            yield f"http://127.0.0.1:{json.loads(hello)['port']}/v1"
        finally:
            server.terminate()


def over_http(pairs: int) -> dict[str, float]:
    """Our client against aiohttp alone, alternating, on one endpoint whose waits follow the calls' seeds."""
    lines: dict[str, list[Line]] = {"engine_run.py": [], "bare_http.py": []}
    with endpoint() as url:
        for _ in range(pairs):
            for program, so_far in lines.items():
                so_far.append(peer(program, 1_000, 1_000, "--url", url))
    walls = {program: middle(so_far, "wall_s") for program, so_far in lines.items()}
    names = {"engine_run.py": "viva", "bare_http.py": "bare aiohttp"}
    cells = [
        [name, f"{walls[program]:.3f}", f"{middle(lines[program]):.1f}", f"{middle(lines[program], 'peak_rss_mb'):.0f}"]
        for program, name in names.items()
    ]
    title = f"Over HTTP, 1,000 conversations at once (median of {pairs})"
    table.show(title, ["program", "wall s", "CPU µs per call", "peak MB"], cells)
    return {"http_vs_bare": walls["engine_run.py"] / walls["bare_http.py"]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what the engine costs, beside a floor and a peer")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute on two cores")
    python = ROOT / ".inspect" / "bin" / "python"
    parser.add_argument("--inspect-python", type=Path, default=python, help="a Python that has inspect_ai")
    options = parser.parse_args()
    # Not resolved: the link is what makes a Python that of its virtual environment.
    options.inspect_python = options.inspect_python.absolute()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a thousand connections; peers inherit it

    began = time.perf_counter()
    try:
        figures = calls_and_memory(options)
        figures |= start()
        figures |= growth(*((10_000, 1) if options.quick else (100_000, 2)))
        figures |= over_http(1 if options.quick else 2)
    except PeerFailed as failed:
        raise SystemExit(f"overhead: {failed}") from None
    table.conclude("overhead", {name: round(value, 3) for name, value in figures.items()}, REACH)
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

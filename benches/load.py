"""Accuracy of `viva judge load`, checked against queueing theory, the server's own counts, and guidellm.

The server is an M/M/c queue in a process of its own (``tests/servers/queue_server.py``). Measured are: percentiles and
utilisation at loads of 0.3 to 0.9 beside the theory; what a server that stalls for 5 s does to an open and to a closed
loop; requests and tokens counted by both sides, and up to which rate the offered rate is within 1%; memory in a long
step (``--soak SECONDS``); and, where ``make guidellm`` has made it a home, guidellm on the same server.

``--quick`` takes short steps, whose percentiles are rough: they have no reach. Other programs beside it lengthen the
server's answers, too: theory needs a quiet machine, or one that serves this bench first.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import table
from running import PEERS, ROOT, PeerFailed, note

sys.path[:0] = [str(PEERS), str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "models")]
from guidellm_load import GUIDELLM, guidellm_figures  # noqa: E402 - in a folder of its own
from load_parts import requests  # noqa: E402
from queue_theory import mean_sojourn, sojourn_quantile  # noqa: E402
from queues import RunningQueue, running_queue  # noqa: E402

from viva.engine.clock import RealClock  # noqa: E402
from viva.engine.event_loop import gc_tuned  # noqa: E402
from viva.loadtest.judge_client import open_judges  # noqa: E402
from viva.loadtest.load_log import LoadHistory  # noqa: E402
from viva.loadtest.load_settings import check_load_settings  # noqa: E402
from viva.loadtest.run_load_test import LoadTest  # noqa: E402
from viva.loadtest.step_speed import StepMeasurement  # noqa: E402

LOADS = (0.3, 0.5, 0.7, 0.9)
SERVERS, MEAN = 32, 0.1  # seconds of service; many servers, so that a minute says enough of the queue's tail
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_BESIDE, _BESIDE_RATE = {"servers": 40, "mean": 0.2, "seed": 5, "tokens": [8, 8]}, 100.0  # a load of a half
RATES = (500, 1000, 2000, 3000, 4000, 5000)
REACH: table.Reach = {
    "theory_worst_pct": ("<=", 5),
    "utilisation_worst_pct": ("<=", 5),
    "stall_open_worst_pct": ("<=", 5),
    "counts_that_differ": ("<=", 0),
    "first_tokens_missing": ("<=", 0),
    "highest_rate_within_1pct": (">=", 2000),
    "soak_growth_mb": ("<=", 20),
    "guidellm_percentiles_worst_pct": ("<=", 5),
    "cpu_share_of_guidellm_pct": ("<=", 100),
}
Figures = dict[str, float]


def drive(
    queue: RunningQueue, each: Callable[[LoadTest, Path], None] | None = None, **fields: Any
) -> list[StepMeasurement]:
    """The steps of a load on the server, without unloaded passes."""
    clock = RealClock()
    settings = check_load_settings(
        {"judges": {"judge": queue.model}, "baseline": 0, "warm_up": 0.0, "cool_down": 0.0, **fields}
    )

    async def run(folder: Path) -> list[StepMeasurement]:
        async with open_judges(settings.judges, clock) as judges:
            test = LoadTest(settings, requests(200), judges, folder, clock)
            await test.run()
            if each is not None:
                each(test, folder)
            return [result.measured for result in test.results.values()]

    with tempfile.TemporaryDirectory() as folder:
        return clock.run(lambda: run(Path(folder)))


def theory(queue: RunningQueue, seconds: float) -> Figures:
    """Percentiles and utilisation beside the theory of M/M/c."""
    rows, worst, busy_worst = [], 0.0, 0.0
    for load in LOADS:
        rate = load * SERVERS / MEAN
        note(f"M/M/{SERVERS} at a load of {load:g}: {rate:g} requests a second for {seconds:g} s")
        queue.plan(servers=SERVERS, mean=MEAN, seed=11)
        [measured] = drive(queue, rates=(rate,), seconds=seconds, stop_at_saturation=False)
        e2e = measured.record["latencies"]["e2e"]
        off = {name: e2e[name] / sojourn_quantile(share, rate, MEAN, SERVERS) - 1 for name, share in QUANTILES.items()}
        off["mean"] = e2e["mean"] / mean_sojourn(rate, MEAN, SERVERS) - 1
        busy = measured.record["throughput"] * MEAN / SERVERS
        rows.append(
            [f"{load:g}", f"{measured.record['answered']:,}", f"{busy:.3f}"]
            + [f"{1000 * e2e[name]:.0f} ({100 * off[name]:+.1f}%)" for name in ("mean", *QUANTILES)]
            + [f"{1000 * measured.record['latencies']['dispatch']['p99']:.1f}"]
        )
        worst = max(worst, *map(abs, off.values()))
        busy_worst = max(busy_worst, abs(busy / load - 1))
    header = ["load", "n", "busy", "mean", *QUANTILES, "dispatch p99"]
    table.show("Beside the theory of M/M/c (ms, and how far off)", header, rows)
    return {"theory_worst_pct": 100 * worst, "utilisation_worst_pct": 100 * busy_worst}


def stall(queue: RunningQueue, seconds: float) -> Figures:
    """A server that stands still for 5 s, in an open and in a closed loop.

    Requests that are due in the stall wait for its end and for those before them: the first one for 5 s, each later
    one less, evenly, until the queue is empty. That gives the percentiles of the open loop.
    """
    rows, figures = [], {}
    rate, servers, mean = 50.0, 8, 0.02
    loads: dict[str, dict[str, Any]] = {"open": {"rates": (rate,)}, "closed": {"concurrency": (4,)}}
    for name, load in loads.items():
        note(f"a stall of 5 s in the {name} loop")
        queue.plan(servers=servers, mean=mean, stall_at=200, stall=5.0)
        [measured] = drive(queue, seconds=seconds, **load)
        e2e = measured.record["latencies"]["e2e"]
        rows.append([name, f"{e2e['count']:,}", *(f"{e2e[quantile]:.3f}" for quantile in ("p50", "p95", "p99", "max"))])
        figures[f"stall_{name}_p99_s"] = e2e["p99"]
        if name == "open":
            delayed = 5.0 / (1 - rate * mean / servers) / seconds  # as a share of all requests
            musts = {quantile: 5.0 * (1 - (1 - QUANTILES[quantile]) / delayed) for quantile in ("p95", "p99")}
            figures["stall_open_worst_pct"] = max(
                100 * abs(e2e[quantile] / must - 1) for quantile, must in musts.items()
            )
            rows.append(["open, as it must", "", "", *(f"{must:.3f}" for must in musts.values()), "5.000"])
    table.show("A server that stalls for 5 s (seconds)", ["loop", "n", "p50", "p95", "p99", "max"], rows)
    return figures


def rates(queue: RunningQueue, seconds: float) -> Figures:
    """Counts of both sides, and up to which rate requests are dispatched as intended."""
    rows, highest, differ, missing, each = [], 0.0, 0, 0, 0.0
    for rate in RATES if seconds > QUICK["rates"] else RATES[:3]:
        note(f"{rate} requests a second for {seconds:g} s")
        queue.plan(servers=64, mean=0.01)
        counted: dict[str, int] = {}

        def count(test: LoadTest, folder: Path, counted: dict[str, int] = counted) -> None:
            with LoadHistory(folder) as history:
                for request in history.sent_requests(0, "judge"):
                    counted["requests"] = counted.get("requests", 0) + 1
                    counted["prompt_tokens"] = counted.get("prompt_tokens", 0) + request.prompt_tokens
                    counted["completion_tokens"] = counted.get("completion_tokens", 0) + request.completion_tokens

        [measured] = drive(queue, count, rates=(float(rate),), arrivals="constant", seconds=seconds)
        record, theirs = measured.record, queue.counts()
        differ += sum(
            counted.get(name, 0) != theirs[name] for name in ("requests", "prompt_tokens", "completion_tokens")
        )
        missing += record["no_first_token"]
        # As the server saw it: first to last arrival.
        offered = (theirs["requests"] - 1) / (theirs["last"] - theirs["first"])
        cpu = record["health"]["cpu_seconds"] / record["sent"]
        if abs(offered / rate - 1) <= 0.01 and record["sent"] >= 0.99 * rate * seconds:
            highest = max(highest, rate)
        each = cpu if rate == 500 else each
        dispatch = record["latencies"]["dispatch"]["p99"]
        rows.append([f"{rate:,}", f"{offered:,.1f}", f"{1000 * dispatch:.2f}", f"{1e6 * cpu:.0f}",
                     f"{100 * record['health']['cpu']:.0f}%", "client" if record["bottleneck"] else ""])  # fmt: skip
    table.show("Offered rates, as the server saw them",
               ["wanted/s", "offered/s", "dispatch p99, ms", "CPU µs each", "CPU", "bottleneck"], rows)  # fmt: skip
    return {"highest_rate_within_1pct": highest, "counts_that_differ": differ, "first_tokens_missing": missing,
            "client_cpu_us": 1e6 * each}  # fmt: skip


def soak(queue: RunningQueue, seconds: float) -> Figures:
    """Memory of a step of 500 requests a second: after a quarter of it, and at its end."""
    note(f"500 requests a second for {seconds:g} s")
    queue.plan(servers=64, mean=0.01)
    seen: list[tuple[float, float]] = []
    clock = RealClock()
    settings = check_load_settings(
        {"judges": {"judge": queue.model}, "baseline": 0, "rates": (500.0,), "arrivals": "constant", "seconds": seconds}
    )

    async def run(folder: Path) -> StepMeasurement:
        import asyncio

        async with open_judges(settings.judges, clock) as judges:
            test = LoadTest(settings, requests(200), judges, folder, clock)
            running = asyncio.create_task(test.run())
            began = clock.now()
            while not running.done():
                await asyncio.sleep(min(5.0, seconds / 40))
                if test.live is not None and not test.results and clock.now() - began < seconds:
                    seen.append((clock.now() - began, _memory()))
            await running
            return test.results[0, "judge"].measured

    with tempfile.TemporaryDirectory() as folder:
        measured = clock.run(lambda: run(Path(folder)))
    early = max(memory for at, memory in seen if at <= seconds / 4)
    late = max(memory for at, memory in seen if at >= 0.9 * seconds)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    table.show(
        "Memory of the client, MB",
        ["seconds", "requests", "most in flight", "first quarter", "last tenth", "peak, figures taken"],
        [
            [
                f"{seconds:g}",
                f"{measured.record['sent']:,}",
                f"{measured.record['most_in_flight']:,}",
                f"{early:.1f}",
                f"{late:.1f}",
                f"{after:.1f}",
            ]
        ],
    )
    return {"soak_seconds": seconds, "soak_requests": measured.record["sent"], "soak_growth_mb": late - early}


def _memory() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def guidellm(queue: RunningQueue, seconds: float) -> Figures:
    """The same requests at the same times by guidellm: percentiles, and CPU of the client for each request.

    CPU is that of a long load beyond that of a short one, so that neither pays for its imports.
    """
    if not GUIDELLM.exists():
        note("guidellm is not there (make guidellm)")
        return {}
    count_short, count_long = round(_BESIDE_RATE * seconds / 6), round(_BESIDE_RATE * seconds)
    try:
        short, theirs = [_theirs(queue, count) for count in (count_short, count_long)]
    except PeerFailed as error:
        note(str(error))
        return {}
    own_short, ours = [_ours(queue, count) for count in (count_short, count_long)]
    rows, worst = [], 0.0
    for name in QUANTILES:
        off = ours[name] / theirs[name] - 1
        worst = max(worst, abs(off))
        due = [f"{1000 * row[f'due_{name}']:.1f}" for row in (ours, theirs)]
        rows.append([name, f"{1000 * ours[name]:.1f}", f"{1000 * theirs[name]:.1f}", f"{100 * off:+.1f}%", *due])
    cpu = [
        (long["cpu"] - row["cpu"]) / (count_long - count_short) for long, row in ((ours, own_short), (theirs, short))
    ]
    table.show(
        f"guidellm on the same server: {count_long:,} requests, {_BESIDE_RATE:g} a second (ms)",
        ["", "viva", "guidellm", "off", "viva, from due", "guidellm, from due"], rows,
    )  # fmt: skip
    table.show("CPU of the client", ["", "viva", "guidellm"],
               [["µs each", *(f"{1e6 * seconds:.0f}" for seconds in cpu)]])  # fmt: skip
    return {
        "guidellm_percentiles_worst_pct": 100 * worst,
        "guidellm_cpu_us": 1e6 * cpu[1],
        "cpu_share_of_guidellm_pct": 100 * cpu[0] / cpu[1],
    }


def _ours(queue: RunningQueue, count: int) -> Figures:
    """Our figures of a load beside guidellm: percentiles from the dispatch and from when requests were due."""
    note(f"viva: {count:,} requests")
    queue.plan(**_BESIDE)
    began = time.process_time()
    [measured] = drive(queue, rates=(_BESIDE_RATE,), arrivals="constant", requests=count, stop_at_saturation=False)
    cpu, latencies = time.process_time() - began, measured.record["latencies"]
    _see_all_answered(queue, count)
    return {"cpu": cpu, **{name: latencies["service"][name] for name in QUANTILES},
            **{f"due_{name}": latencies["e2e"][name] for name in QUANTILES}}  # fmt: skip


def _theirs(queue: RunningQueue, count: int) -> Figures:
    """guidellm's figures of the same load.

    :raises PeerFailed: it did not end well.
    """
    note(f"guidellm: {count:,} requests")
    queue.plan(**_BESIDE)
    figures = guidellm_figures(queue.root, _BESIDE_RATE, count, list(QUANTILES))
    _see_all_answered(queue, count)
    return figures


def _see_all_answered(queue: RunningQueue, count: int) -> None:
    """:raises PeerFailed: the server answered another number of requests: percentiles cannot be compared."""
    answered = queue.counts()["answered"]
    if answered != count:
        raise PeerFailed(f"{answered:,} requests were answered, not {count:,}")


PARTS: dict[str, Callable[[RunningQueue, float], Figures]] = {
    "theory": theory, "stall": stall, "rates": rates, "soak": soak, "guidellm": guidellm,
}  # fmt: skip
SECONDS = {"theory": 60.0, "stall": 40.0, "rates": 10.0, "soak": 300.0, "guidellm": 60.0}
QUICK = {"theory": 4.0, "stall": 11.0, "rates": 1.0, "soak": 5.0}
ROUGH = ("theory_worst_pct", "utilisation_worst_pct", "stall_open_worst_pct")  # in short steps, by chance alone


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description="How well viva judge load measures.")
    parser.add_argument("--quick", action="store_true", help="short steps; without guidellm")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="length of the long step (default: 300)")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part")
    options = parser.parse_args()
    lengths = QUICK if options.quick else SECONDS
    if options.soak:
        lengths = {**lengths, "soak": options.soak}
    figures: Figures = {}
    with running_queue() as queue, gc_tuned():
        for name in options.only or lengths:
            figures |= PARTS[name](queue, lengths.get(name, SECONDS[name]))
    if options.only and not options.quick:
        figures = _measured_before() | figures
    if options.quick:
        figures = {f"{name}_rough" if name in ROUGH else name: value for name, value in figures.items()}
    table.conclude(
        "load", figures, {name: limit for name, limit in REACH.items() if not options.quick or name not in ROUGH}
    )


def _measured_before() -> Figures:
    """What the file of results has from this machine, so that parts can be measured one by one."""
    try:
        record = json.loads((table.RESULTS / "load.json").read_bytes())
    except (OSError, json.JSONDecodeError):
        return {}
    return dict(record["figures"]) if record["machine"] == table.machine() else {}


if __name__ == "__main__":
    main()

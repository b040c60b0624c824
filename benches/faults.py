"""What faults cost a run, counted at the server: calls lost, calls recorded twice, and calls asked for again.

One process serves interviews (``tests/servers/chaos.py``) and logs what it answered in full. The same interviews run
undisturbed, then once under each fault: killed with SIGKILL again and again; steered by random requests of ``viva
control`` between kills, where cancelled interviews go on at the end; on disks that fill up and are made larger;
with the machine's clock set to and fro; stopped for longer than the calls' timeout; with answers whose bytes trickle
in, are no UTF-8, break off, or come to 10 MB. Each run's journal is compared row by row with the undisturbed one's, its
report byte by byte.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import table
import yaml
from running import ROOT, note

from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import ask

sys.path[:0] = [str(ROOT / "tests" / "models"), str(ROOT / "tests" / "servers")]
import process  # noqa: E402 - in a folder of its own
from faulted_runs import counted, held, recorded, report, settings  # noqa: E402
from small_sweeps import dataset  # noqa: E402

REACH: table.Reach = {
    "calls_lost": ("<=", 0), "calls_doubled": ("<=", 0), "reports_different": ("<=", 0),
    "asked_again_beyond_in_flight": ("<=", 0),
}  # fmt: skip
_WIDE, _TIMEOUT = 50, 3
_NAMESPACE = ["unshare", "--user", "--mount", "--map-root-user"]
_SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
_TRICKLED = {"do": "trickle", "share": 0.01, "times": 1}
_BROKEN = [{"do": do, "share": 0.03, "times": 1} for do in ("malformed", "half_body", "reset", "500", "garbage")]
_LONG = {"by_model": {"candidate": {"drawn": [{"do": "long", "share": 0.01, "megabytes": 10}]}}}


def command(folder: Path, name: str) -> list[str]:
    """The command that begins the run called ``name`` in ``folder``, or resumes it if it has begun."""
    run = folder / name
    words = ["resume", str(run)] if (run / "manifest.json").exists() else ["run", "kieval", "--config", "run.yaml",
                                                                            "--out", str(run)]  # fmt: skip
    return [sys.executable, "-m", "viva", *words]


def killed(folder: Path, server: process.Server, times: int, calls: int) -> int:
    """A run killed ``times`` times, at even distances; return how many calls may have to be repeated."""
    for number in range(times):
        going = subprocess.Popen(command(folder, "killed"), cwd=folder, **_SILENT)
        server.log(requests=(number + 1) * calls // (times + 1))
        going.send_signal(signal.SIGKILL)
        going.wait()
    subprocess.run(command(folder, "killed"), cwd=folder, check=True, capture_output=True)
    # Beside those in flight: what was answered and not committed, a group of the journal's at most.
    return times * 2 * _WIDE


def steered(folder: Path, server: process.Server, times: int, calls: int, requests: int) -> int:
    """A run steered by random requests and killed in between; return how many calls may have to be repeated."""
    draw, run = random.Random(51), folder / "steered"
    with History(folder / "whole" / "journal.sqlite") as history:
        keys = [*history.keys()]
    going, paused, sent = subprocess.Popen(command(folder, "steered"), cwd=folder, **_SILENT), set[str | None](), 0
    for number in range(requests):
        while not paused and going.poll() is None and len(server.log()) < (number + 1) * calls // (3 * requests):
            time.sleep(0.01)  # cancelled interviews make fewer calls than the whole run has
        if number % (requests // (times + 1)) == requests // (times + 1) - 1 and not paused:
            going.send_signal(signal.SIGKILL)
            going.wait()
            going = subprocess.Popen(command(folder, "steered"), cwd=folder, **_SILENT)
        model, choice = draw.choice([None, "candidate", "evaluator"]), draw.random()
        if paused:
            request = ControlRequest(do="resume", model=paused.pop())
        elif choice < 0.2:
            paused.add(model)
            request = ControlRequest(do="pause", model=model)
        elif choice < 0.6:
            width, rate = draw.randrange(5, 60), draw.choice([0, 10**6])
            request = ControlRequest(do="set", model=model or "interactor", concurrency=width, rpm=rate)
        elif choice < 0.8:
            request = ControlRequest(do="cancel", keys=draw.sample(keys, 3))
        else:
            request = ControlRequest(do="requeue", failed=True)
        while True:
            try:
                ask(run, request)
                sent += 1
            except ConfigurationError as error:
                is_loading = any(words in str(error) for words in ("not going on", "does not listen"))
                if is_loading and going.poll() is None:
                    time.sleep(0.01)
                    continue
            break
    for model in (None, "candidate", "evaluator"):
        with suppress(ConfigurationError):
            ask(run, ControlRequest(do="resume", model=model))
    going.wait()
    note(f"{sent} requests were met")
    for model in ("candidate", "evaluator"):  # a pause that a kill came after
        last = subprocess.Popen([*command(folder, "steered"), "--retry-failed"], cwd=folder, **_SILENT)
        while last.poll() is None:
            with suppress(ConfigurationError):
                ask(run, ControlRequest(do="resume", model=model))
    return times * 2 * _WIDE + 3 * requests


def filled(folder: Path, times: int, size: int) -> int:
    """On a disk of a share of the run's ``size``, made larger each time that it was full."""
    script = f'mkdir disk && mount -t tmpfs -o size=160k tmpfs disk\nrun="{sys.executable} -m viva"\n'
    first = "$run run kieval --config run.yaml --out disk/run"
    for number in range(1, times + 1):
        script += f"mount -o remount,size={number * size // (times + 1) + 160_000} disk\n"
        script += f"{first} > /dev/null 2>> filled.log; test $? = 1 || exit 9\n"
        first = "$run resume disk/run"
    script += f"mount -o remount,size=1g disk\n{first} > /dev/null 2>> filled.log || exit 8\ncp -r disk/run filled\n"
    done = subprocess.run([*_NAMESPACE, "sh", "-c", script], cwd=folder, check=False)
    log = (folder / "filled.log").read_text()
    if done.returncode or log.count("free space on that disk") != times or "Traceback" in log:
        raise SystemExit(f"faults: a full disk ended with {done.returncode}: {log[-1000:]}")
    return times * 2 * _WIDE


@contextmanager
def clock_set(hours: int) -> Iterator[None]:
    """The machine's clock is another one whenever it is looked at, as far as this process can see."""
    real, shifts = time.time, itertools.cycle([0, hours, -hours, 2 * hours])
    time.time = lambda: real() + 3600 * next(shifts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        time.time = real  # type: ignore[method-assign]


def stopped(folder: Path, server: process.Server, calls: int) -> int:
    """Stopped in the middle (SIGSTOP) until every call on its way is beyond its timeout."""
    going = subprocess.Popen(command(folder, "stopped"), cwd=folder, **_SILENT)
    server.log(requests=calls // 2)
    going.send_signal(signal.SIGSTOP)
    threading.Event().wait(_TIMEOUT + 1)
    going.send_signal(signal.SIGCONT)
    if going.wait():
        raise SystemExit(f"faults: the stopped run ended with {going.returncode}")
    return 2 * _WIDE


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 interviews in place of 2,000, fewer kills")
    quick = parser.parse_args().quick
    count, times = (200, 3) if quick else (2000, 10)
    rows: list[list[str]] = []
    totals = dict.fromkeys(REACH, 0.0)
    with process.running({}) as server, tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        fields = settings(server, dataset(folder / "items.jsonl", count), concurrency=_WIDE, timeout=_TIMEOUT)
        (folder / "run.yaml").write_text(yaml.safe_dump(fields.model_dump(mode="json", exclude_defaults=True)))
        whole = folder / "whole"
        held(fields, whole)
        calls, size = recorded(whole).total(), (whole / "journal.sqlite").stat().st_size

        def measured(name: str, plan: dict[str, Any], hold: Callable[[], int], like: Path = whole) -> None:
            """``hold`` runs the run NAME and returns how many calls may have to be asked for again."""
            note(f"{name}: {count:,} interviews")
            server.replan(plan)
            began = time.perf_counter()
            allowed = hold()
            seconds = time.perf_counter() - began
            cost = counted(folder / name, like, server.log())
            different = report(folder / name) != report(like)
            beyond = max(0, cost.again - allowed)
            for key, value in zip(REACH, (cost.lost, cost.doubled, different, beyond), strict=True):
                totals[key] += value
            same = "no" if different else "yes"
            rows.append([name, f"{recorded(folder / name).total():,}", str(cost.lost), str(cost.doubled),
                         f"{cost.again:,}", f"{cost.tries:,}", same, f"{seconds:.1f}"])  # fmt: skip

        def through(name: str) -> Callable[[], int]:
            def hold() -> int:
                held(fields, folder / name)
                return 0

            return hold

        def with_clock_set() -> int:
            with clock_set(24):
                held(fields, folder / "clock set", calls=calls // 2)
                held(fields, folder / "clock set")
            return 2 * _WIDE

        def in_two_parts() -> int:
            held(fields, folder / "10 MB", calls=calls // 2)
            held(fields, folder / "10 MB")
            return 2 * _WIDE

        # As long as the journal gathers rows: beside calls in flight, a commit has at most one call per conversation.
        slow = {"default": {"do": "slow", "delay": 0.02}}
        measured("steered", slow, lambda: steered(folder, server, times, calls, 40 if quick else 200))
        measured("killed", slow, lambda: killed(folder, server, times, calls))
        if shutil.which("unshare") and not subprocess.run([*_NAMESPACE, "true"], check=False).returncode:
            measured("filled", slow, lambda: filled(folder, times, size))
        measured("clock set", {}, with_clock_set)
        measured("stopped", slow, lambda: stopped(folder, server, calls))
        measured("trickled", {"drawn": [_TRICKLED]}, through("trickled"))
        measured("broken", {"drawn": _BROKEN}, through("broken"))
        server.replan(_LONG)
        held(fields, folder / "whole of 10 MB")
        measured("10 MB", _LONG, in_two_parts, folder / "whole of 10 MB")
        longest = max(len(row[4]) for row in recorded(folder / "10 MB"))
    header = ["fault", "calls recorded", "lost", "doubled", "answered again", "other tries", "report same", "s"]
    table.show(f"{count:,} interviews under each fault, {_WIDE} at once, {times} kills and full disks", header, rows)
    figures = {**totals, "interviews": count, "calls": calls, "faults": len(rows), "longest_answer_mb": longest / 1e6,
               "peak_mb": _peak_mb()}  # fmt: skip
    table.conclude("faults", figures, REACH)


def _peak_mb() -> float:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()

"""Killed, resumed, forked: what a KIEval run keeps when its process is gone, counted at the server."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from viva_process import completed, ended, started

if TYPE_CHECKING:
    from tests.servers.process import Server

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
Chaos = Callable[[dict[str, Any]], "Server"]


def _run_arguments(server: Server, out: Path, n: int = 30) -> list[str | Path]:
    roles = [("--candidate", "candidate"), ("--interactor", "interactor"), ("--evaluator", "evaluator")]
    models = [text for flag, role in roles for text in (flag, server.model(role))]
    return ["run", "kieval", "--dataset", ITEMS, "-n", str(n), *models, "--concurrency", "8", "--json", "--out", out]


def _report(run: Path) -> bytes:
    done = completed("report", run, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout + completed("show", run, "--json").stdout


def _recorded(run: Path) -> int:
    if not (run / "journal.sqlite").exists():
        return 0
    connection = sqlite3.connect(run / "journal.sqlite")
    try:
        (count,) = connection.execute("select count(*) from calls").fetchone()
    except sqlite3.OperationalError:  # killed before the tables were there
        count = 0
    connection.close()
    return int(count)


def test_killed_at_five_random_moments_and_resumed_the_report_is_the_same(chaos: Chaos, tmp_path: Path) -> None:
    plan = {"default": {"do": "slow", "delay": 0.01}}
    server = chaos(plan)
    whole = completed(*_run_arguments(server, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr.decode()
    calls = len(server.log())
    assert calls == _recorded(tmp_path / "whole")

    run = tmp_path / "killed"
    moments = sorted(random.Random(7).sample(range(5, calls - 20), 5))
    arguments: list[str | Path] = _run_arguments(server, run)
    recorded = 0
    for moment in moments:
        before = len(server.log())
        # Each part begins where the journal ends, so the server meets again only what was in flight or not committed.
        process = started(*arguments)
        server.log(requests=before + max(1, moment - recorded))
        process.kill()
        ended(process)
        recorded = _recorded(run)
        arguments = ["resume", run, "--json"] if (run / "manifest.json").exists() else arguments
    before = len(server.log())
    last = completed("resume", run, "--json")
    assert last.returncode == 0, last.stderr.decode()
    assert len(server.log()) - before == calls - recorded, "a recorded call was made again"
    assert _report(run) == _report(tmp_path / "whole")
    assert last.stdout == whole.stdout


def test_no_request_is_repeated_by_an_uninterrupted_run(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    assert completed(*_run_arguments(server, tmp_path / "run", 10)).returncode == 0
    assert max(Counter(entry["hash"] for entry in server.log()).values()) == 1


def test_resuming_a_finished_run_calls_nothing_and_says_the_same(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    first = completed(*_run_arguments(server, tmp_path / "run", 10))
    calls = len(server.log())
    again = completed("resume", tmp_path / "run", "--json")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert len(server.log()) == calls


def test_a_fork_asks_only_the_evaluator(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    assert completed(*_run_arguments(server, tmp_path / "run", 10)).returncode == 0
    before = Counter(entry["model"] for entry in server.log())
    fork = ["run", "--fork", tmp_path / "run", "--judge", server.model("evaluator", label="other")]
    forked = completed(*fork, "--json", "--out", tmp_path / "fork")
    assert forked.returncode == 0, forked.stderr.decode()
    after = Counter(entry["model"] for entry in server.log())
    assert (after - before).keys() == {"evaluator"}
    # The same judge gives the same verdicts: the fork's scores are those of the run, its talks cost nothing.
    one, other = (
        orjson.loads(data)["candidates"]["candidate"] for data in (_report_json(tmp_path / "run"), forked.stdout)
    )
    assert one["score"] == other["score"]


def _report_json(run: Path) -> bytes:
    return completed("report", run, "--json").stdout


def test_a_fork_with_a_lenient_judge_ends_where_the_recorded_talk_ends(tmp_path: Path) -> None:
    base = ["--dataset", ITEMS, "--interactor", "simulated:i", "--candidate", "simulated:c?knowledge=0.2"]
    first = completed("run", "kieval", *base, "--evaluator", "simulated:e?noise=0", "--json", "--out", tmp_path / "run")
    ends = orjson.loads(first.stdout)["candidates"]["c"]["ends"]
    assert ends["evaluator"] > 0
    # A judge that is never readable never stops a talk.
    mute = "simulated:mute?malformed=1&label=mute"
    forked = completed("run", "--fork", tmp_path / "run", "--judge", mute, "--json", "--out", tmp_path / "fork")
    assert forked.returncode == 0, forked.stderr.decode()
    ends_now = orjson.loads(forked.stdout)["candidates"]["c"]["ends"]
    assert ends_now.get("transcript", 0) > 0
    assert "evaluator" not in ends_now or ends_now["evaluator"] < ends["evaluator"]


def test_another_run_in_the_folder_is_refused_by_name_of_what_differs(tmp_path: Path) -> None:
    base = ["run", "kieval", "--dataset", ITEMS, "-n", "3", "--candidate", "simulated:c", "--interactor", "simulated:i"]
    out = ["--evaluator", "simulated:e", "--out", tmp_path / "run"]
    assert completed(*base, *out).returncode == 0
    same = completed(*base, *out)
    assert same.returncode == 2
    assert b"viva resume" in same.stderr
    other = completed(*base, *out, "--seed", "8")
    assert other.returncode == 2
    assert b"a run with other settings" in other.stderr
    assert b"seed" in other.stderr


def test_a_changed_dataset_cannot_be_resumed(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_bytes(ITEMS.read_bytes())
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    assert completed("run", "kieval", "--dataset", items, *models, "--out", tmp_path / "run").returncode == 0
    items.write_bytes(b"\n".join(ITEMS.read_bytes().splitlines()[:20]))
    done = completed("resume", tmp_path / "run")
    assert done.returncode == 2
    assert b"dataset" in done.stderr


@pytest.mark.parametrize("damage", ["header", "middle", "not a database"])
def test_a_damaged_journal_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    assert completed("run", "kieval", "--dataset", ITEMS, *models, "--out", tmp_path / "run").returncode == 0
    journal = tmp_path / "run" / "journal.sqlite"
    data = bytearray(journal.read_bytes())
    if damage == "header":
        data[:64] = b"\0" * 64
    elif damage == "middle":
        data[4096:] = b"\xff" * (len(data) - 4096)
    else:
        data = bytearray(b"this was never a journal " * 1000)
    journal.write_bytes(data)
    for command in (["resume", tmp_path / "run"], ["report", tmp_path / "run"]):
        done = completed(*command)
        assert done.returncode == 1, done.stderr.decode()
        assert b"journal.sqlite" in done.stderr
        assert b"Traceback" not in done.stderr


def test_a_full_disk_stops_the_run_loses_nothing_and_the_run_goes_on_later(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    arguments = ["run", "kieval", "--dataset", str(ITEMS), *models, "--concurrency", "4", "--json", "--out"]
    whole = completed(*arguments, tmp_path / "whole")
    # The kernel refuses to let a file grow beyond the limit, as a full disk does.
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); {_MAIN}"
    command = [sys.executable, "-c", limited, *arguments, str(tmp_path / "full")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"free space" in done.stderr
    assert b"viva resume" in done.stderr
    assert b"Traceback" not in done.stderr
    resumed = completed("resume", tmp_path / "full", "--json")
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert resumed.stdout == whole.stdout


_MAIN = "import sys; from viva.cli.main import main; main()"

"""Runs whose calls go through batch APIs, killed at any moment: what the provider was paid for is counted there."""

from __future__ import annotations

import importlib
import random
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from small_sweeps import write_file
from viva_process import completed, ended, started

if TYPE_CHECKING:
    from tests.servers.batch_process import BatchServer

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
KINDS = ("openai", "anthropic", "gemini")
_REQUESTS_BEFORE_A_KILL = 40  # at most; a part that makes no progress is killed again later
_KILLS = 20


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with importlib.import_module("batch_process").running() as one:
        yield one


def arguments(server: BatchServer, kinds: tuple[str, str, str], out: Path, **options: object) -> list[str | Path]:
    roles = zip(("candidate", "interactor", "evaluator"), kinds, strict=True)
    models = [text for role, kind in roles for text in (f"--{role}", server.model(kind, role, **options))]
    return ["run", "kieval", "--dataset", ITEMS, "-n", "8", "--rounds", "2", *models, "--json", "--out", out]


def report(printed: bytes) -> object:
    """A report without the models' names, which say how they were called."""
    return orjson.loads(printed)["candidates"]


def killed_until_done(server: BatchServer, run: list[str | Path], folder: Path, seed: int) -> tuple[bytes, int]:
    """The report of a run that is killed again and again after a random number of requests, and the kills."""
    draw, kills = random.Random(seed), 0
    while kills < _KILLS:
        command = ["resume", folder, "--json"] if (folder / "manifest.json").exists() else run
        before = server.number()
        process = started(*command)
        moment = before + draw.randint(1, 2 + kills * _REQUESTS_BEFORE_A_KILL // _KILLS)
        while process.poll() is None and server.number() < moment:
            pass
        process.kill()
        code, printed, _ = ended(process)
        if code != -signal.SIGKILL:
            assert code == 0
            return printed, kills
        kills += 1
    done = completed("resume", folder, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, kills


@pytest.mark.parametrize("kinds", [(kind,) * 3 for kind in KINDS], ids=KINDS)
def test_killed_at_many_moments_each_call_is_paid_once(
    kinds: tuple[str, str, str], server: BatchServer, tmp_path: Path
) -> None:
    whole = completed(*arguments(server, kinds, tmp_path / "whole", batch="off"))
    assert whole.returncode == 0, whole.stderr.decode()
    paid = server.log()["paid"]
    server.replan({"create": ["lost", "ok", "late_500", "500", "ok", "garbage"] * 5, "polls": 2})
    run = arguments(server, kinds, tmp_path / "killed")
    printed, kills = killed_until_done(server, run, tmp_path / "killed", seed=len(kinds[0]))
    assert kills > 3
    assert report(printed) == report(whole.stdout)
    assert server.log()["paid"] == paid
    [record, *_] = sorted((tmp_path / "killed").glob("batches-*.sqlite"))
    with closing(sqlite3.connect(record)) as database:
        states = {state for (state,) in database.execute("select state from batches")}
    assert states <= {"ended", "dropped"}


def test_ctrl_c_ends_a_run_that_waits_for_a_batch_and_the_batch_is_not_lost(
    server: BatchServer, tmp_path: Path
) -> None:
    server.replan({"polls": 1_000_000})
    kinds = ("openai",) * 3
    process = started(*arguments(server, kinds, tmp_path / "run"))
    while not any(path == "GET /v1/batches/" + path.rpartition("/")[2] for path in server.log()["requests"]):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _, said = ended(process)
    assert code != 0
    assert "viva resume" in said
    [batch] = server.log()["batches"]
    assert batch == 8
    server.replan({})
    done = completed("resume", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr.decode()
    log = server.log()
    assert log["batches"].count(8) >= 1
    assert not any(path == "POST /v1/batches" for path in log["requests"][:2]), "the batch was there"


def test_the_first_lines_say_how_many_batches_follow_each_other(server: BatchServer, tmp_path: Path) -> None:
    run = arguments(server, ("openai", "gemini", "anthropic"), tmp_path / "run", price_in=2, price_out=4)
    done = completed(*run, "--concurrency", "3")
    assert done.returncode == 0, done.stderr.decode()
    said = " ".join(done.stderr.decode().split())
    assert re.search(r"batch=on \(candidate, interactor, evaluator\): about 3 to \d+ batches one after another", said)
    assert "one more for each call that has to be repeated" in said
    assert "8 conversations, 3 at once" in said
    prices = orjson.loads((tmp_path / "run" / "manifest.json").read_bytes())["prices"]
    assert set(map(tuple, prices.values())) == {(1.0, 2.0)}


def test_cells_of_a_sweep_share_batches_and_a_killed_sweep_pays_once(server: BatchServer, tmp_path: Path) -> None:
    roles = {role: server.model("openai", role) for role in ("interactor", "evaluator")}
    candidates = [server.model("openai", label=label) for label in ("first", "second")]
    file = write_file(tmp_path, names=("alpha", "beta"), candidates=candidates, interviews=roles | {"rounds": 2})
    command = ["sweep", file, "--out", tmp_path / "sweep"]
    for number in (3, 5, 9):
        before = server.number()
        process = started(*command)
        while process.poll() is None and server.number() < before + number:
            pass
        process.kill()
        ended(process)
    done = completed(*command)
    assert done.returncode == 0, done.stderr.decode()
    assert set(server.log()["paid"].values()) == {1}
    assert len(list((tmp_path / "sweep").glob("batches-*.sqlite"))) == 4

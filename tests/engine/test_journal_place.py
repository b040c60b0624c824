"""The journal's file in the world: removed while it is written, locked by another program, or not to be written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_runs import after_calls
from study_runs import interviewed
from typer.testing import CliRunner, Result
from viva_process import ended, started

from viva.cli.main import app
from viva.engine import journal as journal_module
from viva.engine.clock import RealClock
from viva.engine.errors import JournalError, JournalNotice
from viva.engine.journal import Journal, open_database
from viva.engine.messages import Completion
from viva.engine.runner import Runner
from viva.engine.stream import EventStream
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_line_23_a_journal_that_is_gone_ends_the_run_as_failed(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"

    def harm(_: Any) -> None:
        shutil.rmtree(folder)
        if how == "replaced":
            folder.mkdir()
            open_database(folder / "journal.sqlite").close()

    models = {"candidate": ["simulated:c"], "interactor": "simulated:i", "evaluator": "simulated:e"}
    launch = new_run("kieval", KievalSettings(dataset=str(ITEMS), concurrency=2, **models), folder)
    ready = after_calls(10, harm)
    # The fault is met while the run goes on, or when what it recorded last is written.
    try:
        outcome = launch.clock.run(lambda: launch.run(lambda runner: ready(runner, launch.events)))
        error: object = outcome.error
    except JournalError as at_the_end:
        error = at_the_end
    assert "removed or replaced during the run" in str(error)


def test_line_23_the_command_says_so_and_does_not_end_as_done(chaos: Any, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.02}})
    run = tmp_path / "run"
    models = [text for role in ("candidate", "interactor", "evaluator") for text in (f"--{role}", server.model(role))]
    process = started("run", "kieval", "--dataset", ITEMS, *models, "--concurrency", "2", "--out", run)
    server.log(requests=4)
    shutil.rmtree(run)
    code, _, said = ended(process)
    assert code == 1
    assert said.count("viva: error: ") == 1
    assert "removed or replaced during the run" in said


@pytest.mark.parametrize("stop", ["interrupt", "halt"])
def test_line_27_a_run_that_is_told_to_stop_does_not_wait_for_minutes_for_a_foreign_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    monkeypatch.setattr(journal_module, "_BUSY_SECONDS", 0.01)
    monkeypatch.setattr(journal_module, "_CLOSING_SECONDS", 0.05)
    path = tmp_path / "journal.sqlite"
    clock = RealClock()
    foreign = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    released = threading.Timer(20, foreign.rollback)  # else a run that waits would wait for ten minutes

    async def run() -> None:
        async with Journal(path, clock) as journal:
            runner = Runner(seed=1, clock=clock, journal=journal, events=EventStream(), concurrency=1)
            foreign.execute("begin immediate")
            released.start()
            journal.record_call(0, "candidate", 0, b"", Completion("yes", "stop", 1, 1), 0.0)
            getattr(runner, stop)()
            await journal.flush()

    with pytest.warns(JournalNotice), pytest.raises(JournalError, match="another program holds a lock on it"):
        clock.run(run)
    released.cancel()
    foreign.close()


def test_line_27_a_foreign_write_lock_is_waited_for_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_BUSY_SECONDS", 0.01)
    path = tmp_path / "journal.sqlite"
    clock = RealClock()

    async def write(release: threading.Event) -> None:
        async with Journal(path, clock) as journal:
            foreign = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            foreign.execute("begin immediate")
            journal.record_call(0, "candidate", 0, b"", Completion("yes", "stop", 1, 1), 0.0)

            def let_go() -> None:
                release.wait(30)
                foreign.execute("rollback")
                foreign.close()

            other = threading.Thread(target=let_go)
            other.start()
            await journal.flush()
            other.join()

    release = threading.Event()
    said: list[str] = []

    def hear(message: str, category: type[Warning], **_: Any) -> None:
        assert category is JournalNotice
        said.append(message)
        release.set()

    monkeypatch.setattr(journal_module.warnings, "warn", hear)
    clock.run(lambda: write(release))
    assert "another program holds a write lock" in said[0]
    with sqlite3.connect(path) as connection:
        assert connection.execute("select text from calls").fetchall() == [("yes",)]
    connection.close()


@pytest.mark.parametrize("left", ["finished", "killed"])
def test_line_27_a_run_on_a_read_only_place_is_read(left: str) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        run = interviewed(place / "run", "simulated:c", n=3)
        writable = shutil.copytree(run, place / "writable")
        if left == "killed":  # its last commits are in the write-ahead log
            connection = sqlite3.connect(run / "journal.sqlite", isolation_level=None)
            connection.execute("delete from ended where number = 2")
            shutil.copytree(run, place / "copy", ignore=shutil.ignore_patterns("*-shm"))
            connection.close()
            run = place / "copy"
            assert (run / "journal.sqlite-wal").stat().st_size
        for one in (place, run):
            one.chmod(0o555)
        for command in _COMMANDS:
            _viva(command, writable)  # what they import is imported now, for another user may not read it
        with _as_somebody_else():
            done = {command: _viva(command, run) for command in _COMMANDS}
    finally:
        for one in (place, *place.rglob("*")):
            one.chmod(0o755)
        shutil.rmtree(place)
    for command in ("report", "show"):
        assert done[command].exit_code == 0, done[command].stderr
        assert done[command].stderr == ""
    assert ("interrupted" in done["show"].stdout) == (left == "killed")
    assert done["resume"].exit_code == 1
    assert "cannot lock the run folder" in done["resume"].stderr


_COMMANDS = ("report", "show", "resume")


def _viva(command: str, run: Path) -> Result:
    return CliRunner().invoke(app, [command, str(run)])


@contextmanager
def _as_somebody_else() -> Iterator[None]:
    """Root may write anywhere: be a user who may not, for a while."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("name", ["journal.sqlite", "journal.sqlite-wal", "lock"])
def test_a_link_in_a_run_folder_by_others_is_not_written_through(tmp_path: Path, name: str) -> None:
    run = interviewed(tmp_path / "run", "simulated:a", n=2)
    file, mine = run / name, tmp_path / "mine"
    mine.write_bytes(file.read_bytes() if file.exists() else b"")
    before = mine.read_bytes()
    file.unlink(missing_ok=True)
    file.symlink_to(mine)
    done: Result = CliRunner().invoke(app, ["resume", str(run)])
    assert done.exit_code == 1
    assert f"{file}: a symbolic link" in " ".join(done.stderr.split())
    assert mine.read_bytes() == before

"""The run folder is the user's: nothing in it is deleted, and a journal that is gone is said to be gone."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from study_runs import SCIENCE, interviewed, written
from typer.testing import CliRunner, Result
from viva_process import ended, started

from viva.cli.main import app
from viva.engine.errors import JournalError
from viva.engine.journal import _SCHEMA, open_database
from viva.engine.run_folder import RunFolder

DOWN = "openai:http://127.0.0.1:9/v1#far"  # nothing listens there
_TABLES = _SCHEMA.strip().split(";\n")
_FORMERLY = [one.replace(", checksum integer not null", "") for one in _TABLES]  # as the first version made them
PANEL = ["--interactor", "simulated:i", "--evaluator", "simulated:e"]


def _viva(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def _run(out: Path, candidate: str = "simulated:c") -> tuple[int, str]:
    code, _, said = ended(
        started("run", "kieval", "--dataset", SCIENCE, "-n", "2", "--candidate", candidate, *PANEL, "--out", out)
    )
    return code, said


def _files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def _without_marker(run: Path) -> None:
    """The manifest as earlier versions wrote it."""
    manifest: dict[str, Any] = orjson.loads((run / "manifest.json").read_bytes())
    manifest.pop("journal", None)
    (run / "manifest.json").write_bytes(orjson.dumps(manifest))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run of two talks whose endpoint is down by now, with the user's own notes beside it."""
    run = written(tmp_path / "run", SCIENCE, [{"type": "Unavailable", "message": "gone"}], DOWN, n=2)
    (run / "notes.txt").write_text("mine")
    return run


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("how", ["packed", "moved"])
def test_line_17_a_missing_journal_is_an_error(begun: Path, how: str, old: bool) -> None:
    if old:
        _without_marker(begun)
        (begun / "lock").touch()
    if how == "packed":
        (begun / "journal.sqlite.gz").write_bytes(gzip.compress((begun / "journal.sqlite").read_bytes()))
    (begun / "journal.sqlite").unlink()
    before = _files(begun)
    for command in ("resume", "report", "show"):
        done = _viva(command, begun)
        assert done.exit_code == 1, command
        assert "journal.sqlite: the journal of this run is missing" in done.stderr
        assert "gunzip" in done.stderr
    assert _files(begun) == before


@pytest.mark.parametrize("how", ["moved", "emptied"])
def test_line_17_a_missing_journal_is_an_error_in_every_report(begun: Path, tmp_path: Path, how: str) -> None:
    whole = interviewed(tmp_path / "whole", "simulated:c", n=2)
    (begun / "journal.sqlite").unlink()
    if how == "emptied":
        (begun / "journal.sqlite").touch()
    said = "the journal of this run is missing" if how == "moved" else "the journal is empty"
    for asked in ([begun], [begun, whole], [begun, "--markdown"], [begun, "--csv", tmp_path / "report.csv"]):
        done = _viva("report", *asked)
        assert (done.exit_code, said in done.stderr) == (1, True), (asked, done.stdout, done.stderr)
    assert not (tmp_path / "report.csv").exists()
    resumed = _viva("resume", begun)
    assert resumed.exit_code == 1
    assert ("is missing" if how == "moved" else "was emptied") in resumed.stderr


@case_table("made", [[], _TABLES[:1], _TABLES[:3], _TABLES, _FORMERLY])
def test_line_17_a_journal_that_a_kill_left_unmade_is_made(tmp_path: Path, made: list[str]) -> None:
    whole = interviewed(tmp_path / "whole", "simulated:c", n=2)
    expected = _viva("report", whole, "--json").stdout
    _without_marker(whole)
    (whole / "journal.sqlite").unlink()
    with closing(sqlite3.connect(whole / "journal.sqlite")) as connection:
        connection.executescript(";".join(made))
    shown = _viva("report", whole)
    assert shown.exit_code == 1
    assert f"continue it with `viva resume {whole}`" in shown.stderr
    assert _viva("resume", whole).exit_code == 0
    assert _viva("report", whole, "--json").stdout == expected


def test_line_17_a_journal_whose_version_is_lost_is_not_written(tmp_path: Path) -> None:
    whole = interviewed(tmp_path / "whole", "simulated:c", n=2)
    _without_marker(whole)
    with sqlite3.connect(whole / "journal.sqlite") as connection:
        connection.execute("delete from meta")
    connection.close()
    done = _viva("resume", whole)
    assert done.exit_code == 1
    assert "the file is damaged and can no longer be written" in done.stderr
    with closing(sqlite3.connect(whole / "journal.sqlite")) as connection:
        assert connection.execute("select count(*) from ended").fetchone() == (2,)


def test_line_17_what_another_program_wrote_is_no_unmade_journal(begun: Path) -> None:
    _without_marker(begun)
    (begun / "journal.sqlite").unlink()
    with closing(sqlite3.connect(begun / "journal.sqlite")) as connection:
        connection.execute("create table mine (x)")
    assert "not a viva journal" in _viva("report", begun).stderr
    assert _viva("resume", begun).exit_code == 1
    with closing(sqlite3.connect(begun / "journal.sqlite")) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("mine",)]


def test_line_17_a_kill_while_the_journal_is_made_does_not_take_the_folders_name(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    (left / "journal.sqlite").touch()
    (left / "journal.sqlite-journal").write_bytes(bytes(512))  # SQLite's own, while it makes the first page
    code, said = _run(left)
    assert code == 0, said


def test_line_17_a_resume_that_meets_a_dead_endpoint_deletes_nothing(begun: Path) -> None:
    before = _files(begun)
    done = _viva("resume", begun)
    assert done.exit_code == 1
    assert _files(begun).items() >= before.items()


def test_line_17_a_first_try_takes_away_its_own_files_and_no_others(tmp_path: Path) -> None:
    assert _run(tmp_path / "new", DOWN)[0] == 1
    assert not (tmp_path / "new").exists()
    # A folder that was there before stays, also where it is empty.
    (tmp_path / "mine").mkdir()
    assert _run(tmp_path / "mine", DOWN)[0] == 1
    assert list((tmp_path / "mine").iterdir()) == []


def test_line_17_a_kill_before_the_first_call_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    whole = interviewed(tmp_path / "whole", "simulated:c", n=2)
    # Killed before the journal was made (as earlier versions could be), and before the manifest was written.
    early = tmp_path / "early"
    early.mkdir()
    shutil.copy(whole / "manifest.json", early)
    _without_marker(early)
    assert _viva("resume", early).exit_code == 0
    assert _viva("report", early, "--json").stdout == _viva("report", whole, "--json").stdout
    late = tmp_path / "late"
    late.mkdir()
    open_database(late / "journal.sqlite").close()
    assert _run(late)[0] == 0
    (late / "manifest.json").unlink()
    code, said = _run(late)
    assert code == 2
    assert "the journal of a run whose manifest.json is missing" in said


def test_line_27_a_run_folder_that_cannot_be_made_is_taken_away_and_no_resume_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        path.touch()
        try:
            raise sqlite3.OperationalError("database or disk is full")
        except sqlite3.Error as error:
            raise JournalError("then `viva resume` the run") from error

    monkeypatch.setattr("viva.engine.run_folder.open_database", full)
    with pytest.raises(JournalError) as caught:
        RunFolder.create(tmp_path / "run", {})
    assert str(caught.value) == f"{tmp_path / 'run'}: cannot make the run folder: database or disk is full"
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(JournalError):
        RunFolder.create(tmp_path / "mine", {})
    assert not list((tmp_path / "mine").iterdir())  # the folder was there before

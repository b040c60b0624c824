"""A damaged journal: what is damaged is named and not used, what is whole is read, and nothing changes in silence."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import orjson
import pytest
from study_runs import interviewed
from typer.testing import CliRunner, Result

from viva.cli.main import app


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six talks."""
    return interviewed(tmp_path_factory.mktemp("whole") / "run", "simulated:c", n=6, rounds=2)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def _viva(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    return done


def _change(run: Path, sql: str) -> None:
    """Change rows behind the journal's back, as damage would."""
    with sqlite3.connect(run / "journal.sqlite") as connection:
        connection.execute(sql)
    connection.close()


def _talks(done: Result) -> dict[int, object]:
    return {line["number"]: line["talk"] for line in map(orjson.loads, done.stdout.splitlines())}


def test_line_28_a_changed_reply_is_named_and_the_other_talks_are_shown_as_they_were(whole: Path, run: Path) -> None:
    _change(run, "update calls set text = replace(text, 'e', 'f') where conversation = 3 and role = 'interactor'")
    shown = _viva("show", run, "--json")
    assert shown.exit_code == 0
    assert "viva: note: " in shown.stderr
    assert "call 2 of conversation 3" in shown.stderr
    before, after = _talks(_viva("show", whole, "--json")), _talks(shown)
    assert {number for number in before if before[number] != after[number]} == {3}


def test_line_28_a_damaged_end_is_left_out_and_a_resume_mends_it_from_its_calls(whole: Path, run: Path) -> None:
    _change(run, "update ended set result = replace(result, '1', '2') where number = 2")
    report = _viva("report", run, "--json")
    assert orjson.loads(report.stdout)["candidates"]["c"]["interviews"] == 5
    assert "end of conversation 2" in report.stderr
    resumed = _viva("resume", run, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert "end of conversation 2" in resumed.stderr
    for command in ("report", "show"):
        mended = _viva(command, run, "--json")
        assert (mended.stdout, mended.stderr) == (_viva(command, whole, "--json").stdout, "")


def test_line_28_damage_stands_in_the_json_of_every_report(whole: Path, run: Path) -> None:
    _change(run, "update ended set result = replace(result, '1', '2') where number = 2")
    _change(run, "update calls set text = text || '!' where conversation = 3 and role = 'interactor'")
    assert orjson.loads(_viva("report", run, "--json").stdout)["damaged"] == ["end of conversation 2"]
    assert orjson.loads(_viva("score", run, "--json").stdout)["damaged"] == ["end of conversation 2"]
    first, second = orjson.loads(_viva("report", run, whole, "--json").stdout)["cells"]
    assert (first["damaged"], "damaged" in second) == (["end of conversation 2"], False)
    lines = [orjson.loads(line) for line in _viva("show", run, "--json").stdout.splitlines()]
    assert [line["number"] for line in lines if line.get("damaged")] == [3]
    assert "damaged" not in _viva("report", whole, "--json").stdout + _viva("show", whole, "--json").stdout


def test_line_28_a_damaged_call_of_an_unfinished_talk_is_asked_again(whole: Path, run: Path) -> None:
    _change(run, "delete from ended where number = 4")
    _change(run, "update calls set latency = 77 where conversation = 4 and role = 'candidate' and ordinal = 1")
    resumed = _viva("resume", run, "--json")
    assert "of conversation 4" in resumed.stderr
    assert resumed.stdout == _viva("report", whole, "--json").stdout


def test_line_28_flipped_bits_never_change_what_is_shown_without_a_word(whole: Path, run: Path) -> None:
    journal = run / "journal.sqlite"
    data = journal.read_bytes()
    clean = {command: _viva(command, whole, "--json").stdout for command in ("report", "show")}
    draw = random.Random(28)
    silent, spoken = 0, 0
    for _ in range(12):
        place = draw.randrange(len(data))
        damaged = bytearray(data)
        damaged[place] ^= 1 << draw.randrange(8)
        journal.write_bytes(damaged)
        for command in ("report", "show"):
            done = _viva(command, run, "--json")
            if done.stdout == clean[command] and done.exit_code == 0:
                silent += not done.stderr
                continue
            spoken += 1
            assert "viva: note: " in done.stderr or "viva: error: " in done.stderr, (place, command)
            assert done.exit_code in (0, 1), (place, command)
    assert silent
    assert spoken


def test_line_28_pages_that_are_gone_leave_the_others_readable_and_the_file_is_not_written_any_more(run: Path) -> None:
    journal = run / "journal.sqlite"
    data = bytearray(journal.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    with sqlite3.connect(journal) as connection:
        (root,) = connection.execute(
            "select rootpage from sqlite_master where name = 'calls_by_conversation'"
        ).fetchone()
    connection.close()
    data[(root - 1) * page : root * page] = bytes(page)
    journal.write_bytes(data)
    shown = _viva("show", run, "--json")
    assert shown.exit_code == 0
    assert len(_talks(shown)) == 6
    assert "the structure of the file" in shown.stderr
    resumed = _viva("resume", run)
    assert (resumed.exit_code, journal.read_bytes()) == (1, bytes(data))
    assert "restore it from a copy" in resumed.stderr


def test_line_28_a_journal_of_the_first_version_is_read_and_gone_on_with(whole: Path, run: Path) -> None:
    for table in ("started", "calls", "ended"):
        _change(run, f"alter table {table} drop column checksum")
    _change(run, "update meta set value = '1'")
    _change(run, "delete from ended where number = 5")
    _change(run, "delete from calls where conversation = 5 and ordinal > 0")
    resumed = _viva("resume", run, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    for command in ("report", "show"):
        done = _viva(command, run, "--json")
        assert (done.stdout, done.stderr) == (_viva(command, whole, "--json").stdout, "")


def test_line_28_a_fork_says_which_recorded_call_is_damaged(run: Path, tmp_path: Path) -> None:
    from viva.engine.clock import VirtualClock
    from viva.engine.errors import JournalNotice
    from viva.orchestration.launch import forked_run

    _change(run, "update calls set text = 'x' where conversation = 1 and role = 'candidate' and ordinal = 1")
    clock = VirtualClock()
    launch = forked_run(run, tmp_path / "fork", clock, changes={"evaluator": "simulated:other"})
    with pytest.warns(JournalNotice, match="of conversation 1"):
        outcome = clock.run(launch.run)
    assert (outcome.finished, outcome.failed) == (5, 1)

"""A compacted run is smaller and says what it said before: reports, transcripts, forks, resumes, merged shards; also
where it was killed while it was compacted.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from earlier_folders import earlier_folder
from study_runs import interviewed, probed
from viva_process import ended, started

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.journal_compaction import compact_journal
from viva.engine.journal_merge import JournalMerger
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import forked_run, recorded_results, resumed_run
from viva.orchestration.transcripts import Transcripts
from viva.sweeps.compaction import compact


def _said(run: Path) -> tuple[Any, ...]:
    """All that a run says: its report, every transcript with its prompts, every recorded call."""
    folder = RunFolder.open(run)
    with warnings.catch_warnings(), History(folder.journal) as history:
        warnings.simplefilter("error")  # nothing of it may be taken for damage
        report = orjson.dumps(recorded_results(RunFolder.open(run)).report())
        calls = [history.calls(number) for number in history.numbers()]
        ended = list(history.ended())

        async def shown() -> list[str]:
            transcripts = Transcripts(RunFolder.open(run))
            return [repr(await transcripts.read(history, number)) for number in history.numbers()]

        return report, calls, ended, anyio.run(shown)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of interviews and one of probes, with log-probabilities of many tokens."""
    folder = tmp_path_factory.mktemp("finished")
    interviewed(folder / "interviews", "simulated:c", "simulated:d?noise=0.7", n=60, rounds=3)
    probed(folder / "probes", "simulated:c", n=20)
    return folder


@pytest.mark.parametrize("name", ["interviews", "probes"])
def test_a_compacted_run_says_byte_for_byte_what_it_said(finished: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(finished / name, tmp_path / name))
    before = _said(run)
    [tried] = compact(run, dry_run=True)
    assert tried.compaction is not None
    assert _said(run) == before
    [done] = compact(run)
    made = done.compaction
    assert made is not None
    assert _said(run) == before
    assert made.after == (run / "journal.sqlite").stat().st_size < 0.7 * made.before
    assert made.packed == tried.compaction.packed > 0
    assert abs(tried.compaction.after - made.after) < 0.2 * made.before
    [again] = compact(run)
    assert again.compaction is not None
    assert (again.compaction.packed, again.compaction.after) == (0, made.after)


def test_a_fork_of_a_compacted_run_is_that_of_the_run(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "interviews", tmp_path / "run"))
    forks = []
    for name in ("before", "after"):
        clock = VirtualClock()
        fork = forked_run(run, tmp_path / name, clock, changes={"evaluator": "simulated:other?noise=0.5"})
        assert clock.run(fork.run).how == "done"
        forks.append(recorded_results(RunFolder.open(tmp_path / name)).report())
        compact(run)
    assert forks[0] == forks[1]


def test_an_idle_run_is_compacted_and_resumed_and_compacted_again(tmp_path: Path) -> None:
    whole = interviewed(tmp_path / "whole", "simulated:c", n=30, rounds=2)
    calls = sum(len(one) for one in _said(whole)[1])
    run = tmp_path / "run"
    clock = VirtualClock()
    settings = {"n": 30, "rounds": 2, "max_calls": 100, "concurrency": 7}
    with pytest.raises(AssertionError):  # its budget ends it
        interviewed(run, "simulated:c", **settings)
    compact(run)
    launch = resumed_run(run, clock, changes={"max_calls": None})
    assert clock.run(launch.run).how == "done"
    assert sum(len(one) for one in _said(run)[1]) == calls, "a recorded call was made again"
    before = _said(run)
    [done] = compact(run)
    assert done.compaction is not None
    assert done.compaction.packed > 0
    assert _said(run) == before
    assert before[0] == _said(whole)[0]


_COMPACT = "import sys; from pathlib import Path; from viva.engine.journal_compaction import compact_journal; "
_COMPACT += "print(flush=True); compact_journal(Path(sys.argv[1]))"


def test_killed_at_any_moment_it_is_whole_and_is_compacted_the_next_time(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "interviews", tmp_path / "run"))
    _grown(run / "journal.sqlite", 20_000)
    before = _held(run / "journal.sqlite")
    draw = random.Random(3)
    killed = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", _COMPACT, run / "journal.sqlite"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # it begins now
        try:
            process.wait(draw.uniform(0.0, 0.3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        process.stdout.close()
        assert _held(run / "journal.sqlite") == before
    assert killed, "it was never killed while it worked"
    compact_journal(run / "journal.sqlite")
    assert _held(run / "journal.sqlite") == before
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
        left = journal.execute("select count(*) from calls where typeof(text) = 'text' and length(text) > 200")
        assert left.fetchone() == (0,)


def _grown(journal: Path, count: int) -> None:
    """Add calls by repeating those there are; the checksums are those of the new rows."""
    from viva.engine.journal_format import call_checksum

    with closing(sqlite3.connect(journal)) as connection, connection:
        rows = connection.execute("select * from calls").fetchall()
        for number in range(count):
            conversation, *middle, _ = rows[number % len(rows)]
            row = (conversation + 1000, *middle)
            connection.execute(f"insert into calls values ({','.join('?' * 12)})", (*row, call_checksum(row)))


def _held(journal: Path) -> list[int]:
    """How many calls each of some conversations has; the file is sound and nothing of it damaged."""
    with warnings.catch_warnings(), History(journal) as history:
        warnings.simplefilter("error")
        assert history.sound
        texts = [call.completion.text for number in (0, 7, 1003) for call in history.calls(number)]
        return [len(texts), hash(tuple(texts)), len(history.ended_numbers())]


def test_a_running_run_is_refused(finished: Path) -> None:
    folder = RunFolder.open(finished / "probes")
    folder.lock()
    try:
        with pytest.raises(ConfigurationError, match="another process is running this run"):
            compact(finished / "probes")
    finally:
        folder.unlock()


def test_damage_is_neither_hidden_nor_spread(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "interviews", tmp_path / "run"))
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute("update ended set result = replace(result, '\"rounds\"', '\"rounts\"') where number = 5")
    compact(run)
    with pytest.warns(match="end of conversation 5"), History(run / "journal.sqlite") as history:
        numbers = history.ended_numbers()
    assert len(numbers) == 79
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute("update dictionaries set bytes = zeroblob(length(bytes))")
    with pytest.warns(match="skipped because of damage"), History(run / "journal.sqlite") as history:
        assert history.ended_numbers() == set()


def test_compacted_shards_are_joined_as_plain_rows(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "interviews", tmp_path / "run"))
    compact(run)
    with JournalMerger(tmp_path / "joint.sqlite") as joint:
        joint.add(run / "journal.sqlite")
    files = (tmp_path / "joint.sqlite", finished / "interviews" / "journal.sqlite")
    with closing(sqlite3.connect(files[0])) as made, closing(sqlite3.connect(files[1])) as whole:
        for table in ("started", "calls", "ended"):
            ask = f"select * from {table}"
            assert made.execute(ask).fetchall() == whole.execute(ask).fetchall()


def test_a_journal_without_checksums_gets_them(tmp_path: Path) -> None:
    then = earlier_folder("first", tmp_path)
    before = _said(tmp_path / "part")
    compact(tmp_path / "part")
    assert _said(tmp_path / "part") == before
    clock = VirtualClock()
    launch = resumed_run(tmp_path / "part", clock, changes={"max_calls": None})
    assert clock.run(launch.run).how == "done"
    assert recorded_results(RunFolder.open(tmp_path / "part")).report()["candidates"].keys() == (
        then["reports"]["whole"]["candidates"].keys()
    )
    with closing(sqlite3.connect(tmp_path / "part" / "journal.sqlite")) as journal:
        assert journal.execute("select value from meta where key = 'schema'").fetchone() == ("3",)
        assert journal.execute("select count(*) from calls where checksum = 0").fetchone() == (0,)


def test_of_a_sweep_every_cell_is_compacted_and_one_that_runs_is_told(tmp_path: Path) -> None:
    earlier_folder("checksums", tmp_path)
    found = compact(tmp_path / "sweep")
    assert [one.problem for one in found] == ["", ""]
    held = RunFolder.open(tmp_path / "sweep" / found[0].name)
    held.lock()
    try:
        again = compact(tmp_path / "sweep")
    finally:
        held.unlock()
    assert ["another process" in one.problem for one in again] == [True, False]
    assert os.listdir(tmp_path / "sweep")


def test_a_reader_that_has_the_journal_open_reads_on(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "interviews", tmp_path / "run"))
    with warnings.catch_warnings(), History(run / "journal.sqlite") as history:
        warnings.simplefilter("error")
        before = [history.calls(number) for number in range(10)]
        compact(run)
        assert [history.calls(number) for number in range(10)] == before
        assert len(list(history.ended())) == 80


def test_the_command_says_sizes_before_and_after_and_writes_nothing_when_tried(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "probes", tmp_path / "run"))
    data = (run / "journal.sqlite").read_bytes()
    code, printed, said = ended(started("sweep", "compact", run, "--dry-run", "--json"))
    assert code == 0, said
    tried = orjson.loads(printed)
    assert tried["before"] == len(data) > tried["after"] > 0
    assert (run / "journal.sqlite").read_bytes() == data
    code, printed, said = ended(started("sweep", "compact", run))
    assert code == 0, said
    assert "1 journal:" in printed.decode()
    assert " before, " in printed.decode()
    assert (run / "journal.sqlite").stat().st_size < len(data)


def test_a_role_that_is_no_text_stops_no_compaction(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "probes", tmp_path / "run"))
    with closing(sqlite3.connect(run / "journal.sqlite")) as connection:
        connection.execute("update calls set role = x'ff' where rowid = 1")
        connection.commit()
    compact(run)
    with closing(sqlite3.connect(run / "journal.sqlite")) as connection:
        assert connection.execute("select count(*) from calls where role = x'ff'").fetchone() == (1,)

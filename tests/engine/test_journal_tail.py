"""A journal read piece by piece: all that the whole reading finds, once, also as it grows."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
import zlib
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import small_run

from viva.engine.budget import Budget
from viva.engine.errors import JournalError, JournalNotice
from viva.engine.journal_format import (
    DICTIONARIES_SCHEMA,
    PACKED_MARK,
    Packer,
    add_rare_fields,
    call_checksum,
)
from viva.engine.journal_reader import DAMAGE_ERRORS, History, JournalTail, has_records, journal_state
from viva.engine.messages import Completion

Place = tuple[int, int]


def _looks(tail: JournalTail, place: Place, limit: int) -> tuple[Place, list[int], list[tuple[int, str]], set[int]]:
    """All looks until nothing more comes: where they end, conversations, calls, ends."""
    started, calls, ended = [], [], set()
    while True:
        found = tail.read_additions(*place, set(started) - ended, limit)
        place = found.last_number, found.last_row
        started += [number for number, _, _ in found.started]
        calls += [(one.number, one.call.completion.text) for one in found.calls]
        ended |= {one.number for one in found.ended}
        if not found.more:
            return place, started, calls, ended


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_all_looks_together_find_what_one_reading_finds(tmp_path: Path, limit: int) -> None:
    small_run(tmp_path / "run", count=9)
    journal = tmp_path / "run" / "journal.sqlite"
    with closing(JournalTail(journal)) as tail, History(journal) as whole:
        place, started, calls, ended = _looks(tail, (-1, 0), limit)
        assert started == list(whole.numbers())
        assert sorted(calls) == sorted((n, one.completion.text) for n in started for one in whole.calls(n))
        assert ended == whole.ended_numbers()
        assert _looks(tail, place, limit) == (place, [], [], set())


def test_what_a_later_process_adds_is_found_by_the_next_look(tmp_path: Path) -> None:
    journal = tmp_path / "run" / "journal.sqlite"
    small_run(tmp_path / "run", count=9, run_budget=Budget(calls=8))
    with closing(JournalTail(journal)) as tail:
        place, _, calls, ended = _looks(tail, (-1, 0), 100)
        assert 0 < len(ended) < 9
        state = journal_state(journal)
        small_run(tmp_path / "run", count=9, resume=True)
        assert journal_state(journal) != state
        found = tail.read_additions(*place, set(range(9)) - ended, 100)
        assert len(calls) + len(found.calls) == 27
        assert ended | {one.number for one in found.ended} == set(range(9))


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("late", [(4, 5), (0, 3, 8), (1, 2, 3, 4, 5, 6, 7)])
def test_conversations_that_begin_after_later_numbers_are_not_missed(
    tmp_path: Path, late: tuple[int, ...], limit: int
) -> None:
    """As when some are added to a run in progress: nothing is missed or doubled, and no call precedes its start."""
    small_run(tmp_path / "run", count=9)
    journal = tmp_path / "run" / "journal.sqlite"
    with History(journal) as whole:
        every = sorted((n, call.completion.text) for n in whole.numbers() for call in whole.calls(n))
    marks = ",".join(map(str, late))
    columns = {"started": "number", "ended": "number", "calls": "conversation"}
    with closing(sqlite3.connect(journal)) as connection:
        for table, column in columns.items():
            connection.execute(f"create table later_{table} as select * from {table} where {column} in ({marks})")
            connection.execute(f"delete from {table} where {column} in ({marks})")
        connection.commit()
        with closing(JournalTail(journal)) as tail:
            place, started, calls, ended = _looks(tail, (-1, 0), limit)
            assert not {*started} & {*late}
            for table in columns:
                connection.execute(f"insert into {table} select * from later_{table}")
            connection.commit()
            known = {*started}
            while True:
                added = tail.read_additions(*place, known - ended, limit, known)
                place = added.last_number, added.last_row
                known |= {number for number, _, _ in added.started}
                started += [number for number, _, _ in added.started]
                assert {one.number for one in added.calls} <= known
                calls += [(one.number, one.call.completion.text) for one in added.calls]
                ended |= {one.number for one in added.ended}
                if not added.more:
                    break
    assert (sorted(started), sorted(calls), ended) == ([*range(9)], every, {*range(9)})


def test_a_damaged_row_is_left_out_and_named(tmp_path: Path) -> None:
    small_run(tmp_path / "run", count=3)
    journal = tmp_path / "run" / "journal.sqlite"
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("update ended set result = 'null' where number = 1")
        connection.execute("update calls set text = 'other' where rowid = 2")
        connection.commit()
    with closing(JournalTail(journal)) as tail, pytest.warns(JournalNotice, match="damaged"):
        _, started, calls, ended = _looks(tail, (-1, 0), 100)
    assert (started, len(calls), ended) == ([0, 1, 2], 8, {0, 2})


def test_damaged_starts_are_met_once(tmp_path: Path) -> None:
    small_run(tmp_path / "run", count=9)
    journal = tmp_path / "run" / "journal.sqlite"
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("update started set key = 'other' where number in (1, 4, 5)")
        connection.commit()
    with closing(JournalTail(journal)) as tail:
        with pytest.warns(JournalNotice, match="damaged"):
            place, started, _, _ = _looks(tail, (-1, 0), 2)
        again = tail.read_additions(*place, (), 2, {*started})
    assert started == [0, 2, 3, 6, 7, 8]
    assert (again.started, again.more) == ([], False)


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a folder; SQLite's index of a log is its own, and is in no copy of a run."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.endswith("-shm")}


@pytest.mark.parametrize("state", ["finished", "killed", "hot"])
def test_reading_changes_no_file(tmp_path: Path, state: str) -> None:
    """Neither is the log of a killed run merged, nor is a change undone that another program left unfinished."""
    small_run(tmp_path / "run", count=3)
    folder = tmp_path / "copy"
    with closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite", isolation_level=None)) as writing:
        if state == "hot":
            writing.execute("pragma journal_mode = delete")
            writing.execute("pragma cache_size = 1")
            writing.execute("begin")
        if state != "finished":
            writing.execute("update calls set finish = finish || ' '")
            writing.execute("delete from ended where number = 1")
        shutil.copytree(tmp_path / "run", folder, ignore=shutil.ignore_patterns("*-shm"))
    before = _files(folder)
    assert ("journal.sqlite-wal" in before, "journal.sqlite-journal" in before) == (state == "killed", state == "hot")
    journal = folder / "journal.sqlite"
    for reader in (History, JournalTail):
        if state == "hot":
            with pytest.raises(JournalError, match="was interrupted"):
                reader(journal)
        else:
            with closing(reader(journal)) as history:
                assert history.ended_numbers() == ({0, 1, 2} if state == "finished" else {0, 2})
    assert has_records(journal)
    assert _files(folder) == before
    assert state == "killed" or not journal.with_name("journal.sqlite-shm").exists()


def test_a_run_that_ends_while_somebody_reads_leaves_no_log(tmp_path: Path) -> None:
    journal = tmp_path / "run" / "journal.sqlite"
    small_run(tmp_path / "run", count=3, run_budget=Budget(calls=4))
    with closing(JournalTail(journal)) as tail:
        tail.read_additions(-1, 0, (), 100)
        small_run(tmp_path / "run", count=3, resume=True)
    assert not journal.with_name("journal.sqlite-wal").exists()


def test_a_long_query_ends_when_its_reader_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viva.engine.journal_reader._STEPS_BETWEEN_CHECKS", 1)
    small_run(tmp_path / "run", count=3)
    stopped = False
    with closing(JournalTail(tmp_path / "run" / "journal.sqlite", lambda: stopped)) as tail:
        assert len(tail.read_additions(-1, 0, (), 100).started) == 3
        stopped = True
        with pytest.raises(JournalError, match="was stopped"):
            tail.read_additions(-1, 0, (), 100)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_KINDS: dict[str, tuple[type, ...]] = {
    "attempts": (int,), "cached_tokens": (int,), "first_token": (int, float, type(None)), "thoughts": (str,),
    "usage_note": (str,), "logprobs": (list, type(None)), "pieces": (list, type(None)),
    "expected": (list, type(None)), "versions": (list, type(None)), "likelihoods": (list, type(None)),
    "calls": (list, type(None)), "text": (str,), "finish": (str,), "prompt_tokens": (int,), "latency": (float,),
}  # fmt: skip


@given(st.dictionaries(st.sampled_from([*_KINDS, "other", "__class__"]), _JSON, max_size=3) | _JSON)
def test_rare_fields_by_anybody_keep_the_types_of_a_call(fields: object) -> None:
    completion = Completion("text", "stop", 1, 2, 0.5)
    try:
        add_rare_fields(completion, orjson.dumps(fields, default=str).decode())
    except (*DAMAGE_ERRORS, orjson.JSONEncodeError):
        return  # the row counts as damaged
    for name, kinds in _KINDS.items():
        assert type(getattr(completion, name)) in kinds
    assert (completion.text, completion.finish, completion.prompt_tokens) == ("text", "stop", 1)
    assert completion.attempts >= 0
    for call in completion.calls or ():
        assert all(isinstance(part, str) for part in call.to_record())
    for likelihood in completion.likelihoods or ():
        assert likelihood.total is not None


def _add_call(journal: Path, number: int, ordinal: int, text: str, extra: str | None = None, size: int = 0) -> None:
    """Record a call as viva would, with a valid checksum; with a `size`, the text is packed and unpacks to that."""
    row = (number, "pupil", ordinal, bytes(16), text * size if size else text, "stop", 1, 1, 1.7e9, 0.1, extra)
    deflate = zlib.compressobj(1, wbits=-15)
    packed = PACKED_MARK + bytes(1) + deflate.compress((text * size).encode()) + deflate.flush() if size else text
    with sqlite3.connect(journal) as connection:
        connection.execute(
            f"insert into calls values ({','.join('?' * 12)})", (*row[:4], packed, *row[5:], call_checksum(row))
        )
        if size:
            connection.execute("update meta set value = '3' where key = 'schema'")
            connection.execute(DICTIONARIES_SCHEMA)
    connection.close()


@pytest.mark.parametrize(
    ("name", "value", "is_valid"),
    [
        ("attempts", 3, True),
        ("attempts", "3", False),
        ("attempts", 2**64 - 1, False),
        ("attempts", -1, False),
        ("first_token", 0.5, True),
        ("first_token", "soon", False),
        ("thoughts", [1], False),
        ("usage_note", {}, False),
        ("cached_tokens", "y", False),
        ("cached_tokens", None, False),
        ("logprobs", 5, False),
        ("pieces", {}, False),
        ("expected", [1.5, None], True),
        ("expected", ["x"], False),
        ("versions", ["a"], True),
        ("versions", "a", False),
        ("versions", [1], False),
        ("calls", [["1", "f", "{}"]], True),
        ("calls", [{"name": "f"}], False),
        ("calls", [[1, "f", "{}"]], False),
        ("likelihoods", [[[-0.5, None], True, None, None]], True),
        ("likelihoods", [{"total": 1}], False),
        ("likelihoods", [[["x"], True, None, None]], False),
        ("likelihoods", [[[-0.5], True, [[]], None]], False),
        ("text", [], False),
        ("latency", "x", False),
        ("__class__", 1, False),
        ("other", 1, False),
    ],
)
def test_a_call_with_an_odd_field_is_damaged_and_others_are_read(
    tmp_path: Path, name: str, value: object, is_valid: bool
) -> None:
    small_run(tmp_path / "run", count=1)
    journal = tmp_path / "run" / "journal.sqlite"
    _add_call(journal, 0, 70, "odd", orjson.dumps({name: value}).decode())
    _add_call(journal, 0, 71, "last")
    with warnings.catch_warnings(), closing(JournalTail(journal)) as tail:
        warnings.simplefilter("ignore", JournalNotice)
        texts = [own.call.completion.text for own in tail.read_additions(-1, 0, (), 100).calls]
        assert texts[-2:] == ["odd", "last"] if is_valid else ("odd" not in texts and texts[-1] == "last")
        assert bool(tail.damage) != is_valid


def test_texts_that_unpack_to_much_are_read_in_small_batches(tmp_path: Path) -> None:
    small_run(tmp_path / "run", count=1)
    journal = tmp_path / "run" / "journal.sqlite"
    for ordinal in range(70, 76):
        _add_call(journal, 0, ordinal, "a", size=14 * 2**20)
    _add_call(journal, 0, 80, "a", size=65 * 2**20)  # longer than anything that viva packs
    _add_call(journal, 0, 81, "last")
    assert journal.stat().st_size < 1_000_000
    assert Packer().pack(b"a" * (65 * 2**20)) is None
    with warnings.catch_warnings(), closing(JournalTail(journal)) as tail:
        warnings.simplefilter("ignore", JournalNotice)
        place, counts, texts = (-1, 0), [], []
        while True:
            added = tail.read_additions(*place, (), 100)
            place = added.last_number, added.last_row
            counts.append(sum(len(own.call.completion.text) for own in added.calls))
            texts += [len(own.call.completion.text) for own in added.calls]
            if not added.more:
                break
        assert max(counts) < 32 * 2**20
        assert texts[-7:] == [14 * 2**20] * 6 + [4]
        assert len(tail.damage) == 1
        with pytest.raises(JournalError, match="too long for a page"):
            tail.calls(0)

"""A journal read piece by piece: all that the whole reading finds, once, also as it grows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from small_runs import small_run

from viva.engine.budget import Budget
from viva.engine.errors import JournalNotice
from viva.engine.journal_reader import History, JournalTail, journal_state

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

"""Items that conversations share: written once, read back with each of them, whatever was interrupted in between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.clock import RealClock
from viva.engine.journal import Journal
from viva.engine.journal_reader import History

items = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=5)
    | st.dictionaries(st.text(max_size=3), st.none())
)
# The numbers of the conversations that each of several processes admits, in its order.
processes = st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=4)


async def _admit(path: Path, conversations: list[tuple[int, Any]]) -> None:
    async with Journal(path, RealClock()) as journal:
        for number, item in conversations:
            journal.record_started(number, f"key-{number}", item)


@given(st.lists(items, min_size=4, max_size=4), processes)
def test_each_conversation_gets_back_its_item(held: list[Any], admitted: list[list[int]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        wanted: dict[int, Any] = {}
        for process in admitted:
            # A conversation's item is always the same: a resumed run reads the same data.
            plans = [(number, held[number % 4]) for number in process]
            anyio.run(_admit, path, plans)
            wanted.update(plans)
        if not admitted:
            return
        with History(path) as history:
            for number in history.numbers():
                assert history.started(number) == (f"key-{number}", wanted[number])
            assert set(history.numbers()) == wanted.keys()


def test_an_item_is_found_where_a_later_process_has_moved_it(tmp_path: Path) -> None:
    # 6 points at 10, which a later process has written as pointing at 2.
    path, item = tmp_path / "journal.sqlite", {"question": "x"}
    for process in ([10, 6], [2, 10]):
        anyio.run(_admit, path, [(number, item) for number in process])
    with History(path) as history:
        assert [history.started(number) for number in (2, 6, 10)] == [(f"key-{n}", item) for n in (2, 6, 10)]


def test_what_many_share_is_written_once(tmp_path: Path) -> None:
    item = {"question": "x" * 10_000}

    async def fill(path: Path, count: int) -> None:
        async with Journal(path, RealClock()) as journal:
            for number in range(count):
                journal.record_started(number, f"candidate-{number}/item", item)
                journal.record_ended(number, "finished", {"number": number})

    sizes = []
    for count in (1, 200):
        path = tmp_path / f"{count}.sqlite"
        anyio.run(fill, path, count)
        sizes.append(path.stat().st_size)
        with History(path) as history:
            assert [(ended.number, ended.item) for ended in history.ended()] == [(n, item) for n in range(count)]
    assert sizes[1] < 3 * sizes[0]

"""The folder's thread: jobs that wait are committed together, a failing one is undone alone, a full disk is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from grading_site import make_folder

from viva.grading.store import GradeStore
from viva.web.grading.site import StoreWorker
from viva.web.problems import Refusal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GradeStore]:
    with GradeStore.open(make_folder(tmp_path / "folder", 2)) as one:
        yield one


def _grade(store: GradeStore, name: str, comment: str = "") -> str:
    store.grade(1, store.question(1).answers[0].id, 1, comment, submission=name)
    return name


def _names(folder: Path) -> list[str]:
    with GradeStore.open(folder) as store:
        return [row[0] for row in store.connection.execute("select name from submissions order by name")]


def test_waiting_jobs_are_one_commit_and_a_failing_one_is_undone_alone(store: GradeStore) -> None:
    def failing(store: GradeStore) -> str:
        _grade(store, "undone")
        raise ValueError("after it was written")

    async def ask() -> tuple[list[str | BaseException], int]:
        worker = StoreWorker(store)
        jobs = [worker.change(lambda store, name=name: _grade(store, name)) for name in "abc"]  # type: ignore[misc]
        tasks = [asyncio.ensure_future(one) for one in (*jobs[:2], worker.change(failing), jobs[2])]
        await asyncio.sleep(0)  # all of them wait before the thread begins
        worker.start()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await worker.close()
        return list(found), worker.commits

    found, commits = asyncio.run(ask())
    assert [str(one) for one in found] == ["a", "b", "after it was written", "c"]
    assert commits == 1
    assert _names(store.folder) == ["a", "b", "c"]


def test_nothing_is_acknowledged_that_the_disk_did_not_take(store: GradeStore) -> None:
    [(pages,)] = store.connection.execute("pragma page_count")

    async def ask() -> None:
        worker = StoreWorker(store)
        worker.start()
        await worker.read(lambda store: store.connection.execute(f"pragma max_page_count = {pages}").fetchall())
        with pytest.raises(Refusal) as refused:
            await worker.change(lambda store: _grade(store, "large", "x" * 500_000))
        assert refused.value.code == "unwritable"
        await worker.read(lambda store: store.connection.execute("pragma max_page_count = 1000000").fetchall())
        assert await worker.change(lambda store: _grade(store, "later")) == "later"
        await worker.close()

    asyncio.run(ask())
    assert _names(store.folder) == ["later"]

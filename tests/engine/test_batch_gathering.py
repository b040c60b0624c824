"""Gathering of calls into batches and polling of batches, in simulated time with a provider in this process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table

from viva.engine.backends.batch_api import Batch, BatchApi, BatchStatus, BatchUndecided, Outcome
from viva.engine.backends.batches import BatchQueue, BatchRecord, record_path
from viva.engine.cancellation import RunStopping, StopSignal
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, JournalError, TimedOut, Unavailable, Unreachable
from viva.engine.messages import Request, Sampling, View, request_digest

DAY = 86_400.0


class Provider(BatchApi):
    """A provider whose batches take ``seconds``; ``failures`` are raised by the next requests of each kind."""

    def __init__(self, clock: VirtualClock, seconds: float = 3600.0, max_calls: int = 10_000) -> None:
        self.label = "model"
        self.clock, self.seconds, self.max_calls = clock, seconds, max_calls
        self.created: list[tuple[float, Batch, Mapping[str, bytes]]] = []
        self.polls: list[float] = []
        self.failures: dict[str, list[Exception]] = {}

    def _fail(self, kind: str) -> None:
        if self.failures.get(kind):
            raise self.failures[kind].pop(0)

    async def create(self, batch: Batch, bodies: Mapping[str, bytes]) -> str:
        self._fail("create")
        self.created.append((self.clock.now(), batch, dict(bodies)))
        self._fail("created")
        return f"id-{len(self.created)}"

    async def find(self, batch: Batch, known: set[str]) -> str | None:
        self._fail("find")
        ids = [f"id-{index}" for index, (_, other, _) in enumerate(self.created, 1) if other.key == batch.key]
        return ids[0] if ids else None

    async def poll(self, batch: Batch) -> BatchStatus:
        self.polls.append(self.clock.now())
        self._fail("poll")
        made = self.created[int(batch.id.partition("-")[2]) - 1][0]
        return BatchStatus(self.clock.now() >= made + self.seconds, TimedOut("no result", model=self.label))

    async def read_results(self, batch: Batch, status: BatchStatus, take: Callable[[str, Outcome], None]) -> bool:
        self._fail("results")
        for name, body in self.created[int(batch.id.partition("-")[2]) - 1][2].items():
            take(name, b"answer to " + body)
        return False


def request(number: int) -> Request:
    view = View()
    view.append("user", str(number))
    sampling = Sampling()
    digest = request_digest(view, sampling, number)
    return Request(view.messages, sampling, number, digest, f"conversation {number}", "judge")


def run(
    clock: VirtualClock, folder: Path | None, provider: Provider, work: Callable[[BatchQueue], Awaitable[Any]]
) -> Any:
    """Return the result of work with a queue of its own, as in a process that begins and ends."""

    async def main() -> Any:
        queue = BatchQueue(provider, clock)
        queue.join_run(folder, "fake:model?batch=on", "model", None, 600.0)
        queue.open()
        try:
            return await work(queue)
        finally:
            await queue.close()

    return clock.run(main)


async def ask_all(queue: BatchQueue, count: int, apart: float = 0.0) -> list[bytes | BaseException]:
    async def ask_one(number: int) -> bytes:
        await queue.clock.sleep(number * apart)
        return await queue.ask(request(number), b"%d" % number)

    return await asyncio.gather(*map(ask_one, range(count)), return_exceptions=True)


def test_a_batch_waits_until_no_call_has_come_for_five_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    answers = run(clock, tmp_path, provider, lambda queue: ask_all(queue, 10, apart=4.0))
    assert answers == [b"answer to %d" % number for number in range(10)]
    [(at, _, bodies)] = provider.created
    assert at == pytest.approx(9 * 4.0 + 5.0)
    assert len(bodies) == 10


def test_calls_that_come_later_form_the_next_batch(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    run(clock, tmp_path, provider, lambda queue: ask_all(queue, 3, apart=6.0))
    assert [len(bodies) for _, _, bodies in provider.created] == [1, 1, 1]


@pytest.mark.parametrize(("most", "sizes"), [(10, [10, 10, 5]), (25, [25]), (24, [24, 1])])
def test_a_full_batch_is_sent_at_once(most: int, sizes: list[int], tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock, max_calls=most)
    run(clock, tmp_path, provider, lambda queue: ask_all(queue, 25))
    assert [len(bodies) for _, _, bodies in provider.created] == sizes


def test_no_batch_is_larger_than_the_provider_takes(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    provider.max_bytes = 1000

    async def work(queue: BatchQueue) -> None:
        await asyncio.gather(
            *(queue.ask(request(number), b"x" * size) for number, size in enumerate([300] * 5 + [5000]))
        )

    run(clock, tmp_path, provider, work)
    sizes = [[len(body) for body in bodies.values()] for _, _, bodies in provider.created]
    assert sizes == [[300, 300], [300, 300], [300], [5000]]


def test_polls_become_rarer_from_ten_seconds_to_five_minutes(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock, seconds=DAY)
    run(clock, tmp_path, provider, lambda queue: ask_all(queue, 1))
    pauses = [later - sooner for sooner, later in zip(provider.polls, provider.polls[1:], strict=False)]
    assert pauses[0] == pytest.approx(10.0)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(300.0)
    assert len(pauses) < 320


def test_failing_polls_are_repeated_and_lose_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    provider.failures = {kind: [Unavailable("HTTP 503", model="model")] * 5 for kind in ("poll", "results")}
    assert run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2)) == [b"answer to 0", b"answer to 1"]
    assert len(provider.created) == 1


def test_after_ten_minutes_of_failures_the_run_ends_and_a_resumed_one_finds_the_answers(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    provider.failures = {"poll": [Unavailable("HTTP 503", model="model")] * 1000}
    answers = run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2))
    assert [type(answer) for answer in answers] == [Unreachable, Unreachable]
    assert "no batch is lost" in str(answers[0])
    provider.failures.clear()
    assert run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2)) == [b"answer to 0", b"answer to 1"]
    assert len(provider.created) == 1


def test_a_batch_that_may_be_ours_is_awaited_before_its_calls_are_sent_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    provider.failures = {"create": [TimedOut("late", model="model")], "find": [BatchUndecided()] * 30}
    assert run(clock, tmp_path, provider, lambda queue: ask_all(queue, 1)) == [b"answer to 0"]
    [(at, _, _)] = provider.created
    assert at > 3600.0


@pytest.mark.parametrize("created", [True, False])
def test_killed_while_a_batch_was_created(created: bool, tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    provider.failures = {"created" if created else "create": [asyncio.CancelledError()]}  # type: ignore[list-item]

    async def killed(queue: BatchQueue) -> None:
        asking = asyncio.create_task(ask_all(queue, 3))
        await clock.sleep(30.0)
        asking.cancel()

    run(clock, tmp_path, provider, killed)
    answers = run(clock, tmp_path, provider, lambda queue: ask_all(queue, 3))
    assert answers == [b"answer to 0", b"answer to 1", b"answer to 2"]
    assert len(provider.created) == 1


def test_stopping_a_run_ends_the_wait_and_a_resumed_run_gets_the_answer(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock, seconds=DAY)

    async def stopped(queue: BatchQueue) -> list[bytes | BaseException]:
        stop = StopSignal()
        stop.enter()
        asking = asyncio.create_task(ask_all(queue, 2))
        await clock.sleep(1000.0)
        stop.request()
        return await asking

    assert [type(answer) for answer in run(clock, tmp_path, provider, stopped)] == [RunStopping, RunStopping]
    assert clock.now() < DAY
    assert run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2)) == [b"answer to 0", b"answer to 1"]
    assert len(provider.created) == 1


def test_a_cancelled_call_is_not_sent(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)

    async def work(queue: BatchQueue) -> None:
        calls = [asyncio.create_task(queue.ask(request(number), b"x")) for number in range(3)]
        await clock.sleep(1.0)
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    run(clock, tmp_path, provider, work)
    assert [len(bodies) for _, _, bodies in provider.created] == [2]


def test_equal_calls_of_two_runs_in_a_folder_are_two_calls(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)

    async def work(queue: BatchQueue) -> None:
        calls = [request(1), request(1), request(1)]
        calls[1].run, calls[2].run = tmp_path / "one", tmp_path / "other"
        await asyncio.gather(*(queue.ask(call, b"x") for call in calls))

    run(clock, tmp_path, provider, work)
    assert [len(bodies) for _, _, bodies in provider.created] == [3]


def test_an_answer_that_cannot_be_read_is_asked_for_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)

    async def work(queue: BatchQueue) -> None:
        await queue.ask(request(1), b"first")
        queue.discard(request(1))
        assert await queue.ask(request(1), b"second") == b"answer to second"

    run(clock, tmp_path, provider, work)
    assert len(provider.created) == 2


def test_the_record_belongs_to_one_process(tmp_path: Path) -> None:
    path = record_path(tmp_path, "model")
    record = BatchRecord(path)
    record.begin(["name"], 0.0)
    with pytest.raises(ConfigurationError, match="another process uses"):
        BatchRecord(path)
    record.close()
    other = BatchRecord(path)
    assert [batch.key for batch in other.open_batches()] == [f"viva-{record.salt}-1"]
    other.close()


def test_a_record_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = record_path(tmp_path, "model")
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(Exception, match=path.name):
        BatchRecord(path)


def _open_record(folder: Path) -> Path:
    """A record with a batch that is at the provider."""
    path = record_path(folder, "fake:model?batch=on")
    record = BatchRecord(path)
    batch = record.begin(["name"], 0.0)
    batch.id = "id-1"
    record.sent(batch)
    record.close()
    return path


def _change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@case_table(
    "statement, problem",
    [
        ("delete from meta", "'meta' has no text"),
        ("update meta set salt = x'00ff'", "'meta' has no text"),
        ("update batches set id = '../../etc/passwd'", "../../etc/passwd"),
        ("update batches set id = 'a/b?c=d'", "a/b?c=d"),
        ("update batches set id = x'69'", "has the id"),
        ("update batches set began = 'yesterday'", "yesterday"),
    ],
)
def test_a_damaged_record_is_refused_before_anything_is_requested(statement: str, problem: str, tmp_path: Path) -> None:
    path = _open_record(tmp_path)
    _change(path, statement)
    clock = VirtualClock()
    provider = Provider(clock)
    with pytest.raises(JournalError) as caught:
        run(clock, tmp_path, provider, lambda queue: ask_all(queue, 1))
    assert str(caught.value).startswith(f"{path}: the batch record is damaged (")
    assert problem in str(caught.value)
    assert "delete it" in str(caught.value)
    assert (provider.polls, provider.created) == ([], [])


@case_table("value", ["'text'", "12", "1.5"])
def test_an_answer_of_another_type_counts_as_missing(value: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    provider = Provider(clock)
    run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2))
    path = record_path(tmp_path, "fake:model?batch=on")
    _change(path, f"update calls set answer = {value} where answer = x'{b'answer to 1'.hex()}'")
    assert run(clock, tmp_path, provider, lambda queue: ask_all(queue, 2)) == [b"answer to 0", b"answer to 1"]
    assert [list(bodies.values()) for _, _, bodies in provider.created] == [[b"0", b"1"], [b"1"]]


@case_table(
    "kind, suffix",
    [("link", ""), ("dangling", ""), ("fifo", ""), ("folder", ""), ("link", "-journal"), ("link", "-wal")],
)
def test_a_record_that_is_no_file_of_its_own_is_refused(kind: str, suffix: str, tmp_path: Path) -> None:
    path = _open_record(tmp_path) if suffix else record_path(tmp_path, "fake:model?batch=on")
    special = path.with_name(path.name + suffix)
    other = tmp_path / "other.sqlite"
    if kind == "fifo":
        os.mkfifo(special)
    elif kind == "folder":
        special.mkdir()
    else:
        special.symlink_to(other)
    if kind == "link":
        other.write_bytes(b"")
    clock = VirtualClock()
    with pytest.raises(JournalError, match="symbolic link" if special.is_symlink() else "not a regular file"):
        run(clock, tmp_path, Provider(clock), lambda queue: ask_all(queue, 1))
    assert not other.exists() or other.read_bytes() == b""


def test_errors_of_the_record_do_not_speak_of_a_journal(tmp_path: Path) -> None:
    path = record_path(tmp_path, "model")
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(JournalError, match="cannot use the batch record"):
        BatchRecord(path)

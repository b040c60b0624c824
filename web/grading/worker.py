"""The thread that has the grading folder: it takes all jobs that wait, runs them, commits once, then answers all.

A job that fails is undone alone. What is answered is committed: whoever was told that a grade is saved finds it after
the process was killed. What never belongs here: what a job does.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from viva.orchestration.grading.store import GradeStore

from ..people.guarding import Refusal

T = TypeVar("T")
_MOST = 256  # jobs of one commit
_log = logging.getLogger("viva.pages")


@dataclass(slots=True)
class _Job:
    work: Callable[[GradeStore], Any]
    changes: bool
    future: asyncio.Future[Any]
    answer: Any = None
    error: BaseException | None = None


class Worker:
    """Runs jobs on a store in a thread of its own; the store is the worker's from ``start`` to the end of ``close``."""

    def __init__(self, store: GradeStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="viva-grades", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.commits = 0

    def start(self) -> None:
        """Begin; called in the event loop. Jobs that came before have waited."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish the jobs that wait, and close the store."""
        if self._loop is not None:
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join)
        self._store.close()

    async def change(self, work: Callable[[GradeStore], T]) -> T:
        """What the job gives, once all that it changed is committed.

        :raises Refusal: the folder cannot be written now; nothing of the job stays.
        """
        return await self._put(work, changes=True)

    async def read(self, work: Callable[[GradeStore], T]) -> T:
        """What a job gives that changes nothing."""
        return await self._put(work, changes=False)

    async def _put(self, work: Callable[[GradeStore], T], *, changes: bool) -> T:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.put(_Job(work, changes, future))
        return cast(T, await future)

    # -- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        ending = False
        while not ending:
            jobs: list[_Job] = []
            job = self._waiting.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == _MOST:
                    break
                try:
                    job = self._waiting.get_nowait()
                except queue.Empty:
                    break
            ending = job is None
            self._take(jobs)
            self._loop.call_soon_threadsafe(_answer, jobs)

    def _take(self, jobs: list[_Job]) -> None:
        changing = [job for job in jobs if job.changes]
        if changing:
            try:
                with self._store.batch():
                    for job in changing:
                        self._one(job)
                        if not self._store.connection.in_transaction:
                            raise sqlite3.OperationalError("the disk is full, or the file cannot be written")
                self.commits += 1
            except sqlite3.Error as error:
                for job in changing:
                    job.error = _unwritable(error)
        for job in jobs:
            if not job.changes:
                self._one(job)

    def _one(self, job: _Job) -> None:
        try:
            if job.changes:
                with self._store.batch():
                    job.answer = job.work(self._store)
            else:
                job.answer = job.work(self._store)
        except sqlite3.Error as error:
            job.error = _unwritable(error)
        except Exception as error:
            job.error = error


def _unwritable(error: sqlite3.Error) -> Refusal:
    _log.error("the grading folder cannot be used: %s", error)
    return Refusal(
        503, "Not saved", "The server cannot write the grades at the moment; please try again soon.", code="unwritable"
    )


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # the client has gone
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.answer)

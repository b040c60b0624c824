"""Shared parts of a folder's grading pages: the store's thread, secret links, sessions, permissions and templates.

The store belongs to one thread. The thread takes all waiting jobs, runs them, commits once, and then answers all of
them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from aiohttp import web
from multidict import MultiDictProxy

from viva.grading.records import Grader, GraderRole
from viva.grading.store import GradeStore

from ..page_server import html_response, read_form, render, template_environment
from ..problems import Refusal
from ..sessions import Session, Sessions, new_token, parse_expiry
from .question_form import QuestionRenderer

T = TypeVar("T")
_MAX_JOBS = 256  # maximum jobs in one commit
_log = logging.getLogger("viva.pages")


@dataclass(slots=True)
class _Job:
    work: Callable[[GradeStore], Any]
    changes: bool
    future: asyncio.Future[Any]
    answer: Any = None
    error: BaseException | None = None


class StoreWorker:
    """Runs jobs on a store in its own thread. The worker owns the store from `start` to the end of `close`."""

    def __init__(self, store: GradeStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="viva-grades", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.commits = 0

    def start(self) -> None:
        """Start the thread; call this in the event loop. Jobs from before the start are queued."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish the waiting jobs and close the store."""
        if self._loop is not None:
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join)
        self._store.close()

    async def change(self, work: Callable[[GradeStore], T]) -> T:
        """Run a job that changes the store; return its result when the change is committed."""
        return await self._put(work, changes=True)

    async def read(self, work: Callable[[GradeStore], T]) -> T:
        """Run a job that changes nothing; return its result."""
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
                if len(jobs) == _MAX_JOBS:
                    break
                try:
                    job = self._waiting.get_nowait()
                except queue.Empty:
                    break
            ending = job is None
            self._take(jobs)
            self._loop.call_soon_threadsafe(_resolve_jobs, jobs)

    def _take(self, jobs: list[_Job]) -> None:
        changing = [job for job in jobs if job.changes]
        if changing:
            try:
                with self._store.batch():
                    for job in changing:
                        self._run_job(job)
                        if not self._store.connection.in_transaction:
                            raise sqlite3.OperationalError("the disk is full, or the file cannot be written")
                self.commits += 1
            except sqlite3.Error as error:
                for job in changing:
                    job.error = _write_refusal(error)
        for job in jobs:
            if not job.changes:
                self._run_job(job)

    def _run_job(self, job: _Job) -> None:
        try:
            if job.changes:
                with self._store.batch():
                    job.answer = job.work(self._store)
            else:
                job.answer = job.work(self._store)
        except sqlite3.Error as error:
            job.error = _write_refusal(error)
        except Exception as error:
            job.error = error


def _write_refusal(error: sqlite3.Error) -> Refusal:
    _log.error("the grading folder cannot be used: %s", error)
    return Refusal(
        503, "Not saved", "The server cannot save grades at the moment; please try again soon.", code="unwritable"
    )


def _resolve_jobs(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # the client has disconnected
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.answer)


ADDRESS_KEY = "address"  # property of the store: where the folder was last served
ADMIN_NAME = "admin"


@dataclass(slots=True, frozen=True)
class NewLink:
    """A link that was just created. Its token is not stored."""

    grader: Grader
    url: str


def make_link(store: GradeStore, grader: Grader, address: str, expires: str) -> NewLink:
    """Create a grader's link, which replaces an earlier one. `expires` is a duration such as `7d`, or `never`."""
    token, digest = new_token()
    store.set_token(grader.number, digest, parse_expiry(expires, store.clock()))
    return NewLink(grader, f"{address}/link/{token}")


def make_missing_links(store: GradeStore, address: str, expires: str) -> list[NewLink]:
    """Create links for all people without a link who have not retired; if the folder has no admin, add one."""
    with store.batch():
        graders = store.graders()
        if not any(grader.role == "admin" for grader in graders):
            names = {grader.name for grader in graders}
            name = next(
                name for name in (ADMIN_NAME, *(f"{ADMIN_NAME}-{n}" for n in range(2, 99))) if name not in names
            )
            graders.append(store.add_grader(name, role="admin"))
        linked = {row[0] for row in store.connection.execute("select number from graders where token is not null")}
        return [
            make_link(store, grader, address, expires)
            for grader in graders
            if grader.number not in linked and grader.kind == "person" and grader.state != "retired"
        ]


Form = MultiDictProxy[Any]
TEMPLATES = Path(__file__).with_name("templates")
ALL_ROLES: tuple[GraderRole, ...] = ("grader", "adjudicator", "admin")
_SEEN_KEY = "seen"  # property of the store: questions for which a holder has seen grades of other people
_REOPEN_HINT = "Please open your link again."


class Site:
    """Shared parts of the pages of one folder. `secure`: users open the pages over https."""

    def __init__(self, worker: StoreWorker, sessions: Sessions, title: str, *, secure: bool = False) -> None:
        self.worker, self.sessions, self.title, self.secure = worker, sessions, title, secure
        self.templates = template_environment(TEMPLATES)
        self.questions = QuestionRenderer()

    def session(self, request: web.Request) -> Session:
        """Return the session of a request to a path of the session's holder."""
        session: Session | None = request.get("session") or self.sessions.read(request)
        if session is None or session.holder != request.match_info["holder"]:
            raise Refusal(401, "Not signed in", _REOPEN_HINT, code="session")
        request["session"] = session  # cached, because handlers ask several times and checking a signature is slow
        return session

    async def ask(
        self,
        request: web.Request,
        work: Callable[[GradeStore, Grader], T],
        *,
        roles: Collection[GraderRole] = ALL_ROLES,
        changes: bool = False,
        paused: bool = False,
    ) -> T:
        """Run a job for the sender of a request; return its result. `paused`: paused graders may, too."""
        session = self.session(request)

        def job(store: GradeStore) -> T:
            return work(store, require_grader(store, session, roles, paused=paused))

        return await (self.worker.change(job) if changes else self.worker.read(job))

    async def form(self, request: web.Request) -> Form:
        """Return the fields of a form that was sent from a page of this session."""
        self.session(request)  # a request without a session is refused before its body is read
        fields = await read_form(request)
        self.check_form(request, fields.get("form"))
        return fields

    def check_form(self, request: web.Request, token: object) -> None:
        """Check a form token.

        Raises:
            Refusal: The form token does not belong to the request's session.
        """
        if not self.sessions.is_of_form(self.session(request), token):
            raise Refusal(
                403,
                "Page out of date",
                "This page belongs to an earlier session; reload it and try again.",
                code="form",
            )

    def page(self, request: web.Request, template: str, /, *, status: int = 200, **values: Any) -> web.Response:
        """Render a template as a page for the sender of the request."""
        session = self.session(request)
        text = render(
            self.templates,
            template,
            site=self,
            holder=session.holder,
            base=f"/g/{session.holder}/",
            form=self.sessions.form_token(session),
            **values,
        )
        return html_response(text, status)


def require_grader(store: GradeStore, session: Session, roles: Collection[GraderRole], *, paused: bool) -> Grader:
    """Return the grader of a session.

    Raises:
        Refusal: The link was replaced or expired, the grader is retired or paused, or has another role.
    """
    record = store.by_token(session.link)
    if record is None or str(record[0].number) != session.holder:
        raise Refusal(
            403, "Link replaced", "Your link was replaced by a newer one; please open that one.", code="replaced"
        )
    grader, expires = record
    check_link(store, grader, expires)
    if grader.role not in roles:
        raise Refusal(403, "Not for you", "Your role has no access to this page.", code="role")
    if grader.state == "paused" and not paused:
        raise Refusal(
            403, "Paused", "You are paused at the moment. Your grades are saved, and your questions are kept for you.",
            code="paused",
        )  # fmt: skip
    return grader


def check_link(store: GradeStore, grader: Grader, expires: float | None) -> None:
    """Check that a link is still valid.

    Raises:
        Refusal: The link has expired, or its grader is retired.
    """
    if expires is not None and store.clock() >= expires:
        raise Refusal(
            410, "Link expired", "This link has expired. Your grades are saved; please ask for a new link.",
            code="expired",
        )  # fmt: skip
    if grader.state == "retired":
        raise Refusal(
            403, "No longer a grader", "Your part in this grading has ended. Your grades are saved. Thank you!",
            code="retired",
        )  # fmt: skip


def seen_questions(store: GradeStore, grader: Grader) -> set[int]:
    """Return the questions whose grades by other people this holder has seen, and which the holder must not grade."""
    return set((store.meta(_SEEN_KEY) or {}).get(str(grader.number), ()))


def record_seen(store: GradeStore, grader: Grader, question: int) -> None:
    """Record that this holder sees other people's grades for a question."""
    visits = store.meta(_SEEN_KEY) or {}
    mine = visits.setdefault(str(grader.number), [])
    if question not in mine:
        mine.append(question)
        store.set_meta(_SEEN_KEY, visits)

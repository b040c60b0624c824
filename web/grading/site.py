"""What all grading pages of a folder share: the folder's thread, sessions, templates, and who may ask for what.

Who asks is looked up for every request, in the same job that does what was asked: a link that was replaced, an expired
one, a paused or retired grader is refused from that moment on. What never belongs here: any particular page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from multidict import MultiDictProxy

from viva.orchestration.grading.records import Grader, GraderRole
from viva.orchestration.grading.store import GradeStore

from ..people.guarding import Refusal
from ..people.layout import environment, rendered
from ..people.links import Session, Sessions
from .shown import ShownQuestions
from .worker import Worker

T = TypeVar("T")
Form = MultiDictProxy[Any]
TEMPLATES = Path(__file__).with_name("templates")
EVERYBODY: tuple[GraderRole, ...] = ("grader", "adjudicator", "admin")
_SEEN = "seen"  # meta: of which questions a holder has seen others' grades
_OPEN_AGAIN = "Please open your own link once more."


class Site:
    """The parts of the pages of one folder. ``secure``: whether people reach the pages over https."""

    def __init__(self, worker: Worker, sessions: Sessions, title: str, *, secure: bool = False) -> None:
        self.worker, self.sessions, self.title, self.secure = worker, sessions, title, secure
        self.templates = environment(TEMPLATES)
        self.questions = ShownQuestions()

    def session(self, request: web.Request) -> Session:
        """The session of a request at its own holder's path.

        :raises Refusal: there is none.
        """
        session: Session | None = request.get("session") or self.sessions.read(request)
        if session is None or session.holder != request.match_info["holder"]:
            raise Refusal(401, "Not signed in", _OPEN_AGAIN, code="session")
        request["session"] = session  # it is asked for several times, and signatures take a while
        return session

    async def ask(
        self,
        request: web.Request,
        work: Callable[[GradeStore, Grader], T],
        *,
        roles: Collection[GraderRole] = EVERYBODY,
        changes: bool = False,
        paused: bool = False,
    ) -> T:
        """What a job gives that is done for whoever asks. ``paused``: it is done for paused graders too.

        :raises Refusal: nobody asks whose link is good, or their role may not.
        """
        session = self.session(request)

        def job(store: GradeStore) -> T:
            return work(store, holder_of(store, session, roles, paused=paused))

        return await (self.worker.change(job) if changes else self.worker.read(job))

    async def form(self, request: web.Request) -> Form:
        """The fields of a form that was sent from a page of this session.

        :raises Refusal: it was not.
        """
        fields = await request.post()
        self.check_form(request, fields.get("form"))
        return fields

    def check_form(self, request: web.Request, token: object) -> None:
        """:raises Refusal: this is not the form token of the request's session."""
        if not self.sessions.is_of_form(self.session(request), token):
            raise Refusal(403, "An old page", "This page is of an earlier visit; reload it and try again.", code="form")

    def page(self, request: web.Request, template: str, /, *, status: int = 200, **values: Any) -> web.Response:
        """A template as a page of whoever asks."""
        session = self.session(request)
        text = rendered(
            self.templates,
            template,
            site=self,
            holder=session.holder,
            base=f"/g/{session.holder}/",
            form=self.sessions.form_token(session),
            **values,
        )
        return web.Response(text=text, content_type="text/html", status=status)


def holder_of(store: GradeStore, session: Session, roles: Collection[GraderRole], *, paused: bool) -> Grader:
    """The grader of a session.

    :raises Refusal: the link is replaced or expired, the grader is retired or paused, or has another role.
    """
    found = store.by_token(session.link)
    if found is None or str(found[0].number) != session.holder:
        raise Refusal(403, "A newer link", "Your link was replaced by a newer one; open that one.", code="replaced")
    grader, expires = found
    check_link(store, grader, expires)
    if grader.role not in roles:
        raise Refusal(403, "Not for you", "This page is for others.", code="role")
    if grader.state == "paused" and not paused:
        raise Refusal(
            403, "Paused", "You are paused at the moment. What you graded is kept, and your questions wait for you.",
            code="paused",
        )  # fmt: skip
    return grader


def check_link(store: GradeStore, grader: Grader, expires: float | None) -> None:
    """:raises Refusal: the link has expired, or its grader is retired."""
    if expires is not None and store.clock() >= expires:
        raise Refusal(
            410, "An expired link", "This link has expired. What you graded is kept; ask for a new link.",
            code="expired",
        )  # fmt: skip
    if grader.state == "retired":
        raise Refusal(
            403, "No longer a grader", "Your part in this grading has ended. What you graded is kept. Thank you!",
            code="retired",
        )  # fmt: skip


def seen_by(store: GradeStore, grader: Grader) -> set[int]:
    """The questions of which this holder has seen others' grades, so that they are not for them to grade."""
    return set((store.meta(_SEEN) or {}).get(str(grader.number), ()))


def note_seen(store: GradeStore, grader: Grader, question: int) -> None:
    """Record that this holder sees others' grades of a question."""
    seen = store.meta(_SEEN) or {}
    mine = seen.setdefault(str(grader.number), [])
    if question not in mine:
        mine.append(question)
        store.set_meta(_SEEN, seen)

"""Pages of an admin: graders and their progress, links, invalidated grades and the audit log."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import get_args

from aiohttp import web

from viva.grading.assignments import grader_progress, overall_progress
from viva.grading.disputes import read_criteria, read_disputes
from viva.grading.records import Grader, GraderRole, GraderState, Progress, Question
from viva.grading.store import GradeStore

from ..page_server import see_other
from ..problems import Refusal
from ..sessions import new_token, parse_expiry
from .site import Form, Site, record_seen

ROLES: tuple[GraderRole, ...] = ("admin",)
_MAX_NAME, _MAX_REASON = 80, 500
_EVENTS_SHOWN = 60
_STATES: dict[str, GraderState] = {"pause": "paused", "resume": "active", "retire": "retired"}
_ACTIVITY = "select grader, max(at), count(value) from grades group by grader"
_LINKS = "select number, token is not null, expires from graders"


@dataclass(slots=True, frozen=True)
class GraderRow:
    """A grader in the table. `last` is the time of the latest grade; `linked`: there is a link, perhaps expired."""

    grader: Grader
    standing: Progress
    grades: int
    last: float | None
    linked: bool
    expires: float | None


@dataclass(slots=True, frozen=True)
class Overview:
    """Content of the admin's first page.

    `questions` are (number, reason for exclusion or ""), `audit_events` (time, author, event).
    """

    me: Grader
    rows: list[GraderRow]
    progress: Progress
    questions: list[tuple[int, str]]
    open_disputes: int
    decided: int
    audit_events: list[tuple[float, str, str]]


@dataclass(slots=True, frozen=True)
class GradeRow:
    """A grade of one answer, with the grader's name."""

    position: int
    grader: Grader
    value: float
    comment: str
    invalid: str


class AdminPages:
    """The pages of admins."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._new_links: dict[str, tuple[str, str, str]] = {}  # by one-time name: (holder, grader, token)

    def routes(self) -> list[web.RouteDef]:
        base = r"/g/{holder:\d{1,9}}/admin"
        return [
            web.get(base, self._overview),
            web.post(f"{base}/graders", self._add),
            web.post(rf"{base}/graders/{{number:\d{{1,9}}}}", self._manage),
            web.get(rf"{base}/q/{{number:\d{{1,9}}}}", self._question),
            web.post(rf"{base}/q/{{number:\d{{1,9}}}}", self._invalidate),
        ]

    async def _overview(self, request: web.Request) -> web.Response:
        overview = await self._site.ask(request, read_overview, roles=ROLES)
        new_link = self._new_links.pop(request.query.get("new", ""), None)
        if new_link is not None and new_link[0] != request.match_info["holder"]:
            new_link = None
        origin = f"{'https' if self._site.secure else 'http'}://{request.host}"
        link = None if new_link is None else (new_link[1], f"{origin}/link/{new_link[2]}")
        return self._site.page(request, "admin.html", overview=overview, link=link, now=time.time(), ago=format_age)

    async def _add(self, request: web.Request) -> web.Response:
        fields = await self._site.form(request)
        name, role = str(fields.get("name", "")).strip(), str(fields.get("role", "grader"))
        if not name or len(name) > _MAX_NAME:
            raise Refusal(400, "No name", f"A grader needs a name of at most {_MAX_NAME} characters.")
        if role not in get_args(GraderRole):
            raise Refusal(400, "No role", "The role must be grader, adjudicator or admin.")
        token, digest = new_token()

        def add(store: GradeStore, admin: Grader) -> None:
            expires = parse_expiry(str(fields.get("expires", "never")), store.clock())
            grader = store.add_grader(name, role=role)  # type: ignore[arg-type]
            store.set_token(grader.number, digest, expires)
            store.log(admin.name, f"added {name} as {role}")

        await self._site.ask(request, add, roles=ROLES, changes=True)
        return self._shown_once(request, name, token, "../admin")

    async def _manage(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        fields = await self._site.form(request)
        action = str(fields.get("deed", ""))
        token, digest = new_token()

        def manage(store: GradeStore, admin: Grader) -> str:
            grader = next((record for record in store.graders() if record.number == number), None)
            if grader is None:
                raise Refusal(404, "No such grader", "There is no grader with this number.")
            if action == "link":
                expires = parse_expiry(str(fields.get("expires", "never")), store.clock())
                store.set_token(number, digest, expires)
                store.log(admin.name, f"grader {number}: new link")
            elif action in _STATES:
                if number == admin.number and action != "resume":
                    raise Refusal(400, "Yourself", "You cannot pause or retire yourself; ask another admin.")
                store.set_state(number, _STATES[action], admin.name)
            else:
                raise Refusal(400, "Unknown", "Graders can be paused, resumed and retired, and get new links.")
            return grader.name

        name = await self._site.ask(request, manage, roles=ROLES, changes=True)
        if action == "link":
            return self._shown_once(request, name, token, "../../admin")
        return see_other("../../admin")

    def _shown_once(self, request: web.Request, name: str, token: str, path: str) -> web.Response:
        once = secrets.token_urlsafe(12)
        self._new_links[once] = (request.match_info["holder"], name, token)
        return see_other(f"{path}?new={once}")

    async def _question(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])

        def look(store: GradeStore, admin: Grader) -> tuple[Question, list[GradeRow]]:
            question = store.question(number)
            record_seen(store, admin, number)
            return question, list_grades(store, question)

        question, rows = await self._site.ask(request, look, roles=ROLES, changes=True)
        return self._site.page(
            request, "admin_question.html", invalid=question.invalid, rows=rows, gold=question.gold,
            question=await self._site.questions.render(question),
        )  # fmt: skip

    async def _invalidate(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        fields = await self._site.form(request)
        reason = _invalidation_reason(fields)

        def invalidate(store: GradeStore, admin: Grader) -> None:
            if "grader" not in fields:
                store.invalidate_question(number, admin.name, reason)
                return
            grade = str(fields.get("grader")), str(fields.get("position"))
            for row in list_grades(store, store.question(number)):
                if (str(row.grader.number), str(row.position)) == grade:
                    answer = store.question(number).answers[row.position - 1]
                    store.invalidate(answer.id, row.grader.number, admin.name, reason)
                    return
            raise Refusal(404, "No such grade", "There is no such grade.")

        await self._site.ask(request, invalidate, roles=ROLES, changes=True)
        return see_other(f"../q/{number}")


def read_overview(store: GradeStore, admin: Grader) -> Overview:
    """Return the graders, their progress, and the audit log."""
    activity = {row[0]: (row[1], row[2]) for row in store.connection.execute(_ACTIVITY)}
    links = {row[0]: (bool(row[1]), row[2]) for row in store.connection.execute(_LINKS)}
    rows = []
    for grader in store.graders():
        last, count = activity.get(grader.number, (None, 0))
        linked, expires = links[grader.number]
        rows.append(GraderRow(grader, grader_progress(store, grader), count, last, linked, expires))
    disputed = read_disputes(store, read_criteria(store.meta("about"))).disputed
    questions = [
        tuple(row) for row in store.connection.execute("select number, invalid from questions order by number")
    ]
    return Overview(
        admin,
        rows,
        overall_progress(store),
        questions,
        sum(dispute.decided is None for dispute in disputed),
        sum(dispute.decided is not None for dispute in disputed),
        describe_log(store),
    )


def describe_log(store: GradeStore) -> list[tuple[float, str, str]]:
    """Return the latest audit events, newest first, with graders' names and answers' positions instead of ids."""
    names = {str(grader.number): grader.name for grader in store.graders()}

    def position_of(match: re.Match[str]) -> str:
        row = store.connection.execute("select question, position from answers where id = ?", (match[0],)).fetchone()
        return match[0] if row is None else f"question {row[0]}, position {row[1]}"

    def readable(text: str) -> str:
        placed = re.sub(r"\b[0-9a-f]{24}\b", position_of, text)
        return re.sub(r"^(grader|grade of [^:]{1,60} by) (\d+)", lambda match: _replace_number(match, names), placed)

    return [(at, readable(author), readable(event)) for at, author, event in store.audit_log()[-_EVENTS_SHOWN:][::-1]]


def _replace_number(match: re.Match[str], names: dict[str, str]) -> str:
    name = names.get(match[2], match[2])
    return name if match[1] == "grader" else f"{match[1]} {name}"


def list_grades(store: GradeStore, question: Question) -> list[GradeRow]:
    """Return the grades of a question by position, with names."""
    graders = {grader.number: grader for grader in store.graders()}
    positions = {answer.id: answer.position for answer in question.answers}
    rows = [
        GradeRow(positions[grader.answer], graders[grader.grader], grader.value, grader.comment, grader.invalid)
        for grader in store.grades(question=question.number)
        if grader.value is not None
    ]
    return sorted(rows, key=lambda row: (row.position, row.grader.number))


def format_age(seconds: float) -> str:
    """Format the time since an event."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


def _invalidation_reason(fields: Form) -> str:
    """Return the reason for an invalidation; "" if the grade is to count again."""
    reason = " ".join(str(fields.get("reason", "")).split())
    if "again" in fields:
        return ""
    if not reason or len(reason) > _MAX_REASON:
        raise Refusal(400, "No reason", f"Please give a reason of at most {_MAX_REASON} characters.")
    return reason

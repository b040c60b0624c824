"""Pages of a grader: one question at a time, the list of the grader's questions, the endpoint for the page's script."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import orjson
from aiohttp import web

from viva.grading.assignments import assignments_of, claim_assignment, grader_progress, next_assignment
from viva.grading.records import Grader, Progress, Question
from viva.grading.store import GradeStore

from ..page_server import see_other
from ..problems import Refusal
from .question_form import MAX_COMMENT, excerpt, question_seal, read_form, read_json, record_submissions
from .site import Site, seen_questions

_MAX_OPEN = 5  # maximum questions that a grader has opened and postponed
_OWN_QUESTIONS = """
select q.number, q.record, count(g.value), count(a.id) from seats s join questions q on q.number = s.question
join answers a on a.question = q.number left join grades g on g.answer = a.id and g.grader = ?
where s.grader = ? and q.invalid = '' group by q.number order by s.claimed, q.number
"""
_HOME_PAGES = {"grader": "next", "adjudicator": "disputes", "admin": "admin"}


@dataclass(slots=True, frozen=True)
class OwnGrade:
    """A grader's own current grade of an answer."""

    value: float | None = None
    comment: str = ""


@dataclass(slots=True, frozen=True)
class QuestionView:
    """A question as its grader sees it: own grades by position, neighbouring questions, progress."""

    grader: Grader
    question: Question
    grades: dict[int, OwnGrade]
    ordinal: int
    before: int | None
    after: int | None
    standing: Progress


@dataclass(slots=True, frozen=True)
class QuestionRow:
    """A question in the list of a grader's own questions."""

    number: int
    excerpt: str
    graded: int
    answers: int


class GraderPages:
    """The pages of graders."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(r"/g/{holder:\d{1,9}}/", self._home),
            web.get(r"/g/{holder:\d{1,9}}/next", self._next),
            web.get(r"/g/{holder:\d{1,9}}/done", self._finished_page),
            web.get(r"/g/{holder:\d{1,9}}/mine", self._mine),
            web.get(r"/g/{holder:\d{1,9}}/q/{number:\d{1,9}}", self._question),
            web.post(r"/g/{holder:\d{1,9}}/q/{number:\d{1,9}}", self._save),
            web.post(r"/g/{holder:\d{1,9}}/grades", self._grades),
        ]

    async def _home(self, request: web.Request) -> web.Response:
        grader = await self._site.ask(request, lambda store, grader: grader, paused=True)
        return see_other(_HOME_PAGES[grader.role])

    async def _next(self, request: web.Request) -> web.Response:
        text = request.query.get("after", "")
        after = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
        number = await self._site.ask(request, lambda store, grader: next_question(store, grader, after), changes=True)
        return see_other("done" if number is None else f"q/{number}")

    async def _question(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        desk = await self._site.ask(request, lambda store, grader: read_question_view(store, grader, number))
        plain = request.query.get("written") == "1"
        return self._site.page(
            request,
            "question.html",
            desk=desk,
            question=await self._site.questions.render(desk.question, plain=plain),
            plain=plain,
            name=secrets.token_hex(12),
            seal=question_seal(self._site.sessions, desk.grader.number, number),
            max_comment=MAX_COMMENT,
        )

    async def _save(self, request: web.Request) -> web.Response:
        """Save a form that a browser without scripts sends: the grades of all answers of a question."""
        number = int(request.match_info["number"])
        fields = await self._site.form(request)
        submissions = read_form(fields, number)
        sessions = self._site.sessions
        results = await self._site.ask(
            request, lambda store, grader: record_submissions(store, sessions, grader, submissions), changes=True
        )
        for problem in results.values():
            if problem:
                raise Refusal(400, "Not saved", problem["text"], code=problem["code"])
        return see_other(f"../next?after={number}" if "next" in fields else str(number))

    async def _grades(self, request: web.Request) -> web.Response:
        """Save the grades sent by the page's script; each gets its own reply."""
        self._site.session(request)
        form, submissions = read_json(await request.read())
        self._site.check_form(request, form)
        sessions = self._site.sessions

        def record(store: GradeStore, grader: Grader) -> dict[str, object]:
            results = record_submissions(store, sessions, grader, submissions)
            finished = sum(assignment.finished for assignment in assignments_of(store, grader))
            return {"results": results, "finished": finished}

        return web.json_response(await self._site.ask(request, record, changes=True))

    async def _mine(self, request: web.Request) -> web.Response:
        listed = await self._site.ask(request, lambda store, grader: list_own_questions(store, grader), paused=True)
        return self._site.page(request, "mine.html", questions=listed)

    async def _finished_page(self, request: web.Request) -> web.Response:
        def look(store: GradeStore, grader: Grader) -> tuple[Progress, list[QuestionRow]]:
            open_ = [question for question in list_own_questions(store, grader) if question.graded < question.answers]
            return grader_progress(store, grader), open_

        progress, open_ = await self._site.ask(request, look)
        return self._site.page(request, "done.html", standing=progress, open=open_)


def next_question(store: GradeStore, grader: Grader, after: int | None) -> int | None:
    """Return the number of the question after `after`: the grader's next one, else a new one, else a postponed one.

    `after` is None at the start; the answer is None if no question is left.
    """
    without = seen_questions(store, grader)
    if after is None:
        assignment = next_assignment(store, grader, excluded=without)
        return None if assignment is None else assignment.question
    mine = assignments_of(store, grader)
    numbers = [assignment.question for assignment in mine]
    if after in numbers[:-1]:
        return numbers[numbers.index(after) + 1]
    open_ = [assignment.question for assignment in mine if not assignment.finished]
    if len(open_) < _MAX_OPEN and (assignment := claim_assignment(store, grader, excluded=without)) is not None:
        return assignment.question
    return next((number for number in open_ if number != after), None)


def read_question_view(store: GradeStore, grader: Grader, number: int) -> QuestionView:
    """Return a question as its grader sees it.

    Raises:
        Refusal: The question is not assigned to this grader.
    """
    numbers = [assignment.question for assignment in assignments_of(store, grader)]
    if number not in numbers:
        raise Refusal(
            404, "Not assigned to you", "This question is not assigned to you, or no longer counts.", code="not-yours"
        )
    index = numbers.index(number)
    question = store.question(number)
    positions = {answer.id: answer.position for answer in question.answers}
    grades = dict.fromkeys(positions.values(), OwnGrade())
    for grade in store.grades(grader=grader.number, question=number):
        grades[positions[grade.answer]] = OwnGrade(grade.value, grade.comment)
    return QuestionView(
        grader,
        question,
        grades,
        index + 1,
        numbers[index - 1] if index else None,
        numbers[index + 1] if index + 1 < len(numbers) else None,
        grader_progress(store, grader),
    )


def list_own_questions(store: GradeStore, grader: Grader) -> list[QuestionRow]:
    """Return a grader's own questions in the order in which they were assigned."""
    rows = store.connection.execute(_OWN_QUESTIONS, (grader.number, grader.number))
    return [QuestionRow(number, excerpt(orjson.loads(record)["text"]), graded, answers)
            for number, record, graded, answers in rows]  # fmt: skip

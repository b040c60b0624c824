"""Pages of an adjudicator: disputed answers, their anonymous grades side by side, and the decision with its reason."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from viva.engine import seeds
from viva.grading.assignments import assignments_of
from viva.grading.disputes import DisputedAnswer, read_criteria, read_disputes
from viva.grading.records import Decision, Grader, GraderRole, Question
from viva.grading.store import GradeStore

from ..markdown import ModelText, render_model_text
from ..page_server import see_other
from ..problems import Refusal
from .question_form import MAX_COMMENT, excerpt
from .site import Site, record_seen

ROLES: tuple[GraderRole, ...] = ("adjudicator", "admin")


@dataclass(slots=True, frozen=True)
class BlindGrade:
    """A grade and its comment without the grader's name."""

    value: float
    comment: ModelText | None


@dataclass(slots=True, frozen=True)
class DisputeList:
    """Disputes that this adjudicator may decide, and counts of what is not listed.

    `own` counts disputes about questions that the adjudicator grades, `agreed` answers that are not in dispute, and
    `single` answers with only one grade.
    """

    to_decide: list[DisputedAnswer]
    decided: list[DisputedAnswer]
    own: int
    agreed: int
    single: int


@dataclass(slots=True, frozen=True)
class DisputeView:
    """A disputed answer: its grades in random order, its decision, its neighbours.

    `complete`: every assigned grader has graded it. `after` is the next dispute to decide, `left` the number of these.
    """

    question: Question
    position: int
    voices: list[BlindGrade]
    complete: bool
    decision: Decision | None
    before: DisputedAnswer | None
    after: DisputedAnswer | None
    left: int


class AdjudicatorPages:
    """The pages of adjudicators."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(r"/g/{holder:\d{1,9}}/disputes", self._list),
            web.get(r"/g/{holder:\d{1,9}}/disputes/{number:\d{1,9}}/{position:\d{1,5}}", self._case),
            web.post(r"/g/{holder:\d{1,9}}/disputes/{number:\d{1,9}}/{position:\d{1,5}}", self._decide),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        def look(store: GradeStore, grader: Grader) -> tuple[Grader, DisputeList, dict[int, str]]:
            docket = list_disputes(store, grader)
            numbers = {dispute.question for dispute in (*docket.to_decide, *docket.decided)}
            records = store.connection.execute("select number, record from questions")
            excerpts = {
                number: excerpt(orjson.loads(record)["text"]) for number, record in records if number in numbers
            }
            return grader, docket, excerpts

        grader, docket, excerpts = await self._site.ask(request, look, roles=ROLES)
        return self._site.page(request, "disputes.html", docket=docket, grader=grader, excerpts=excerpts)

    async def _case(self, request: web.Request) -> web.Response:
        number, position = _path_numbers(request)

        def look(store: GradeStore, grader: Grader) -> DisputeView:
            case = read_dispute(store, grader, number, position)
            record_seen(store, grader, number)
            return case

        case = await self._site.ask(request, look, roles=ROLES, changes=True)
        return self._site.page(
            request,
            "dispute.html",
            case=case,
            question=await self._site.questions.render(case.question),
            max_comment=MAX_COMMENT,
        )

    async def _decide(self, request: web.Request) -> web.Response:
        number, position = _path_numbers(request)
        fields = await self._site.form(request)
        value, reason = str(fields.get("value", "")), str(fields.get("reason", "")).strip()
        if not reason:
            raise Refusal(400, "No reason", "A decision needs a reason; go back and write one.")
        if len(reason) > MAX_COMMENT:
            raise Refusal(413, "Too long", f"A reason can have at most {MAX_COMMENT:,} characters.")

        def decide(store: GradeStore, grader: Grader) -> DisputedAnswer | None:
            case = read_dispute(store, grader, number, position)
            try:
                grade = float(value)
            except ValueError:
                raise Refusal(400, "No grade", "A decision needs a grade; go back and choose one.") from None
            answer = case.question.answers[position - 1]
            store.decide(answer.id, grader.number, grade, reason)
            return case.after

        following = await self._site.ask(request, decide, roles=ROLES, changes=True)
        path = "../../disputes" if following is None else f"../{following.question}/{following.position}"
        return see_other(path)


def list_disputes(store: GradeStore, grader: Grader) -> DisputeList:
    """List the disputes; first come those in which every assigned grader has graded the answer."""
    disputes = read_disputes(store, read_criteria(store.meta("about")))
    own = {assignment.question for assignment in assignments_of(store, grader)}
    mine = [dispute for dispute in disputes.disputed if dispute.question not in own]
    to_decide = sorted(
        (dispute for dispute in mine if dispute.decided is None),
        key=lambda dispute: (not dispute.complete, dispute.question, dispute.position),
    )
    decided = [dispute for dispute in mine if dispute.decided is not None]
    return DisputeList(to_decide, decided, len(disputes.disputed) - len(mine), disputes.agreed, disputes.single)


def read_dispute(store: GradeStore, grader: Grader, number: int, position: int) -> DisputeView:
    """Return one disputed answer.

    Raises:
        Refusal: The answer is not in dispute, or this adjudicator grades its question.
    """
    docket = list_disputes(store, grader)
    listed = [*docket.to_decide, *docket.decided]
    here = next((dispute for dispute in listed if (dispute.question, dispute.position) == (number, position)), None)
    if here is None:
        raise Refusal(404, "No dispute", "This answer is not in dispute, or you grade its question yourself.")
    others_to_decide = [dispute for dispute in docket.to_decide if dispute is not here]
    index = listed.index(here)
    question = store.question(number)
    grades = [dispute for dispute in store.grades(question=number) if dispute.answer == here.answer]
    valid = [dispute for dispute in grades if dispute.value is not None and not dispute.invalid]
    # Grades are shuffled for each answer, so that no grader can be recognized from one answer to the next.
    seed = store.meta("seed")
    valid.sort(key=lambda dispute: seeds.uniform(seed, "voices", dispute.answer, dispute.grader))
    voices = [BlindGrade(dispute.value, render_model_text(dispute.comment) if dispute.comment.strip() else None)
              for dispute in valid if dispute.value is not None]  # fmt: skip
    return DisputeView(
        question,
        position,
        voices,
        here.complete,
        store.decisions().get(here.answer),
        listed[index - 1] if index else None,
        next(
            (dispute for dispute in listed[index + 1 :] if dispute.decided is None),
            others_to_decide[0] if others_to_decide else None,
        ),
        len(docket.to_decide),
    )


def _path_numbers(request: web.Request) -> tuple[int, int]:
    return int(request.match_info["number"]), int(request.match_info["position"])

"""Protocols whose parts go on at once: branches, calls that overlap, control flow in task groups, early stops."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_runs import MANNERS, SAMPLING, Part, PureModel, calls, cut, results, run_talks

from viva.engine.budget import Budget
from viva.engine.cancellation import RunStopping, deciding_error, gather
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import ConfigurationError, LimitReached, Rejected, Unauthorized, Unavailable
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Request, View
from viva.engine.runner import Runner
from viva.engine.seeds import derive
from viva.engine.stream import EventStream

_CALLS = st.sampled_from(["a", "b", "a", "b", "read", "compute", "stop", "catch"])


def _parts(depth: int) -> st.SearchStrategy[Part]:
    step: st.SearchStrategy[Any] = _CALLS
    if depth:
        inner = st.lists(_parts(depth - 1), min_size=1, max_size=3)
        step = st.one_of(_CALLS, st.tuples(st.sampled_from(list(MANNERS)), inner))
    return st.lists(step, max_size=4).map(Part)


@given(
    talks=st.lists(_parts(2), min_size=1, max_size=3),
    schedule=st.integers(1, 10**6),
    kept=st.floats(0, 1),
    each=st.none() | st.integers(1, 6),
    whole=st.none() | st.integers(1, 12),
)
@example(  # two parts of one group are stopped, in either order
    talks=[Part([("task group", [Part(["a", "a", "stop", "a"]), Part(["a", "stop", "a"]), Part(["a", "a", "a"])])])],
    schedule=3,
    kept=0.5,
    each=None,
    whole=4,
)
@example(  # an interruption that is caught within a group, and a step that depends on it
    talks=[Part([("gather with errors", [Part([("task group", [Part(["a", "a"])])])]), "compute"])],
    schedule=1,
    kept=0.0,
    each=None,
    whole=1,
)
@settings(max_examples=60, deadline=None)
def test_concurrent_protocols_make_the_same_calls_whatever_the_latency_and_wherever_they_are_killed(
    talks: list[Part], schedule: int, kept: float, each: int | None, whole: int | None
) -> None:
    bounds = {"conversation_budget": None if each is None else Budget(calls=each)}
    with tempfile.TemporaryDirectory() as place:
        steady, hurried, killed, bounded = (Path(place) / name for name in ("steady", "hurried", "killed", "bounded"))
        outcome, asked = run_talks(steady, talks, 0, **bounds)  # type: ignore[arg-type]
        assert (outcome.how, outcome.failed) == ("done", 0)

        run_talks(hurried, talks, schedule, **bounds)  # type: ignore[arg-type]
        assert (results(hurried), calls(hurried)) == (results(steady), calls(steady))

        committed = int(kept * sum(calls(hurried).values()))
        cut(hurried, killed, committed)
        recorded = calls(killed)
        _, again = run_talks(killed, talks, schedule + 1, resume=True, **bounds)  # type: ignore[arg-type]
        assert (results(killed), calls(killed)) == (results(steady), calls(steady))
        known = Counter(digest for _, _, role, _, digest, _ in recorded.elements() if not role.startswith("compute:"))
        assert Counter(again) == Counter(asked) - known

        if whole is not None:
            for part in range(200):
                outcome, _ = run_talks(bounded, talks, schedule + part, resume=part > 0, **bounds,
                                       run_budget=Budget(calls=whole))  # type: ignore[arg-type]  # fmt: skip
                if outcome.how == "done":
                    break
            assert (results(bounded), calls(bounded)) == (results(steady), calls(steady))


_GROUPS = pytest.mark.parametrize("manner", ["task group", "anyio", "gather", "gathered"])


def _view(text: str) -> View:
    view = View()
    view.append("user", text)
    return view


async def _asks_once(conversation: Conversation, _: Any) -> str:
    return await _ask(conversation)


async def _ask(conversation: Conversation, role: str = "a", text: str = "go on") -> str:
    return (await conversation.generate(role, _view(text), SAMPLING)).text


def test_seeds_and_places_follow_from_branch_role_and_ordinal_and_are_as_ever_outside_of_branches(
    tmp_path: Path,
) -> None:
    async def converse(conversation: Conversation, _: Any) -> None:
        pro = conversation.branch("pro")
        for one in (conversation, pro, pro.branch("second"), conversation, pro):
            await _ask(one)

    seen: list[tuple[str, str, int, int]] = []

    class Listening(PureModel):
        async def generate(self, request: Request) -> Completion:
            seen.append((request.branch, request.role, request.ordinal, request.seed))
            return await super().generate(request)

    run_talks(tmp_path, [None], 0, converse=converse, model=Listening)
    places = [("", 0), ("pro", 0), ("pro/second", 0), ("", 1), ("pro", 1)]
    stored = {"": "a", "pro": "/pro:a", "pro/second": "/pro/second:a"}
    assert seen == [(path, "a", n, derive(7, "talk-0", stored[path], n)) for path, n in places]
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal:
        rows = journal.execute("select role, ordinal from calls order by rowid").fetchall()
    assert rows == [(stored[path], n) for path, n in places]
    assert [call[1:4] for call in calls(tmp_path)] == [(path, "a", n) for path, n in places]


@case_table("branch", ["", "pro"])
@case_table("kind", ["generate", "read", "compute"])
def test_a_second_call_of_a_role_while_one_is_in_flight_in_its_branch_is_refused_by_name(
    tmp_path: Path, kind: str, branch: str
) -> None:
    async def converse(conversation: Conversation, _: Any) -> Any:
        part = conversation.branch(branch) if branch else conversation
        ask = {
            "generate": lambda: part.generate("a", _view("?"), SAMPLING),
            "read": lambda: part.read("a", Reading("?", ("!",))),
            "compute": lambda: part.compute("a", asyncio.sleep, 0.1),
        }[kind]
        return [str(one) for one in await asyncio.gather(ask(), ask(), return_exceptions=True)]  # it is not heard

    outcome, _ = run_talks(tmp_path, [None] * 5, 3, converse=converse, concurrency=1)
    assert (outcome.how, outcome.finished, outcome.failed, outcome.interrupted) == ("failed", 0, 0, 1)
    what = "the step 'a'" if kind == "compute" else "the role 'a'"
    where = "in the same branch 'pro'" if branch else "outside of any branch"
    for said in ("conversation talk-0", what, where, 'part = conversation.branch("NAME")'):
        assert said in str(outcome.error), outcome.error


def test_other_roles_and_other_branches_may_be_asked_at_once(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, _: Any) -> int:
        parts = [conversation, conversation.branch("one"), conversation.branch("other")]
        await gather([partial(_ask, part, role) for part in parts for role in "ab"])
        return sum(used.calls for used in conversation.usage.values())

    outcome, _ = run_talks(tmp_path, [None], 3, converse=converse)
    assert (outcome.how, results(tmp_path)) == ("done", [(0, False, 6)])


@case_table("name", ["", " ", "pro/con", "a:b", "a\nb", 3])
def test_a_branch_needs_a_name_that_a_path_can_hold(tmp_path: Path, name: Any) -> None:
    async def converse(conversation: Conversation, _: Any) -> None:
        conversation.branch(name)

    outcome, _ = run_talks(tmp_path, [None], 0, converse=converse)
    assert outcome.how == "failed"
    assert f"branch({name!r}): expected a name" in str(outcome.error)


def test_a_branch_is_opened_once_for_its_calls_would_follow_from_who_is_faster(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, _: Any) -> None:
        one = conversation.branch("pro")
        await gather([partial(_ask, one), partial(_ask, conversation.branch("con"))])
        one.branch("pro")  # another path
        conversation.branch("pro")

    outcome, asked = run_talks(tmp_path, [None], 0, converse=converse)
    assert (outcome.how, len(asked)) == ("failed", 2)
    assert "conversation talk-0: branch('pro'): this branch is already open" in str(outcome.error)


def test_a_branch_that_continues_a_role_has_the_places_and_answers_of_calls_in_turn(tmp_path: Path) -> None:
    async def in_turn(conversation: Conversation, _: Any) -> list[str]:
        return [await _ask(conversation, text=f"{n}") for n in range(3)]

    async def at_once(conversation: Conversation, _: Any) -> list[str]:
        async def part(number: int, own: Conversation) -> str:
            first = await _ask(own, text=f"{number}")
            await _ask(own, text="again")
            return first

        parts = [conversation.branch(f"{n}", continuing="a") for n in range(3)]
        return await gather([partial(part, n, one) for n, one in enumerate(parts)])

    run_talks(tmp_path / "run", [None], 0, converse=in_turn)
    [(_, _, said)] = results(tmp_path / "run")
    cut(tmp_path / "run", tmp_path / "cut", 2)
    _, asked = run_talks(tmp_path / "cut", [None], 5, converse=at_once, resume=True)
    assert results(tmp_path / "cut") == [(0, False, said)]
    assert len(asked) == 1 + 3
    assert {call[1:4] for call in calls(tmp_path / "cut")} == {
        *(("", "a", n) for n in range(3)),
        *((f"{n}", "a", n + 1) for n in range(3)),
    }


@_GROUPS
@pytest.mark.parametrize("how", ["interrupt", "budget", "refused key"])
def test_control_flow_in_groups_leaves_the_run_resumable_and_loses_no_answer(
    tmp_path: Path, manner: str, how: str
) -> None:
    class Refusing(PureModel):
        async def generate(self, request: Request) -> Completion:
            completion = await super().generate(request)
            if how == "refused key" and len(self.asked) > 9:
                raise Unauthorized("HTTP 401", model="pure", status=401)
            return completion

    def prepare(runner: Runner, _: EventStream) -> None:
        if how == "interrupt":
            asyncio.get_running_loop().call_later(1.2, runner.interrupt)

    talks = [Part([(manner, [Part(["a", "b", "a"]), Part(["b", "a", "b"])]), "a"])] * 4
    budget = Budget(calls=9) if how == "budget" else None
    outcome, asked = run_talks(tmp_path / "run", talks, 3, model=Refusing, run_budget=budget, prepare=prepare)
    assert outcome.how == {"interrupt": "drained", "budget": "budget", "refused key": "failed"}[how]
    assert (outcome.failed, outcome.interrupted > 0) == (0, True)
    assert isinstance(outcome.error, Unauthorized) == (how == "refused key")
    recorded = sum(calls(tmp_path / "run").values())
    if how != "refused key":
        assert recorded == len(asked), "an answer that was waited for is not in the journal"
    outcome, again = run_talks(tmp_path / "run", talks, 4, resume=True)
    assert (outcome.how, outcome.finished, len(again)) == ("done", 4, 4 * 7 - recorded)
    run_talks(tmp_path / "whole", talks, 0)
    assert (results(tmp_path / "run"), calls(tmp_path / "run")) == (
        results(tmp_path / "whole"),
        calls(tmp_path / "whole"),
    )


def test_an_interruption_that_a_protocol_catches_still_interrupts_it(tmp_path: Path) -> None:
    async def catching(conversation: Conversation, _: Any) -> list[str]:
        parts = [conversation.branch(name) for name in ("one", "other")]
        done = await asyncio.gather(*map(_ask, parts), return_exceptions=True)
        return [str(one) for one in done]

    outcome, _ = run_talks(tmp_path, [None] * 4, 3, converse=catching, run_budget=Budget(calls=3), concurrency=1)
    assert (outcome.how, outcome.finished, outcome.interrupted) == ("budget", 1, 1)
    outcome, _ = run_talks(tmp_path, [None] * 4, 3, converse=catching, resume=True)
    run_talks(tmp_path / "whole", [None] * 4, 0, converse=catching)
    assert results(tmp_path) == results(tmp_path / "whole")


@_GROUPS
def test_a_stop_in_a_group_ends_its_branch_alone_and_the_others_go_on(tmp_path: Path, manner: str) -> None:
    stopping, talking = Part(["a", "stop", "a"]), Part(["a", "b", "a", "b"])
    uncaught = Part([(manner, [talking, stopping])])
    caught = Part(["a", (manner, [talking, Part(["catch", *stopping.steps])]), "a"])
    outcome, asked = run_talks(tmp_path, [uncaught, caught], 3)
    assert (outcome.how, outcome.failed, len(asked)) == ("done", 0, 5 + 7)
    (_, _, first), (_, _, second) = results(tmp_path)
    assert first == {"stopped": {"by": "protocol", "reason": "0.1 at 1"}}
    assert len(second) == 4


@_GROUPS
def test_a_part_that_never_ends_by_itself_holds_nothing_up(tmp_path: Path, manner: str) -> None:
    async def converse(conversation: Conversation, _: Any) -> None:
        async def watch(part: Conversation) -> None:
            while True:
                await _ask(part)

        async def talk(part: Conversation) -> None:
            part.stop("protocol", "enough")
            await _ask(part)

        parts = [partial(watch, conversation.branch("watch")), partial(talk, conversation.branch("talk"))]
        if manner != "gathered":  # which waits for all of its parts
            await MANNERS[manner](parts)
        left_behind = asyncio.create_task(parts[0]())
        await _ask(conversation)
        assert not left_behind.done()

    outcome, asked = run_talks(tmp_path, [None], 3, converse=converse)
    assert (outcome.how, outcome.finished) == ("done", 1)
    assert len(asked) < 2_500


def test_a_protocol_that_cancels_its_own_task_ends_the_run_by_name(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, _: Any) -> str:
        task = asyncio.current_task()
        if conversation.number == 1 and task is not None:
            asyncio.get_running_loop().call_later(0.1, task.cancel)
        return await _ask(conversation)

    outcome, _ = run_talks(tmp_path, [None] * 3, 0, converse=converse)
    assert (outcome.how, outcome.finished, outcome.interrupted, outcome.failed) == ("failed", 0, 3, 0)
    assert isinstance(outcome.error, ConfigurationError)
    assert "conversation talk-1: its protocol cancelled its own task" in str(outcome.error)
    outcome, _ = run_talks(tmp_path, [None] * 3, 0, resume=True, converse=_asks_once)
    assert (outcome.how, outcome.finished) == ("done", 3)


@pytest.mark.parametrize("ends", [ConversationStopped("me", "enough"), ValueError("a fault")])
def test_an_interruption_of_a_part_that_goes_on_beside_the_end_leaves_the_conversation_to_be_resumed(
    tmp_path: Path, ends: Exception
) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.1)  # of virtual time, while the other part's first call is under way
        raise ends

    async def asks(part: Conversation) -> None:
        for _ in range(3):
            await _ask(part)

    async def converse(conversation: Conversation, _: Any) -> None:
        await asyncio.gather(fails(), asks(conversation.branch("asks")))

    outcome, _ = run_talks(tmp_path, [None], 0, converse=converse, run_budget=Budget(calls=1))
    assert (outcome.how, outcome.interrupted) == ("budget", 1)
    outcome, _ = run_talks(tmp_path, [None], 0, converse=converse, resume=True)
    assert (outcome.how, outcome.interrupted, calls(tmp_path).total()) == ("done", 0, 3)


def test_a_protocol_that_gives_up_because_it_is_interrupted_is_no_failure(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, _: Any) -> None:
        try:
            await _ask(conversation)
            await _ask(conversation)
        except Exception:
            raise SystemExit("no model") from None

    outcome, _ = run_talks(tmp_path, [None], 0, converse=converse, run_budget=Budget(calls=1))
    assert (outcome.how, outcome.interrupted, outcome.failed) == ("budget", 1, 0)


@pytest.mark.parametrize("raised", [SystemExit("own"), type("Own", (BaseException,), {})("own")])
def test_a_failure_that_is_no_exception_cancels_no_part_beside_it(tmp_path: Path, raised: BaseException) -> None:
    async def fails() -> None:
        raise raised

    async def converse(conversation: Conversation, _: Any) -> None:
        await gather([fails, partial(_ask, conversation)])

    outcome, _ = run_talks(tmp_path, [None], 0, converse=converse)
    assert (outcome.how, outcome.failed, calls(tmp_path).total()) == ("done", 1, 1)
    assert results(tmp_path)[0][2]["message"] == "own"


@_GROUPS
def test_a_failure_in_a_group_is_recorded_as_itself(tmp_path: Path, manner: str) -> None:
    class Failing(PureModel):
        async def generate(self, request: Request) -> Completion:
            completion = await super().generate(request)
            if request.branch == "0.1":
                raise Rejected("HTTP 400: no", model="pure")
            return completion

    outcome, _ = run_talks(tmp_path, [Part([(manner, [Part(["a", "b"]), Part(["a"])])])], 3, model=Failing)
    assert (outcome.how, outcome.failed) == ("done", 1)
    assert results(tmp_path)[0][2] == {"type": "Rejected", "message": "pure: HTTP 400: no"}


_ORDINARY, _CALL = ValueError("a fault"), Unavailable("gone", model="m")
_STOP, _KEY, _LIMIT = (
    ConversationStopped("detector", "empty"),
    Unauthorized("401", model="m"),
    LimitReached("calls", 3, "run"),
)
_PAUSE, _CANCEL, _WRONG = RunStopping(), asyncio.CancelledError(), ConfigurationError("wrong")
_EXIT = SystemExit(1)


@case_table(
    ("errors", "decides"),
    [
        ([_ORDINARY], _ORDINARY),
        ([_CALL, _ORDINARY], _ORDINARY),
        ([_STOP, _CALL], _CALL),
        ([_STOP, _PAUSE, _ORDINARY], _PAUSE),
        ([_PAUSE, _LIMIT], _LIMIT),
        ([_LIMIT, _ORDINARY, _KEY], _KEY),
        ([_KEY, _WRONG], _KEY),
        ([_KEY, _CANCEL], _CANCEL),
        ([_EXIT, _PAUSE], _PAUSE),
        ([_STOP, _EXIT], _EXIT),
        ([_STOP, [_ORDINARY, [_LIMIT]]], _LIMIT),
        ([[_STOP], [_STOP]], _STOP),
    ],
)
def test_of_a_group_the_error_that_decides_is_found_at_any_depth(errors: list[Any], decides: BaseException) -> None:
    def grouped(some: list[Any]) -> BaseException:
        return BaseExceptionGroup("together", [grouped(one) if isinstance(one, list) else one for one in some])

    assert deciding_error(grouped(errors)) is decides
    assert deciding_error(decides) is decides

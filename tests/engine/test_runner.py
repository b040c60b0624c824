"""The runner: bounded admission, failures as data, budgets, draining and halting, resuming, events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from small_runs import SAMPLING, after_calls, results, small_run, three_questions

from viva.engine.backends.registry import build
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.budget import Budget
from viva.engine.clock import RealClock
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError, JournalError, Unauthorized, VivaError
from viva.engine.events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationStarted,
    Diverged,
    Event,
    RunFinished,
    StopRequested,
)
from viva.engine.journal import Journal
from viva.engine.messages import Completion, View
from viva.engine.runner import Plan, Runner
from viva.engine.stream import EventStream, Subscription


def _count(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


def test_every_conversation_ends_and_is_recorded(tmp_path: Path) -> None:
    outcome, events = small_run(tmp_path, count=50)
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 50, 0)
    assert [number for number, failed, said in results(tmp_path) if not failed and len(said) == 3] == list(range(50))
    assert _count(events, CallFinished) == 150
    assert isinstance(events[-1], RunFinished)


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_no_more_are_admitted_than_allowed_and_none_before_its_turn(tmp_path: Path, concurrency: int) -> None:
    open_now: set[str] = set()
    most = 0

    def watch(event: Event) -> None:
        nonlocal most
        if isinstance(event, ConversationStarted):
            open_now.add(event.conversation)
        elif isinstance(event, ConversationFinished):
            open_now.discard(event.conversation)
        most = max(most, len(open_now))

    small_run(
        tmp_path,
        model="simulated:m?latency=0.5",
        concurrency=concurrency,
        prepare=lambda runner, stream: stream.listen(watch),
    )
    assert most == min(concurrency, 20)


def test_results_do_not_depend_on_concurrency(tmp_path: Path) -> None:
    made = []
    for concurrency in (1, 7, 100):
        small_run(tmp_path / str(concurrency), model="simulated:m?latency=0.3&fail=0.2", concurrency=concurrency)
        made.append(results(tmp_path / str(concurrency)))
    assert made[0] == made[1] == made[2]


def test_a_failing_conversation_is_a_record_and_the_run_goes_on(tmp_path: Path) -> None:
    async def sometimes(conversation: Conversation, payload: int) -> Any:
        if payload % 5 == 0:
            raise ZeroDivisionError("a fault in protocol code")
        return await three_questions(conversation, payload)

    outcome, events = small_run(tmp_path, converse=sometimes)
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 16, 4)
    failed = [result for _, failed, result in results(tmp_path) if failed]
    assert {one["type"] for one in failed} == {"ZeroDivisionError"}
    assert _count(events, ConversationFailed) == 4


def test_calls_that_never_succeed_fail_their_conversation_with_the_reason(tmp_path: Path) -> None:
    outcome, _ = small_run(tmp_path, model="simulated:m?fail=1&retries=2", count=3)
    assert outcome.failed == 3
    assert {result["type"] for _, _, result in results(tmp_path)} == {"Unavailable"}


@pytest.mark.parametrize("error", [Unauthorized("HTTP 401", model="m"), ConfigurationError("m: cannot do that")])
def test_what_every_call_would_meet_ends_the_run_instead_of_failing_everything(
    tmp_path: Path, error: VivaError
) -> None:
    async def locked_out(conversation: Conversation, payload: int) -> Any:
        if payload == 3:
            raise error
        return await three_questions(conversation, payload)

    outcome, _ = small_run(tmp_path, converse=locked_out, concurrency=1)
    assert outcome.how == "failed"
    assert outcome.error is error
    assert [number for number, *_ in results(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("budget", [Budget(calls=30), Budget(tokens=600), Budget(seconds=20)], ids=str)
def test_a_spent_run_budget_stops_the_run_and_it_can_go_on(tmp_path: Path, budget: Budget) -> None:
    model = "simulated:m?latency=2"
    outcome, _ = small_run(tmp_path / "cut", model=model, run_budget=budget)
    assert outcome.how == "budget"
    assert 0 < outcome.finished < 20
    assert outcome.interrupted > 0
    again, _ = small_run(tmp_path / "cut", model=model, resume=True)
    assert (again.how, again.finished) == ("done", 20)
    small_run(tmp_path / "whole", model=model)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_conversation_budget_ends_that_conversation_at_the_same_turn_always(tmp_path: Path) -> None:
    outcome, events = small_run(tmp_path, conversation_budget=Budget(calls=2))
    assert (outcome.how, outcome.finished) == ("done", 20)
    assert {event.by for event in events if isinstance(event, StopRequested)} == {"budget"}
    assert {result["stopped"]["by"] for _, _, result in results(tmp_path)} == {"budget"}
    assert _count(events, CallFinished) == 40


def test_draining_finishes_what_is_in_flight_and_begins_nothing(tmp_path: Path) -> None:
    outcome, events = small_run(tmp_path, model="simulated:m?latency=1", prepare=after_calls(7, Runner.drain))
    assert outcome.how == "drained"
    assert outcome.interrupted == 0
    assert outcome.finished == _count(events, ConversationStarted) < 20


def test_line_10_interrupting_finishes_the_calls_under_way_and_begins_no_other(tmp_path: Path) -> None:
    model = "simulated:m?latency=1"
    outcome, before = small_run(tmp_path / "cut", model=model, prepare=after_calls(17, Runner.interrupt))
    assert outcome.how == "drained"
    assert outcome.interrupted > 0
    again, after = small_run(tmp_path / "cut", model=model, resume=True)
    fresh = [event for event in after if isinstance(event, CallFinished) and not event.replayed]
    assert (again.how, again.finished) == ("done", 20)
    assert _count(before, CallFinished) + len(fresh) == 60
    small_run(tmp_path / "whole", model=model)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


@pytest.mark.parametrize("how", [Runner.drain, Runner.interrupt])
def test_line_10_asked_to_stop_when_nothing_is_left_the_run_is_done(tmp_path: Path, how: Any) -> None:
    outcome, _ = small_run(tmp_path, model="simulated:m?latency=1", prepare=after_calls(60, how))
    assert (outcome.how, outcome.finished) == ("done", 20)


def test_halting_stops_at_once_and_resuming_repeats_no_recorded_call(tmp_path: Path) -> None:
    model = "simulated:m?latency=1"
    outcome, before = small_run(tmp_path / "cut", model=model, prepare=after_calls(17, Runner.halt))
    assert outcome.how == "halted"
    assert outcome.interrupted > 0
    again, after = small_run(tmp_path / "cut", model=model, resume=True)
    assert again.finished == 20
    fresh = [event for event in after if isinstance(event, CallFinished) and not event.replayed]
    assert _count(before, CallFinished) + len(fresh) == 60
    small_run(tmp_path / "whole", model=model)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_changed_question_is_asked_anew_and_said_so(tmp_path: Path) -> None:
    small_run(tmp_path, prepare=after_calls(10, Runner.halt), concurrency=4)

    async def reworded(conversation: Conversation, payload: Any) -> list[str]:
        view = View()
        view.append("system", "Be very brief.")
        view.append("user", f"question 0 of {payload}")
        return [(await conversation.generate("candidate", view, SAMPLING)).text]

    outcome, events = small_run(tmp_path, converse=reworded, resume=True)
    diverged = {event.conversation for event in events if isinstance(event, Diverged)}
    assert diverged
    assert not [event for event in events if isinstance(event, CallFinished) and event.replayed]
    assert outcome.finished == 20


def test_failed_conversations_stay_failed_unless_asked_for(tmp_path: Path) -> None:
    small_run(tmp_path, model="simulated:m?fail=1&retries=0", count=4)
    kept, _ = small_run(tmp_path, count=4, resume=True)
    assert kept.failed == 4
    retried, _ = small_run(tmp_path, count=4, resume=True, retry_failed=True)
    assert (retried.failed, retried.finished) == (0, 4)


def test_models_are_told_of_each_conversation_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(SimulatedBackend, "ended", lambda self, talk: told.append(talk))

    async def converse(conversation: Conversation, payload: int) -> list[str]:
        said = await three_questions(conversation, payload)
        if payload == 3:
            raise ValueError("a fault")
        if payload == 4:
            raise conversation.stop("somebody", "enough")
        return said

    small_run(tmp_path / "bare", converse=converse, count=8, concurrency=3)
    assert sorted(talk.partition(" ")[0] for talk in told) == [f"talk-{number}" for number in range(8)]
    small_run(tmp_path / "governed", model="simulated:m?concurrency=2", count=8)
    assert sorted(talk.partition(" ")[0] for talk in told[8:]) == [f"talk-{number}" for number in range(8)]
    assert len(set(told)) == 16


def test_cancelled_from_outside_it_begins_nothing_more(tmp_path: Path) -> None:
    begun: list[str] = []

    async def main() -> None:
        clock, stream, scope = RealClock(), EventStream(), anyio.CancelScope()

        def hear(event: Event) -> None:
            if isinstance(event, ConversationStarted):
                begun.append(event.conversation)
                if len(begun) == 4:
                    scope.cancel()

        stream.listen(hear)
        async with build("simulated:m?latency=1000", clock) as backend, Journal(tmp_path / "journal", clock) as journal:
            runner = Runner(seed=1, clock=clock, journal=journal, events=stream, concurrency=4)
            plans = (Plan(number, f"talk-{number}", {"candidate": backend}, number, {}) for number in range(100))
            with scope:
                await runner.run(plans, three_questions, 100)

    anyio.run(main)
    assert begun == [f"talk-{number}" for number in range(4)]


def test_what_cannot_be_written_down_is_said_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Journal(tmp_path / "journal.sqlite", RealClock()) as journal:
            journal.record_call(0, "candidate", 0, b"", Completion("yes", "stop", 10**30, 1), 0.0)  # no column holds it
            with pytest.raises(JournalError, match="cannot write the journal: OverflowError"):
                await journal.flush()

    anyio.run(main)


def test_a_broken_dataset_ends_the_run_with_its_error(tmp_path: Path) -> None:
    def prepare(runner: Runner, stream: EventStream) -> None:
        whole = runner._iter_admissible

        def breaking(plans: Iterator[Any], ended: set[int]) -> Iterator[Any]:
            def some() -> Iterator[Any]:
                for plan in plans:
                    if plan.number == 6:
                        raise ConfigurationError("items.jsonl:7: cannot be read")
                    yield plan

            return whole(some(), ended)

        runner._iter_admissible = breaking  # type: ignore[method-assign]

    outcome, _ = small_run(tmp_path, prepare=prepare, concurrency=1)
    assert outcome.how == "failed"
    assert "items.jsonl:7" in str(outcome.error)
    assert len(results(tmp_path)) == 6


def test_a_slow_subscriber_holds_conversations_back_and_loses_nothing(tmp_path: Path) -> None:
    taken: list[Event] = []
    largest = 0

    async def read_slowly(subscription: Subscription) -> None:
        nonlocal largest
        async for event in subscription:
            largest = max(largest, len(subscription._buffer))
            await anyio.sleep(1)
            taken.append(event)

    readers: list[asyncio.Task[None]] = []

    def prepare(runner: Runner, stream: EventStream) -> None:
        reading = read_slowly(stream.subscribe(capacity=4))
        readers.append(asyncio.get_running_loop().create_task(reading))

    _, heard = small_run(tmp_path, prepare=prepare)
    assert [type(event) for event in taken] == [type(event) for event in heard[: len(taken)]]
    assert len(taken) > 50
    # A buffer of 4 may be overrun by what the few running conversations publish before their next call, no more.
    assert largest < 4 + 5 * 4


def test_the_journal_survives_its_process_being_unable_to_write(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with pytest.raises(Exception, match="cannot use the journal"):
        anyio.run(_open_journal, folder / "nowhere" / "journal.sqlite")


async def _open_journal(path: Path) -> None:
    async with Journal(path, RealClock()):
        pass


def test_line_13_a_fault_in_a_users_coroutine_is_reported_at_their_own_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import json\n\n\nasync def converse(conversation, payload):\n    return json.loads('{')\n")
    namespace: dict[str, Any] = {"__name__": "mine"}
    exec(compile(mine.read_text(), str(mine), "exec"), namespace)
    outcome, _ = small_run(tmp_path / "run", converse=namespace["converse"], count=1)
    assert outcome.failed == 1
    [(_, _, record)] = results(tmp_path / "run")
    assert (record["type"], record["at"]) == ("JSONDecodeError", f"{mine}:5 in converse")


def test_line_13_a_fault_within_viva_is_reported_at_the_line_that_called_it(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, payload: int) -> Any:
        return await conversation.generate("candidate", None, SAMPLING)  # type: ignore[arg-type]

    small_run(tmp_path, converse=converse, count=1)
    [(_, _, record)] = results(tmp_path)
    assert record["at"].startswith(f"{__file__}:"), "the caller's line, for it is theirs to mend"

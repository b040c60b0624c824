"""A person as a backend: requests wait in a room across kills and resumes, each is answered once, a wait that is over
is data."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from people import Person, answering
from small_runs import small_run
from viva_process import ended, started

from viva.engine.backends.base import Backend
from viva.engine.backends.human_queue import AnswerQueue, PendingQuestion
from viva.engine.backends.registry import build, with_absolute_path
from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.events import ConversationFailed
from viva.engine.journal_reader import History
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Message, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
CLOCK = RealClock()
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def request(text: str = "Who are you?", role: str = "candidate", **more: Any) -> Request:
    view, sampling = View(), more.pop("sampling", Sampling())
    view.append("system", "You are a witness.")
    view.append("user", text)
    digest = request_digest(view, sampling, 7, more.get("tools"))
    return Request(view.messages, sampling, 7, digest, "witness/1", role, affinity="witness/1 0", **more)


def with_backend(text: str, work: Callable[[Backend], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with build(text, CLOCK) as backend:
            await backend.check()
            return await work(backend)

    return CLOCK.run(main)


def calls_of(run: Path, role: str) -> list[tuple[int, int, str]]:
    """A role's recorded answers, as (conversation, ordinal, text)."""
    with History(run / "journal.sqlite") as history:
        return [(number, call.ordinal, call.completion.text) for number in history.keys().values()
                for call in history.calls(number) if call.role == role]  # fmt: skip


def kieval(room: Path, out: Path, role: str = "candidate", n: int = 2) -> list[str | Path]:
    played = {"candidate": "simulated:c", "interactor": "simulated:i", "evaluator": "simulated:e?noise=0"}
    played[role] = f"human:{room}"
    models = [part for name, model in played.items() for part in (f"--{name}", model)]
    return [
        "run",
        "kieval",
        "--dataset",
        ITEMS,
        "-n",
        str(n),
        "--rounds",
        "2",
        *models,
        "--out",
        out,
        "--no-early-stop",
    ]


def test_killed_while_it_waits_a_run_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    room, out = tmp_path / "room", tmp_path / "run"
    process = started(*kieval(room, out))
    person = Person(room)
    first, second = person.asked(2)
    assert person.room.attended
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not person.room.attended, "the page can say that no run goes on"
    assert person.says(first, "Meanwhile I say A.") == "taken"
    assert [one.name for one in person.asked()] == [second.name], "and the other question waits on"
    with answering(room, lambda posed: f"My answer number {posed.ordinal} is B.") as answered:
        code, _, said = ended(started("resume", out))
    assert code == 0, said
    assert len(answered) == 5, "the question answered meanwhile was not asked again"
    texts = {(number, ordinal): text for number, ordinal, text in calls_of(out, "candidate")}
    assert len(texts) == 6
    assert "Meanwhile I say A." in texts.values()
    assert sorted(texts.values())[1:] == sorted(f"My answer number {posed.ordinal} is B." for posed in answered)
    assert person.room.counts() == {"answered": 6}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_what_a_stopped_run_has_asked_can_still_be_answered(tmp_path: Path, how: signal.Signals) -> None:
    room, out = tmp_path / "room", tmp_path / "run"
    process = started(*kieval(room, out, n=1))
    person = Person(room)
    [first] = person.asked()
    process.send_signal(how)
    code, _, said = ended(process)
    assert code == 130, said
    assert [one.name for one in person.room.standings("waiting")] == [first.name]
    assert person.says(first, "B, said while nobody listened") == "taken"
    with answering(room, lambda posed: "go on"):
        code, _, said = ended(started("resume", out))
    assert code == 0, said
    assert [text for *_, text in calls_of(out, "candidate")] == ["B, said while nobody listened", "go on", "go on"]


def test_a_wait_that_is_over_is_that_conversations_failure_and_no_retry(tmp_path: Path) -> None:
    room, model = tmp_path / "room", f"human:{tmp_path / 'room'}?timeout=0.1&concurrency=2"
    outcome, events = small_run(tmp_path / "run", count=2, model=model, clock=CLOCK)
    assert (outcome.how, outcome.failed, outcome.finished) == ("done", 2, 0)
    failures = [event.error for event in events if isinstance(event, ConversationFailed)]
    assert [failure["type"] for failure in failures] == ["Unanswered"] * 2
    assert "nobody answered within 0.1 s" in failures[0]["message"]
    person = Person(room)
    assert person.room.counts() == {"expired": 2}, "each was asked once: 'retries' are for models"
    [standing, _] = person.room.standings("expired")
    assert person.says(standing, "too late") == "expired"
    later = f"human:{room}?timeout=3d"
    with answering(room, lambda posed: "now"):
        again, _ = small_run(tmp_path / "run", count=2, model=later, clock=CLOCK, resume=True, retry_failed=True)
    assert (again.failed, again.finished) == (0, 2), "a failed conversation that is tried again waits anew"


def test_the_wait_counts_from_the_first_time_it_was_asked(tmp_path: Path) -> None:
    now = [1000.0]
    posed = PendingQuestion.from_request(request())
    with AnswerQueue(tmp_path, lambda: now[0]) as room:
        assert room.ask(posed, "one", 60).deadline == 1060
        now[0] = 1050.0
        assert room.ask(posed, "two", 60).deadline == 1060, "a restart gives nobody more time"
        room.withdraw([posed.name], "one")
        assert room.counts() == {"waiting": 1}, "another process asks it by now"
        room.withdraw([posed.name], "two")
        assert room.ask(posed, "two", 60).deadline == 1110, "but time in which nobody could answer does not count"


def test_a_cancelled_request_is_withdrawn_and_one_asked_again_waits_again(tmp_path: Path) -> None:
    person = Person(tmp_path)

    async def cancelled(backend: Backend) -> None:
        task = asyncio.create_task(backend.generate(request()))
        await asyncio.to_thread(person.asked)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with_backend(f"human:{tmp_path}", cancelled)
    [standing] = person.room.standings("withdrawn")
    assert person.says(standing, "nobody hears this") == "withdrawn"

    async def again(backend: Backend) -> Completion:
        task = asyncio.create_task(backend.generate(request()))
        await asyncio.to_thread(person.asked)
        assert person.says(standing, "and now they do") == "taken", "under the very form that was refused"
        return await task

    assert with_backend(f"human:{tmp_path}", again).text == "and now they do"


def test_a_question_that_two_ask_is_asked_once_and_outlives_one_of_them(tmp_path: Path) -> None:
    person = Person(tmp_path)

    async def both(backend: Backend) -> tuple[str, str]:
        async with build(f"human:{tmp_path}?label=other", CLOCK) as other:
            tasks = [asyncio.create_task(one.generate(request())) for one in (backend, backend, other)]
            await asyncio.to_thread(person.asked)
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            [standing] = person.asked()
            person.says(standing, "I am one")
            return (await tasks[1]).text, (await tasks[2]).text

    assert with_backend(f"human:{tmp_path}", both) == ("I am one", "I am one")


def test_a_replayed_form_changes_nothing_and_of_two_answers_the_first_counts(tmp_path: Path) -> None:
    person = Person(tmp_path)
    posed = PendingQuestion.from_request(request())
    person.room.ask(posed, "test")
    [standing] = person.asked()
    receipts: dict[str, str] = {}
    barrier = threading.Barrier(8)

    def hurry(name: str) -> None:
        own = Person(tmp_path)
        barrier.wait()
        receipts[name] = own.says(standing, f"says {name}", name, who=name)
        own.room.close()

    hands = [threading.Thread(target=hurry, args=(f"person {number}",)) for number in range(8)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert sorted(receipts.values()) == ["late"] * 7 + ["taken"]
    winner = next(name for name, receipt in receipts.items() if receipt == "taken")
    assert all(person.says(standing, "something else", name) == receipt for name, receipt in receipts.items())
    given = person.room.ask(posed, "test").answer
    assert given is not None
    assert (given.text, given.person) == (f"says {winner}", winner)


def test_a_room_is_made_by_several_processes_at_once(tmp_path: Path) -> None:
    code = "import sys, pathlib, viva.engine.backends.human_queue as r; r.AnswerQueue(pathlib.Path(sys.argv[1]))"
    processes = [subprocess.Popen([sys.executable, "-c", code, tmp_path / "room"]) for _ in range(6)]
    assert [process.wait() for process in processes] == [0] * 6


def test_a_person_can_be_the_evaluator(tmp_path: Path) -> None:
    room = tmp_path / "room"

    def verdict(posed: PendingQuestion) -> str:
        assert posed.role == "evaluator"
        assert posed.schema is not None
        scored: dict[str, Any] = {name: {"comment": "by hand", "score": 2} for name in posed.schema["required"][:5]}
        return orjson.dumps(
            scored | {"overall_comment": "", "overall_score": 3, "stop_conversation": False, "stop_reason": "none"}
        ).decode()

    with answering(room, verdict):
        code, printed, said = ended(started(*kieval(room, tmp_path / "run", "evaluator"), "--json"))
    assert code == 0, said
    [found] = orjson.loads(printed)["candidates"].values()
    assert (found["unscored_rounds"], found["parse_failures"], found["verdicts"]) == (0, 0, 4)
    assert (found["aspects"]["logic"]["mean"], found["score"]["mean"]) == (30, 70), "v(2) and v(3)"
    assert "a person may answer the same question differently" in (tmp_path / "run" / "manifest.json").read_text()


def test_functions_are_called_and_what_was_said_before_is_shown(tmp_path: Path) -> None:
    seen: list[PendingQuestion] = []

    def reply(posed: PendingQuestion) -> list[tuple[str, str]]:
        seen.append(posed)
        return [("weather", '{"city": "Oslo"}')]

    asked = request("Is it raining in Oslo?", tools=Toolbox([WEATHER], required=True))
    heard: list[str] = []
    asked.on_text = heard.append
    with answering(tmp_path, reply):
        completion = with_backend(f"human:{tmp_path}", lambda backend: backend.generate(asked))
    [posed] = seen
    assert posed == PendingQuestion.from_request(asked)
    assert posed.messages == (Message("system", "You are a witness."), Message("user", "Is it raining in Oslo?"))
    assert [call["function"]["name"] for call in posed.tools] == ["weather"]
    assert posed.required
    [call] = completion.calls
    assert (call.name, call.parsed(), completion.text) == ("weather", {"city": "Oslo"}, "")
    assert completion.latency > 0
    assert completion.completion_tokens > 0


def test_nothing_a_person_sends_breaks_the_record(tmp_path: Path) -> None:
    person = Person(tmp_path)
    asked = request("half a \ud83d surrogate pair, \x00 and all")
    person.room.ask(PendingQuestion.from_request(asked), "test")
    [standing] = person.asked()
    assert person.says(standing, "\ud83d\x00'\"); drop table requests;--", who="\udc00") == "taken"
    completion = with_backend(f"human:{tmp_path}", lambda backend: backend.generate(asked))
    assert completion.text == "\ufffd\x00'\"); drop table requests;--"


def test_what_no_person_can_do_is_refused_by_name(tmp_path: Path) -> None:
    for ask in (
        lambda backend: backend.generate(request(sampling=Sampling(logprobs=5))),
        lambda backend: backend.read(Reading("context", ("one", "two"))),
    ):
        with pytest.raises(ConfigurationError, match="a person gives no log-probabilities"):
            with_backend(f"human:{tmp_path}?label=Ada", ask)
    with pytest.raises(ConfigurationError, match="virtual clock"):
        build(f"human:{tmp_path}", VirtualClock())


@case_table(
    ("name", "problem"),
    [
        ("human:", "expected human:ROOM"),
        ("human:room#two", "without # in its path"),
        ("human:room?timeout=soon", "90s, 30m, 12h, 3d"),
        ("human:room?timeout=0", "above 0"),
        ("human:room?patience=3", "unknown option patience"),
    ],
)
def test_a_wrong_name_is_told(name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem.replace("?", r"\?")):
        build(name, CLOCK)


def test_a_room_means_the_same_from_any_folder(tmp_path: Path) -> None:
    assert with_absolute_path("human:rooms/a@b?timeout=3d", tmp_path) == f"human:{tmp_path}/rooms/a@b?timeout=3d"


def test_a_folder_that_cannot_be_a_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for place, problem in (
        (tmp_path / "file", "cannot create the room"),
        (tmp_path / "other", "cannot be used as a room"),
    ):
        if place.name == "other":
            place.mkdir()
            (place / "room.sqlite").write_bytes(b"this is no database, and never was one" * 100)
        with pytest.raises(ConfigurationError, match=problem):
            with_backend(f"human:{place}", lambda backend: backend.generate(request()))

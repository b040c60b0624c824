"""What goes wrong in a user's own code: it comes out as itself or fails as data, ends nothing else, loses nothing."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from lessons import MODELS, TOPICS, Mine, lesson
from pydantic import BaseModel

import viva
from viva.cli.run import run_launch as hold_with_progress
from viva.orchestration.launch import new_run
from viva.orchestration.python_api import run_blocking


def _recorded(path: Path) -> int:
    """How many conversations have ended there; the run can go on to its end, and asks for nothing twice."""
    before = sum(1 for _ in viva.load(path).results())
    resumed = run_blocking(lambda: viva.resume(path))
    assert resumed.outcome is not None
    assert (resumed.outcome.how, resumed.outcome.finished) == ("done", len(TOPICS))
    assert resumed.outcome.restored >= before
    return before


async def _raise_while_looking_on(path: Path) -> None:
    async with viva.start(lesson, tasks=TOPICS, models=MODELS, out=path, concurrency=1) as run:
        async for event in run.events():
            if isinstance(event, viva.ConversationFinished):
                raise Mine


async def _raise_in_rollouts(path: Path) -> None:
    async for _ in viva.rollouts(lesson, tasks=TOPICS, models=MODELS, out=path, concurrency=1):
        raise Mine


async def _raise_in_a_reward(path: Path) -> None:
    def reward(value: Any) -> float:
        raise Mine

    async for _ in viva.rollouts(lesson, tasks=TOPICS, models=MODELS, out=path, concurrency=1, reward=reward):
        pass


@pytest.mark.parametrize("act", [_raise_while_looking_on, _raise_in_rollouts, _raise_in_a_reward])
def test_what_is_raised_inside_comes_out_as_itself_and_the_run_can_be_resumed(
    tmp_path: Path, act: Callable[[Path], Coroutine[Any, Any, None]]
) -> None:
    with pytest.raises(Mine) as caught:
        asyncio.run(act(tmp_path / "run"))
    assert caught.value.__cause__ is None
    assert _recorded(tmp_path / "run") >= 1


async def _leave_events(path: Path) -> None:
    async with viva.start(lesson, tasks=TOPICS, models=MODELS, out=path) as run:
        async for _ in run.events(capacity=1):
            break


async def _leave_events_open(path: Path) -> None:
    async with viva.start(lesson, tasks=TOPICS, models=MODELS, out=path) as run:
        events = run.events(capacity=1)
        await anext(events)
    assert sum([isinstance(event, viva.ConversationFinished) async for event in events]) == len(TOPICS)


@pytest.mark.parametrize("leave", [_leave_events, _leave_events_open])
def test_events_that_nobody_reads_on_hold_no_run_up(
    tmp_path: Path, leave: Callable[[Path], Coroutine[Any, Any, None]]
) -> None:
    asyncio.run(leave(tmp_path / "run"))
    assert _recorded(tmp_path / "run") == len(TOPICS)


@pytest.mark.parametrize("held", [False, True])
def test_rollouts_left_early_end_their_run_which_can_be_resumed(tmp_path: Path, held: bool) -> None:
    clock = viva.VirtualClock()

    async def take_one() -> None:
        slow = {**MODELS, "tutor": "simulated:t?latency=1"}
        rollouts = viva.rollouts(lesson, tasks=TOPICS, models=slow, out=tmp_path / "run", concurrency=1, clock=clock)
        async for _ in rollouts:
            break
        if not held:
            del rollouts
            gc.collect()

    clock.run(take_one)
    assert sum(1 for _ in viva.load(tmp_path / "run").results()) == 1
    again = viva.VirtualClock()
    resumed = run_blocking(lambda: viva.resume(tmp_path / "run", clock=again), again)
    assert resumed.outcome is not None
    assert (resumed.outcome.finished, resumed.outcome.restored) == (len(TOPICS), 1)


def test_a_cancelled_run_is_cancelled_and_can_be_resumed(tmp_path: Path) -> None:
    async def cancelled() -> None:
        heard = asyncio.Event()

        class Heard(viva.Backend):
            label = "heard"

            async def generate(self, request: viva.Request) -> viva.Completion:
                heard.set()
                await asyncio.sleep(3600)
                raise AssertionError

        models = {**MODELS, "pupil": Heard()}
        task = asyncio.create_task(viva.run(lesson, tasks=TOPICS, models=models, out=tmp_path / "run"))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancelled())
    assert viva.load(tmp_path / "run").report()["candidates"]["heard"]["conversations"] == 0


def test_a_virtual_clock_passes_time_in_its_own_loop_and_is_refused_in_another(tmp_path: Path) -> None:
    slow = {**MODELS, "pupil": "simulated:a?latency=3600"}
    clock = viva.VirtualClock()
    run = viva.run_sync(lesson, tasks=TOPICS, models=slow, out=tmp_path / "run", clock=clock)
    assert (run.outcome and run.outcome.how, clock.now() > 3600) == ("done", True)
    with pytest.raises(viva.ConfigurationError, match=r"use viva\.run_sync\(…, clock=clock\), or call"):
        asyncio.run(viva.run(lesson, tasks=TOPICS, models=MODELS, out=tmp_path / "no", clock=clock))
    assert not (tmp_path / "no").exists()


class Grade(BaseModel):
    points: int


RETURNED: list[tuple[Any, Any]] = [
    ({"b", "a"}, ["a", "b"]),
    ((1, 2), [1, 2]),
    ({"score": math.nan}, {"score": None}),
    (math.inf, None),
    ({1: 0.5}, {"1": 0.5}),
    (Grade(points=3), {"points": 3}),
    ({"deep": [{"set": {1}}], "file": Path("x")}, {"deep": [{"set": [1]}], "file": "x"}),
    (True, True),
]


def test_whatever_a_scenario_returns_is_recorded_as_json_or_fails_with_a_sentence(tmp_path: Path) -> None:
    odd = [object(), print, 2**70, "\ud800", b"bytes", {"f": print}]

    @viva.scenario(many="pupil")
    async def returning(conversation: viva.Conversation, number: int) -> Any:
        await viva.Agent(conversation, "pupil").ask("Begin.")
        return RETURNED[number][0] if number < len(RETURNED) else odd[number - len(RETURNED)]

    async def hold() -> dict[str, Any]:
        tasks, models = range(len(RETURNED) + len(odd)), {"pupil": "simulated:a"}
        async with viva.start(returning, tasks=tasks, models=models, out=tmp_path / "run") as run:
            async for event in run.events():
                if isinstance(event, viva.ConversationFinished):
                    pass
            return run.report_so_far()

    live = asyncio.run(hold())
    run = viva.load(tmp_path / "run")
    results = list(run.results())
    assert [result.value for result in results[: len(RETURNED)]] == [value for _, value in RETURNED]
    for result in results[len(RETURNED) :]:
        assert result.error is not None
        assert result.error["message"].startswith("returning returned a value that cannot be recorded (")
        assert result.error["message"].endswith("return a number, or a dict of numbers, booleans and strings")
    assert run.report() == live


def test_what_a_conversation_raises_fails_it_alone_whatever_it_is(tmp_path: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    class Own(BaseException):
        pass

    raised: list[BaseException] = [asyncio.CancelledError("mine"), SystemExit("bye"), ValueError("\ud800"), Mute(),
                                   Own("own")]  # fmt: skip

    @viva.scenario(many="pupil")
    async def raising(conversation: viva.Conversation, number: int) -> float:
        if number < len(raised):
            raise raised[number]
        return float(len((await viva.Agent(conversation, "pupil").ask("Begin.")).text))

    models = {"pupil": "simulated:a"}
    run = viva.run_sync(raising, tasks=range(7), models=models, out=tmp_path / "run", concurrency=1)
    assert run.outcome is not None
    assert (run.outcome.how, run.outcome.finished, run.outcome.failed, run.outcome.interrupted) == ("done", 2, 5, 0)
    errors = [result.error for result in run.results() if result.error is not None]
    assert [error["type"] for error in errors] == ["CancelledError", "SystemExit", "ValueError", "Mute", "Own"]
    said = ["mine", "bye", "\\ud800", "(its message cannot be shown)", "own"]
    assert [error["message"] for error in errors] == said
    assert all(Path(__file__).name in error["at"] for error in errors)


def test_two_runs_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    async def both() -> None:
        async with viva.start(lesson, tasks=TOPICS, models=MODELS, out=tmp_path / "run") as run:
            async for event in run.events():
                if isinstance(event, viva.CallFinished):
                    break
            with pytest.raises(viva.ConfigurationError, match="another process is running this run"):
                await viva.resume(tmp_path / "run")
            with pytest.raises(viva.ConfigurationError, match="already contains this run"):
                await viva.run(lesson, tasks=TOPICS, models=MODELS, out=tmp_path / "run")

    asyncio.run(both())
    assert _recorded(tmp_path / "run") == len(TOPICS)


class _Faulty:
    """An aggregate that raises at the second result."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def add(self, key: str, result: Any) -> None:
        self.results.append(result)
        if len(self.results) == 2:
            raise Mine("in the aggregate")

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        raise AssertionError

    def headline(self) -> str:
        return str(len(self.results))

    def report(self) -> dict[str, Any]:
        return {"results": self.results}

    def tables(self) -> list[Any]:
        return []


def test_an_aggregate_that_raises_loses_no_conversation_and_gives_no_part_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(lesson), "aggregate", lambda self, manifest, scoring: _Faulty())

        async def hold() -> None:
            async with viva.start(lesson, tasks=TOPICS, models=MODELS, out=tmp_path / "run") as run:
                async for event in run.events():
                    if isinstance(event, viva.ConversationFinished):
                        pass
                run.report_so_far()

        with pytest.raises(Mine, match="in the aggregate"):
            asyncio.run(hold())
        assert "a listener raised and is not called again: Mine: in the aggregate" in caplog.text
        settings = {"pupil": ["simulated:a"], "tutor": "simulated:t"}
        launch = new_run(lesson.with_tasks(TOPICS), lesson.settings(**settings), tmp_path / "command")
        with pytest.raises(viva.ConfigurationError, match="lesson: its aggregate raised Mine: in the aggregate"):
            hold_with_progress(launch)
    assert _recorded(tmp_path / "run") == len(TOPICS)
    assert viva.load(tmp_path / "run").report()["candidates"]["a"]["conversations"] == len(TOPICS)


# -- steps ------------------------------------------------------------------------------------------------------------


def _measured(text: str, how: str) -> Any:
    if how == "raises":
        raise Mine("not this text")
    if how == "hangs":
        threading.Event().wait()
    return {"found": object()} if how == "odd" else len(text)


@viva.scenario(many="pupil")
async def measured(conversation: viva.Conversation, how: str) -> dict[str, Any]:
    """A pupil answers, and a function of the user's measures the answer."""
    text = (await viva.Agent(conversation, "pupil").ask("Begin.")).text
    length = await conversation.compute("length", _measured, text, how, limit=0.05 if how == "hangs" else 60.0)
    return {"score": length.value, "problem": None if length.error is None else length.error["message"]}


def test_a_step_that_raises_hangs_or_gives_no_data_fails_as_data_and_is_not_computed_again(tmp_path: Path) -> None:
    models = {"pupil": "simulated:a"}
    run = viva.run_sync(measured, tasks=["works", "raises", "hangs", "odd"], models=models, out=tmp_path / "run")
    values = {str(result.task): result.value for result in run.results()}
    assert [value["score"] is None for value in values.values()] == [False, True, True, True]
    assert [values[name]["problem"] for name in ("works", "raises", "hangs")] == [
        None,
        "not this text",
        "no result after 0.05 s",
    ]
    assert values["odd"]["problem"].startswith("the result (dict) is not JSON data")
    one = run.report()["candidates"]["a"]
    assert (one["failed"], one["measures"]["score"]["n"], one["measures"]["score"]["unscored"]) == (0, 1, 3)
    transcript = asyncio.run(run.transcript("a/raises"))
    assert [speech.party for speech in transcript.speeches] == ["pupil", "length"]
    assert transcript.speeches[1].text.startswith("Mine: not this text (")
    assert run.report() == run_blocking(lambda: viva.resume(tmp_path / "run")).report()

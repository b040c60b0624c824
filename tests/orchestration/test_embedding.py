"""viva as a library: scenarios from functions, models as objects, live runs, resumes, forks, rollouts; and mistakes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from case_tables import case_table
from pydantic import BaseModel, Field
from tiny_gguf import make_model

import viva
from viva.engine.errors import Unavailable
from viva.engine.journal_reader import History

MODELS: dict[str, Any] = {"pupil": ["simulated:a", "simulated:b"], "tutor": "simulated:t"}


@viva.scenario(many="pupil", one="tutor")
async def lesson(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
    """A tutor asks, a pupil answers."""
    tutor = viva.Agent(conversation, "tutor", f"You teach {topic}.")
    pupil = viva.Agent(conversation, "pupil")
    question = await tutor.ask("Begin.")
    answer = await pupil.ask(question.text)
    return {"score": float(len(answer.text)), "long": len(answer.text) > 54, "kind": answer.text[:3], "parts": [1]}


class Counting(viva.Backend):
    """Says how often it was asked, and fails where it is told to."""

    label = "mine"
    fallible = True

    def __init__(self, fails: Callable[[int], bool] = lambda asked: False) -> None:
        self.asked = 0
        self.fails = fails

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.asked += 1
        if self.fails(self.asked):
            raise Unavailable("try again", model=self.label)
        return viva.Completion(f"{request.role} {request.messages[-1].content}", "stop", 3, 4)


def test_numbers_have_means_texts_are_counted_and_lists_are_only_recorded(tmp_path: Path) -> None:
    run = viva.run_sync(lesson, tasks=["tides", "rust", "salt"], models=MODELS, out=tmp_path / "run")
    one = run.report()["candidates"]["a"]
    values = [result.value for result in run.results() if result.key.startswith("a/")]
    assert (one["conversations"], one["failed"]) == (3, 0)
    assert one["measures"].keys() == {"long", "score"}
    assert one["measures"]["score"]["mean"] == pytest.approx(sum(value["score"] for value in values) / 3, abs=1e-6)
    assert one["counts"] == {"kind": {kind: sum(value["kind"] == kind for value in values)
                                      for kind in sorted({value["kind"] for value in values})}}  # fmt: skip
    assert values[0]["parts"] == [1]
    assert [result.task for result in run.results()] == ["tides"] * 2 + ["rust"] * 2 + ["salt"] * 2
    [main, *_] = run.tables()
    assert main[0] == "lesson on tasks, seed 7, reproducible transcripts"
    assert main[1] == ["pupil", "conversations", "score", "long", "failed"]


class Topic(BaseModel):
    id: str
    level: int = Field(ge=1)


@viva.scenario(many="pupil", judge="grader")
async def graded(conversation: viva.Conversation, topic: Topic) -> float | None:
    answer = await viva.Agent(conversation, "pupil").ask(f"Level {topic.level}")
    grade = await viva.Agent(conversation, "grader").ask_for(Grade, answer.text)
    return None if grade is None else float(grade.points)


class Grade(BaseModel):
    why: str
    points: int = Field(ge=0, le=5)


def test_typed_tasks_a_judge_in_a_form_and_a_fork_by_another_judge(tmp_path: Path) -> None:
    models: dict[str, Any] = {"pupil": "simulated:p", "grader": "simulated:g"}
    tasks = [Topic(id="t1", level=1), {"id": "t2", "level": 2}]
    run = viva.run_sync(graded, tasks=tasks, models=models, out=tmp_path / "run", repeats=2)
    assert [result.key for result in run.results()] == ["p/t1", "p/t1#2", "p/t2", "p/t2#2"]
    assert all(result.value in range(6) for result in run.results())
    assert next(run.results()).task == Topic(id="t1", level=1)

    class Mute(viva.Backend):
        label = "mute"

        async def generate(self, request: viva.Request) -> viva.Completion:
            return viva.Completion("Rather good.")

    forked = asyncio.run(viva.fork(tmp_path / "run", judge=Mute(), out=tmp_path / "fork"))
    assert [result.value for result in forked.results()] == [None] * 4
    score = forked.report()["candidates"]["p"]["measures"]["score"]
    assert (score["mean"], score["n"], score["unscored"]) == (None, 0, 4)
    transcript = asyncio.run(forked.transcript("p/t1"))
    assert [speech.party for speech in transcript.speeches] == ["pupil", "grader", "grader"]
    assert "could not be read" in transcript.speeches[2].prompt["messages"][-1]["content"]


def test_a_model_may_be_an_object_is_retried_and_has_to_be_given_again(tmp_path: Path) -> None:
    mine = Counting(lambda asked: asked == 1)
    models = {"pupil": mine, "tutor": "simulated:t"}
    run = viva.run_sync(
        lesson, tasks=["tides", "rust"], models=models, out=tmp_path / "run", max_calls=2, concurrency=1
    )
    assert run.outcome is not None
    assert (run.outcome.how, mine.asked) == ("budget", 2)
    with pytest.raises(viva.ConfigurationError, match="resume from Python and pass models="):
        asyncio.run(viva.resume(tmp_path / "run", max_calls=None))
    done = asyncio.run(viva.resume(tmp_path / "run", models={"pupil": mine}, max_calls=None))
    assert (done.outcome and done.outcome.how, mine.asked) == ("done", 3)
    assert done.report()["candidates"]["mine"]["conversations"] == 2


def test_a_run_goes_on_from_its_folder_alone_where_the_file_of_the_scenario_is_known(tmp_path: Path) -> None:
    viva.run_sync(lesson, tasks=["tides", "rust"], models=MODELS, out=tmp_path / "run", max_calls=3, concurrency=1)
    file = tmp_path / "reader.py"
    file.write_text(
        "import asyncio, viva\n"
        f"run = asyncio.run(viva.resume({str(tmp_path / 'run')!r}, max_calls=None))\n"
        "print(run.outcome.how, sum(1 for _ in run.results()), viva.load(run.path).report()['candidates'].keys())\n"
    )
    import subprocess
    import sys

    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "models")}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=path, check=False)
    assert done.stdout == "done 4 dict_keys(['a', 'b'])\n", done.stderr


@viva.scenario(many="pupil")
async def endless(conversation: viva.Conversation, topic: str) -> float:
    pupil = viva.Agent(conversation, "pupil")
    asked = 0
    while topic == "two" or asked < 2:
        asked += bool(await pupil.ask(topic))
    return float(asked)


async def _watched(path: Path) -> tuple[list[str], list[int]]:
    seen, so_far, stopped = [], [], []
    async with viva.start(endless, tasks=["one", "two", "three"], models={"pupil": "simulated:a"}, out=path) as run:
        async for event in run.events():
            if isinstance(event, viva.CallFinished) and event.conversation == "a/two":
                stopped.append(run.stop("a/two", "enough"))
                assert not run.stop("a/nobody")
            if isinstance(event, viva.ConversationFinished):
                seen.append(event.conversation)
                so_far.append(run.report_so_far()["candidates"]["a"]["conversations"])
    assert stopped[0]
    return seen, so_far


def test_one_conversation_is_stopped_while_events_are_read(tmp_path: Path) -> None:
    seen, so_far = asyncio.run(_watched(tmp_path / "run"))
    assert (set(seen), so_far) == ({"a/one", "a/two", "a/three"}, sorted(so_far))
    assert so_far[-1] == 3
    results = {result.key: result.value for result in viva.load(tmp_path / "run").results()}
    assert results["a/two"] is None
    assert results["a/one"] == 2
    assert viva.load(tmp_path / "run").report()["candidates"]["a"]["stopped"] == {"operator: enough": 1}


def test_two_runs_in_one_event_loop_and_one_where_a_loop_is_running(tmp_path: Path) -> None:
    async def both() -> list[viva.Run]:
        return await asyncio.gather(
            *(viva.run(lesson, tasks=["x"], models=MODELS, seed=seed, out=tmp_path / str(seed)) for seed in (1, 2))
        )

    async def in_a_notebook() -> viva.Run:
        return viva.run_sync(lesson, tasks=["x"], models=MODELS, seed=1, out=tmp_path / "sync")

    one, _ = asyncio.run(both())
    again = asyncio.run(in_a_notebook())
    assert one.report() == again.report()


def test_rollouts_have_the_exact_tokens_their_log_probabilities_and_rewards(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny.gguf")

    @viva.scenario(many="policy")
    async def policy(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
        agent = viva.Agent(conversation, "policy", sampling=viva.Sampling(max_tokens=8, logprobs=0))
        first, second = await agent.ask(topic), await agent.ask("More.")
        return {"rewards": [0.25, 0.5], "texts": [first.text, second.text]}

    async def collect() -> list[viva.Rollout]:
        found = viva.rollouts(
            policy,
            tasks=["tides", "rust"],
            models={"policy": f"llama:{model}?ctx=512&lanes=2"},
            reward=lambda value: value["rewards"],
            out=tmp_path / "run",
        )
        return [rollout async for rollout in found]

    rollouts = asyncio.run(collect())
    assert {rollout.task for rollout in rollouts} == {"tides", "rust"}
    vocabulary = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)
    for rollout in rollouts:
        assert (rollout.reward, [turn.reward for turn in rollout.turns]) == (0.75, [0.25, 0.5])
        for turn, text in zip(rollout.turns, rollout.value["texts"], strict=True):
            assert turn.token_ids is not None
            assert turn.chosen == [True] * len(turn.token_ids)
            assert turn.logprobs is not None
            assert all(math.isfinite(value) and value <= 0 for value in turn.logprobs)
            assert turn.prompt is not None
            assert turn.prompt[-1].role == "user"
            assert turn.text == text
            assert vocabulary.detokenize(turn.token_ids).decode("utf-8", "replace").strip().startswith(text.strip())


def test_rollouts_over_an_endpoint_that_gives_its_tokens(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "So."}}
        return web.json_response({"choices": [choice | {"token_ids": [5, 7, 2]}]})

    async def collect() -> list[viva.Rollout]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with TestServer(app) as server:
            model = f"openai:{server.make_url('/v1')}#m"
            models = {"pupil": [f"{model}?token_ids=on&label=on", f"{model}?label=off"], "tutor": "simulated:t"}
            return [one async for one in viva.rollouts(lesson, tasks=["x"], models=models, out=tmp_path / "run")]

    tokens = {one.label: one.turns[-1].token_ids for one in asyncio.run(collect())}
    assert tokens == {"on": [5, 7, 2], "off": None}
    assert [body.get("return_token_ids") for body in asked].count(True) == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "role": (
        {"models": MODELS | {"tuter": "simulated:x"}},
        "no role 'tuter'; did you mean 'tutor'? its roles: pupil, tutor",
    ),
    "missing role": ({"models": {"pupil": "simulated:a"}}, "lesson: models: tutor: is missing"),
    "several": ({"models": MODELS | {"tutor": ["simulated:x"]}}, "'tutor' takes one model, not a list"),
    "no model": ({"models": MODELS | {"tutor": 7}}, "expected a name"),
    "unknown kind": ({"models": MODELS | {"tutor": "gpt-4o"}}, "expected kind:where"),
    "no tasks": ({"tasks": []}, "no tasks"),
    "tasks left out": ({"tasks": None}, "give tasks=… in Python, or --tasks"),
    "tasks of a type": ({"tasks": [3]}, "task 1: Input should be a valid string"),
    "tasks twice": ({"tasks": ["a", "b", "a"]}, "two tasks have the id 'a'"),
    "setting": ({"rounds": 3}, "lesson: rounds: unknown setting"),
}


@case_table("what", WRONG)
def test_what_is_wrong_is_said_before_a_folder_is_made(tmp_path: Path, what: str) -> None:
    changes, expected = WRONG[what]
    arguments: dict[str, Any] = {"tasks": ["x"], "models": MODELS, "out": tmp_path / "run"} | changes
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.run_sync(lesson, **arguments)
    assert expected in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_scenarios_that_cannot_be_are_refused_where_they_are_made() -> None:
    for wrong, message in (
        ({"many": "a", "one": "a"}, "different for each role"),
        ({"many": "seed"}, "name of a setting"),
    ):
        with pytest.raises(viva.ConfigurationError, match=message):
            viva.scenario(**wrong)(lesson.function)  # type: ignore[arg-type]
    with pytest.raises(viva.ConfigurationError, match=r"expected the parameters \(conversation, task\)"):

        @viva.scenario(many="a")
        async def short(conversation: viva.Conversation) -> None: ...


def test_a_conversation_that_raises_fails_alone_and_its_place_is_told(tmp_path: Path) -> None:
    @viva.scenario(many="pupil")
    async def picky(conversation: viva.Conversation, topic: str) -> float:
        if topic == "bad":
            raise ValueError("not this one")
        return float(len((await viva.Agent(conversation, "pupil").ask(topic)).text))

    run = viva.run_sync(picky, tasks=["good", "bad"], models={"pupil": "simulated:a"}, out=tmp_path / "run")
    good, bad = run.results()
    assert good.value > 0
    assert bad.error is not None
    assert bad.error["message"] == "not this one"
    assert Path(__file__).name in bad.error["at"]
    with History(tmp_path / "run" / "journal.sqlite") as history:
        assert history.ended_numbers(failed=False) == {0}

"""A scenario whose parts go on at once, from the Python API to every reader of its run folder."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva as command

import viva
from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.engine.steps import Computed


class Essayist(viva.Backend):
    """A pure function of messages and seed, with a latency that is drawn anew in each run."""

    def __init__(self, clock: VirtualClock, label: str) -> None:
        self.label = label
        self._clock, self._latency = clock, random.Random()
        self.asked = 0

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.asked += 1
        await self._clock.sleep(self._latency.random())
        said = sum(len(message.content) for message in request.messages) + request.seed
        return viva.Completion(f"{said % 997}", prompt_tokens=3, completion_tokens=1)


@viva.scenario(many="author", judge="judge")
async def debate(conversation: viva.Conversation, topic: str) -> dict[str, float]:
    """Both sides are argued at once, with two drafts each; then they are judged."""

    async def draft(part: viva.Conversation, side: str) -> int:
        author = viva.Agent(part, "author", f"Argue {side} {topic}.")
        return int((await author.ask("Begin.")).text) + int((await author.ask("Go on.")).text)

    async def argue(side: str, part: viva.Conversation) -> int:
        part.tell(lambda: [("moderator", f"{side} has the word")])
        async with asyncio.TaskGroup() as group:
            drafts = [group.create_task(draft(part.branch(f"draft {n}"), side)) for n in (1, 2)]
        best = max(one.result() for one in drafts)
        step: Computed = await part.compute("halved", _halved, best)
        return int(step.value)

    sides = {side: conversation.branch(side) for side in ("for", "against")}
    strengths = await asyncio.gather(*(argue(*one) for one in sides.items()))
    judged = await viva.Agent(conversation, "judge").ask(f"{strengths}")
    return {"score": float(judged.text)}


def _halved(number: int) -> int:
    return number // 2


def _models(clock: VirtualClock) -> dict[str, Essayist]:
    return {"author": Essayist(clock, "essayist"), "judge": Essayist(clock, "critic")}


def _held(out: Path, **settings: Any) -> tuple[viva.Run, int]:
    clock = VirtualClock()
    models = _models(clock)
    run = viva.run_sync(debate, tasks=["tides", "rust"], models=dict(models), out=out, clock=clock, **settings)
    return run, sum(one.asked for one in models.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("debates") / "whole"
    run, asked = _held(folder)
    assert (run.outcome.how if run.outcome else None, asked) == ("done", 2 * 9)
    return folder


def test_a_concurrent_protocol_gives_one_report_whatever_the_latency(whole: Path, tmp_path: Path) -> None:
    reports = [_held(tmp_path / f"{n}")[0].report() for n in range(2)]
    assert reports[0] == reports[1] == viva.load(whole).report()


def test_a_budget_within_a_task_group_leaves_a_run_that_goes_on_and_asks_no_recorded_call_again(
    whole: Path, tmp_path: Path
) -> None:
    run, first = _held(tmp_path / "run", max_calls=7)
    assert run.outcome is not None
    assert (run.outcome.how, run.outcome.failed) == ("budget", 0)
    clock = VirtualClock()
    models = _models(clock)
    run = clock.run(lambda: viva.resume(tmp_path / "run", models=dict(models), clock=clock, max_calls=None))
    assert run.report() == viva.load(whole).report()
    assert first + sum(one.asked for one in models.values()) == 2 * 9


def test_every_reader_of_a_run_knows_roles_by_their_plain_names(whole: Path, tmp_path: Path) -> None:
    usage = viva.load(whole).report()["candidates"]["essayist"]["usage"]
    assert {role: used["calls"] for role, used in usage.items()} == {"author": 16, "judge": 2}

    folder = shutil.copytree(whole, tmp_path / "run")
    before = command("show", str(folder), "--json", "--prompts", "--conversation", "essayist/tides").stdout
    talk = orjson.loads(before)["talk"]
    told = [(one.get("branch", ""), one["party"]) for one in talk]
    drafts = [(f"for/draft {n}", "author") for n in (1, 1, 2, 2)]
    assert told[0] == ("for", "moderator")
    assert [one for one in told if one[0].startswith("for/")] == drafts
    assert told[-1] == ("", "judge")
    assert ("against", "halved") in told
    assert all(one["prompt"]["messages"] for one in talk if one["party"] in ("author", "judge"))
    assert "[author in for/draft 1]" in command("show", str(folder), "--conversation", "essayist/tides").stdout

    assert command("sweep", "compact", str(folder)).returncode == 0
    assert command("show", str(folder), "--json", "--prompts", "--conversation", "essayist/tides").stdout == before
    with History(folder / "journal.sqlite") as history:
        assert {call.role for call in history.calls(0)} == {"author", "judge", "compute:halved"}
        assert history.has_answers(["author"], "essayist/")
        assert not history.has_answers(["compute"], "")


def test_a_fork_gives_each_branch_its_own_recorded_answers(whole: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = Essayist(clock, "other")
    fork = clock.run(lambda: viva.fork(whole, judge=judge, out=tmp_path / "fork", clock=clock))
    assert judge.asked == 2
    assert [one.value for one in fork.results()] == [one.value for one in viva.load(whole).results()]

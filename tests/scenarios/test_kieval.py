"""The KIEval interview: what each role sees, when talks end, overlap, detectors, and that nothing depends on order."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from viva.engine.backends import registry
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import Clock, VirtualClock
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.messages import Completion, Request
from viva.engine.runner import Outcome
from viva.scenarios.kieval.settings import KievalSettings
from viva.scenarios.launch import new_run, recorded_results

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
requests: list[Request] = []


class Overheard(SimulatedBackend):
    """The simulated model, with a list of what it was asked and scripted replies where a test wants them."""

    replies: dict[tuple[str, int], str] = {}  # noqa: RUF012  # set by one test, reset by the fixture

    async def generate(self, request: Request) -> Completion:
        requests.append(request)
        completion = await super().generate(request)
        completion.text = self.replies.get((request.role, request.ordinal), completion.text)
        return completion


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The factory the registry asks for."""
    return Overheard(clock, knowledge=1.0, noise=0.0)


@pytest.fixture
def overheard() -> Iterator[str]:
    module = types.ModuleType("overheard")
    module.build = build  # type: ignore[attr-defined]
    sys.modules["overheard"] = module
    registry.KINDS["overheard"] = "overheard"
    requests.clear()
    Overheard.replies = {}
    yield "overheard:m"
    del registry.KINDS["overheard"], sys.modules["overheard"]


def interview(folder: Path, **changes: Any) -> tuple[Outcome, dict[str, Any]]:
    """Run with simulated models unless ``changes`` say otherwise; outcome and report of the only candidate."""
    base: dict[str, Any] = {
        "dataset": str(ITEMS),
        "candidate": ["simulated:c?knowledge=0.5&latency=1"],
        "interactor": "simulated:i?latency=1",
        "evaluator": "simulated:e?latency=1",
    }
    launch = new_run("kieval", KievalSettings(**{**base, **changes}), folder, VirtualClock())
    outcome = launch.clock.run(launch.run)
    report = recorded_results(launch.folder).report()
    return outcome, next(iter(report["candidates"].values()))


def transcripts(folder: Path) -> bytes:
    from viva.scenarios.kieval.scenario import SCENARIO

    with History(RunFolder.open(folder).journal) as history:
        talks = [
            (n, SCENARIO.transcript(history.started(n)[1], history.calls(n)))  # type: ignore[index]
            for n in history.numbers()
        ]
    return orjson.dumps(talks)


def test_each_role_sees_the_talk_as_the_protocol_says(tmp_path: Path, overheard: str) -> None:
    interview(tmp_path / "run", n=1, rounds=2, candidate=[overheard], interactor=overheard, evaluator=overheard)
    order = [(request.role, request.ordinal) for request in requests]
    assert order == [
        *[("candidate", 0), ("interactor", 0), ("candidate", 1), ("evaluator", 0)],
        *[("interactor", 1), ("candidate", 2), ("evaluator", 1)],
    ]
    said = {role: [message.role for message in view.messages] for role, view in _last_views().items()}
    assert said["candidate"] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert said["interactor"] == ["system", "user", "assistant", "user"]
    assert said["evaluator"] == ["system", "user", "assistant", "user", "assistant", "user"]
    item = requests[0].hint
    views = _last_views()
    answer = f"{'ABCDE'[item['answer']]}. {item['choices'][item['answer']]}"
    assert f"The correct answer: {answer}" in views["interactor"].messages[1].content
    first_reply = views["candidate"].messages[2].content
    assert first_reply in views["interactor"].messages[1].content
    assert "correct" not in views["candidate"].messages[1].content.lower()
    # The evaluator starts from one verdict that it did not have to give, and keeps its own.
    prefilled = orjson.loads(views["evaluator"].messages[2].content)
    assert prefilled["overall_score"] == 4
    exchange = views["evaluator"].messages[3].content
    assert exchange.index("[BEGIN INTERACTOR]") < exchange.index("[BEGIN CANDIDATE]")
    assert views["candidate"].messages[3].content in exchange
    assert orjson.loads(views["evaluator"].messages[4].content)["stop_conversation"] is False


def _last_views() -> dict[str, Request]:
    return {request.role: request for request in requests}


def test_a_wrong_first_answer_prefills_the_lowest_verdict(tmp_path: Path, overheard: str) -> None:
    Overheard.replies = {("candidate", 0): "I would rather not say."}
    interview(tmp_path / "run", n=1, rounds=1, candidate=[overheard], interactor=overheard, evaluator=overheard)
    judged = _last_views()["evaluator"].messages
    assert orjson.loads(judged[2].content)["overall_score"] == 1
    assert "not correct" in judged[1].content


def test_a_verdict_that_cannot_be_read_is_asked_for_once_more_then_unscored(tmp_path: Path, overheard: str) -> None:
    Overheard.replies = {("evaluator", 0): "Rather good!", ("evaluator", 1): '{"accuracy": 3}', ("evaluator", 2): "No."}
    _, one = interview(
        tmp_path / "run", n=1, rounds=2, candidate=[overheard], interactor=overheard, evaluator=overheard
    )
    asked = [request for request in requests if request.role == "evaluator"]
    assert len(asked) == 4
    assert asked[1].messages[-2].content == "Rather good!"
    assert "could not be read" in asked[1].messages[-1].content
    # A repair is a side branch: the next round's view holds neither the first attempt nor the request to repair it.
    assert all("could not be read" not in message.content for message in asked[2].messages)
    assert (one["verdicts"], one["unscored_rounds"], one["parse_failures"]) == (2, 1, 3)
    assert one["score"]["mean"] == 100.0


def test_overlap_changes_no_question_no_reply_and_no_score_and_counts_its_cost(tmp_path: Path) -> None:
    _, plain = interview(tmp_path / "plain")
    _, ahead = interview(tmp_path / "ahead", overlap=True)
    assert ahead["score"] == plain["score"]
    assert ahead["rounds"] == plain["rounds"]
    stopped_early = plain["ends"]["evaluator"]
    wasted = ahead["discarded_questions"]["calls"]
    assert 0 < wasted <= stopped_early
    assert ahead["usage"]["interactor"]["calls"] == plain["usage"]["interactor"]["calls"] + wasted
    assert plain["discarded_questions"]["calls"] == 0


@pytest.mark.parametrize("changes", [{}, {"overlap": True}, {"detectors": ["empty", "repetition"]}], ids=str)
def test_reports_and_transcripts_do_not_depend_on_concurrency(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = []
    for concurrency in (1, 64, 2000):
        folder = tmp_path / str(concurrency)
        _, one = interview(
            folder, concurrency=concurrency, evaluator="simulated:e?malformed=0.3&latency=0.3&fail=0.1", **changes
        )
        made.append((orjson.dumps(one), transcripts(folder)))
    assert made[0] == made[1] == made[2]


def test_with_early_stop_off_talks_go_on_and_both_variants_score_from_them(tmp_path: Path) -> None:
    _, stopped = interview(tmp_path / "stopped")
    interview(tmp_path / "whole", early_stop=False)
    folder = RunFolder.open(tmp_path / "whole")
    flat = recorded_results(folder).report()["candidates"]["c"]
    cut = recorded_results(folder, {"early_stop": True}).report()["candidates"]["c"]
    assert flat["rounds"]["mean"] == 5.0
    assert cut["score"] == stopped["score"]
    assert cut["rounds"] == stopped["rounds"]
    assert cut["stop_reasons"] == stopped["stop_reasons"]


def test_a_detector_ends_the_talk_and_the_lost_rounds_count_in_the_corrected_score(
    tmp_path: Path, overheard: str
) -> None:
    Overheard.replies = {("candidate", 2): "   "}
    _, one = interview(
        tmp_path / "run",
        n=3,
        candidate=[overheard],
        interactor=overheard,
        evaluator=overheard,
        detectors=["empty", "role_shift"],
        scorer="corrected",
    )
    assert one["ends"] == {"detector": 3}
    assert one["stop_reasons"] == {"empty_response": 3}
    assert one["rounds"]["mean"] == 1.0
    assert one["score"]["mean"] == pytest.approx(100 / sum(2.718281828459045 ** (-0.2 * i) for i in range(5)), abs=1e-3)


def test_a_streaming_detector_ends_the_generation_and_the_resumed_run_agrees(tmp_path: Path) -> None:
    looping = "simulated:c?knowledge=0"
    _, one = interview(tmp_path / "run", candidate=[looping], detectors=["repetition", "empty"])
    assert one["stop_reasons"].get("repetition", 0) > 0
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        calls = [call for number in history.numbers() for call in history.calls(number)]
    cut = [call.completion for call in calls if call.completion.finish == "watch:repetition"]
    assert cut
    # The simulated model's loops are six phrases long; the detector needs four.
    assert all(completion.text.count(", it is") < 6 for completion in cut if len(completion.text) > 160)


def test_budgets_of_a_conversation_end_it_as_budget(tmp_path: Path) -> None:
    _, one = interview(tmp_path / "run", conversation_calls=7)
    assert one["ends"]["budget"] > 0
    assert one["failed"] == 0

"""The KIEval interview: what each role sees, when talks end, overlap, detectors, and that nothing depends on order."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from scripted import scripted_models
from spoken import speeches_of

from viva.engine.backends import registry
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import Clock, VirtualClock
from viva.engine.journal_reader import History
from viva.engine.messages import Completion, Request
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome
from viva.orchestration.launch import forked_run, new_run, recorded_results, resumed_run
from viva.scenarios.kieval.evaluator import first_verdict
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.pack_templates import TEMPLATES
from viva.scenarios.kieval.verdicts import ASPECTS, bare_verdict

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
PACK = ITEMS.parents[1] / "prompts" / "kieval.yaml"
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
    item = requests[0].hint.item
    views = _last_views()
    answer = f"{'ABCDE'[item.answer]}. {item.choices[item.answer]}"
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


def test_line_2_the_evaluator_learns_from_its_first_verdict_alone_how_the_first_answer_was(
    tmp_path: Path, overheard: str
) -> None:
    Overheard.replies = {("candidate", 0): "D"}
    interview(tmp_path / "run", n=1, rounds=1, candidate=[overheard], interactor=overheard, evaluator=overheard)
    assert requests[0].hint.item.answer != 3
    judged = _last_views()["evaluator"].messages
    verdict = orjson.loads(judged[2].content)
    assert {name: verdict[name]["score"] for name in ASPECTS} == {
        "accuracy": 1, "logic": 4, "relevance": 4, "coherence": 4, "conciseness": 4
    }  # fmt: skip
    assert verdict["overall_score"] == 2
    assert all(verdict[name]["comment"] for name in ASPECTS)
    assert verdict["overall_comment"]
    item = requests[0].hint.item
    told = f"{judged[0].content}\n{judged[1].content}".replace(item.question, "")
    assert "correct" not in told.lower()
    assert judged[1].content.count(f"{'ABCDE'[item.answer]}. ") == 1  # among the choices, and nowhere else


def test_line_2_the_informed_pack_tells_the_evaluator_the_answer_and_how_the_first_one_was(
    tmp_path: Path, overheard: str
) -> None:
    Overheard.replies = {("candidate", 0): "D"}
    models = {"candidate": [overheard], "interactor": overheard, "evaluator": overheard}
    interview(tmp_path / "run", n=1, rounds=1, pack="kieval-informed", **models)
    judged = _last_views()["evaluator"].messages
    item = requests[0].hint.item
    assert orjson.loads(judged[2].content)["overall_score"] == 1
    assert "not correct" in judged[1].content
    assert f"the correct answer is: {'ABCDE'[item.answer]}. {item.choices[item.answer]}" in judged[1].content


@pytest.mark.parametrize("pack", ["kieval", "kieval-informed", "without"])
def test_an_answer_that_names_no_choice_is_neither_right_nor_wrong_to_the_evaluator(
    tmp_path: Path, overheard: str, pack: str
) -> None:
    Overheard.replies = {("candidate", 0): "I would rather not say."}
    if pack == "without":  # as those of runs that were recorded before there was such an opening
        told = yaml.safe_load(PACK.read_text("utf-8"))
        del told["evaluator"]["first_unread"]
        pack = str(tmp_path / "pack.yaml")
        (tmp_path / "pack.yaml").write_text(yaml.safe_dump(told), "utf-8")
    models = {"candidate": [overheard], "interactor": overheard, "evaluator": overheard}
    _, one = interview(tmp_path / "run", n=1, rounds=1, pack=pack, **models)
    judged = _last_views()["evaluator"].messages
    verdict = orjson.loads(judged[2].content)
    assert (verdict["accuracy"]["score"], verdict["overall_score"]) == (3, 3)
    assert "not correct" not in f"{judged[1].content} {judged[2].content}".replace("nor as not correct", "")
    assert "I would rather not say." in judged[1].content
    assert (one["unanswered"], one["accuracy"]["mean"]) == (1, 0.0)
    assert one["unanswered_score"] == one["score"]


def test_only_openings_of_unread_answers_differ_under_a_pack_recorded_without_theirs() -> None:
    """So that of an older run that goes on, only verdicts of such interviews are asked for anew."""
    told = yaml.safe_load(PACK.read_text("utf-8"))
    del told["evaluator"]["first_unread"]
    old, new = TEMPLATES.open("kieval", recorded=yaml.safe_dump(told)), TEMPLATES.open("kieval")
    same = [first_verdict(old, right=right) == first_verdict(new, right=right) for right in (True, False, None)]
    assert same == [True, True, False]
    assert first_verdict(old, right=None) == ("", bare_verdict(3))


@pytest.mark.parametrize(("how", "shown"), [("choice", "B. {}"), ("text", "Well, I say (B)!"), ("five-shot", "B. {}")])
def test_line_2_all_roles_see_of_the_first_answer_what_the_setting_says(
    tmp_path: Path, overheard: str, how: str, shown: str
) -> None:
    Overheard.replies = {("candidate", 0): "Well, I say (B)!"}
    models = {"candidate": [overheard], "interactor": overheard, "evaluator": overheard}
    shots = {"shots_from": str(ITEMS)} if how == "five-shot" else {}
    interview(tmp_path / "run", n=1, rounds=1, first_answer=how, **models, **shots)
    first, views = requests[0], _last_views()
    expected = shown.format(first.hint.item.choices[1])
    assert views["candidate"].messages[2].content == expected
    assert f"{expected}\n" in views["interactor"].messages[1].content
    assert f"[BEGIN CANDIDATE]\n{expected}\n[END CANDIDATE]" in views["evaluator"].messages[1].content
    assert len(first.messages) == (12 if how == "five-shot" else 2)
    assert first.sampling.max_tokens == views["interactor"].sampling.max_tokens == 400


def test_line_2_after_five_shots_an_answer_that_names_no_choice_is_dropped(tmp_path: Path, overheard: str) -> None:
    Overheard.replies = {("candidate", 0): "I would rather not say."}
    models = {"candidate": [overheard], "interactor": overheard, "evaluator": overheard}
    _, one = interview(tmp_path / "run", n=2, first_answer="five-shot", shots_from=str(ITEMS), **models)
    assert [request.role for request in requests] == ["candidate"] * 2
    assert (one["ends"], one["stop_reasons"]) == ({"candidate": 2}, {"unanswered": 2})
    assert (one["unanswered"], one["score"]["n"]) == (2, 0)


def test_a_verdict_that_cannot_be_read_is_asked_for_once_more_then_unscored(tmp_path: Path, overheard: str) -> None:
    Overheard.replies = {("evaluator", 0): "Rather good!", ("evaluator", 1): '{"accuracy": 9}', ("evaluator", 2): "No."}
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


def test_line_35_a_repaired_verdict_is_not_computed_token_by_token_in_the_main_talk(tmp_path: Path) -> None:
    script = {("evaluator", 0): {"text": "Rather good!"}, ("evaluator", 1): {"pieces": [(True, [1, 2, 3])]}}
    with scripted_models(script) as asked:
        models = {"candidate": ["scripted:c"], "interactor": "scripted:i", "evaluator": "scripted:e"}
        interview(tmp_path / "run", n=1, rounds=2, early_stop=False, **models)
    (later,) = [request for request in asked if (request.role, request.ordinal) == ("evaluator", 2)]
    assert [message.role for message in later.messages][-3:] == ["user", "assistant", "user"]
    assert all(message.pieces is None for message in later.messages)


def test_line_2_a_verdict_that_lacks_one_score_after_its_repair_keeps_the_others(
    tmp_path: Path, overheard: str
) -> None:
    partial = {name: {"comment": "", "score": 2} for name in ASPECTS} | {"overall_score": 3, "stop_conversation": False}
    partial["logic"] = {"comment": "", "score": None}
    Overheard.replies = dict.fromkeys([("evaluator", 0), ("evaluator", 1)], orjson.dumps(partial).decode())
    models = {"candidate": [overheard], "interactor": overheard, "evaluator": overheard}
    _, one = interview(tmp_path / "run", n=1, rounds=1, **models)
    assert len([request for request in requests if request.role == "evaluator"]) == 2
    assert (one["score"]["mean"], one["aspects"]["accuracy"]["mean"], one["aspects"]["logic"]["mean"]) == (70, 30, None)
    assert (one["unscored_rounds"], one["partly_scored_rounds"], one["parse_failures"]) == (0, 1, 2)


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
        made.append((orjson.dumps(one), speeches_of(folder)))
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


def test_line_2_a_run_recorded_with_an_earlier_version_of_the_shipped_pack_is_resumed_and_forked(
    tmp_path: Path,
) -> None:
    shipped = Path(__file__).parents[2] / "scenarios" / "kieval" / "prompts" / "kieval.yaml"
    text = shipped.read_text().replace('version: "6"', 'version: "1"').replace("Begin now: ask", "Ask")
    (tmp_path / "pack.yaml").write_text(text)
    _, whole = interview(tmp_path / "whole", n=3, rounds=2, pack=str(tmp_path / "pack.yaml"))
    interview(tmp_path / "run", n=3, rounds=2, pack=str(tmp_path / "pack.yaml"), max_calls=12, concurrency=1)
    for name in ("whole", "run"):
        manifest = orjson.loads((tmp_path / name / "manifest.json").read_bytes())
        manifest["settings"]["pack"] = "kieval"
        (tmp_path / name / "manifest.json").write_bytes(orjson.dumps(manifest))
    launch = resumed_run(tmp_path / "run", VirtualClock(), changes={"max_calls": None})
    launch.clock.run(launch.run)  # type: ignore[attr-defined]
    assert speeches_of(tmp_path / "run") == speeches_of(tmp_path / "whole")
    changes = {"evaluator": "simulated:other?latency=1"}
    launch = forked_run(tmp_path / "whole", tmp_path / "fork", VirtualClock(), changes=changes)
    launch.clock.run(launch.run)  # type: ignore[attr-defined]
    report = recorded_results(launch.folder).report()
    assert report["pack"]["version"] == "1"
    [candidate] = report["candidates"].values()
    assert (candidate["failed"], candidate["interviews"]) == (0, whole["interviews"])

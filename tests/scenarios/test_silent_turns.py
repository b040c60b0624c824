"""Turns that say nothing, or not all, and turns that were thought about: who sees what, and where they are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import viva as viva_here
from scripted import Script, scripted_models

from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.engine.messages import Request
from viva.engine.run_folder import RunFolder
from viva.engine.tools import ToolCall
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.probes.probe import ProbeSettings

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
MODEL = "scripted:m"


def held(path: Path, script: Script, **changes: Any) -> tuple[dict[str, Any], list[Request], Any]:
    """One interview of two rounds by a script: the candidate's report, the requests, and the recorded result."""
    models = {"candidate": [MODEL], "interactor": MODEL, "evaluator": MODEL}
    settings = KievalSettings(**{"dataset": str(ITEMS), "n": 1, "rounds": 2, **models, **changes})
    with scripted_models(script) as requests:
        launch = new_run("kieval", settings, path, VirtualClock())
        launch.clock.run(launch.run)  # type: ignore[attr-defined]
    report = recorded_results(launch.folder).report()["candidates"]["m"]
    with History(launch.folder.journal) as history:
        [ended] = history.ended()
    return report, requests, ended.result


def texts(requests: list[Request]) -> str:
    """Everything that any model was shown."""
    return "\n".join(message.content for request in requests for message in request.messages)


def test_line_1_no_role_sees_anothers_thoughts_and_the_record_keeps_them(tmp_path: Path) -> None:
    script: Script = {
        ("candidate", 0): {"text": "<think>A? The answer is A. No, SECRET.</think>The answer is B."},
        ("interactor", 0): {"text": "<think>The right answer is B, SECRET.</think>What follows from it?"},
        ("candidate", 1): {"text": "It follows.", "thoughts": "SECRET of the endpoint"},
        ("evaluator", 0): {"text": "<think>SECRET</think>Well, well."},
        ("interactor", 1): {"text": "Begun by the template, SECRET.\n</think>\nAnd then?"},
    }
    report, requests, result = held(tmp_path / "run", script)
    assert "SECRET" not in texts(requests)
    asked = [request for request in requests if request.role == "candidate"][-1].messages
    assert [message.content for message in asked if message.role == "user"][1:] == [
        "What follows from it?",
        "And then?",
    ]
    assert result["choice"] == 1
    assert report["irregular"] == {
        "candidate": {"thoughts": 2}, "interactor": {"thoughts": 2}, "evaluator": {"thoughts": 1}
    }  # fmt: skip
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        kept = {(call.role, call.ordinal): call.completion for call in history.calls(0)}
    assert kept["interactor", 0].thoughts == "The right answer is B, SECRET."
    assert kept["candidate", 1].thoughts == "SECRET of the endpoint"
    assert (kept["candidate", 2].thoughts, kept["candidate", 0].text) == ("", "The answer is B.")


def test_line_1_a_detector_does_not_hear_thoughts(tmp_path: Path) -> None:
    looping = "wait, let me think again about it, " * 12
    script: Script = {("candidate", 1): {"text": f"<think>user: hm\n{looping}</think>It is so."}}
    report, _, _ = held(tmp_path / "run", script, detectors=["repetition", "role_shift", "empty"])
    assert report["ends"] == {"rounds": 1}
    script = {("candidate", 1): {"text": f"<think>Hm.</think>{looping}"}}
    report, _, _ = held(tmp_path / "loops", script, detectors=["repetition"])
    assert report["stop_reasons"] == {"repetition": 1}


def test_line_3_cut_turns_are_counted_in_the_record_and_the_tables(tmp_path: Path) -> None:
    script: Script = {
        ("interactor", 0): {"text": "What is the cause? Not the", "finish": "length"},
        ("candidate", 1): {"text": "It is th", "finish": "length"},
        ("candidate", 2): {"text": "", "finish": "stop"},
    }
    report, _, result = held(tmp_path / "run", script, early_stop=False)
    expected = {"candidate": {"cut": 1, "empty": 1}, "interactor": {"cut": 1}}
    assert report["irregular"] == result["irregular"] == expected
    titles = {
        title: (header, rows) for title, header, rows in recorded_results(RunFolder.open(tmp_path / "run")).tables()
    }
    header, rows = titles["Irregular answers: truncated, empty"]
    assert header == ["candidate", "role", "answers", "truncated", "empty"]
    assert rows == [["m", "candidate", "3", "1", "1"], ["m", "interactor", "2", "1", "0"]]


SILENCES: dict[str, dict[str, Any]] = {
    "nothing": {"text": ""},
    "blanks": {"text": " \n"},
    "all thought": {"text": "<think>What might I ask", "finish": "length"},
    "refusal": {"text": "", "finish": "refusal"},
    "filter": {"text": "", "finish": "content_filter"},
    "tools": {"text": "", "finish": "tool_calls", "calls": [ToolCall("1", "search", "{}")]},
}


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES.keys())
def test_line_3_a_question_that_is_missing_is_asked_for_once_more(tmp_path: Path, silence: dict[str, Any]) -> None:
    report, requests, _ = held(tmp_path / "again", {("interactor", 0): silence})
    asked = [request for request in requests if request.role == "interactor"]
    assert len(asked) == 3
    assert "held no question" in asked[1].messages[-1].content
    assert "held no question" not in texts(asked[2:])
    assert (report["ends"], report["rounds"]["mean"]) == ({"rounds": 1}, 2.0)


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES.keys())
def test_line_19_an_interactor_that_asks_nothing_gives_no_score(tmp_path: Path, silence: dict[str, Any]) -> None:
    script: Script = {("interactor", ordinal): silence for ordinal in range(4)}
    report, requests, result = held(tmp_path / "run", script)
    assert (report["ends"], report["stop_reasons"]) == ({"interactor": 1}, {"no_question": 1})
    assert (report["score"]["n"], result["rounds"]) == (0, [])
    assert sum(report["irregular"]["interactor"].values()) >= 2
    assert [request.role for request in requests] == ["candidate", "interactor", "interactor"]
    script = {("interactor", ordinal): silence for ordinal in (1, 2)}
    report, _, _ = held(tmp_path / "later", script)
    assert (report["ends"], report["rounds"]["mean"], report["score"]["n"]) == ({"interactor": 1}, 1.0, 1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("silence", "reason"),
    [
        ({"text": "", "finish": "refusal"}, "refusal"),
        ({"text": "", "finish": "content_filter"}, "content_filter"),
        (SILENCES["tools"], "tool_calls"),
        ({"text": "<think>Let me see", "finish": "length"}, "cut_while_thinking"),
    ],
)
def test_line_19_a_candidate_that_was_kept_from_answering_is_not_graded(
    tmp_path: Path, silence: dict[str, Any], reason: str, overlap: bool
) -> None:
    report, requests, result = held(tmp_path / "run", {("candidate", 2): silence}, overlap=overlap)
    assert (report["ends"], report["stop_reasons"]) == ({"candidate": 1}, {reason: 1})
    assert len(result["rounds"]) == report["verdicts"] == 1
    assert len([request for request in requests if request.role == "evaluator"]) == 1
    assert report["score"]["mean"] == 100.0
    report, _, _ = held(tmp_path / "first", {("candidate", 0): silence})
    assert (report["stop_reasons"], report["score"]["n"], report["unanswered"]) == ({reason: 1}, 0, 1)


@pytest.mark.parametrize(
    ("silence", "reason"),
    [
        ({"text": "", "finish": "content_filter"}, "content_filter"),
        ({"text": "<think>Let me see", "finish": "length"}, "cut_while_thinking"),
    ],
)
def test_line_19_the_detector_of_empty_replies_does_not_take_a_filter_for_one(
    tmp_path: Path, silence: dict[str, Any], reason: str
) -> None:
    script = {("candidate", 2): silence}
    report, _, _ = held(tmp_path / "run", script, detectors=["empty", "repetition"], scorer="corrected")
    assert (report["ends"], report["stop_reasons"]) == ({"candidate": 1}, {reason: 1})
    assert report["score"]["mean"] == 100.0  # with rounds lost to a detector it is 55.0


def test_line_19_a_judge_that_was_kept_from_answering_leaves_the_round_unscored(tmp_path: Path) -> None:
    silence = {"text": "", "finish": "content_filter"}
    report, _, result = held(tmp_path / "run", {("evaluator", 0): silence, ("evaluator", 1): silence})
    assert result["rounds"][0] == [None, None, 2, "it holds nothing (the call ended by content_filter)"]
    assert report["irregular"]["evaluator"] == {"content_filter": 2, "empty": 2}


def test_line_1_a_probe_reads_the_answer_and_counts_the_thoughts(tmp_path: Path) -> None:
    settings = ProbeSettings(dataset=str(ITEMS), n=2, candidate=[MODEL], method=["generate"], shots=0)
    thought = {"text": "<think>The answer is A. No: C. Or B?</think>B. It is."}
    with scripted_models({("candidate", 0): thought}):
        launch = new_run("probe", settings, tmp_path / "run", VirtualClock())
        launch.clock.run(launch.run)  # type: ignore[attr-defined]
    with History(launch.folder.journal) as history:
        assert [ended.result["generate"]["choice"] for ended in history.ended()] == [1, 1]
    report = recorded_results(launch.folder).report()
    assert report["candidates"]["m"]["irregular"] == {"candidate": {"thoughts": 2}}


def test_line_1_thoughts_are_shown_on_demand(tmp_path: Path) -> None:
    script: Script = {("candidate", 1): {"text": "<think>HIDDEN</think>It follows."}}
    held(tmp_path / "run", script)
    for options, shown in (
        ((), False),
        (("--thoughts",), True),
        (("--json",), False),
        (("--json", "--thoughts"), True),
    ):
        done = viva_here("show", tmp_path / "run", "--conversation", "0", *options)
        assert done.returncode == 0, done.stderr
        out = done.stdout
        assert ("HIDDEN" in out, "It follows." in out) == (shown, True)

"""FunctionChat from settings to report: right and wrong outputs, judges, repeats, forks, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmark import key_of, serving
from small_dialogs import write_data, write_rubrics

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.tools import ToolCall
from viva.orchestration.launch import forked_run, new_run, recorded_results
from viva.scenarios.functionchat.dialog_prompts import TEMPLATES, DialogPrompts, open_prompts
from viva.scenarios.functionchat.dialog_protocols import grade_record
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings
from viva.scenarios.functionchat.rule_grading import grade, read_published_verdict
from viva.scenarios.functionchat.scenario import SCENARIO
from viva.scenarios.functionchat.turn_files import read_dialogs, read_singlecall
from viva.scenarios.functionchat.turns import TOOL_LISTS, DialogTurn

DATA = (
    Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve() / "functionchat"
)
TURNS = 45  # 3 functions × 2 queries × 5 tool lists, and 3 dialogs of 5 turns


def _published() -> Path:
    if not (DATA / "FunctionChat-Dialog.jsonl").exists():
        pytest.skip(f"{DATA} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return DATA


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def _run(folder: Path, data: Path, *, virtual: bool = True, **settings: Any) -> dict[str, Any]:
    given = {"candidate": ["simulated:c"], "judge": "simulated:j?noise=0", **settings}
    clock = VirtualClock() if virtual else None
    launch = new_run("functionchat", FunctionChatSettings(data=str(data), **given), folder, clock)
    outcome = launch.clock.run(launch.run)
    assert outcome.how == "done"
    assert outcome.failed == 0
    return recorded_results(RunFolder.open(folder)).report()


def _results(folder: Path) -> dict[str, dict[str, Any]]:
    with History(folder / "journal.sqlite") as history:
        return {one.key: one.result for one in history.ended()}


def test_a_candidate_that_is_always_right_passes_everything_and_no_judge_is_asked(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=1"])
    one = report["candidates"]["c"]
    assert one["turns"] == one["decided_by_rule"] == TURNS
    assert one["judged"] == one["unscored"] == 0
    assert {name: part["passed"] for name, part in one["singlecall"]["lists"].items()} == dict.fromkeys(
        ("exact", "4_random", "4_close", "8_random", "8_close"), 6
    )
    assert one["singlecall"]["average"] == 6
    assert one["dialog"]["macro"]["mean"] == one["dialog"]["micro"]["mean"] == 1
    assert one["usage"].keys() == {"candidate"}


def test_a_candidate_that_is_always_wrong_fails_with_tags_of_each_type(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=0"], repeats=4)
    one = report["candidates"]["c"]
    assert one["turns"] == 4 * TURNS
    assert one["singlecall"]["sum"] == 0
    assert one["dialog"]["micro"]["mean"] == 0
    assert all(one["tags"][kind] for kind in ("call", "completion", "slot", "relevance"))
    assert set(one["tags"]["call"]) & {"no_call", "wrong_function", "missing_argument", "wrong_type"}
    for result in _results(tmp_path / "run").values():
        assert result["passed"] is False
        assert result["grade"]["tags"] or result["judge"]["passed"] is False


def test_official_matching_asks_the_judge_about_all_that_it_does_not_pass(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=1"], matching="official")
    one = report["candidates"]["c"]
    results = _results(tmp_path / "run").values()
    assert one["judged"] == sum(result["type"] != "call" for result in results) > 0
    assert one["decided_by_rule"] == one["turns"] - one["judged"] > 0


def test_official_matching_with_rubrics_asks_reads_and_counts_as_the_authors_code(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rubrics": str(write_rubrics(tmp_path / "rubrics")), "system": "data"}
    settings |= {"matching": "official", "candidate": ["simulated:c?knowledge=0.5"]}
    report = _run(tmp_path / "run", data, judge="simulated:j?noise=0&malformed=0.5", **settings)
    one, run = report["candidates"]["c"], RunFolder.open(tmp_path / "run")
    with History(run.journal) as history:
        rows = [(DialogTurn.from_record(end.item), end.result, history.calls(end.number)) for end in history.ended()]
    words = DialogPrompts(
        TEMPLATES.read(run.manifest["prompts"], "x"), run.manifest["language"], run.manifest["system"]
    )
    passed: dict[str, list[bool | None]] = {}
    for turn, result, calls in rows:
        passed.setdefault(turn.tool_list or turn.type, []).append(result["passed"])
        asked = [call for call in calls if call.role == "judge"]
        assert len(asked) == (result["judge"] is not None)  # no second try
        if asked:
            assert result["passed"] is read_published_verdict(asked[0].completion.text)
            output = [ToolCall(*call) for call in result["output"]["calls"]]
            question = words.published_question(turn, result["output"]["content"], output)
            system = [{"role": "system", "content": "Use the functions, and ask for what is missing."}]
            [query] = [line.removeprefix("QUERY ") for line in question.splitlines() if line.startswith("QUERY ")]
            assert json.loads(query) == system + turn.messages
            assert f"TOOLS {json.dumps(turn.tools)}\n" in question
            if turn.subset == "singlecall":
                [expected] = turn.expected()
                truth = {"name": expected.name, "arguments": expected.arguments, "tool_calls": None}
                assert f"TRUTH {json.dumps(truth)}\nACCEPTABLE " in question
                assert ("ACCEPTABLE null\n" in question) is not ('ACCEPTABLE "Only ground truth' in question)
    assert None in passed["slot"] + passed["relevance"]
    figures = one["as_published"]
    assert figures["singlecall"]["lists"] == {name: passed[name].count(True) for name in TOOL_LISTS}
    assert figures["singlecall"]["average"] == figures["singlecall"]["sum"] / 5
    kinds = ("call", "completion", "slot", "relevance")
    rates = [passed[kind].count(True) / (len(passed[kind]) - passed[kind].count(None)) for kind in kinds]
    assert list(figures["dialog"]["types"].values()) == [pytest.approx(rate, abs=1e-5) for rate in rates]
    assert figures["dialog"]["macro"] == pytest.approx(sum(rates) / 4, abs=1e-5)
    assert figures["dialog"]["micro"] == pytest.approx(sum(passed[kind].count(True) for kind in kinds) / 15, abs=1e-5)
    titles = [title for title, _, cells in recorded_results(run).tables() if cells]
    assert "Pass count of single calls, as the authors count (Table 3)" in titles
    assert "Pass rate of dialogs, as the authors count (Table 4)" in titles


def test_the_judge_is_shown_no_call_ids(data: Path, tmp_path: Path) -> None:
    _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=0"], matching="official")
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        held = [(DialogTurn.from_record(one.item), one.result) for one in history.ended()]
    words = open_prompts(FunctionChatSettings(data=str(data), candidate=["simulated:c"], judge="simulated:j"), "")
    for turn, result in held:
        calls = [ToolCall("call_73", *call[1:]) for call in result["output"]["calls"]]
        question = words.question(turn, result["output"]["content"], calls)
        assert "call_73" not in question
        assert not any(f'"{call.id}"' in question for call in turn.expected())


def test_the_report_is_the_same_bytes_at_any_concurrency(data: Path, tmp_path: Path) -> None:
    candidates = ["simulated:a?knowledge=0.8&latency=1", "simulated:b?knowledge=0.4&latency=2&sigma=2"]
    reports = []
    for name, concurrency in (("one", 1), ("many", 64)):
        reports.append(_run(tmp_path / name, data, candidate=candidates, concurrency=concurrency, repeats=2))
    assert orjson.dumps(reports[0]) == orjson.dumps(reports[1])
    assert 0 < reports[0]["candidates"]["b"]["dialog"]["micro"]["mean"] < 1
    assert _results(tmp_path / "one") == _results(tmp_path / "many")


def test_a_judge_that_gives_no_verdict_is_asked_once_more_and_then_leaves_unscored(data: Path, tmp_path: Path) -> None:
    wrong = ["simulated:c?knowledge=0"]
    sound = _run(tmp_path / "sound", data, candidate=wrong, judge="simulated:j?noise=0", repeats=3)["candidates"]["c"]
    broken = _run(tmp_path / "broken", data, candidate=wrong, judge="simulated:j?malformed=1", repeats=3)["candidates"][
        "c"
    ]
    assert sound["judged"] == broken["judged"] > 0
    assert sound["unscored"] == sound["parse_failures"] == 0
    assert broken["unscored"] > 0
    judged = [result for result in _results(tmp_path / "broken").values() if result["judge"] is not None]
    for result in judged:
        ruling = result["judge"]
        assert (ruling["passed"] is None) == (ruling["problem"] is not None) == (ruling["failures"] == 2)
        assert result["usage"]["judge"][0] == (1 if ruling["failures"] == 0 else 2)
        assert result["passed"] is ruling["passed"]
    assert broken["unscored"] == sum(result["passed"] is None for result in judged)
    assert broken["parse_failures"] == sum(result["judge"]["failures"] for result in judged)
    texts = sum(result["usage"]["judge"][0] for result in judged)
    assert broken["parse_failure_rate"] == pytest.approx(broken["parse_failures"] / texts, abs=1e-6)


def test_over_http_with_rubrics_of_a_folder_and_the_prompt_of_the_data(data: Path, tmp_path: Path) -> None:
    turns = [
        *read_singlecall(data / "FunctionChat-Singlecall.jsonl"),
        *read_dialogs(data / "FunctionChat-Dialog.jsonl"),
    ]
    answers = {key_of(turn.messages): turn.ground_truth for turn in turns}
    rubrics = write_rubrics(tmp_path / "rubrics")
    with serving(tmp_path, answers) as server:
        report = _run(
            tmp_path / "run",
            data,
            virtual=False,
            candidate=[server.model("candidate")],
            judge=server.model("free-judge"),
            rubrics=str(rubrics),
            system="data",
        )
        asked = server.asked()
    one = report["candidates"]["candidate"]
    assert report["pack"]["name"] == "functionchat with rubrics of rubrics"
    assert one["turns"] == asked["candidate"] == TURNS
    assert 0 < one["judged"] <= asked["free-judge"]
    assert one["parse_failures"] == asked["free-judge"] - one["judged"]
    assert one["unscored"] == 0
    assert 0 < one["dialog"]["micro"]["mean"] < 1
    manifest = RunFolder.open(tmp_path / "run").manifest
    assert manifest["system"] == "Use the functions, and ask for what is missing."
    assert "then, on a line of its own, pass or fail." in manifest["prompts"]


def test_the_judge_is_shown_all_that_the_rubric_names(data: Path, tmp_path: Path) -> None:
    settings = FunctionChatSettings(
        data=str(data), candidate=["simulated:c"], judge="simulated:j", rubrics=str(write_rubrics(tmp_path / "rubrics"))
    )
    words = open_prompts(settings, "Korean")
    turns = list(read_dialogs(data / "FunctionChat-Dialog.jsonl"))
    calls = turns[1].expected()
    question = words.question(turns[1], "", calls)
    for part in ("next_tide", "When is the tide?", "05:30", "set_alarm", "ACCEPTABLE", '"content":null'):
        assert part in question
    own = open_prompts(settings.model_copy(update={"rubrics": None}), "Korean")
    assert "Korean" in own.question(turns[0], "Which harbour?", [])
    assert "Korean" in own.system
    free = open_prompts(settings.model_copy(update={"rubrics": None}), "")
    assert "language" not in free.question(turns[0], "Which harbour?", [])
    assert "{" not in free.system


def test_a_fork_has_the_same_answers_judged_by_another(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=0.3"], repeats=2)
    changes = {"evaluator": "simulated:other?noise=1"}
    launch = forked_run(tmp_path / "run", tmp_path / "fork", VirtualClock(), changes=changes)
    outcome = launch.clock.run(launch.run)
    assert (outcome.how, outcome.failed) == ("done", 0)
    forked = recorded_results(RunFolder.open(tmp_path / "fork")).report()["candidates"]["c"]
    assert forked["judged"] == report["candidates"]["c"]["judged"] > 0
    before, after = _results(tmp_path / "run"), _results(tmp_path / "fork")
    assert before.keys() == after.keys()
    for key, result in before.items():
        assert after[key]["output"] == result["output"]
        if result["judge"] is not None:  # one of the judges never errs, the other always does
            assert after[key]["passed"] is not result["passed"]


@pytest.mark.parametrize("subset", ["singlecall", "dialog"])
def test_a_subset_and_a_sample_are_drawn_by_the_seed(data: Path, tmp_path: Path, subset: str) -> None:
    drawn = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _run(tmp_path / name, data, subset=subset, n=7, seed=seed)
        drawn.append({result["item"] for result in _results(tmp_path / name).values()})
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(ids) == 7 and all(id_.startswith(subset) for id_ in ids) for ids in drawn)


def test_a_file_alone_is_read_by_its_form(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data / "FunctionChat-Dialog.jsonl")
    assert report["dataset"]["counts"] == {"dialog": {"slot": 3, "call": 3, "completion": 3, "relevance": 6}}
    with pytest.raises(ConfigurationError, match="omit --subset"):
        _run(tmp_path / "other", data / "FunctionChat-Dialog.jsonl", subset="singlecall")


def test_tokens_of_a_budget_end_a_turn_unscored(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, candidate=["simulated:c?knowledge=0"], conversation_calls=1)
    one = report["candidates"]["c"]
    assert one["stopped"] == {"budget": one["unscored"]}
    assert one["unscored"] > 0
    assert one["judged"] == 0


def test_all_700_turns_of_the_published_data_with_simulated_models(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "candidate": ["simulated:c?knowledge=0.7"],
        "system": "data",
        "rubrics": str(_published()),
    }
    one = _run(tmp_path / "run", _published(), **settings)["candidates"]["c"]
    assert one["turns"] == 700
    assert [part["n"] for part in one["singlecall"]["lists"].values()] == [100] * 5
    assert {kind: part["n"] for kind, part in one["dialog"]["types"].items()} == {
        "call": 70,
        "completion": 71,
        "slot": 36,
        "relevance": 23,
    }
    assert 60 < one["singlecall"]["average"] < 85
    assert one["decided_by_rule"] + one["judged"] == 700


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"judge": None}, "judge"),
        ({"interactor": "simulated:i"}, "mode user"),
        ({"mode": "user"}, "needs no judge"),
        ({"mode": "user", "judge": None, "subset": "dialog"}, "subset"),
        ({"repeats": 0}, "repeats"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(data: Path, changes: dict[str, Any], problem: str) -> None:
    given = {"candidate": ["simulated:c"], "judge": "simulated:j", **changes}
    with pytest.raises(ValueError, match=problem):
        FunctionChatSettings(data=str(data), **given)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"data": ".."}, "has no FunctionChat-Singlecall.jsonl"),
        ({"system": "nowhere.txt"}, "nowhere.txt"),
        ({"rubrics": "nowhere"}, "rubric_call.txt"),
        ({"mode": "user", "judge": None, "data": "examples"}, "plays the user"),
        ({"pack": "kieval"}, "prompt pack"),
    ],
)
def test_what_cannot_be_used_is_named(data: Path, tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    if changes.get("data") == "..":
        changes = {"data": str(tmp_path)}
    given = {"data": str(data), "candidate": ["simulated:c"], "judge": "simulated:j", **changes}
    with pytest.raises(ConfigurationError, match=problem):
        SCENARIO.prepare(FunctionChatSettings(**given))


def test_a_rubric_with_an_unknown_placeholder_is_refused(data: Path, tmp_path: Path) -> None:
    rubrics = write_rubrics(tmp_path / "rubrics")
    (rubrics / "rubric_slot.txt").write_text("{tools} {scale}")
    settings = FunctionChatSettings(
        data=str(data), candidate=["simulated:c"], judge="simulated:j", rubrics=str(rubrics)
    )
    with pytest.raises(ConfigurationError, match=r"judge\.slot: unknown placeholder \{scale\}"):
        SCENARIO.prepare(settings)


@pytest.mark.parametrize(
    "arguments", ['{"\\ud800": 1}', '{"time": "\\udfff"}', '{"time": [1e400]}', '{"time": 1', '"\\ud800"']
)
def test_whatever_a_model_sends_as_arguments_can_be_recorded(data: Path, arguments: str) -> None:
    turns = list(read_dialogs(data / "FunctionChat-Dialog.jsonl"))
    for turn in turns:
        for name in ("set_alarm", "next_tide", "nothing"):
            record = grade_record(grade(turn, "", [ToolCall("one", name, arguments)]))
            assert orjson.loads(orjson.dumps(record))["passed"] is False

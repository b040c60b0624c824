"""Files of the common form (CallDecision, Parallel, Sequential), from file to report; what of a folder is left out."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from small_dialogs import common_lines, write_data, write_lines
from spoken import speeches_of
from viva_process import ended, started

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.journal_reader import History
from viva.engine.messages import Sampling, View
from viva.engine.run_folder import RunFolder
from viva.engine.tools import ToolCall
from viva.orchestration.launch import new_run, recorded_results, resumed_run
from viva.scenarios.functionchat.dialog_prompts import open_prompts
from viva.scenarios.functionchat.dialog_protocols import TurnProtocol, recorded_view
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings
from viva.scenarios.functionchat.rule_grading import grade
from viva.scenarios.functionchat.scenario import SCENARIO
from viva.scenarios.functionchat.turn_files import read_common
from viva.scenarios.functionchat.turns import DialogTurn
from viva.scenarios.functionchat.verdict_review import Correction, add_corrections, graded_outputs

NAME = "FunctionChat-CallDecision.jsonl"
CATEGORIES = ["CALL", "REJECT", "SLOT-all", "SLOT-some"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = write_data(tmp_path / "data")
    write_lines(folder / NAME, common_lines())
    return folder


def _settings(data: Path, **more: Any) -> FunctionChatSettings:
    given = {"candidate": ["simulated:c?knowledge=0.5"], "judge": "simulated:j?noise=0", **more}
    return FunctionChatSettings(data=str(data), **given)


def _shown(settings: FunctionChatSettings, turn: Any) -> View:
    """What a candidate is sent with a turn."""
    return TurnProtocol(open_prompts(settings, ""), Sampling(), Sampling()).context_of(turn).view


def _language(settings: FunctionChatSettings) -> str:
    return str(SCENARIO.prepare(settings).records["language"])


def _run(folder: Path, data: Path, **more: Any) -> dict[str, Any]:
    launch = new_run("functionchat", _settings(data, **more), folder, VirtualClock())
    assert launch.clock.run(launch.run).how == "done"
    return recorded_results(RunFolder.open(folder)).report()


def test_line_7_call_decisions_alone_are_read_by_category(data: Path) -> None:
    turns = {turn.id: turn for turn in read_common(data / NAME, "calldecision")}
    assert list(turns) == [f"calldecision/{category}/{serial}" for category in CATEGORIES for serial in (1, 2)]
    one = turns["calldecision/CALL/1"]
    assert (one.type, one.category, one.tool_list) == ("call", "CALL", None)
    assert one.expected()[0].parsed() == {"harbour": "Vlissingen"}
    assert one.acceptable.values == ({"harbour": ("VLISSINGEN",)},)
    # What begins with the same message of the user is one cluster, under whatever tools.
    assert one.cluster == turns["calldecision/REJECT/1"].cluster != turns["calldecision/CALL/2"].cluster
    assert turns["calldecision/SLOT-all/1"].cluster == turns["calldecision/SLOT-some/2"].cluster
    for turn in turns.values():
        assert DialogTurn.from_record(orjson.loads(orjson.dumps(turn.to_record()))) == turn
        assert grade(turn, turn.ground_truth["content"] or "", turn.expected()).passed is True


def test_line_7_a_system_message_of_a_turns_own_is_sent_as_it_stands(data: Path, tmp_path: Path) -> None:
    settings = _settings(data, subset="calldecision")
    (turn, *_) = SCENARIO.prepare(settings).tasks
    assert isinstance(turn, DialogTurn)
    view = _shown(settings, turn)
    assert [(message.role, message.content) for message in view.messages] == [
        ("system", "Rules of CALL 1."),
        ("user", "When is high water in Vlissingen?"),
    ]
    assert view.digest == recorded_view("", turn.messages).digest
    assert "system: Rules of CALL 1." in open_prompts(settings, "").question(turn, "", [])
    dialogs = [json.loads(line) for line in (data / "FunctionChat-Dialog.jsonl").read_text().splitlines()]
    dialogs[0]["turns"][0]["query"].insert(0, {"role": "system", "content": "Own rules."})
    settings = _settings(write_lines(tmp_path / "own.jsonl", dialogs))
    prepared = SCENARIO.prepare(settings)
    told = prepared.records["system"]
    first, second = ([message.content for message in _shown(settings, turn).messages]
                     for turn in list(prepared.tasks)[:2])  # fmt: skip
    assert first[0] == "Own rules."
    assert told not in first
    assert second[0] == told


def test_line_7_the_published_folder_is_read_whole_and_reported_by_category(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, repeats=4)
    assert report["dataset"]["turns"] == 45 + 8
    assert report["dataset"]["counts"]["calldecision"] == dict.fromkeys(CATEGORIES, 2)
    found = report["candidates"]["c"]["categories"]["calldecision"]
    assert {name: part["n"] for name, part in found["categories"].items()} == dict.fromkeys(CATEGORIES, 8)
    passed = sum(part["passed"] for part in found["categories"].values())
    assert found["rate"]["mean"] == pytest.approx(passed / 32)
    assert 0 < passed < 32
    assert found["rate"]["clusters"] == 3
    assert report["candidates"]["c"]["dialog"]["micro"]["n"] == 60  # the paper's tables count the paper's turns
    tables = {
        title.partition(":")[0]: rows for title, _, rows in recorded_results(RunFolder.open(tmp_path / "run")).tables()
    }
    (row,) = tables["Passes in calldecision, by category"]
    assert row[1:5] == [f"{found['categories'][name]['passed']}/8" for name in CATEGORIES]
    assert tables["Left out of the data"] == []


def test_line_7_the_papers_two_subsets_are_still_to_be_had(data: Path, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", data, subset="both")
    assert report["dataset"]["counts"].keys() == {"singlecall", "dialog"}
    assert "categories" not in report["candidates"]["c"]


@pytest.fixture
def spoiled(data: Path) -> Path:
    """A line with a ground truth that breaks its specification, one that is no JSON, and a file of no known subset."""
    lines: list[Any] = common_lines()
    lines[1]["ground_truth"]["name"] = "fly"
    write_lines(data / NAME, [*lines, "{"])
    write_lines(data / "FunctionChat-Later.jsonl", [{"of": "a form to come"}])
    return data


def test_line_7_a_line_that_cannot_be_read_is_refused_by_name(spoiled: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        SCENARIO.prepare(_settings(spoiled))
    assert str(caught.value).startswith(f"{spoiled / NAME}:2: field 'ground_truth': the function 'fly' is not among")
    assert str(caught.value).endswith("skip such lines with --skip-bad-items")


def test_line_7_what_is_left_out_is_named_on_screen_and_in_the_report(spoiled: Path, tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c?knowledge=0", "--judge", "simulated:j?noise=0"]
    code, printed, said = ended(
        started("run", "functionchat", "--data", spoiled, *models, "--skip-bad-items", "--out", tmp_path / "run")
    )
    assert code == 0
    assert "viva: note: FunctionChat-Later.jsonl is not a known file of the benchmark and was not read" in said
    assert f"viva: note: 2 unusable lines were skipped, the first: {spoiled / NAME}:2: " in said
    for part in ("Left out of the data", "FunctionChat-Later.jsonl", NAME, "'fly' is not among the tools"):
        assert part in printed.decode()
    dataset = recorded_results(RunFolder.open(tmp_path / "run")).report()["dataset"]
    assert dataset["unread_files"] == ["FunctionChat-Later.jsonl"]
    assert (dataset["skipped_lines"]["count"], dataset["skipped_lines"]["first"][0]["line"]) == (2, 2)
    assert dataset["counts"]["calldecision"] == {"CALL": 1, "REJECT": 2, "SLOT-all": 2, "SLOT-some": 2}


def test_line_7_call_decisions_are_shown_and_reviewed(data: Path, tmp_path: Path) -> None:
    _run(tmp_path / "run", data, subset="calldecision", candidate=["simulated:c?knowledge=0"], repeats=4)
    folder = RunFolder.open(tmp_path / "run")
    with History(folder.journal) as history:
        talk = next(one for one in history.ended() if one.key == "c/calldecision/SLOT-some/2")
    said = speeches_of(folder.path)[talk.key]
    assert said[0] == ("system", "Rules of SLOT-some 2.")
    assert ("ground truth", "Which harbour there?") in said
    failed = next(one for one in graded_outputs(folder) if one.verdict is False)
    add_corrections(folder.path, [Correction(failed.id, True, "Ann", "It asks for the same.")])
    report = recorded_results(folder).report()
    one = report["candidates"]["c"]
    before, after = (part["categories"]["calldecision"]["categories"] for part in (one, one["corrected"]))
    category = str(failed.turn.category)
    assert after[category]["passed"] == before[category]["passed"] + 1
    assert report["corrections"]["judge_errors"]["calldecision"]["false_negatives"] == 1


def test_line_7_acceptable_arguments_within_the_calls(tmp_path: Path) -> None:
    """As Parallel and Sequential have them."""
    line = common_lines()[0]
    call = {"name": "next_tide", "arguments": {"harbour": "Oban"}}
    line |= {"type_of_output": "call", "acceptable_arguments": None}

    def read(*told: Any) -> DialogTurn:
        calls = [{"id": "one", "type": "function", "function": {**call, "acceptable_arguments": one}} for one in told]
        line["ground_truth"] = {"role": "assistant", "content": None, "tool_calls": calls}
        (turn,) = read_common(write_lines(tmp_path / "lines.jsonl", [line]), "parallel")
        assert turn.id == "parallel/CALL/1"
        assert "acceptable" not in json.dumps(turn.ground_truth)
        return turn

    assert read(None, None).acceptable.kind == "unsaid"
    assert read('{"harbour": ["OBAN"]}', None).acceptable.values == ({"harbour": ("OBAN",)}, {})
    assert read("Only ground truth is allowed.", "Only ground truth is allowed.").acceptable.kind == "only"
    mixed = read("Any spelling.", '{"harbour": ["OBAN"]}').acceptable
    assert (mixed.kind, mixed.values) == ("remark", ({}, {"harbour": ("OBAN",)}))
    assert "Any spelling." in mixed.text
    assert read("Any spelling.").acceptable.text == "Any spelling."


def test_line_7_a_sentence_in_place_of_a_number_is_for_the_judge(tmp_path: Path) -> None:
    line = deepcopy(common_lines()[2])
    line |= {"type_of_output": "call", "acceptable_arguments": '{"percent": "Any number below ten."}'}
    line["ground_truth"] = {"name": "dim_lamp", "arguments": '{"percent": 5}'}
    (turn,) = read_common(write_lines(tmp_path / "lines.jsonl", [line]))
    assert (turn.acceptable.kind, turn.acceptable.values) == ("remark", ({},))
    assert grade(turn, "", [ToolCall("one", "dim_lamp", '{"percent": 6}')]).passed is None
    assert grade(turn, "", [ToolCall("one", "dim_lamp", '{"percent": "6"}')]).passed is False
    line["acceptable_arguments"] = '{"percent": "6"}'
    with pytest.raises(DatasetError, match="'percent' is specified as integer, found '6'"):
        list(read_common(write_lines(tmp_path / "lines.jsonl", [line])))


def test_line_7_what_is_required_but_not_specified_does_not_refuse_a_ground_truth(tmp_path: Path) -> None:
    line = deepcopy(common_lines()[0])
    line["input_tools"][1]["function"]["parameters"]["required"].append("day")
    (turn,) = read_common(write_lines(tmp_path / "lines.jsonl", [line]))
    assert grade(turn, "", turn.expected()).passed is True


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"category": None}, "category", "is missing"),
        ({"serial_num": None}, "serial_num", "is missing"),
        ({"serial_num": 2}, "serial_num", "'common/CALL/2' is already in line"),
        ({"input_messages": []}, "input_messages", "at least one"),
        ({"input_messages": [{"role": "bot", "content": "x"}]}, "input_messages[0].role", "'bot'"),
        ({"input_tools": []}, "input_tools", "empty"),
        ({"type_of_output": "chat"}, "type_of_output", "'chat'"),
        ({"ground_truth": {"role": "assistant", "content": "No."}}, "ground_truth.tool_calls", "missing"),
        ({"acceptable_arguments": {"port": "x"}}, "acceptable_arguments", "'port'"),
    ],
)
def test_line_7_a_wrong_field_of_the_common_form_is_named(
    tmp_path: Path, change: dict[str, Any], field: str, says: str
) -> None:
    lines = common_lines()
    path = write_lines(tmp_path / "lines.jsonl", [*lines[1:], lines[0] | change])
    with pytest.raises(DatasetError) as caught:
        list(read_common(path))
    assert (caught.value.line, caught.value.field) == (8, field)
    assert says in caught.value.message
    skipped: list[DatasetError] = []
    assert len(list(read_common(path, skipped=skipped.append))) == 7
    assert [one.line for one in skipped] == [8]


def test_line_7_a_file_of_the_common_form_by_another_name(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "mine.jsonl", common_lines())
    assert _run(tmp_path / "run", path)["dataset"]["counts"] == {"common": dict.fromkeys(CATEGORIES, 2)}
    with pytest.raises(ConfigurationError, match="of the form common, not dialog; omit --subset"):
        SCENARIO.prepare(_settings(path, subset="dialog"))


def test_line_15_the_language_of_replies_follows_the_data(data: Path, tmp_path: Path) -> None:
    assert _language(_settings(data)) == ""
    said = {
        "Korean": "내일 아침 알람 부탁해",
        "Japanese": "明日の朝に起こして",
        "Chinese": "明天早上叫醒我",
        "": "Wake me",
    }
    for language, text in said.items():
        lines = common_lines()
        for line in lines[:6]:  # most of them
            line["input_messages"][-1]["content"] = f"{text} 06:40, Oban!"
        records = SCENARIO.prepare(_settings(write_lines(tmp_path / "mine.jsonl", lines))).records
        assert records["language"] == language
        assert (f"Talk with the user in {language}," in records["system"]) is bool(language)
    assert _language(_settings(data, language="Welsh")) == "Welsh"
    assert _language(_settings(data, language="")) == ""


def test_line_15_a_run_from_before_goes_on_in_the_language_it_began_in(data: Path, tmp_path: Path) -> None:
    launch = new_run("functionchat", _settings(data, subset="both", language=None), tmp_path / "run", VirtualClock())
    manifest = orjson.loads((tmp_path / "run" / "manifest.json").read_bytes())
    del manifest["settings"]["skip_bad_items"]
    (tmp_path / "run" / "manifest.json").write_bytes(orjson.dumps(manifest))
    assert "Korean" in launch.prepared.opened.records["system"]
    again = resumed_run(tmp_path / "run", VirtualClock())
    assert again.clock.run(again.run).how == "done"
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        assert sum(1 for _ in history.ended()) == 45


def test_line_7_a_folder_without_the_subsets_file_says_so(data: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no FunctionChat-Parallel\.jsonl; name a file with --data, or a --sub"):
        SCENARIO.prepare(_settings(data, subset="parallel"))
    with pytest.raises(DatasetError, match="has no file of the subset common; name the file with --data"):
        SCENARIO.prepare(_settings(data, subset="common"))

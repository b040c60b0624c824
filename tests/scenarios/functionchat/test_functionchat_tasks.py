"""Dialogs with a played user: their files, their tools at work, and what counts as success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.permissions import grant
from viva.engine.tools import ToolCall
from viva.scenarios.functionchat.call_matching import same_value
from viva.scenarios.functionchat.user_tasks import CallPattern, DialogTask, ExecutedCall, ToolSimulator, open_tasks

TOOLS = [
    {"name": "find", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}},
    {"name": "send", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}},
]
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["", "1", "true"])


def _task(**fields: Any) -> DialogTask:
    return DialogTask.model_validate(
        {"id": "t", "says": ["Go on."], "tools": TOOLS, "forbidden": [{"name": "send"}], **fields}
    )


def _call(name: str, arguments: str) -> ToolCall:
    return ToolCall("call-1", name, arguments)


def pantry(name: str, arguments: dict[str, Any], state: dict[str, Any]) -> Any:
    """A Python tool of the tests: finds what there is, and refuses to send to nobody."""
    if name == "find":
        return {"left": state["shelf"].get(arguments["what"], 0)}
    if not arguments.get("to"):
        raise ValueError("to whom?")
    state["sent"] = [*state.get("sent", []), arguments["to"]]
    return "sent"


def test_the_shipped_examples_can_be_read_and_solved() -> None:
    tasks = list(open_tasks("examples", limit=None, seed=1))
    assert len(tasks) >= 2
    for task in tasks:
        workshop = ToolSimulator.from_task(task)
        assert workshop.missing()
        for wanted in task.expected:
            result = workshop.answer(_call(wanted.name, json.dumps(wanted.arguments)))
            assert "error" not in json.loads(result)
        assert not workshop.missing()
        assert not workshop.forbidden()
        assert workshop.state_reached()
        for banned in task.forbidden:
            workshop.answer(_call(banned.name, json.dumps(banned.arguments)))
            assert workshop.forbidden()


def test_scripted_results_are_looked_up_by_the_arguments_they_name() -> None:
    results = [
        {"name": "find", "arguments": {"what": "salt"}, "result": {"left": 2}},
        {"name": "find", "result": "nothing left"},
    ]
    workshop = ToolSimulator.from_task(_task(results=results))
    assert workshop.answer(_call("find", '{"what": "salt", "where": "top"}')) == '{"left":2}'
    assert workshop.answer(_call("find", '{"what": "sugar"}')) == "nothing left"
    assert "error" in json.loads(workshop.answer(_call("send", "{}")))
    assert [made.name for made in workshop.calls] == ["find", "find", "send"]


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [("find", "{", "not JSON"), ("find", "[1]", "not a JSON object"), ("fetch", "{}", "no function fetch")],
)
def test_calls_that_cannot_be_made_are_told_and_do_not_count(name: str, arguments: str, problem: str) -> None:
    workshop = ToolSimulator.from_task(_task())
    assert problem in json.loads(workshop.answer(_call(name, arguments)))["error"]
    assert workshop.calls == []


def test_a_python_tool_works_on_a_state_of_its_talk() -> None:
    task = _task(
        python=f"{__name__}:pantry", state={"shelf": {"salt": 2}}, forbidden=[], expected_state={"sent": ["Ida", "Bo"]}
    )
    grant(__name__)
    first, second = ToolSimulator.from_task(task), ToolSimulator.from_task(task)
    assert first.answer(_call("find", '{"what": "salt"}')) == '{"left":2}'
    assert json.loads(first.answer(_call("send", ""))) == {"error": "to whom?"}
    assert not first.state_reached()
    for to in ("Ida", "Bo"):
        assert first.answer(_call("send", json.dumps({"to": to}))) == "sent"
    assert first.state_reached()
    assert second.state == task.state == {"shelf": {"salt": 2}}


def test_expected_calls_may_come_in_any_order_and_each_serves_once() -> None:
    wanted = [{"name": "find"}, {"name": "find", "arguments": {"what": "salt"}}]
    workshop = ToolSimulator.from_task(_task(expected=wanted))
    workshop.answer(_call("find", '{"what": "salt"}'))
    assert workshop.missing() in ([0], [1])
    # The first call could serve both expectations, the second only one: both are met all the same.
    workshop.answer(_call("find", '{"what": "sugar"}'))
    assert workshop.missing() == []


@given(st.dictionaries(st.sampled_from("abc"), SCALARS), st.dictionaries(st.sampled_from("abc"), SCALARS))
def test_a_pattern_matches_what_has_all_that_it_names(named: dict[str, Any], arguments: dict[str, Any]) -> None:
    pattern = CallPattern(name="f", arguments=named)
    assert pattern.matches(ExecutedCall("f", {**arguments, **named}, ""))
    assert not pattern.matches(ExecutedCall("g", {**arguments, **named}, ""))
    fits = all(key in arguments and same_value(value, arguments[key]) for key, value in named.items())
    assert pattern.matches(ExecutedCall("f", arguments, "")) == fits


GOOD = "- id: a\n  says: [Hello]\n  tools: [{name: find}]\n  forbidden: [{name: find}]\n"


@pytest.mark.parametrize(
    ("text", "line", "field", "problem"),
    [
        (GOOD + GOOD, 5, "id", "second task"),
        (GOOD + GOOD.replace("id: a", "id: b").replace("Hello", ""), 5, "says", "at least 1"),
        (GOOD.replace("forbidden: [{name: find}]", "forbidden: [{name: fetch}]"), 1, None, "none of the tools"),
        (GOOD.replace("id: a", "id: a#2"), 1, "id", "pattern"),
        (GOOD.replace("forbidden", "banned"), 1, "banned", "not permitted"),
        (GOOD.replace("says: [Hello]", "goal: x\n  says: [y]"), 1, None, "not both"),
        (GOOD.replace("  forbidden: [{name: find}]\n", ""), 1, None, "no success condition"),
        (GOOD + "  state: {a: 1}\n", 1, None, "Python tool"),
        (GOOD + "  python: nowhere:f\n", 1, "python", "nowhere"),
        (GOOD + "  python: json:nothing\n", 1, "python", "nothing"),
        (GOOD + "  python: nothing\n", 1, "python", "expected module:function"),
        (GOOD + "  python: builtins:eval\n", 1, "python", "if you trust it, add --python-tools builtins"),
        (GOOD.replace("name: find}]\n  f", "title: find}]\n  f"), 1, None, r"tools\[0\]"),
        ("id: a\n", None, None, "list of tasks"),
        ("[]", None, None, "no task"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_field(
    tmp_path: Path, text: str, line: int | None, field: str | None, problem: str
) -> None:
    grant("nowhere", "json")
    (tmp_path / "tasks.yaml").write_text(text)
    with pytest.raises(DatasetError, match=problem) as caught:
        open_tasks(str(tmp_path / "tasks.yaml"), limit=None, seed=1)
    assert caught.value.line == line
    assert caught.value.field == field


def test_line_14_a_file_of_tasks_that_is_no_yaml_is_named_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "tasks.yaml"
    file.write_text("- id: a\n  says: [\n")
    with pytest.raises(ConfigurationError) as caught:
        open_tasks(str(file), limit=None, seed=1)
    assert str(caught.value).startswith(f"{file}:3:1: cannot be read: ")


def test_jsonl_and_yaml_mean_the_same_and_the_seed_draws(tmp_path: Path) -> None:
    written = [
        {"id": name, "says": ["2031-05-16"], "tools": TOOLS, "forbidden": [{"name": "send"}]} for name in "abcdef"
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
    (tmp_path / "tasks.yaml").write_text(
        "".join(
            f"- {{id: {one['id']}, says: [2031-05-16], tools: {json.dumps(TOOLS)}, forbidden: [{{name: send}}]}}\n"
            for one in written
        )
    )
    told = [
        [task.to_record() for task in open_tasks(str(tmp_path / f"tasks.{end}"), limit=None, seed=1)]
        for end in ("jsonl", "yaml")
    ]
    assert told[0] == told[1]
    drawn = [[task.id for task in open_tasks(str(tmp_path / "tasks.yaml"), limit=3, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(ids) == 3 for ids in drawn)


def test_a_call_without_what_is_required_never_reaches_a_python_tool() -> None:
    needed = {"name": "find", "parameters": {"properties": {"what": {"type": "string"}}, "required": ["what"]}}
    grant(__name__)
    workshop = ToolSimulator.from_task(
        _task(tools=[needed, TOOLS[1]], python=f"{__name__}:pantry", state={"shelf": {}}, expected=[{"name": "find"}])
    )
    assert json.loads(workshop.answer(_call("find", "{}"))) == {"error": "find requires what"}
    assert json.loads(workshop.answer(_call("find", '{"what": "tea"}'))) == {"left": 0}


def test_a_scripted_result_may_have_numbers_as_keys() -> None:
    workshop = ToolSimulator.from_task(
        _task(results=[{"name": "find", "result": {101: "free"}}], expected=[{"name": "find"}])
    )
    assert json.loads(workshop.answer(_call("find", "{}"))) == {"101": "free"}

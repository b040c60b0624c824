"""FlexEval's own suites and rubric files in our form: what maps, what is named as left out, and what is refused."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import grant
from viva.engine.yaml_file import read_yaml
from viva.scenarios.flexeval.builtin_metrics import BUILTIN
from viva.scenarios.flexeval.conversation_files import read_dialogs
from viva.scenarios.flexeval.dialog import Dialog
from viva.scenarios.flexeval.metrics import measure, resolve_metrics
from viva.scenarios.flexeval.suite_file import read_rubrics, read_suite
from viva.scenarios.flexeval.upstream_suites import COUNTERPARTS, convert_suite, suite_names

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve() / "flexeval"
TALK = '{"input": [{"role": "user", "content": "Hi."}]}\n'
ROLES = [{"name": "is_role", "kwargs": {"role": role}} for role in ("user", "assistant")]


def _suite(folder: Path, function: list[Any], rubric: list[Any] | None = None, **more: Any) -> Path:
    (folder / "talks.jsonl").write_text(TALK)
    metrics = {"function": function, **({} if rubric is None else {"rubric": rubric})}
    path = folder / "evals.yaml"
    path.write_text(yaml.safe_dump({"mine": {"data": ["talks.jsonl"], "metrics": metrics, **more}}))
    return path


def _mapped(path: Path, name: str | None = None) -> tuple[dict[str, Any], list[str]]:
    return convert_suite(read_yaml(path), path, name)


def test_a_suite_maps_with_levels_names_and_dependencies(tmp_path: Path) -> None:
    depends = [
        {"name": "is_role", "kwargs": {"role": "user"}, "metric_name": "user", "metric_min_value": 1},
        {"name": "string_length", "relative_object_position": -1, "metric_max_value": 40},
        {"name": "count_tokens", "metric_name": "prompt_tokens", "metric_level": "Thread"},
    ]
    functions = [
        *ROLES,
        {"name": "string_length"},
        {"name": "count_tokens", "metric_level": "Thread"},
        {"name": "message_matches_regex", "metric_level": "Message", "kwargs": {"expression": "a+"}},
        {"name": "flesch_reading_ease", "depends_on": depends},
    ]
    suite, notes = _mapped(_suite(tmp_path, functions, do_completion=False))
    assert (suite["name"], suite["conversations"], suite["complete"]) == ("mine", ["talks.jsonl"], "none")
    metrics = {one.pop("name"): one for one in suite["metrics"]}
    assert metrics["is_role_user"] == {"function": "is_role", "arguments": {"role": "user"}, "level": "turn"}
    assert metrics["count_tokens"] == {"function": "tokens", "level": "conversation"}
    assert metrics["message_matches_regex"] == {
        "function": "matches",
        "arguments": {"pattern": "a+"},
        "level": "message",
    }
    assert metrics["flesch_reading_ease"]["when"] == [
        {"metric": "is_role_user", "value": "user", "at_least": 1},
        {"metric": "string_length", "position": -1, "at_most": 40},
        {"metric": "count_tokens", "value": "prompt", "at_least": -sys.float_info.max},
    ]
    assert [one.split(":")[1].strip() for one in notes] == [
        "metrics.function[2] (string_length, Turn)", "metrics.function[3] (count_tokens, Thread)"]  # fmt: skip
    assert len(resolve_metrics(read_suite(tmp_path / "evals.yaml").suite)) == 6


def test_all_that_stands_for_a_function_is_built_in_and_takes_what_it_is_given() -> None:
    assert {one.name for one in COUNTERPARTS.values()} <= BUILTIN.keys()
    assert not COUNTERPARTS.keys() & BUILTIN.keys() - {"identity", "latency"}


# Functions that FlexEval ships, each with the levels that its annotation allows and arguments that it takes.
_SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "constant": ("Thread Turn Message ToolCall", {"response": 2}),
    "count_emojis": ("Turn Message", {}),
    "count_errors": ("Thread Turn Message ToolCall", {}),
    "count_llm_models": ("Thread", {}),
    "count_messages": ("Thread Turn", {}),
    "count_messages_per_role": ("Thread Turn", {"use_langgraph_roles": True}),
    "count_numeric_tool_call_params_by_name": ("ToolCall", {}),
    "count_of_parts_matching_regex": ("Thread Turn Message", {"expression": "a+"}),
    "count_tokens": ("Thread Turn Message", {}),
    "count_tool_calls": ("Thread Turn Message", {}),
    "count_tool_calls_by_name": ("Thread Turn Message ToolCall", {}),
    "count_turns": ("Thread", {}),
    "flesch_kincaid_grade": ("Turn Message", {}),
    "flesch_reading_ease": ("Turn Message", {}),
    "identity": ("Thread Turn Message ToolCall", {"any": 1}),
    "index_in_thread": ("Turn Message", {}),
    "is_langgraph_type": ("Message", {"type": "ai"}),
    "is_last_turn_in_thread": ("Turn", {}),
    "is_role": ("Turn Message", {"role": "user"}),
    "latency": ("Thread Turn Message", {}),
    "message_matches_regex": ("Message", {"expression": "a+"}),
    "openai_moderation_api": ("Turn Message", {}),
    "process_conversation": ("Thread Turn", {}),
    "process_single_message": ("Turn Message", {}),
    "string_length": ("Thread Turn Message", {}),
    "tool_was_called": ("Thread Turn Message", {}),
    "value_counts_by_tool_name": ("Thread Turn", {"json_key": "latex"}),
}


def test_every_function_that_they_ship_works_at_its_levels_or_is_named_with_what_to_use(tmp_path: Path) -> None:
    functions = [
        {"name": name, "metric_level": level, "kwargs": arguments}
        for name, (levels, arguments) in _SHIPPED.items()
        for level in levels.split()
    ]
    found = read_suite(_suite(tmp_path, functions))
    resolved = {(one.spec.name.partition("_2_")[0], one.level) for one in resolve_metrics(found.suite)}
    assert len(resolved) == len(found.suite.metrics) == len(functions) - 5
    left_out = [note for note in found.notes if "left out: i" in note]
    assert len(left_out) == 5
    assert sum("upstream's template" in note for note in left_out) == 4
    [errors] = [note for note in left_out if "count_errors" in note]
    assert "its counterpart `tool_errors` has no level ToolCall; use Message" in errors
    assert any("use_langgraph_roles: left out" in note for note in found.notes)


_TOOLS = {
    "input": [
        {"role": "system", "content": "Plot."},
        {"role": "user", "content": "Plot it 😀😀 and 图 🎉"},
        {"role": "assistant", "content": "", "model": "m-1", "additional_kwargs": {"js_errors": "x", "no_errors": None},
         "tool_calls": [{"id": "c", "function": {"name": "plot", "arguments": '{"a": "1.5", "b": 2, "c": "x"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": '[{"latex": "y"}, {"latex": "y"}, {"other": 1}]'},
        {"role": "assistant", "content": "Here.", "model": "m-1"},
        {"role": "user", "content": "Thanks."},
    ]
}  # fmt: skip


def test_the_figures_of_their_functions_by_hand(tmp_path: Path) -> None:
    wanted: list[tuple[str, str, dict[str, Any], list[Any]]] = [
        ("constant", "Thread", {}, [0]),
        ("constant", "ToolCall", {"response": 2.5}, [2.5]),
        ("count_emojis", "Turn", {}, [2, 0, 0]),
        ("count_errors", "Thread", {}, [{"js_errors": 1}]),
        ("count_llm_models", "Thread", {}, [{"m-1": 2}]),
        ("count_messages", "Thread", {}, [5]),
        ("count_messages", "Turn", {}, [1, 3, 1]),
        ("count_numeric_tool_call_params_by_name", "ToolCall", {}, [{"a": 1.5, "b": 2.0}]),
        ("count_tool_calls_by_name", "ToolCall", {}, [{"plot": 1}]),
        ("count_turns", "Thread", {}, [3]),
        ("identity", "Thread", {}, [{"object_type": 0}]),
        ("identity", "Turn", {}, [{"object_type": 1}] * 3),
        ("identity", "Message", {}, [{"object_type": 2}] * 6),
        ("identity", "ToolCall", {}, [{"object_type": 3}]),
        ("index_in_thread", "Turn", {}, [0, 1, 2]),
        ("is_langgraph_type", "Message", {"type": "human"}, [{"user": n} for n in (0, 1, 0, 0, 0, 1)]),
        ("is_last_turn_in_thread", "Turn", {}, [False, False, True]),
        ("tool_was_called", "Turn", {}, [False, True, False]),
        ("value_counts_by_tool_name", "Thread", {"json_key": "latex"}, [{"plot_y": 2}]),
    ]
    functions = [{"name": name, "metric_level": level, "kwargs": arguments} for name, level, arguments, _ in wanted]
    path = _suite(tmp_path, functions)
    (tmp_path / "talks.jsonl").write_text(json.dumps(_TOOLS))
    [dialog] = read_dialogs(tmp_path / "talks.jsonl")
    assert isinstance(dialog, Dialog)
    metrics = resolve_metrics(read_suite(path).suite)
    records = measure(dialog.to_record(), [one.to_record() for one in metrics], True, {})
    found = [[value for _, value in record["values"]] for record in records.values()]
    assert found == [values for *_, values in wanted]


def test_a_condition_on_a_type_of_langgraphs_holds_for_the_role(tmp_path: Path) -> None:
    depends = {"name": "is_langgraph_type", "kwargs": {"type": "ai"}, "metric_name": "ai", "metric_min_value": 1}
    functions = [
        {"name": "is_langgraph_type", "metric_level": "Message", "kwargs": {"type": "ai"}},
        {"name": "string_length", "metric_level": "Message", "depends_on": [depends]},
    ]
    suite, _ = _mapped(_suite(tmp_path, functions))
    assert suite["metrics"][0]["arguments"] == {"role": "assistant"}
    assert suite["metrics"][1]["when"] == [{"metric": "is_langgraph_type", "value": "assistant", "at_least": 1}]


@pytest.mark.parametrize(
    ("depends", "told"),
    [
        ({"name": "is_role", "metric_name": "user"}, r"matches several metrics: metrics\.function\[0\] \(is_role with "
         r"role: user, Turn\); metrics\.function\[1\] .*add `kwargs`"),
        ({"name": "is_rule"}, r"depends_on\[0\]: unknown metric 'is_rule'; known: is_role"),
        ({"name": "is_role", "kwargs": {"role": "tool"}}, r"no metric matches; metrics of that name"),
        ({"name": "is_role", "type": "rubric"}, r"no metric matches"),
        ({"name": "is_role", "relative_object_position": 1}, r"relative_object_position 1: expected 0"),
        ({"name": "is_role", "metric_min_value": "high"}, r"metric_min_value: expected a number, found 'high'"),
        ({"name": "is_role", "metric_level": "Word"}, r"metric_level 'Word' is not one of Thread, Turn, Message"),
        ({"name": "is_role", "min": 1}, r"unknown field 'min'; known: .*metric_min_value"),
        ("is_role", r"depends_on\[0\]: expected an object"),
    ],
)  # fmt: skip
def test_a_dependency_that_means_no_single_metric_is_refused(tmp_path: Path, depends: Any, told: str) -> None:
    path = _suite(tmp_path, [*ROLES, {"name": "latency", "depends_on": [depends]}])
    with pytest.raises(ConfigurationError, match=re.compile(rf"evals\.yaml: suite 'mine': .*{told}", re.DOTALL)):
        _mapped(path)


def test_a_dependency_within_one_level_is_meant_where_the_level_is_not_named(tmp_path: Path) -> None:
    levels = [{"name": "latency", "metric_level": level} for level in ("Thread", "Turn")]
    suite, _ = _mapped(_suite(tmp_path, [*levels, {"name": "string_length", "depends_on": [{"name": "latency"}]}]))
    assert suite["metrics"][2]["when"][0]["metric"] == "latency_turn"


def test_a_dependency_on_the_context_alone_is_left_out_with_it(tmp_path: Path) -> None:
    # As in the suites that were published with the paper.
    functions = [{"name": "string_length", "context_only": only} for only in (False, True)]
    children = [{"name": "latency", "depends_on": [{"name": "string_length", "context_only": only}]}
                for only in (False, True)]  # fmt: skip
    suite, notes = _mapped(_suite(tmp_path, [*functions, children[0]]))
    assert [one["name"] for one in suite["metrics"]] == ["string_length_turn", "latency"]
    suite, notes = _mapped(_suite(tmp_path, [*functions, children[1]]))
    assert [one["name"] for one in suite["metrics"]] == ["string_length_turn"]
    assert any("it depends on string_length_turn_2, which is left out" in note for note in notes)


def test_what_does_not_map_is_named_with_what_depends_on_it(tmp_path: Path) -> None:
    functions = [
        {"name": "process_single_message"},
        {"name": "string_length", "depends_on": [{"name": "process_single_message"}]},
        {"name": "latency", "context_only": True},
        ROLES[0],
        ROLES[0],
    ]
    rubrics = [{"name": "is_request_for_plot"}]
    grader = {"function_name": "my_grader", "kwargs": {}}
    path = _suite(tmp_path, functions, rubrics, grader_llm=grader, colour="red")
    suite, notes = _mapped(path)
    assert [one["name"] for one in suite["metrics"]] == ["is_role"]
    told = "\n".join(notes)
    for expected in (
        r"\(process_single_message, Turn\): left out: it is upstream's template",
        r"\(string_length, Turn\): left out: it depends on process_single_message",
        r"\(latency, Turn\): left out: `context_only` is not supported",
        r"function\[4\] \(is_role with role: user, Turn\): duplicate of metrics\.function\[3\]",
        r"\(is_request_for_plot, Turn\): left out: its rubric ships with upstream",
        r"grader_llm: my_grader: no counterpart",
        r"colour: no counterpart",
    ):
        assert re.search(expected, told), told


def test_a_run_with_its_own_functions_and_rubrics(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "talks.jsonl").write_text(TALK)
    grant(tmp_path / "lib" / "mine.py")
    (tmp_path / "lib" / "mine.py").write_text("def string_length(text: str) -> int:\n    return 1\n")
    body = {"prompt": "Is it kind? {content}\nEnd with YES or NO.", "choice_scores": {"YES": 1, "NO": 0}, "notes": None}
    (tmp_path / "lib" / "rubrics.yaml").write_text(yaml.safe_dump({"is_kind": {**body, "name": "kind"}}))
    llm = {"function_name": "open_ai_completion", "kwargs": {"model_name": "gpt-4o", "api_key_name": "K", "n": 1}}
    run = {
        "data_sources": [{"type": "file", "path": "talks.jsonl"}, {"type": "named", "name": "x"}],
        "eval": {
            "do_completion": True,
            "metrics": {"function": [{"name": "string_length"}], "rubric": [{"name": "is_kind"}]},
            "completion_llm": llm,
            "grader_llm": {"function_name": "echo_completion", "kwargs": {"response": "Well.\\nNO"}},
        },
        "config": {"nb_evaluations_per_thread": 3, "max_workers": 4},
        "rubric_paths": ["lib/rubrics.yaml"],
        "function_modules": ["lib/mine.py", "lib/gone.py"],
    }
    path = tmp_path / "sub" / "eval_run.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(run))
    found = read_suite(path)
    suite = found.suite
    assert (suite.system, suite.repeats, suite.complete) == ("openai:gpt-4o?key_env=K", 3, "last")
    assert isinstance(suite.rubrics, dict)
    assert (suite.rubrics["is_kind"].answer, suite.rubrics["is_kind"].notes) == ("line", "")
    [kind, *_] = resolve_metrics(suite)
    assert kind.reference == f"{(tmp_path / 'lib' / 'mine.py').resolve()}#string_length"
    told = "\n".join(found.notes)
    for expected in (
        "data_sources[1]",
        "config.max_workers",
        "lib/gone.py does not exist",
        "completion_llm: n: left out",
    ):
        assert expected in told
    grader = suite.grader
    assert isinstance(grader, str)
    assert build(grader, RealClock()).label == "echo"


def test_several_suites_want_a_name_and_data(tmp_path: Path) -> None:
    metrics = {"function": [{"name": "latency"}]}
    path = tmp_path / "evals.yaml"
    path.write_text(yaml.safe_dump({"a": {"metrics": metrics}, "b": {"data": ["x.db"], "metrics": metrics}}))
    for name, told in (
        (None, "contains several suites; select one as evals.yaml#NAME: a, b"),
        ("c", "contains no suite 'c'"),
        ("a", "suite 'a': no readable conversations"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(told)):
            read_suite(path, name)
    found = read_suite(path, "b")
    assert found.suite.conversations == ["x.db"]
    assert "data[0]: tool results have the role `tool`" in found.notes[0]


_FAIL = {
    "config_failure_01": "matches several metrics: .*role: assistant.*role: user",
    "config_failure_02": "unknown metric 'is_role2'; known: is_role",
    "config_failure_03": "missing .*'role'",
    "config_failure_04": "unexpected keyword argument 'some_other_arg'",
    "config_failure_05": "there is no rubric 'no_such_rubric'",
    "config_failure_06": "takes a tool_call, not a conversation",
    "test_list_string_function_metrics": "no readable conversations",
}


def test_the_sample_suites_map_or_say_why_not() -> None:
    file = DATA / "functional_evals.yaml"
    if not file.exists():
        pytest.skip(f"{DATA} is missing (set VIVA_DATA to the folder with the benchmark data)")
    names = suite_names(read_yaml(file))
    for name in names:
        told = _FAIL.get(name)
        if told is None:
            assert resolve_metrics(read_suite(file, name).suite), name
        else:
            with pytest.raises(ConfigurationError, match=told):
                resolve_metrics(read_suite(file, name).suite)
    assert len(names) == 20
    run = read_suite(DATA / "eval_run.yaml")
    [condition] = resolve_metrics(run.suite)[-1].spec.when
    assert (condition.metric, condition.at_least) == ("is_role", 1)
    assert list(read_rubrics(DATA / "custom_rubrics.yaml")) == ["assistant_asks_a_question"]

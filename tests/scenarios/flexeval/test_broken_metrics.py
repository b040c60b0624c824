"""A metric's fault is that metric's alone, named; everything else of the conversation is there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_suites import TALK, metric, run_suite, write_suite

from viva.engine.errors import ConfigurationError
from viva.scenarios.flexeval.builtin_metrics import (
    FORMULAS,
    follows_schema,
    readability,
    tool_call_shape,
    words,
)
from viva.scenarios.flexeval.dialog import ToolCall
from viva.scenarios.flexeval.suite_report import gate_table

FUNCTIONS = """
import signal, sys, time

def raises(text: str) -> int:
    raise ValueError("no number in it")

def hangs(text: str) -> int:
    while True:
        time.sleep(0.01)

def hangs_beyond_reach(text: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)

def returns_a_set(text: str):
    return {1, 2}

def shouts(text: str) -> int:
    sys.stdout.write("x" * 2**20)
    print("y" * 2**20, file=sys.stderr)
    return 1

def leaves(text: str) -> int:
    sys.exit(3)

def not_a_number(text: str) -> float:
    return float("nan")

def length_of_it(text: str) -> int:
    return len(text)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "ValueError: no number in it (at "),
        ("hangs", "TimeoutError: no result within its time limit"),
        ("returns_a_set", "TypeError: "),
        ("leaves", "SystemExit: 3"),
        ("not_a_number", "ValueError: "),
    ],
)
def test_a_broken_function_is_an_error_of_its_metric_alone(tmp_path: Path, name: str, reason: str) -> None:
    metrics = [{"function": name, "seconds": 0.2}, {"function": "length_of_it", "role": "assistant"}]
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=metrics, thresholds=[{"metric": name, "at_least": 0}])
    outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.how == "done"
    assert outcome.failed == 0
    [told] = metric(report, name)["errors"]
    assert told.startswith(reason)
    assert metric(report, name)["n"] == 0
    assert metric(report, "length_of_it")["n"] == 1
    [check] = report["gate"]
    assert check["broken"]  # an error is no zero: nothing was measured
    assert check["found"] is None


def test_a_function_that_no_signal_reaches_is_killed_and_the_rest_is_computed(tmp_path: Path) -> None:
    from viva.scenarios.flexeval import suite_conversation

    metrics = [
        {"function": "hangs_beyond_reach", "seconds": 0.1, "role": "assistant"},
        {"function": "length_of_it", "seconds": 0.1},
    ]
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=metrics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite_conversation, "_START_SECONDS", 2.0)
        outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.failed == 0
    [told] = metric(report, "hangs_beyond_reach")["errors"]
    assert told.startswith("TimeoutError: no result after")
    assert metric(report, "length_of_it")["n"] == 1


def test_what_a_function_prints_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=[{"function": "shouts"}])
    _, report = run_suite(suite, tmp_path / "run")
    assert metric(report, "shouts")["mean"] == 1
    said = capfd.readouterr()
    assert "xxx" not in said.out
    assert "yyy" not in said.err


def test_an_unreadable_line_fails_by_name_and_the_others_are_tested(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, [TALK, "{not json", TALK], metrics=[{"function": "length"}])
    outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.how == "done"
    assert (outcome.finished, outcome.failed) == (2, 1)
    [reason] = report["candidates"]["app"]["failure_reasons"]
    assert f"{tmp_path / 'talks.jsonl'}:2: " in reason


_ODD = ["", " ", "Hi!", "42", "3.14", "你好，世界。", "😀 🎉", "...", "text_a", "O'Neill’s x-ray", "Привет", "مرحبا"]
_ODD += ["\u200b", "```py\nprint(1)\n```", "http://x.y/z?a=b", "½ ⅷ ٣", "word " * 300, "x" * 2000, "\x00", "_", "HTML5"]


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60) | st.text(st.sampled_from("ab 'é.-,\n!?_你😀4’"), max_size=30), st.sampled_from(FORMULAS))
def test_readability_of_any_text_is_a_number_or_none_without_words(text: str, formula: str) -> None:
    value = readability(text, formula)
    assert (value is None) == (words(text) == 0)
    assert value is None or math.isfinite(value)


@pytest.mark.parametrize("formula", FORMULAS)
def test_readability_of_odd_texts(formula: str) -> None:
    for text in _ODD:
        value = readability(text, formula)
        assert value is None or math.isfinite(value), text


def test_a_threshold_without_a_figure_says_what_became_of_the_values(tmp_path: Path) -> None:
    functions = """
def every(text): raise KeyError("silks")
def some(text):
    if "even" in text: raise KeyError("silks")
    return 1.0
def nothing(text): return None
def calm(text): return "calm"
"""
    metrics = [{"function": name, "role": "user"} for name in ("every", "some", "nothing", "calm")]
    metrics += [{"name": "kept", "function": "words", "role": "user", "when": [{"metric": "some", "at_least": 2}]}]
    metrics[0] |= {"passes": {"at_least": 1}}
    thresholds = [{"metric": one["name"] if "name" in one else one["function"], "at_least": 0.5} for one in metrics]
    thresholds += [{"metric": "tests", "at_least": 0.5}, {"metric": "every", "statistic": "pass_rate", "at_least": 0.5}]
    suite = write_suite(tmp_path, [TALK], functions, metrics=metrics, thresholds=thresholds, complete="none")
    _, report = run_suite(suite, tmp_path / "run")
    every, some, nothing, calm, kept, tests, rate = report["gate"]
    assert every["reason"].startswith("2 of 2 values are errors, such as KeyError: 'silks'")
    assert rate["reason"] == every["reason"]
    assert (some["found"], some["errors"], some["broken"]) == (1.0, 1, False)
    assert nothing["reason"] == "2 values are None"
    assert calm["reason"] == "none of 2 values can be used"
    assert kept["reason"] == "`when` was false 2 times"
    assert tests["reason"].startswith("all 1 tests are undecided")
    told = [row[3] for row in gate_table(report)[2]]
    assert "1 (1 error excluded)" in told
    assert not any("there are no values" in one for one in told)


def test_a_schema_by_others_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    # It refers to a file that is there, and that would allow the value: loaded, it would be valid.
    (tmp_path / "loaded.json").write_text("{}")
    schema = {"$ref": (tmp_path / "loaded.json").as_uri()}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(ConfigurationError, match="the schema cannot be used"):
        follows_schema("{}", schema)
    with pytest.raises(ConfigurationError, match="the schema cannot be used"):
        tool_call_shape(ToolCall("f", "{}"), [tool])
    assert follows_schema("1", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})["valid"]

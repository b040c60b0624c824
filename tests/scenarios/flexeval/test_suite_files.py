"""Mistakes in suite files: each names file, line and field, what was found, and what to do."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import viva
from small_suites import TALK, metric, run_suite, write_suite

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import grant
from viva.scenarios.flexeval.spec import Suite
from viva.scenarios.flexeval.suite_file import read_suite

LENGTH = [{"function": "length"}]


@pytest.mark.parametrize(
    ("suite", "told"),
    [
        ({"metrics": [{"function": "lenght"}]}, r"metric 'lenght': there is no function.*; did you mean 'length'\?"),
        ({"metrics": [{"function": "length", "arguments": {"of": 3}}]}, r"takes \(text: 'str'\).*unexpected .*'of'"),
        ({"metrics": [{"function": "contains"}]}, r"missing .*'what'"),
        ({"metrics": [{"rubric": "nicenes"}]}, r"suite\.yaml:\d+: metrics\.0: there is no rubric 'nicenes'; known"),
        ({"metrics": [{"rubric": "polite"}]}, r"'polite' uses a rubric, but there is no grader"),
        ({"metrics": [{"function": "length"}, {"function": "length"}]}, r"two metrics are called 'length'"),
        (
            {"metrics": [{"name": "a", "function": "length", "when": [{"metric": "b", "at_least": 1}]},
                         {"name": "b", "function": "length", "when": [{"metric": "a", "at_least": 1}]}]},
            r"circular dependency between metrics: a -> b -> a",
        ),
        ({"metrics": [{"function": "length", "when": [{"metric": "x", "at_least": 1}]}]}, r"unknown metric 'x'; known"),
        (
            {"metrics": [{"name": "m", "function": "length", "level": "message"},
                         {"function": "words", "when": [{"metric": "m", "at_least": 1}]}]},
            r"computed on each turn and cannot depend on 'm', which is computed on each message",
        ),
        ({"metrics": [{"function": "turns", "level": "turn"}]}, r"takes a conversation, not a turn"),
        ({"metrics": LENGTH, "thresholds": [{"metric": "lengt", "at_most": 3}]}, r"unknown metric 'lengt'"),
        ({"metrics": LENGTH, "thresholds": [{"metric": "length"}]}, r"suite\.yaml:\d+: thresholds\.0: is empty"),
        ({"metrics": LENGTH, "conversations": ["*.csv"]}, r"\*\.csv"),
        ({"metrics": LENGTH, "colour": "red"}, r"suite\.yaml:\d+: colour: unknown field; known here: .*metrics"),
        ({"metrics": LENGTH, "repeats": 0}, r"suite\.yaml:\d+: repeats: .*greater than or equal to 1, found 0"),
        ({"metrics": [{"name": "r", "rubric": "q"}], "rubrics": {"q": {"prompt": "?", "choice_scores": {}}}},
         r"rubrics\.q\.choice_scores: .*at least 2"),
        ({"metrics": LENGTH, "system": None}, r"suite\.yaml:\d+: system: "),
    ],
)  # fmt: skip
def test_a_mistake_is_named(tmp_path: Path, suite: dict[str, Any], told: str) -> None:
    path = write_suite(tmp_path, [TALK], **suite)
    with pytest.raises(ConfigurationError, match=re.compile(told, re.DOTALL)):
        run_suite(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_line_is_that_of_the_mistake(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("name: x\nconversations: [a.jsonl]\nmetrics:\n  - function: length\n    levle: turn\n")
    with pytest.raises(
        ConfigurationError,
        match=r"suite\.yaml:5: metrics\.0\.levle: unknown field; did you mean 'level'\? know",
    ):
        read_suite(path)


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("conversations: []\nmetrics:\n  - function: length\n    rubric: polite\nrepeats: many\n")
    with pytest.raises(ConfigurationError) as raised:
        read_suite(path)
    assert [line.split(":")[1] for line in str(raised.value).split("; ")] == ["1", "3", "5"]


def test_a_statistic_that_there_is_not_is_answered_by_those_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("conversations: [a.jsonl]\nthresholds:\n  - {metric: tests, statistic: passrate, at_least: 1}\n")
    with pytest.raises(ConfigurationError, match=r"suite\.yaml:3: .*expected mean, .*pass_rate,.*, found 'passrate'"):
        read_suite(path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("name: a\nname: b\nconversations: [a.jsonl]\nmetrics: [{function: length}]\n")
    with pytest.raises(ConfigurationError, match=r"suite\.yaml:2:1: .*'name' is given twice"):
        read_suite(path)


def test_the_schema_for_editors_accepts_the_example_and_refuses_what_the_file_refuses() -> None:
    import jsonschema

    schema = json.loads(json.dumps(Suite.model_json_schema()))
    example = Path(__file__).parents[3] / "scenarios" / "flexeval" / "templates" / "suite.yaml"
    jsonschema.validate(yaml.safe_load(example.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"conversations": ["a"], "metrics": [{"function": "length", "levle": "turn"}]}, schema)


_OBJECTS = """
import functools, operator
from builtins import len as size, dict as mapping, max as greatest

class Judge:
    def __call__(self, text): return 1

class Answers:
    def __getattr__(self, name): raise RuntimeError(name)
    def __call__(self, text): return 1

called, answers, part, getter = Judge(), Answers(), functools.partial(len), operator.itemgetter(0)
number, name, listed, ufunc = 5, "text", [len], __import__("numpy").sqrt
def generated(text): yield 1
def unhashable(text: [int]): return 1
def unknown(text: "Nowhere"): return 1
def whole(text: int): return 1
def circle(text): return 1
circle.__wrapped__ = circle
def __getattr__(name):
    if name == "raises": raise RuntimeError("here")
    raise AttributeError(name)
"""


def test_a_new_suites_own_metrics_are_permitted_as_its_comments_say(tmp_path: Path) -> None:
    assert viva("suite", "init", "my bots/gate", cwd=tmp_path).returncode == 0
    file = tmp_path / "my bots" / "gate" / "suite.yaml"
    text = file.read_text()
    [option] = re.findall(r"--python-tools .*", text)
    for commented in ("# functions:", "# - function:", "#   role:", "#   passes:"):
        assert text.count(commented) == 1
        text = text.replace(commented, commented[2:])
    file.write_text(text)
    assert viva("suite", "check", file, cwd=tmp_path).returncode == 2
    checked = viva("suite", "check", file, *shlex.split(option), cwd=tmp_path)
    assert (checked.returncode, "promises_money: function " in checked.stdout) == (0, True)


def test_a_builtin_function_is_a_metric_like_any_other(tmp_path: Path) -> None:
    path = write_suite(tmp_path, [TALK], functions=_OBJECTS, metrics=[{"function": "size"}])
    assert viva("suite", "check", path, "--python-tools", tmp_path / "mine.py").returncode == 0
    grant(tmp_path / "mine.py")
    _, report = run_suite(path, tmp_path / "run")
    assert metric(report, "size")["n"] == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Judge", "'Judge' is a class, not a function"),
        ("mapping", "'mapping' is a class, not a function"),
        ("called", "'called' is an object of type Judge, not a function"),
        ("answers", "'answers' is an object of type Answers, not a function"),
        ("part", "'part' is an object of type partial"),
        ("getter", "'getter' is an object of type itemgetter"),
        ("number", "'number' is an object of type int"),
        ("name", "'name' is an object of type str"),
        ("listed", "'listed' is an object of type list"),
        ("functools", "'functools' is an object of type module"),
        ("ufunc", "ufunc"),
        ("generated", "'generated' is a generator"),
        ("raises", "there is no function 'raises'"),
        ("unhashable", "its first argument is a \\[<class 'int'>\\]"),
        ("unknown", "its annotations cannot be read: name 'Nowhere' is not defined"),
        ("whole", "its first argument is a int"),
        ("circle", "its annotations cannot be read: wrapper loop"),
        ("greatest", "annotations cannot be read: no signature|takes"),
    ],
)
def test_an_object_of_a_wrong_kind_is_refused_by_name(tmp_path: Path, name: str, told: str) -> None:
    path = write_suite(tmp_path, [TALK], functions=_OBJECTS, metrics=[{"function": f"mine.py#{name}"}])
    done = viva("suite", "check", path, "--python-tools", tmp_path / "mine.py")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert re.search(f"suite.yaml: metric '{name}': function '.*mine.py#{name}'.*{told}", line), line


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("conversations", "functions", "rubrics", "baseline")
        for value in ("\0", "x" * 300, 5, True, {"a": [1]})
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_line(tmp_path: Path, field: str, value: Any) -> None:
    whole = value if field == "baseline" or isinstance(value, dict) else [value]
    path = write_suite(tmp_path, [TALK], metrics=LENGTH)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {field: whole}))
    done = viva("suite", "check", path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert re.search(rf"suite\.yaml:\d+: {field}", line), line

"""Mistakes in suite files: each names file, line and field, what was found, and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_suites import TALK, run_suite, write_suite

from viva.engine.errors import ConfigurationError
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
        ({"metrics": [{"rubric": "polite"}]}, r"'polite' is graded by a rubric, and there is no grader"),
        ({"metrics": [{"function": "length"}, {"function": "length"}]}, r"two metrics are called 'length'"),
        (
            {"metrics": [{"name": "a", "function": "length", "when": [{"metric": "b", "at_least": 1}]},
                         {"name": "b", "function": "length", "when": [{"metric": "a", "at_least": 1}]}]},
            r"in a circle: a -> b -> a",
        ),
        ({"metrics": [{"function": "length", "when": [{"metric": "x", "at_least": 1}]}]}, r"'x', which is not there"),
        (
            {"metrics": [{"name": "m", "function": "length", "level": "message"},
                         {"function": "words", "when": [{"metric": "m", "at_least": 1}]}]},
            r"of each turn cannot depend on 'm', which each message has",
        ),
        ({"metrics": [{"function": "turns", "level": "turn"}]}, r"measures a conversation, not a turn"),
        ({"metrics": LENGTH, "thresholds": [{"metric": "lengt", "at_most": 3}]}, r"there is no metric 'lengt'"),
        ({"metrics": LENGTH, "thresholds": [{"metric": "length"}]}, r"suite\.yaml:\d+: thresholds\.0: says nothing"),
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
    with pytest.raises(ConfigurationError, match=r"suite\.yaml:5: metrics\.0\.levle: unknown field; known here: name,"):
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
    import yaml

    schema = json.loads(json.dumps(Suite.model_json_schema()))
    example = Path(__file__).parents[3] / "scenarios" / "flexeval" / "templates" / "suite.yaml"
    jsonschema.validate(yaml.safe_load(example.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"conversations": ["a"], "metrics": [{"function": "length", "levle": "turn"}]}, schema)

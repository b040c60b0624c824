"""Assistants that ask a model or run a function of the user's: their numbers, and the gaps that they leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from scripted import scripted_models
from small_runs import results, small_run
from tiny_gguf import make_model

from viva.agents.assistants.assistant import Assistant, Example, score_all
from viva.agents.assistants.registry import absolute_name, open_assistants
from viva.engine.clock import RealClock
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.permissions import grant

EXAMPLE = Example("the cat sat", {"talk": "what did they do", "fact": "a cat sat"}, "fact", ("talk", "fact"))


def _advice(
    folder: Path, asked: Sequence[Assistant], model: str = "simulated:m", example: Example = EXAMPLE
) -> list[dict[str, Any]]:
    """What the assistants say; those that ask a model ask this one."""
    seated = [one if one.model is None else replace(one, role="candidate") for one in asked]

    async def converse(conversation: Conversation, payload: int) -> Any:
        return [one.to_record() for one in await score_all(conversation, seated, example)]

    small_run(folder, converse=converse, count=1, model=model, clock=RealClock())
    [(_, failed, result)] = results(folder)
    assert not failed, result
    return result  # type: ignore[no-any-return]


def test_token_probability_is_the_geometric_mean_of_what_a_local_model_gives_each_token(tmp_path: Path) -> None:
    model = f"llama:{make_model(tmp_path / 'tiny.gguf', seed=5)}?ctx=512&lanes=1"
    [one] = _advice(tmp_path, open_assistants([f"logprob:{model}"]), model)
    with History(tmp_path / "journal.sqlite") as history:
        [call] = history.calls(0)
    [read] = call.completion.likelihoods or []
    assert len(read.logprobs) > 3
    assert one["value"] == math.exp(sum(read.logprobs) / len(read.logprobs))
    assert (
        open_assistants([f"logprob:{model}"])[0].line().startswith("logprob:tiny.gguf: token probability, how probable")
    )


def test_a_text_that_the_model_has_no_room_for_leaves_a_gap(tmp_path: Path) -> None:
    model = f"llama:{make_model(tmp_path / 'tiny.gguf', seed=5)}?ctx=512&lanes=1"
    long = Example("the cat sat", {"talk": "what did they do " * 400}, "talk", ("talk",))
    first, second = _advice(tmp_path, open_assistants([f"logprob:{model}", "chrf"]), model, long)
    assert first["value"] is None
    assert "leaves no room" in first["problem"]
    assert second["value"] > 0.0


def test_another_judge_grades_and_leaves_a_gap_where_its_grade_cannot_be_read(tmp_path: Path) -> None:
    judge = open_assistants(["judge:scripted:j"])
    script = {("candidate", 0): {"text": "fine"}, ("candidate", 1): {"text": '{"reasoning": "short", "grade": 8}'}}
    with scripted_models(script) as requests:
        [one] = _advice(tmp_path / "a", judge, "scripted:j")
    assert one["value"] == 8.0
    assert "fact:\na cat sat" in requests[0].messages[1].content
    with scripted_models({("candidate", place): {"text": '{"reasoning": "", "grade": 11}'} for place in (0, 1)}):
        [one] = _advice(tmp_path / "b", judge, "scripted:j")
    assert one["value"] is None
    assert "could not be read" in one["problem"]


_FILE = """
import os, time

def length(example):
    return len(example["response"]) + len(example["texts"]["talk"])

def broken(example):
    raise ValueError("no idea")

def slow(example):
    time.sleep(60)

def dying(example):
    os._exit(3)

def word(example):
    return example["reference"]
"""


def test_a_function_of_the_users_gives_a_number_and_whatever_else_it_does_is_a_gap(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    grant(file)
    file.write_text(_FILE)
    names = ["length?high=100", "broken", "slow?limit=0.2", "dying", "word"]
    asked = open_assistants([f"short={file}#length?high=5", *(f"{file}#{name}" for name in names)])
    for one in asked:
        one.check()
    advice = _advice(tmp_path, asked)
    assert advice[1]["value"] == len("the cat sat") + len("what did they do")
    problems = [one["problem"] for one in advice if one["value"] is None]
    for problem, said in zip(
        problems, ["27 is outside of its range, 0 to 5", "ValueError: no idea", "no result after 0.2 s",
                   "exit code 3", "'a cat sat' (str), not a number"], strict=True
    ):  # fmt: skip
        assert said in problem


@case_table(
    ("name", "what"),
    [
        ("mine.py#length?height=3", "unknown option height; write FILE.py#NAME"),
        ("mine.py#length?low=3&high=1", "expected low below high"),
        ("mine.py#length?better=up", "better=up: expected high or low"),
        ("mine.py#length?high=much", "high=much: expected a number"),
        ("mine.py#nothing", "has no function 'nothing'"),
        ("logprob:", r"unknown; did you mean 'logprob:MODEL'\? known:"),
        ("nli:/nowhere", r"needs the package transformers.*viva-exam\[neural\]|contains no model"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_run(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "mine.py").write_text(_FILE)
    grant(tmp_path / "mine.py")
    with pytest.raises(ConfigurationError, match=what):
        open_assistants([absolute_name(name, tmp_path)])[0].check()


def test_names_are_remembered_by_full_paths(tmp_path: Path) -> None:
    assert absolute_name("nli:models/a@fact", tmp_path) == f"nli:{tmp_path}/models/a@fact"
    assert absolute_name("logprob:llama:a.gguf?ctx=9", tmp_path) == f"logprob:llama:{tmp_path}/a.gguf?ctx=9"
    assert absolute_name("mine.py#f?low=1", tmp_path) == f"{tmp_path}/mine.py#f?low=1"
    assert absolute_name("lm=logprob:llama:a.gguf?ctx=9", tmp_path) == f"lm=logprob:llama:{tmp_path}/a.gguf?ctx=9"
    assert absolute_name("rouge-l@fact", tmp_path) == "rouge-l@fact"
    assert open_assistants(["lm=logprob:llama:a.gguf?ctx=9", "r=bleu"])[0].name == "lm"

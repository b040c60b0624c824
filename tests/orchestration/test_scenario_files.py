"""Scenarios in files of the user's: edited, doubled, broken, or starting runs by themselves; and tasks with odd ids."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table

import viva
from viva.orchestration.python_api import run_blocking
from viva.scenarios import registry

LESSON = """
import viva

@viva.scenario(many="pupil", one="tutor")
async def filed(conversation: viva.Conversation, topic: str) -> float:
    question = await viva.Agent(conversation, "tutor").ask("Begin with " + topic)
    return float(len((await viva.Agent(conversation, "pupil").ask(question.text)).text))
"""
MODELS: dict[str, Any] = {"pupil": "simulated:a", "tutor": "simulated:t"}
TOPICS = ["tides", "rust", "salt"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "filed.py").write_text(LESSON)
    return tmp_path / "filed.py"


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be read anew, as another process would."""
    for name in [name for name in sys.modules if name.startswith("viva_file_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(registry, "_registered", {})


def test_a_file_may_be_named_by_a_path_and_so_may_its_tasks(tmp_path: Path, file: Path) -> None:
    (tmp_path / "topics.jsonl").write_text('"tides"\n"rust"\n')
    run = viva.run_sync(file, tasks=tmp_path / "topics.jsonl", models=MODELS, out=tmp_path / "run")
    assert [result.key for result in run.results()] == ["a/tides", "a/rust"]


def test_after_the_file_was_edited_what_is_asked_otherwise_is_asked_anew(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viva.run_sync(file, tasks=TOPICS, models=MODELS, out=tmp_path / "run", max_calls=3, concurrency=1)
    file.write_text(LESSON.replace("Begin with", "Start again with"))
    _forget(monkeypatch)
    resumed = run_blocking(lambda: viva.resume(tmp_path / "run", max_calls=None))
    assert resumed.outcome is not None
    assert (resumed.outcome.finished, resumed.outcome.restored) == (3, 1)
    before, after = (asyncio.run(resumed.transcript(f"a/{topic}")) for topic in ("tides", "rust"))
    assert before.problem == "the request tutor #0 differs from the recorded one"
    assert after.speeches[0].prompt["messages"][0]["content"] == "Start again with rust"


def test_runs_of_two_files_with_scenarios_of_one_name_are_each_read_with_their_own(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(LESSON.replace("Begin with", "Forget about"))
    for which in (file, other):
        viva.run_sync(which, tasks=TOPICS, models=MODELS, out=tmp_path / which.stem)
    for which, words in ((file, "Begin with tides"), (other, "Forget about tides")):
        transcript = asyncio.run(viva.load(tmp_path / which.stem).transcript("a/tides"))
        assert (transcript.problem, transcript.speeches[0].prompt["messages"][0]["content"]) == (None, words)


REFUSED = {
    "raises": (LESSON + "\nraise ValueError('mine')", r"ValueError: mine \(at .*filed\.py:9 in <module>\)"),
    "leaves": (LESSON + "\nraise SystemExit(3)", "SystemExit: 3"),
    "starts a run": (
        LESSON + "\nviva.run_sync(filed, tasks=['x'], models={'pupil': 'simulated:a', 'tutor': 'simulated:t'})",
        'starts a run when it is imported; put that part under `if __name__ == "__main__":`',
    ),
    "has two of one name": (
        LESSON + "\nfirst = filed\n" + LESSON,
        "several scenarios are called 'filed'; give each its own name=",
    ),
    "plain function": (
        LESSON.replace("async def", "def").replace("await ", ""),
        "expected a coroutine function; write",
    ),
    "generator": (LESSON + "    yield 1", "expected a coroutine function"),
    "odd name": (LESSON.replace('many="pupil"', 'many="pupil", name="a/b"'), "name 'a/b': expected letters, digits"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, file: Path, what: str) -> None:
    text, message = REFUSED[what]
    file.write_text(text.replace("return float", "float") if what == "generator" else text)
    with pytest.raises(viva.ConfigurationError, match=message):
        viva.run_sync(str(file), tasks=TOPICS, models=MODELS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not Path("runs").exists() or not any(path.name.startswith("filed-") for path in Path("runs").iterdir())


@viva.scenario(many="pupil")
async def named(conversation: viva.Conversation, task: dict[str, str]) -> float:
    return float(len((await viva.Agent(conversation, "pupil").ask(task["id"])).text))


def test_tasks_may_have_any_text_as_their_id(tmp_path: Path) -> None:
    ids = ["a/b", "a#2", "two\nlines", "潮 ☃", "x" * 500, "../../etc", "\x1b[31mred", "a"]
    run = viva.run_sync(
        named, tasks=[{"id": one} for one in ids], models={"pupil": "simulated:a"}, out=tmp_path / "run"
    )
    assert [result.key for result in run.results()] == [f"a/{one}" for one in ids]
    for one in ids:
        assert asyncio.run(run.transcript(f"a/{one}")).speeches[0].prompt["messages"][0]["content"] == one


@pytest.mark.parametrize(
    ("ids", "models", "repeats", "message"),
    [
        (["a", "a#2"], ["simulated:a"], 2, "task 'a#2': has the key of repeat 2 of 'a'"),
        (["b/c", "c"], ["simulated:x?label=a", "simulated:y?label=a/b"], 1, "one model's label starts with another's"),
        (["\ud800"], ["simulated:a"], 1, r"task '\\ud800': cannot be written as JSON"),
    ],
)
def test_tasks_whose_conversations_could_not_be_told_apart_are_refused(
    tmp_path: Path, ids: list[str], models: list[str], repeats: int, message: str
) -> None:
    tasks = [{"id": one} for one in ids]
    with pytest.raises(viva.ConfigurationError, match=message):
        viva.run_sync(named, tasks=tasks, models={"pupil": models}, out=tmp_path / "run", repeats=repeats)
    assert not (tmp_path / "run").exists()


UNMADE: list[tuple[dict[str, Any], Any, str]] = [
    ({"compare": ["a", 1]}, str, "role 1: expected a name"),
    ({"many": "a", "one": 3}, str, "role 3: expected a name"),
    ({"many": "_a"}, str, "role '_a': expected an identifier"),
    ({"many": "help"}, str, "role 'help': this is the name of a setting; choose another"),
    ({"many": "a", "settings": dict}, str, "settings: expected a subclass of viva.RunSettings, found <class 'dict'>"),
    (
        {"many": "a"},
        asyncio.Event,
        "cannot be read from JSON; take a text, a number, a dict, a dataclass or a pydantic",
    ),
    ({"many": "a"}, "Nowhere", "cannot read its annotations: name 'Nowhere' is not defined"),
]


@case_table(("given", "kind", "message"), UNMADE)
def test_a_scenario_that_cannot_be_made_is_told_what_to_write(given: dict[str, Any], kind: Any, message: str) -> None:
    async def function(conversation: viva.Conversation, task: Any) -> float:
        return 1.0

    function.__annotations__["task"] = kind
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.scenario(**given)(function)
    assert message in str(caught.value)


RESUMED: dict[str, tuple[dict[str, Any], str]] = {
    "other model": ({"models": {"pupil": "simulated:b"}}, "this run has no model 'simulated:b'; it has simulated:a"),
    "no concurrency": ({"concurrency": 0}, "concurrency: Input should be greater than or equal to 1, found 0"),
    "no number": ({"max_calls": "many"}, "max_calls: Input should be a valid integer"),
    "seed": ({"seed": 8}, "seed cannot change when a run is resumed"),
}


@pytest.mark.parametrize("what", RESUMED)
def test_what_cannot_change_when_a_run_is_resumed_is_refused(tmp_path: Path, what: str) -> None:
    viva.run_sync(named, tasks=[{"id": "a"}], models={"pupil": "simulated:a"}, out=tmp_path / "run")
    changes, message = RESUMED[what]
    with pytest.raises(viva.ConfigurationError) as caught:
        run_blocking(lambda: viva.resume(tmp_path / "run", **changes))
    assert message in str(caught.value)


MISUSES: dict[str, tuple[dict[str, Any], str]] = {
    "undecorated": ({"which": named.function}, "what @viva.scenario(compare=…) makes; found the function named"),
    "nothing": ({"which": None}, "found NoneType"),
    "models as a list": ({"models": ["simulated:a"]}, "models: expected a dict by role, {'pupil': …}; found list"),
    "no model": ({"models": {"pupil": []}}, "models: pupil: the list is empty; name at least one model"),
    "a set of models": ({"models": {"pupil": {"simulated:a"}}}, "expected a name, a viva.Backend, or an ordered list"),
    "a backend's class": ({"models": {"pupil": viva.Backend}}, "a viva.Backend object; write Backend(…)"),
    "tasks as a text": ({"tasks": "tides"}, "tasks: expected a list of tasks, found str; put a single task in a list"),
    "tasks as a dict": ({"tasks": {"id": "a"}}, "tasks: expected a list of tasks, found dict"),
    "tasks as a number": ({"tasks": 3}, "tasks: expected a list of tasks, found int"),
    "a file that is not there": ({"tasks": Path("none.jsonl")}, "none.jsonl: cannot be read"),
}


@case_table(
    ("line", "message"),
    [
        ("tides", 'not valid JSON at position 1: put text in double quotes: "tides"'),
        ("why rust", 'not valid JSON at position 1: put text in double quotes: "why rust"'),
        ("'tides'", 'not valid JSON at position 1: put text in double quotes: "tides"'),
        ('{topic: "tides"}', 'not valid JSON at position 2: put text in double quotes: "topic"'),
        (
            '{"topic": True}',
            "not valid JSON at position 11: unexpected character, expected a JSON value (True is no JSON; write true)",
        ),
        ('{"topic": ]', "not valid JSON at position 11: unexpected character, expected a JSON value"),
    ],
)
def test_a_line_of_tasks_that_is_no_json_is_told_with_what_to_write(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"id": "a"}}\n{line}\n')
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.run_sync(named, tasks=tmp_path / "tasks.jsonl", models={"pupil": "simulated:a"}, out=tmp_path / "run")
    assert str(caught.value) == f"{tmp_path / 'tasks.jsonl'}:2: {message}"


@case_table("what", MISUSES)
def test_misuse_is_told_with_what_to_write(tmp_path: Path, what: str) -> None:
    changes, message = MISUSES[what]
    given: dict[str, Any] = {"tasks": [{"id": "a"}], "models": {"pupil": "simulated:a"}, "out": tmp_path / "run"}
    given |= {"which": named} | changes
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.run_sync(given.pop("which"), **given)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


MEASURED = """
import viva
from lengths import length

def doubled(text: str) -> int:
    return 2 * length(text)

@viva.scenario(many="pupil")
async def measured(conversation: viva.Conversation, topic: str) -> float | str:
    step = await conversation.compute("doubled", doubled, topic, where="process")
    return step.value if step.error is None else step.error["message"]
"""


def test_a_worker_process_finds_what_a_scenario_file_imports_from_beside_it(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED)
    (tmp_path / "lengths.py").write_text("def length(text):\n    return len(text)\n")
    run = viva.run_sync(
        tmp_path / "measured.py", tasks=["tides"], models={"pupil": "simulated:a"}, out=tmp_path / "run"
    )
    assert [result.value for result in run.results()] == [10]

"""Tests of models before a run: verdicts are recorded beside the run, paid once, and count in the run's budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from viva_process import ended, started

from viva.engine.clock import RealClock
from viva.engine.permissions import grant
from viva.engine.runner import Outcome
from viva.orchestration.launch import Launch, new_run, recorded_results, resumed_run
from viva.scenarios.fitness import FITNESS_FILE, read_fitness
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.qualification import qualification_cases

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
EXCHANGES = Path(qualification_cases.__file__).parent / "items" / "exchanges.jsonl"
# A judge that knows the replies of the test, and one that does not judge; both count their calls.
JUDGE = """
import json, pathlib
HERE = pathlib.Path(__file__).parent
CASES = [json.loads(line) for line in pathlib.Path({exchanges!r}).read_text().splitlines()]
REPLIES = {exchange["reply"]: exchange["grade"] for case in CASES for exchange in case["exchanges"]}

def count():
    with open(HERE / "calls", "a") as file:
        file.write("x")

def sound(messages):
    count()
    text = messages[-1]["content"]
    score = next((grade for reply, grade in REPLIES.items() if reply and reply in text), 2)
    verdict = {name: {"comment": "seen", "score": score}
               for name in ("accuracy", "logic", "relevance", "coherence", "conciseness")}
    return json.dumps(verdict | {"overall_comment": str(len(text)), "overall_score": score,
                                 "stop_conversation": False, "stop_reason": "none"})

def chatty(messages):
    count()
    return "I rather like it."
"""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVA_QUALIFY", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "judge.py"
    file.write_text(JUDGE.replace("{exchanges!r}", repr(str(EXCHANGES))))
    grant(file)
    return file


def _settings(evaluator: str, **options: Any) -> KievalSettings:
    models = {"candidate": ["simulated:a"], "interactor": "simulated:i", "evaluator": evaluator}
    return KievalSettings.model_validate({"dataset": str(ITEMS), "n": 2, "rounds": 1, **models, **options})


def _run(launch: Launch) -> Outcome:
    return RealClock().run(lambda: launch.run())


def _calls(judge: Path) -> int:
    """The calls of the judge since the last time."""
    counter = judge.parent / "calls"
    count = len(counter.read_text()) if counter.exists() else 0
    counter.unlink(missing_ok=True)
    return count


def test_a_test_is_paid_once_and_never_when_it_is_not_wanted(judge: Path, tmp_path: Path) -> None:
    settings = _settings(f"python:{judge}#sound")
    assert _run(new_run("kieval", settings, tmp_path / "first")).how == "done"
    assert _calls(judge) == 12 + 2
    [verdict] = read_fitness(tmp_path / "first")
    assert (verdict["role"], verdict["model"], verdict["verdict"]) == ("evaluator", "sound", "usable")

    assert _run(new_run("kieval", settings, tmp_path / "second")).how == "done"
    assert _calls(judge) == 2
    assert read_fitness(tmp_path / "second") == [verdict]

    other = _settings(f"python:{judge}#sound", evaluator_tokens=300)  # another request is another test
    assert _run(new_run("kieval", other, tmp_path / "third")).how == "done"
    assert _calls(judge) == 12 + 2

    skipped = _settings(f"python:{judge}#chatty", qualify=False)
    assert _run(new_run("kieval", skipped, tmp_path / "skipped")).how == "done"
    assert _calls(judge) == 2 * 2  # each verdict is requested twice
    _run(new_run("kieval", _settings("simulated:e"), tmp_path / "simulated"))
    assert not [folder for folder in ("skipped", "simulated") if (tmp_path / folder / FITNESS_FILE).exists()]


def test_a_test_counts_in_the_runs_budget(judge: Path, tmp_path: Path) -> None:
    launch = new_run("kieval", _settings(f"python:{judge}#sound", n=30, max_calls=60), tmp_path / "run")
    assert _run(launch).how == "budget"
    assert launch.runner is not None
    assert launch.runner.services.meter.calls == 60
    assert read_fitness(tmp_path / "run")[0]["verdict"] == "usable"
    # A budget that the test would use up is left to the run.
    assert _run(new_run("kieval", _settings(f"python:{judge}#chatty", max_calls=40), tmp_path / "small")).how == "done"
    assert read_fitness(tmp_path / "small") == []


def test_a_test_leaves_most_of_a_budget_of_tokens_or_cost_to_the_run(judge: Path, tmp_path: Path) -> None:
    for option, bound in (("max_tokens_total", 20_000), ("max_cost", 20_000.0)):
        priced = f"python:{judge}#sound?price_in=1000000&price_out=1000000"  # one per token
        launch = new_run("kieval", _settings(priced, **{option: bound}), tmp_path / option)
        assert _run(launch).how == "done", "all calls of the test at once would use up the budget"
        assert read_fitness(tmp_path / option) == []


def test_a_run_with_an_unfit_judge_says_so_first_and_last(judge: Path, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "page.html"
    options = ["--dataset", ITEMS, "-n", "2", "--rounds", "1", "--candidate", "simulated:a"]
    options += ["--interactor", "simulated:i", "--evaluator", f"python:{judge}#chatty", "--html", page]
    code, printed, said = ended(started("run", "kieval", *options, "--out", run))
    assert code == 0, said
    warning = "chatty is not usable as evaluator: 12 of 12 verdicts cannot be read"
    assert " ".join(printed.decode().split("\n\n")[0].split()) == f"Do not rely on these scores: {warning}."
    lines = said.splitlines()
    assert "testing first if chatty is fit as evaluator" in lines[0]
    assert lines[-1] == f"viva: warning: {warning}"
    assert warning in page.read_text()

    report = recorded_results(resumed_run(run).folder).report()
    assert report["qualification"][0]["verdict"] == "not_usable"
    before = orjson.dumps(report)
    _calls(judge)
    assert _run(resumed_run(run)).how == "done"
    assert _calls(judge) == 0
    assert orjson.dumps(recorded_results(resumed_run(run).folder).report()) == before

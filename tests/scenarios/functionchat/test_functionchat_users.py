"""Talks with a played user: how they go and end, what counts as success, and pass^k over repeats."""

from __future__ import annotations

from math import comb
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from benchmark import serving
from spoken import speeches_of

from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.functionchat.dialog_prompts import open_prompts
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings
from viva.scenarios.functionchat.scenario import SCENARIO
from viva.scenarios.functionchat.user_tasks import DialogTask

SCRIPTED = """
- id: salt
  says: ["How much salt is left?", Then send some to Ida., Thanks.]
  tools: &tools
    - {name: find, parameters: {type: object, properties: {what: {type: string}}, required: [what]}}
    - {name: send, parameters: {type: object, properties: {to: {type: string}}, required: [to]}}
  results:
    - {name: find, arguments: {what: salt}, result: {left: 2}}
    - {name: send, result: sent}
  expected:
    - {name: find, arguments: {what: salt}}
    - {name: send, arguments: {to: Ida}}
- id: nothing
  says: [Good morning.]
  tools: *tools
  forbidden: [{name: send}, {name: find}]
"""


def _run(folder: Path, data: str, *, virtual: bool = True, **settings: Any) -> dict[str, Any]:
    given = FunctionChatSettings(data=data, mode="user", **{"candidate": ["simulated:c?knowledge=1"], **settings})
    launch = new_run("functionchat", given, folder, VirtualClock() if virtual else None)
    outcome = launch.clock.run(launch.run)
    assert (outcome.how, outcome.failed) == ("done", 0)
    return recorded_results(RunFolder.open(folder)).report()


def _results(folder: Path) -> list[dict[str, Any]]:
    with History(folder / "journal.sqlite") as history:
        return [one.result for one in history.ended()]


@pytest.fixture
def scripted(tmp_path: Path) -> str:
    (tmp_path / "tasks.yaml").write_text(SCRIPTED)
    return str(tmp_path / "tasks.yaml")


def test_a_candidate_that_knows_what_to_call_succeeds(scripted: str, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", scripted)
    one = report["candidates"]["c"]
    assert one["success"]["value"] == 100
    assert one["pass_hat"] == {"1": {"mean": 1.0, "se": 0.0, "n": 2}}
    assert one["ends"] == {"user": 2}
    salt, nothing = _results(tmp_path / "run")
    called = [(name, orjson.loads(text)) for name, text in salt["calls"]]
    assert called == [("find", {"what": "salt"}), ("send", {"to": "Ida"})]
    assert nothing["calls"] == []
    assert salt["usage"]["candidate"][0] == 3 + 2  # three replies, and two calls before them
    assert "interactor" not in salt["usage"]


def test_one_that_knows_nothing_fails_and_the_report_says_of_what(scripted: str, tmp_path: Path) -> None:
    one = _run(tmp_path / "run", scripted, candidate=["simulated:c?knowledge=0"], repeats=6)["candidates"]["c"]
    assert one["talks"] == 12
    failed = [result for result in _results(tmp_path / "run") if not result["success"]]
    assert one["succeeded"] == 12 - len(failed) < 12
    assert all(result["missing"] or result["forbidden"] for result in failed)
    assert one["faults"] == {
        "expected call missing": sum(bool(result["missing"]) for result in failed),
        "forbidden call made": sum(bool(result["forbidden"]) for result in failed),
    }


def test_pass_hat_k_is_that_of_the_recorded_talks(scripted: str, tmp_path: Path) -> None:
    report = _run(tmp_path / "run", scripted, candidate=["simulated:c?knowledge=0.8"], repeats=8)
    tried: dict[str, list[bool]] = {}
    for result in _results(tmp_path / "run"):
        tried.setdefault(result["item"], []).append(result["success"])
    assert {len(successes) for successes in tried.values()} == {8}
    assert any(0 < sum(successes) < 8 for successes in tried.values())
    for k in range(1, 9):
        expected = sum(comb(sum(successes), k) / comb(8, k) for successes in tried.values()) / len(tried)
        assert report["candidates"]["c"]["pass_hat"][str(k)]["mean"] == pytest.approx(expected, abs=1e-6)
    [main, *_] = recorded_results(RunFolder.open(tmp_path / "run")).tables()
    assert [name for name in main[1] if name.startswith("pass^")] == [f"pass^{k}" for k in (1, 2, 3, 4, 8)]


def test_a_model_plays_the_user_until_it_says_that_it_is_done(tmp_path: Path) -> None:
    with serving(tmp_path, lines=["A table for six, please.", "Then 20:30."]) as server:
        report = _run(tmp_path / "run", "examples", virtual=False, interactor=server.model("user"), seed=3, repeats=2)
        asked = server.asked()
    one = report["candidates"]["c"]
    assert one["success"]["value"] == 100
    played = [result for result in _results(tmp_path / "run") if "interactor" in result["usage"]]
    assert len(played) == 4
    assert asked == {"user": 3 * len(played)}
    assert all(result["exchanges"] == 2 and result["ended_by"] == "user" for result in played)


def test_a_talk_ends_at_its_bounds(tmp_path: Path) -> None:
    # The simulated interactor never says that it is done; the candidate never stops calling with one step a reply.
    report = _run(tmp_path / "run", "examples", interactor="simulated:i", exchanges=3)
    assert report["candidates"]["c"]["ends"] == {"exchanges": 2, "user": 1}
    assert all(result["exchanges"] <= 3 for result in _results(tmp_path / "run"))
    report = _run(tmp_path / "steps", "examples", interactor="simulated:i", steps=1)
    assert report["candidates"]["c"]["ends"] == {"steps": 3}


def test_the_same_talks_at_any_concurrency_and_transcripts_in_order(tmp_path: Path) -> None:
    candidates = ["simulated:a?knowledge=0.9&latency=1", "simulated:b?knowledge=0.5&latency=2&sigma=2"]
    interactor = "simulated:i?latency=1"
    reports = [
        _run(tmp_path / name, "examples", candidate=candidates, interactor=interactor, concurrency=size, repeats=3)
        for name, size in (("one", 1), ("many", 50))
    ]
    assert orjson.dumps(reports[0]) == orjson.dumps(reports[1])
    assert _results(tmp_path / "one") == _results(tmp_path / "many")
    said = speeches_of(tmp_path / "one")["a/library-renewal"]
    assert said[0][0] == "task"
    assert [party for party, _ in said[1:3]] == ["interactor", "candidate"]
    with History(tmp_path / "one" / "journal.sqlite") as history:
        number = history.number_of("a/library-renewal")
        assert number is not None
        calls = history.calls(number)
    spoken = [text for party, text in said if party in ("interactor", "candidate")]
    assert len(spoken) == len(calls)


def test_the_played_user_is_told_the_goal_and_the_candidate_is_not(tmp_path: Path) -> None:
    settings = FunctionChatSettings(
        data="examples", mode="user", candidate=["simulated:c"], interactor="simulated:i", language="English"
    )
    prepared, words = SCENARIO.prepare(settings), open_prompts(settings, "English")
    [task] = [task for task in prepared.tasks if task.id == "library-renewal"]
    assert isinstance(task, DialogTask)
    told = words.render("user.system", goal=task.goal or "", done="[DONE]")
    assert "48213" in told
    assert "[DONE]" in told
    assert "Write in English." in told
    assert "48213" not in words.system
    assert yaml.safe_load(words.pack.text)["name"] == "functionchat"

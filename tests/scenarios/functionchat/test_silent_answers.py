"""Tool-use dialogs in which a model says nothing, or thinks first: what is graded, and where it is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted import Script, scripted_models
from small_dialogs import write_data

from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings

MODEL = "scripted:m"
REFUSED = {"text": "", "finish": "content_filter", "calls": None}


def held(path: Path, script: Script, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """A run by a script: the candidate's report, the recorded results, the table of irregular answers."""
    with scripted_models(script):
        launch = new_run("functionchat", FunctionChatSettings(candidate=[MODEL], **settings), path, VirtualClock())
        launch.clock.run(launch.run)  # type: ignore[attr-defined]
    results = recorded_results(launch.folder)
    with History(launch.folder.journal) as history:
        found = [ended.result for ended in history.ended()]
    [table] = [rows for title, _, rows in results.tables() if title.startswith("Irregular answers: ")]
    return results.report()["candidates"]["m"], found, table


def test_line_19_an_answer_that_a_filter_took_is_unscored_and_judged_by_nobody(tmp_path: Path) -> None:
    data = str(write_data(tmp_path / "data"))
    report, found, table = held(
        tmp_path / "run", {("candidate", 0): REFUSED}, data=data, judge="simulated:j", subset="dialog"
    )
    assert all(one["passed"] is None and one["judge"] is None for one in found)
    assert (report["unscored"], report["judged"]) == (len(found), 0)
    assert report["stopped"] == {"content_filter": len(found)}
    assert report["irregular"] == {"candidate": {"content_filter": len(found), "empty": len(found)}}
    assert table == [["m", "candidate", str(len(found)), str(len(found)), str(len(found))]]


def test_line_1_a_judged_text_holds_no_thoughts(tmp_path: Path) -> None:
    data = str(write_data(tmp_path / "data"))
    script: Script = {("candidate", 0): {"text": "<think>SECRET</think>Where?", "calls": None}}
    report, found, _ = held(tmp_path / "run", script, data=data, judge="simulated:j", subset="dialog")
    assert all(one["output"]["content"] == "Where?" for one in found)
    assert report["irregular"]["candidate"] == {"thoughts": len(found)}


@pytest.mark.parametrize(
    ("script", "ended_by", "calls"),
    [
        ({("candidate", 0): REFUSED}, "candidate", 1),
        ({("interactor", 0): {"text": " "}, ("interactor", 1): {"text": ""}}, "interactor", 2),
    ],
)
def test_line_19_a_talk_with_a_played_user_ends_where_one_of_them_says_nothing(
    tmp_path: Path, script: Script, ended_by: str, calls: int
) -> None:
    report, found, _ = held(tmp_path / "run", script, data="examples", mode="user", interactor=MODEL, n=1)
    assert [one["ended_by"] for one in found] == [ended_by]
    assert report["ends"] == {ended_by: 1}
    assert sum(report["irregular"][ended_by].values()) >= calls

"""Data that are edited while a run reads them: the run ends by name of the place, and mixes nothing in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_dialogs import write_data

from viva.data.dataset import open_dataset
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.events import ConversationFinished, Event
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome
from viva.orchestration.launch import Launch, new_run, resumed_run
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings
from viva.scenarios.kieval.kieval_settings import KievalSettings

COUNT = 60
PADDING = "The rest of this text only makes the record long. " * 40  # more than what is read ahead of its turn


def _records(text: str = "first") -> list[dict[str, Any]]:
    return [
        {"id": f"item-{number}", "question": f"{text} {number}? {PADDING}", "choices": ["tin", "fog"], "answer": "A"}
        for number in range(COUNT)
    ]


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    """In place, as an editor or a script may do it; a file that is renamed over the old one is another matter."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    with path.open("r+" if path.exists() else "w") as file:
        file.write(text)
        file.truncate()


def _interviews(folder: Path, data: Path, **more: Any) -> Launch:
    roles = {"candidate": ["simulated:c"], "interactor": "simulated:i", "evaluator": "simulated:e"}
    settings = KievalSettings(dataset=str(data), rounds=1, concurrency=1, **roles, **more)
    return new_run("kieval", settings, folder, VirtualClock())


def _edited_after(launch: Launch, ended: int, edit: Callable[[], None]) -> Outcome:
    """Run; ``edit`` is called when so many conversations have ended."""
    seen = 0

    def hear(event: Event) -> None:
        nonlocal seen
        if isinstance(event, ConversationFinished):
            seen += 1
            if seen == ended:
                edit()

    launch.events.listen(hear)
    return launch.clock.run(launch.run)


def _questions(folder: Path) -> list[str]:
    with History(folder / "journal.sqlite") as history:
        return [one.item["question"] for one in history.ended() if not one.failed]


@pytest.mark.parametrize("more", [{}, {"n": 40}, {"skip_bad_items": True}], ids=["all", "some", "skipping"])
def test_line_23_a_text_edited_during_a_run_under_the_same_id_is_not_mixed_in(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    data = tmp_path / "items.jsonl"
    _write(data, _records())
    outcome = _edited_after(_interviews(tmp_path / "run", data, **more), 5, lambda: _write(data, _records("other")))
    assert outcome.how == "failed"
    assert isinstance(outcome.error, DatasetError)
    assert str(outcome.error).startswith(f"{data}:")
    assert "changed since the run began: 'item-" in str(outcome.error)
    assert outcome.error.line is not None
    questions = _questions(tmp_path / "run")
    assert 5 <= len(questions) < COUNT
    assert all(question.startswith("first") for question in questions)
    with pytest.raises(ConfigurationError, match="changed since the run began: dataset"):
        resumed_run(tmp_path / "run", VirtualClock())
    _write(data, _records())
    again = resumed_run(tmp_path / "run", VirtualClock())
    assert again.clock.run(again.run).how == "done"
    assert len(_questions(tmp_path / "run")) == more.get("n", COUNT)


def test_line_23_a_file_that_loses_lines_during_a_run_does_not_end_it_as_done(tmp_path: Path) -> None:
    data = tmp_path / "items.jsonl"
    _write(data, _records())
    outcome = _edited_after(_interviews(tmp_path / "run", data), 5, lambda: _write(data, _records()[:30]))
    assert outcome.how == "failed"
    assert f"{data}: changed since the run began: 30 of its 60 records are no longer there" in str(outcome.error)


def test_line_23_lines_added_at_the_end_during_a_run_are_not_taken_in(tmp_path: Path) -> None:
    data = tmp_path / "items.jsonl"
    _write(data, _records())
    added = [record | {"id": f"more-{record['id']}"} for record in _records()]
    outcome = _edited_after(_interviews(tmp_path / "run", data), 5, lambda: _write(data, _records() + added))
    assert "'more-item-0' differs from the item that was checked" in str(outcome.error)
    assert len(_questions(tmp_path / "run")) == COUNT


def test_line_23_other_lines_of_the_file_may_change(tmp_path: Path) -> None:
    data = tmp_path / "items.jsonl"
    _write(data, _records())
    dataset = open_dataset(str(data), limit=20)
    chosen = {item.id for item in dataset}
    other = {record["id"]: record for record in _records("other")}
    _write(data, [record if record["id"] in chosen else other[record["id"]] for record in _records()])
    assert {item.id for item in dataset} == chosen


def test_line_23_turns_edited_during_a_run_are_not_mixed_in(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data")
    settings = FunctionChatSettings(data=str(folder), candidate=["simulated:c"], judge="simulated:j", concurrency=1)
    launch = new_run("functionchat", settings, tmp_path / "run", VirtualClock())
    dialogs = folder / "FunctionChat-Dialog.jsonl"
    as_it_was = dialogs.read_text()
    outcome = _edited_after(launch, 5, lambda: dialogs.write_text(as_it_was.replace("some soup", "some bread")))
    assert outcome.how == "failed"
    assert f"{dialogs}: changed since the run began: 'dialog/1/4'" in str(outcome.error)
    with History(RunFolder.open(tmp_path / "run").journal) as history:
        assert not any("bread" in json.dumps(one.item) for one in history.ended())
    with pytest.raises(ConfigurationError, match="changed since the run began: dataset"):
        resumed_run(tmp_path / "run", VirtualClock())

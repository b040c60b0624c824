"""Finished runs of this program as conversations of a suite: what the compared role was sent, and what it said."""

from __future__ import annotations

from pathlib import Path

import pytest

from viva.engine.clock import VirtualClock
from viva.engine.errors import DatasetError
from viva.engine.journal_reader import History
from viva.orchestration.launch import new_run
from viva.scenarios.flexeval.conversation_files import UnreadableRecord, expand_paths, read_dialogs, read_files
from viva.scenarios.flexeval.dialog import Dialog
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.probes.probe import ProbeSettings

ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"


def _interviews(folder: Path) -> Path:
    settings = KievalSettings(dataset=str(ITEMS), n=3, rounds=2, candidate=["simulated:a", "simulated:b"],
                              interactor="simulated:i", evaluator="simulated:e")  # fmt: skip
    launch = new_run("kieval", settings, folder, VirtualClock())
    launch.clock.run(launch.run)
    return folder


def test_the_interviews_of_a_run(tmp_path: Path) -> None:
    run = _interviews(tmp_path / "runs" / "one")
    assert expand_paths(["runs/*"], tmp_path) == [run]
    before = sorted((path.name, path.read_bytes()) for path in run.iterdir())
    found = list(read_files(expand_paths(["runs/*", "runs/one"], tmp_path)))
    dialogs = [one for one in found if isinstance(one, Dialog)]
    assert len(found) == len(dialogs) == 6
    with History(run / "journal.sqlite") as history:
        for one in dialogs:
            number = history.number_of(one.id)
            assert number is not None
            said = [call.completion for call in history.calls(number) if call.role == "candidate"]
            answers = [message for message in one.messages if message.role == "assistant"]
            assert [(message.content, message.latency) for message in answers] == [(s.text, s.latency) for s in said]
            assert answers[0].tokens == {"prompt": said[0].prompt_tokens, "completion": said[0].completion_tokens}
            assert len(one.turns) == 2 * len(said)
            assert one.metadata == {"model": one.id[0], "conversation": one.id, "run": "one"}
    assert [one.id for one in read_dialogs(run / "journal.sqlite") if isinstance(one, Dialog)] == [
        one.id for one in dialogs]  # fmt: skip
    assert sorted((path.name, path.read_bytes()) for path in run.iterdir()) == before


def test_a_run_without_dialogs_and_a_folder_that_is_no_run(tmp_path: Path) -> None:
    settings = ProbeSettings(dataset=str(ITEMS), n=2, candidate=["simulated:a"], method=["text"], shots=0)
    launch = new_run("probe", settings, tmp_path / "probe", VirtualClock())
    launch.clock.run(launch.run)
    found = list(read_dialogs(tmp_path / "probe"))
    assert len(found) == 2
    assert all(isinstance(one, UnreadableRecord) and "the candidate was not called" in one.message for one in found)
    (tmp_path / "probe" / "manifest.json").write_text("{}")
    with pytest.raises(DatasetError, match="probe: cannot be read as a run: "):
        list(read_dialogs(tmp_path / "probe"))

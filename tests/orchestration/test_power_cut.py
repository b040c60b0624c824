"""Simulated power cuts: what each level of durability keeps. The disk has what was synced and some of what was not."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import acknowledging_run
import orjson
import pytest
from power_cut import Operation, compiled, logged, rebuilt

import viva
from viva.engine import journal
from viva.engine.journal import open_database
from viva.engine.journal_reader import History
from viva.orchestration.python_api import run_blocking

LESSON = """
import viva

@viva.scenario(compare="pupil", one="tutor")
async def lesson(conversation: viva.Conversation, task: dict[str, str]) -> float:
    tutor, pupil = viva.Agent(conversation, "tutor"), viva.Agent(conversation, "pupil")
    length = 0
    for turn in range(4):
        question = await tutor.ask(f"Question {turn} about {task['id']}")
        length += len((await pupil.ask(question.text)).text)
    return float(length)
"""
_CUTS = 8

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the writes are logged by LD_PRELOAD"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Operation]]]:
    """Return the disk and the log of a whole run with each level, so long that SQLite makes a checkpoint meanwhile."""
    folder = tmp_path_factory.mktemp("cut")
    (folder / "talks.py").write_text(LESSON)
    tasks = [{"id": f"t{number}", "text": "x" * 360_000} for number in range(50)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    library = compiled(folder)
    runs = {}
    for level in ("commit", "power"):
        disk = folder / level
        disk.mkdir()
        program = [sys.executable, acknowledging_run.__file__, folder / "talks.py", folder / "tasks.jsonl", disk, level]
        operations = logged(program, disk, library)
        last = max(at for at, operation in enumerate(operations) if operation.path.endswith("acknowledged"))
        assert sum(operation.path.endswith("journal.sqlite") for operation in operations[:last]) > 1_000
        runs[level] = disk, operations
    return runs


def _cuts(operations: list[Operation], seed: int) -> Iterator[int]:
    """Yield moments after the first acknowledgement: any, during checkpoints, and the end."""
    first = next(at for at, operation in enumerate(operations) if operation.path.endswith("acknowledged"))
    checkpoints = [at for at in range(first, len(operations)) if operations[at].path.endswith("journal.sqlite")]
    chance = random.Random(seed)
    yield from chance.sample(range(first, len(operations)), _CUTS // 2)
    yield from chance.sample(checkpoints, _CUTS // 2)
    yield len(operations)


def _acknowledged(operations: list[Operation]) -> set[str]:
    return set(
        b"".join(operation.data for operation in operations if operation.path.endswith("acknowledged"))
        .decode()
        .splitlines()
    )


def _recorded_calls(run: Path) -> set[str]:
    with History(run / "journal.sqlite") as history:
        assert history.sound
        calls = {
            f"{key} {call.role} {call.ordinal}"
            for key, number in history.keys().items()
            for call in history.calls(number)
        }
        list(history.ended())
        assert not history.damage
    return calls


def _report(run: Path) -> bytes:
    return orjson.dumps(viva.load(run).report())


def test_the_log_has_every_write(recorded: dict[str, tuple[Path, list[Operation]]], tmp_path: Path) -> None:
    for level, (disk, operations) in recorded.items():
        rebuilt(operations, disk, tmp_path / level, None)
        for name in ("acknowledged", "run/manifest.json", "run/journal.sqlite"):
            assert (tmp_path / level / name).read_bytes() == (disk / name).read_bytes()


def test_with_power_every_acknowledged_answer_survives_a_power_cut(
    recorded: dict[str, tuple[Path, list[Operation]]], tmp_path: Path
) -> None:
    disk, operations = recorded["power"]
    for cut in _cuts(operations, 1):
        run = tmp_path / str(cut) / "run"
        rebuilt(operations[:cut], disk, run.parent, random.Random(cut))
        assert _acknowledged(operations[:cut]) <= _recorded_calls(run)
        run_blocking(lambda run=run: viva.resume(run))
        assert _report(run) == _report(disk / "run")
        shutil.rmtree(run.parent)


def test_with_commit_a_power_cut_costs_at_most_the_commits_since_the_last_sync(
    recorded: dict[str, tuple[Path, list[Operation]]], tmp_path: Path
) -> None:
    disk, operations = recorded["commit"]
    lost = 0
    for cut in _cuts(operations, 2):
        run = tmp_path / str(cut) / "run"
        # The system writes a file back within half a minute, so the manifest of a longer run is on the disk.
        rebuilt(operations[:cut], disk, run.parent, random.Random(cut), settled=("manifest.json",))
        calls = _recorded_calls(run)
        synced = max(at for at in range(cut) if operations[at].kind == "S" and "journal" in operations[at].path)
        assert _acknowledged(operations[:synced]) <= calls
        lost += len(_acknowledged(operations[:cut]) - calls)
        run_blocking(lambda run=run: viva.resume(run))
        assert _report(run) == _report(disk / "run")
        shutil.rmtree(run.parent)
    assert lost, "the cut takes nothing away, so that the test of `power` would see no loss either"


def test_a_resume_may_change_the_level_and_a_wrong_one_is_refused(
    recorded: dict[str, tuple[Path, list[Operation]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, operations = recorded["commit"]
    run = tmp_path / "run"
    rebuilt(operations[: len(operations) // 2], disk, tmp_path, None)
    levels: list[str] = []
    monkeypatch.setattr(
        journal, "open_database", lambda path, level: levels.append(level) or open_database(path, level)
    )
    with pytest.raises(viva.ConfigurationError, match="durability: Input should be 'commit' or 'power', found 'disk'"):
        run_blocking(lambda: viva.resume(run, durability="disk"))
    assert levels == []
    run_blocking(lambda: viva.resume(run, durability="power"))
    assert levels == ["power"]
    assert _report(run) == _report(disk / "run")

"""Run folders for tests of the study: interviews and probes of simulated models, and journals written as a test
wants.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from viva.engine.clock import RealClock, VirtualClock
from viva.engine.journal import Journal
from viva.engine.journal_reader import EndedConversation, History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.score import Interview
from viva.scenarios.probes.probe import ProbeSettings

SCIENCE = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


def dataset(path: Path, count: int, seed: int = 1) -> Path:
    """A file of multiple-choice items; its name is the dataset's."""
    draw = random.Random(seed)
    lines = [
        {"id": f"{path.stem}-{number}", "question": f"Which of these is {number}?", "choices": list("abcd")}
        | {"answer": draw.randrange(4)}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def interviewed(path: Path, *candidates: str, **settings: Any) -> Path:
    """The folder of a finished run of simulated interviews, in virtual time."""
    given = {"dataset": str(SCIENCE), "interactor": "simulated:i", "evaluator": "simulated:e"} | settings
    return _run("kieval", KievalSettings(candidate=list(candidates), **given), path)


def probed(path: Path, *candidates: str, **settings: Any) -> Path:
    """The folder of a finished run of simulated probes."""
    given = {"dataset": str(SCIENCE), "shots": 0} | settings
    return _run("probe", ProbeSettings(candidate=list(candidates), **given), path)


def _run(name: str, settings: Any, path: Path) -> Path:
    clock = VirtualClock()
    launch = new_run(name, settings, path, clock=clock)
    outcome = clock.run(launch.run)
    assert outcome.how == "done"
    return path


def with_manifest_alone(run: Path) -> None:
    """Leave of a run what a kill left of one that an earlier version had just begun: the manifest came first then."""
    file = run / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest.pop("journal", None)
    file.write_text(json.dumps(manifest))
    for name in ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"):
        (run / name).unlink(missing_ok=True)


def written(
    path: Path, source: Path, ended: Sequence[Interview | dict[str, Any]], *candidates: str, **settings: Any
) -> Path:
    """A run of interviews as they are given, in their order; a mapping is the error of one that failed."""
    given = {"dataset": str(source), "interactor": "simulated:i", "evaluator": "simulated:e"} | settings
    run = new_run("kieval", KievalSettings(candidate=list(candidates), **given), path).folder
    label = next(iter(run.manifest["models"]["candidate"]))
    _record(
        run,
        [
            (f"{label}/failed-{number}", "failed", one)
            if isinstance(one, dict)
            else (f"{one.candidate}/{one.item}", "finished", one.to_record())
            for number, one in enumerate(ended)
        ],
    )
    return path


def probed_as_given(
    path: Path, source: Path, ended: Sequence[dict[str, Any]], *candidates: str, **settings: Any
) -> Path:
    """A run of probes of losses against the same file, with these records."""
    given = {"dataset": str(source), "against": str(source), "method": ["loss"], "shots": 0} | settings
    run = new_run("probe", ProbeSettings(candidate=list(candidates), **given), path).folder
    _record(run, [(f"{one['candidate']}/{one['item']}", "finished", one) for one in ended])
    return path


def _record(run: RunFolder, ended: Sequence[tuple[str, Literal["finished", "failed"], dict[str, Any]]]) -> None:
    async def write() -> None:
        async with Journal(run.journal, RealClock()) as journal:
            for number, (key, how, result) in enumerate(ended):
                journal.record_started(number, key, {"id": key})
                journal.record_ended(number, how, result)

    asyncio.run(write())


def rewritten(run: Path, copy: Path, seed: int) -> Path:
    """The same run, its conversations having ended in another order."""
    source = RunFolder.open(run)
    manifest = {name: value for name, value in source.manifest.items() if name != "manifest"}
    folder = RunFolder.create(copy, manifest)
    ended = list(records(run))
    random.Random(seed).shuffle(ended)

    async def write() -> None:
        async with Journal(folder.journal, RealClock()) as journal:
            for one in ended:
                journal.record_started(one.number, one.key, one.item)
                journal.record_ended(one.number, "failed" if one.failed else "finished", one.result)
                await journal.flush()

    asyncio.run(write())
    return copy


def records(run: Path) -> Iterable[EndedConversation]:
    """What a run's journal holds of ended conversations."""
    with History(RunFolder.open(run).journal) as history:
        yield from history.ended()


def talks(*runs: Path) -> list[tuple[int, str | None, Interview]]:
    """The finished interviews of several runs, each with its run's seed and evaluator."""
    found = []
    for run in runs:
        manifest = RunFolder.open(run).manifest
        found += [
            (manifest["seed"], manifest["models"]["evaluator"], Interview.from_record(one.result))
            for one in records(run)
            if not one.failed
        ]
    return found

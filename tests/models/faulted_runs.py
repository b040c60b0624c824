"""Interviews at the chaos server under faults, and the count that shows what a fault cost: the journal beside the
journal of an undisturbed run, and beside the server's own log.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from viva.engine.events import CallFinished, Event
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome
from viva.orchestration.launch import new_run, recorded_results, resumed_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

if TYPE_CHECKING:
    from tests.servers.process import Server

ROLES = ("candidate", "interactor", "evaluator")
Row = tuple[Any, ...]


@dataclass(slots=True, frozen=True)
class Count:
    """What a fault cost, in calls. ``lost``: the undisturbed run recorded them, this one did not, or otherwise;
    ``doubled``: recorded twice, or recorded though the undisturbed run has none there; ``again``: answered in full
    more than once by the server; ``tries``: requests that were not answered in full.
    """

    lost: int
    doubled: int
    again: int
    tries: int


def settings(
    server: Server, items: Path, *, concurrency: int = 8, streamed: bool = False, **options: object
) -> KievalSettings:
    """Interviews of one round with all roles at the server; ``options`` go into the models' names."""
    models = {role: server.model(role, **options) for role in ROLES}
    return KievalSettings(
        dataset=str(items),
        candidate=[models["candidate"]],
        interactor=models["interactor"],
        evaluator=models["evaluator"],
        concurrency=concurrency,
        rounds=1,
        detectors=["repetition"] if streamed else [],
    )


def held(
    what: KievalSettings, out: Path, calls: int | None = None, hear: Callable[[Event], None] | None = None
) -> Outcome:
    """Hold the run that the settings describe, or go on with it (failed conversations, too) where the folder holds one;
    ``calls``: halt it when so many calls have been answered. ``hear`` gets the run's events.
    """
    launch = resumed_run(out, retry_failed=True) if out.exists() else new_run("kieval", what, out)
    left = calls

    def count(event: Event) -> None:
        nonlocal left
        if left is not None and isinstance(event, CallFinished):
            left -= 1
            if left == 0:
                launch.runner.halt()

    launch.events.listen(count)
    if hear is not None:
        launch.events.listen(hear)
    return launch.clock.run(launch.run)


def report(out: Path) -> bytes:
    """The run's report as the command line writes it for programs."""
    return orjson.dumps(recorded_results(RunFolder.open(out)).report(), option=orjson.OPT_SORT_KEYS)


def recorded(out: Path) -> Counter[Row]:
    """All calls in a run's journal: conversation, role, ordinal, hash, text and tokens."""
    columns = "conversation, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens"
    with closing(sqlite3.connect(out / "journal.sqlite")) as journal:
        return Counter(journal.execute(f"select {columns} from calls").fetchall())


def counted(out: Path, undisturbed: Path, log: list[dict[str, Any]]) -> Count:
    """What the run in ``out`` lost and doubled; ``log``: what the server had while it was held."""
    found, wanted = recorded(out), recorded(undisturbed)
    answered = Counter(entry["hash"] for entry in log if entry["text"] is not None and not entry["left"])
    return Count(
        lost=(wanted - found).total(),
        doubled=(found - wanted).total(),
        again=answered.total() - len(answered),
        tries=len(log) - answered.total(),
    )

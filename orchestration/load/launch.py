"""From what a user asked for to a load test that runs: its folder, its requests, its judges; new, or gone on with.

What never belongs here: options of a command, figures, words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.clock import Clock, RealClock
from viva.engine.errors import ConfigurationError
from viva.scoring.load.objective import Objective

from .judged_steps import StepFigures
from .judges import built_judges
from .load_folder import LoadFolder
from .planning import unloaded_passes
from .settings import LoadSettings, load_settings
from .steps import LoadTest
from .work import OpenedWork, WorkOptions, absolute, open_work

_OF_VERDICTS = {"drift", "agreement", "parse_fail", "truncated", "refused"}


@dataclass(slots=True)
class LoadLaunch:
    """A load test that can be carried out with ``hold``; ``test`` is there while and after it runs."""

    folder: LoadFolder
    settings: LoadSettings
    work: OpenedWork
    clock: Clock = field(default_factory=RealClock)
    test: LoadTest | None = None

    def unloaded_notes(self) -> list[str]:
        """Return what comes before the steps, which nobody asked for by name."""
        requests = min(self.settings.baseline, len(self.work.requests))
        if not requests:
            return []
        passes = len(unloaded_passes(self.work.requests))
        return [
            f"{passes} unloaded passes of {requests:,} requests come before the steps, one request in flight: verdicts "
            "under load are compared with them (--baseline bounds them; 0 leaves them out)"
        ]

    async def hold(self, ready: Callable[[LoadTest], None]) -> LoadTest:
        """Open the judges and carry the test out; ``ready`` is called once there is something to stop.

        :raises VivaError: a judge cannot be reached, or every further request would fail alike.
        """
        self.folder.lock()
        try:
            async with built_judges(self.settings.judges, self.clock) as (judges, opening):
                objective = Objective.parse(self.settings.objective) if self.settings.objective else Objective(())
                judged = StepFigures(self.work) if any(one.figure in _OF_VERDICTS for one in objective.terms) else None
                self.test = LoadTest(self.settings, self.work.requests, judges, self.folder.path, self.clock, judged)
                if self.test.is_left():
                    await opening()
                ready(self.test)
                await self.test.run()
                return self.test
        finally:
            self.folder.unlock()


def new_load_test(out: Path, source: str, options: WorkOptions, settings: LoadSettings) -> LoadLaunch:
    """A load test in a folder of its own.

    :raises ConfigurationError: requests, judges or folder are wrong.
    """
    source = absolute(source)
    work = open_work(source, options)
    fields = {
        "settings": settings.model_dump(mode="json"),
        "work": {"source": source, **_as_json(options)},
        "requests": _digest(work),
    }
    return LoadLaunch(LoadFolder.create(out, fields), settings, work)


def resumed_load_test(out: Path) -> LoadLaunch:
    """The load test in a folder, to go on with.

    :raises ConfigurationError: there is none, or its requests are not what they were.
    """
    folder = LoadFolder.open(out)
    kept = dict(folder.fields["work"])
    source = kept.pop("source")
    if kept.get("prompts"):
        kept["prompts"] = Path(kept["prompts"])
    work = open_work(source, WorkOptions(**kept))
    if _digest(work) != folder.fields["requests"]:
        raise ConfigurationError(
            f"{out}: the requests of {source} are no longer those that the load test began with; restore them, or "
            "begin a new test with --out"
        )
    return LoadLaunch(folder, load_settings(folder.fields["settings"]), work)


def _as_json(options: WorkOptions) -> dict[str, Any]:
    fields: Mapping[str, Any] = asdict(options)
    return {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in fields.items()}


def _digest(work: OpenedWork) -> str:
    """What tells these requests, in this order, from any others."""
    digest = hashlib.blake2b(digest_size=16)
    for one in work.requests:
        digest.update(one.id.encode("utf-8", "surrogatepass") + b"\x1f" + one.sampling.digest)
        for message in one.messages:
            digest.update(message.role.encode() + b"\x1f" + message.content.encode("utf-8", "surrogatepass") + b"\x1e")
    return digest.hexdigest()

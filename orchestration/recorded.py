"""A run folder as a Python program looks at it: report, results and transcripts, finished or not.

What never belongs here: calling models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.runner import Outcome
from viva.reports.text import Table

from .launch import recorded_results, recorded_settings
from .transcripts import Transcript, Transcripts


@dataclass(slots=True, frozen=True)
class Result:
    """One ended conversation. ``value`` is what its scenario returned, ``error`` the record of why it failed; ``task``
    is None where its record is damaged.
    """

    key: str
    task: Any
    value: Any = None
    error: Mapping[str, Any] | None = None


class Run:
    """A run folder. Of a run that this program held, ``outcome`` says how it ended, and ``models`` has each model's
    counters by its name (most calls in flight, permits, retries, …).
    """

    def __init__(
        self,
        folder: RunFolder,
        outcome: Outcome | None = None,
        models: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self._folder = folder
        self.outcome = outcome
        self.models = models or {}

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run: models, settings, seed, versions."""
        return self._folder.manifest

    def ended(self) -> Run:
        """The run as it is recorded, without what only mattered while it went on."""
        return Run(RunFolder.open(self.path), self.outcome, self.models)

    def report(self, **scoring: Any) -> dict[str, Any]:
        """The report as plain data. ``scoring`` are the scenario's choices in how results are scored.

        :raises ConfigurationError, JournalError: the folder or a choice is wrong.
        """
        return recorded_results(self._folder, scoring).report()

    def tables(self, **scoring: Any) -> list[Table]:
        """The report as titled tables: title, header, rows."""
        return recorded_results(self._folder, scoring).tables()

    def results(self) -> Iterator[Result]:
        """The conversations that have ended, in the order of the run, read as they are taken."""
        which, _ = recorded_settings(self._folder)
        with History(self._folder.journal) as history:
            for ended in history.ended():
                task = None if ended.item is None else which.given(which.task(ended.item))
                if ended.failed:
                    yield Result(ended.key, task, error=ended.result)
                else:
                    yield Result(ended.key, task, which.value(ended.result))

    async def transcript(self, key: str) -> Transcript:
        """What was said in a conversation, and what each model was sent for it. ``key``: LABEL/TASK, or its end.

        :raises ConfigurationError: there is no such conversation.
        """
        with History(self._folder.journal) as history:
            number = history.number_of(key)
            if number is None:
                raise ConfigurationError(f"{self.path}: no conversation '{key}'")
            return await Transcripts(self._folder).of(history, number)

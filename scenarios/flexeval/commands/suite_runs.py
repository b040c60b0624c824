"""Additions to `viva run` for suites: a budget that lets running conversations finish, and the watcher of a log.

The watcher reads new lines of a growing log, stores their dialogs, and runs the suite on them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson

from viva.cli.exit_codes import print_note
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import Clock
from viva.engine.computation import StepExecutor
from viva.engine.errors import JournalError, budget_text
from viva.engine.event_loop import LoopYield
from viva.engine.events import CallFinished, Event, RunStarted
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome, Slots
from viva.orchestration.launch import Launch, SharedResources
from viva.orchestration.prepared_run import PreparedRun
from viva.orchestration.run_progress import ModelWaits

from ...contract import Prepared
from ..conversation_files import STATE_PREFIX, WatchedTasks
from ..dialog import Dialog
from ..readers.logs import GrowingFile, GrowingLog, GrownDialog
from ..readers.records import UnreadableRecord
from ..suite_conversation import DialogTask

_BUDGET_SETTINGS = {"cost": "max_cost", "calls": "max_calls", "tokens": "max_tokens_total", "seconds": "max_seconds"}


class SoftBudget:
    """Budget that replaces the run's own: at its limit, running conversations finish and no more start.

    `used` says which limit was reached, or is None.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._limits = {name: getattr(launch.settings, setting) for name, setting in _BUDGET_SETTINGS.items()}
        self._spent = dict.fromkeys(_BUDGET_SETTINGS, 0.0)
        self._began = 0.0
        self.used: str | None = None
        for setting in _BUDGET_SETTINGS.values():
            setattr(launch.settings, setting, None)
        launch.events.listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._began = event.at
        elif isinstance(event, CallFinished) and not event.replayed and self.used is None:
            self._spent["cost"] += event.cost
            self._spent["calls"] += 1
            self._spent["tokens"] += event.prompt_tokens + event.completion_tokens
            self._spent["seconds"] = event.at - self._began
            self._look()

    def _look(self) -> None:
        for name, limit in self._limits.items():
            if limit is not None and self._spent[name] >= limit and self._launch.runner is not None:
                self.used = f"the {budget_text(name, limit)} is used up"
                print_note(f"{self.used}: finishing running conversations, starting no more")
                self._launch.runner.drain()
                return


SPOOL_FILE = "watched.jsonl"
_MAX_BATCH = 1000  # dialogs per batch


class Watcher:
    """Watcher of a log until it is stopped. `count` counts dialogs; `outcome` belongs to the last batch.

    `on_event` receives the events of every batch; `on_batch` is called after each batch with its number of dialogs.
    """

    def __init__(
        self,
        log: Path,
        folder: RunFolder,
        prepared: PreparedRun,
        clock: Clock,
        on_event: Callable[[Event], None],
        on_batch: Callable[[int], None],
    ) -> None:
        self._folder, self._prepared, self._clock = folder, prepared, clock
        self._on_event, self._on_batch = on_event, on_batch
        self._spool = folder.path / SPOOL_FILE
        self._growing = GrowingFile(log, WatchedTasks(self._spool).recover())
        self._log = GrowingLog(log)
        self.count = len(prepared.opened.tasks)
        self.outcome: Outcome | None = None
        self._launch: Launch | None = None
        self._stopping = anyio.Event()

    @property
    def notes(self) -> list[str]:
        """Notes on what happened to the log."""
        return self._growing.notes

    def interrupt(self) -> None:
        """Finish the calls in flight, then stop."""
        self._stopping.set()
        if self._launch is not None and self._launch.runner is not None:
            self._launch.runner.interrupt()

    def halt(self) -> None:
        """Stop now."""
        self._stopping.set()
        if self._launch is not None and self._launch.runner is not None:
            self._launch.runner.halt()

    async def follow(self, seconds: float | None, on_ready: Callable[[Any], None] | None = None) -> None:
        """Score the log, reading it every `seconds` seconds; with None, score its current lines and return.

        Raises:
            VivaError: The log, a model or the folder cannot be used.
        """
        if on_ready is not None:
            on_ready(self)
        waits = ModelWaits()
        async with BackendPool(self._clock, waits.hear) as pool:
            computer = StepExecutor(self._clock)
            slots = Slots(self._prepared.settings.concurrency)
            shared = SharedResources(pool, slots, LoopYield(), computer, waits=waits)
            try:
                if self.count:
                    await self._run(self._prepared, shared, resumed=True)
                while not self._stopping.is_set():
                    has_new = await self._batch(shared)
                    if seconds is None and not has_new:
                        return
                    if not has_new:
                        with anyio.move_on_after(seconds):
                            await self._stopping.wait()
            finally:
                computer.close()
                self._growing.close()

    async def _batch(self, shared: SharedResources) -> bool:
        """Score a batch of new dialogs; return False if there are none."""
        tasks: list[DialogTask] = []
        for line, text in self._growing.lines():
            tasks += [_make_task(entry, self.count + len(tasks) + position)
                      for position, entry in enumerate(self._log.take(line, text))]  # fmt: skip
            if len(tasks) >= _MAX_BATCH:
                break
        if not tasks:
            return False
        self._keep(tasks)
        prepared = self._prepared
        batch = PreparedBatch(prepared, tasks, self.count * len(prepared.lineups))
        self.count += len(tasks)
        await self._run(batch, shared, resumed=False)
        self._on_batch(len(tasks))
        return True

    def _keep(self, tasks: list[DialogTask]) -> None:
        """Append dialogs to the spool, with the position in the log.

        Raises:
            JournalError: The folder cannot be written.
        """
        try:
            with self._spool.open("ab") as spool:
                spool.write(b"".join(orjson.dumps(task.to_record()) + b"\n" for task in tasks))
                spool.write(STATE_PREFIX + orjson.dumps(self._growing.state) + b"}\n")
                spool.flush()
                os.fsync(spool.fileno())
        except OSError as error:
            raise JournalError(f"{self._folder.path}: cannot be written: {error.strerror}") from error

    async def _run(self, prepared: PreparedRun, shared: SharedResources, *, resumed: bool) -> None:
        self._launch = launch = Launch(prepared, self._folder, self._clock, resumed=resumed)
        launch.events.listen(self._on_event)
        self.outcome = await launch.run(shared=shared)
        if self.outcome.error is not None:
            raise self.outcome.error


class PreparedBatch(PreparedRun):
    """The watched run with only the tasks of one batch; `first` is the number of its first conversation."""

    def __init__(self, watched: PreparedRun, tasks: list[DialogTask], first: int) -> None:
        vars(self).update(vars(watched))
        self.opened: Prepared[Any] = Prepared(tasks, watched.opened.records)
        self.first = first
        self.total = len(tasks) * len(self.lineups)


def _make_task(entry: GrownDialog | UnreadableRecord, number: int) -> DialogTask:
    """Return the task of a log entry; `number` distinguishes tasks of the same conversation."""
    if isinstance(entry, UnreadableRecord):
        return DialogTask(f"{entry.id}@{number}", None, entry.message, str(entry.path), entry.line)
    id_ = f"{entry.dialog.id}@{number}".replace("#", ":")
    messages, remaining = [], entry.known_count
    for message in entry.dialog.messages:
        is_counted = message.role != "system"
        messages.append(replace(message, new=is_counted and remaining <= 0))
        remaining -= is_counted
    return DialogTask(id_, Dialog.from_messages(id_, messages, entry.dialog.metadata))

"""Scores what is new in a growing log: reads its new lines, keeps the dialogs that they make, runs the suite on them.

A batch and the place in the log behind it are put into the run's folder as one, before the batch is run: what was
interrupted goes on, and no line is lost or scored twice. What never belongs here: forms of logs (``readers``), output.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson

from viva.engine.backends.registry import BackendPool
from viva.engine.clock import Clock
from viva.engine.computation import Computer
from viva.engine.errors import JournalError
from viva.engine.events import Event
from viva.engine.folder import RunFolder
from viva.engine.runner import Outcome
from viva.engine.slots import Slots
from viva.engine.turnstile import Turnstile
from viva.orchestration.launch import Launch, SharedResources
from viva.orchestration.prepared_run import PreparedRun
from viva.scenarios.contract import Prepared

from ..protocol import DialogTask
from ..readers.growing import Growing
from ..readers.logs import GrowingLog, Grown
from ..readers.records import Unreadable
from ..tasks import STATE, WatchedTasks
from ..units import Dialog

SPOOL = "watched.jsonl"
_MOST = 1000  # dialogs of one batch


class Watcher:
    """Follows one log until it is asked to stop. ``taken`` counts dialogs; ``outcome`` is that of the last batch.

    ``hear`` listens to every batch's events; ``batch_done`` is called after each with how many dialogs it had.
    """

    def __init__(
        self,
        log: Path,
        folder: RunFolder,
        prepared: PreparedRun,
        clock: Clock,
        hear: Callable[[Event], None],
        batch_done: Callable[[int], None],
    ) -> None:
        self._folder, self._prepared, self._clock = folder, prepared, clock
        self._hear, self._batch_done = hear, batch_done
        self._spool = folder.path / SPOOL
        self._growing = Growing(log, WatchedTasks(self._spool).recovered())
        self._log = GrowingLog(log)
        self.taken = len(prepared.opened.tasks)
        self.outcome: Outcome | None = None
        self._launch: Launch | None = None
        self._stopping = anyio.Event()

    @property
    def notes(self) -> list[str]:
        """What happened to the log, a sentence each."""
        return self._growing.notes

    def interrupt(self) -> None:
        """Finish the calls under way, then stop."""
        self._stopping.set()
        if self._launch is not None and self._launch.runner is not None:
            self._launch.runner.interrupt()

    def halt(self) -> None:
        """Stop now."""
        self._stopping.set()
        if self._launch is not None and self._launch.runner is not None:
            self._launch.runner.halt()

    async def follow(self, seconds: float | None, ready: Callable[[Any], None] | None = None) -> None:
        """Score what is there, and what comes, looking every so many ``seconds``; None: what is there, then stop.

        :raises VivaError: the log, a model or the folder cannot be used.
        """
        if ready is not None:
            ready(self)
        async with BackendPool(self._clock, lambda event: None) as pool:
            computer = Computer(self._clock)
            slots = Slots(self._prepared.settings.concurrency)
            shared = SharedResources(pool, slots, Turnstile(), computer)
            try:
                if self.taken:
                    await self._run(self._prepared, shared, resumed=True)
                while not self._stopping.is_set():
                    more = await self._batch(shared)
                    if seconds is None and not more:
                        return
                    if not more:
                        with anyio.move_on_after(seconds):
                            await self._stopping.wait()
            finally:
                computer.close()
                self._growing.close()

    async def _batch(self, shared: SharedResources) -> bool:
        """Take and score what is new; False where nothing was."""
        found: list[DialogTask] = []
        for line, text in self._growing.lines():
            found += [_task(one, self.taken + len(found) + place)
                      for place, one in enumerate(self._log.take(line, text))]  # fmt: skip
            if len(found) >= _MOST:
                break
        if not found:
            return False
        self._keep(found)
        prepared = self._prepared
        batch = PreparedBatch(prepared, found, self.taken * len(prepared.labels))
        self.taken += len(found)
        await self._run(batch, shared, resumed=False)
        self._batch_done(len(found))
        return True

    def _keep(self, found: list[DialogTask]) -> None:
        """Put dialogs into the folder for good, together with where the next line of the log begins.

        :raises JournalError: the folder cannot be written.
        """
        try:
            with self._spool.open("ab") as spool:
                spool.write(b"".join(orjson.dumps(one.to_record()) + b"\n" for one in found))
                spool.write(STATE + orjson.dumps(self._growing.state) + b"}\n")
                spool.flush()
                os.fsync(spool.fileno())
        except OSError as error:
            raise JournalError(f"{self._folder.path}: cannot be written: {error.strerror}") from error

    async def _run(self, prepared: PreparedRun, shared: SharedResources, *, resumed: bool) -> None:
        self._launch = launch = Launch(prepared, self._folder, self._clock, resumed=resumed)
        launch.events.listen(self._hear)
        self.outcome = await launch.run(shared=shared)
        if self.outcome.error is not None:
            raise self.outcome.error


class PreparedBatch(PreparedRun):
    """The watched run, with the tasks of one batch alone; ``first`` is the number of its first conversation."""

    def __init__(self, whole: PreparedRun, tasks: list[DialogTask], first: int) -> None:
        vars(self).update(vars(whole))
        self.opened: Prepared[Any] = Prepared(tasks, whole.opened.records)
        self.first = first
        self.total = len(tasks) * len(self.labels)


def _task(one: Grown | Unreadable, number: int) -> DialogTask:
    """The task of what a line has brought; ``number`` tells it from others of the same conversation."""
    if isinstance(one, Unreadable):
        return DialogTask(f"{one.id}@{number}", None, one.message, str(one.path), one.line)
    id_ = f"{one.dialog.id}@{number}".replace("#", ":")
    messages, known = [], one.known
    for message in one.dialog.messages:
        counts = message.role != "system"
        messages.append(replace(message, new=counts and known <= 0))
        known -= counts
    return DialogTask(id_, Dialog.of(id_, messages, one.dialog.metadata))

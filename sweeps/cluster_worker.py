"""Function that Ray executes: run one task of a sweep on the worker's disk and publish it to the shared folder.

Its argument and return value contain names, numbers and paths, but no API keys: these come from the environment of the
worker's machine.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from viva.engine.errors import ClusterError, JournalError, VivaError
from viva.engine.event_loop import gc_tuned
from viva.engine.permissions import grant
from viva.orchestration.prepared_run import Shard

from .cluster_attempts import Attempt, find_run, requested_stop
from .recorded_sweep import RecordedSweep, read_sweep, write_sweep
from .shards import SweepSlice
from .sweep import Sweep
from .sweep_file import check_sweep_file

_BEAT_SECONDS = 0.5
_MOST_COPYING = 0.05  # maximum share of the time that is spent copying large journals
_SCRATCH_PREFIX = "viva-part-"
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Task as sent to a worker.

    `out` is the absolute path of the shared folder, `task` the task's id, `cells` the names of its cells, and `shard`
    (index, total), or None for whole cells. `copy_seconds`: interval of publishing. `code`: Python code that the
    driver's command has permitted.
    """

    out: str
    task: str
    cells: tuple[str, ...]
    shard: tuple[int, int] | None
    concurrency: int | None
    retry_failed: bool
    copy_seconds: float
    code: tuple[str, ...] = ()


def run_task(order: TaskOrder) -> dict[str, Any]:
    """Run a task to its end, or until a stop is requested.

    Returns:
        Plain data: `attempt` (its number), `error` (as `VivaError.to_record`; None if the task ran, even if its cells
        failed), and `cells` with the state, counts and error of each cell. Our own errors are returned, because Ray
        would run the task again if they were raised.
    """
    out, shard = Path(order.out), None if order.shard is None else Shard(*order.shard)
    grant(*order.code)
    number = 0
    try:
        with _scratch_folder() as scratch:
            attempt = Attempt(out, order.task, scratch)
            number = attempt.number
            local = scratch / "sweep"
            sweep = _open_task_sweep(order, shard, local)
            local.mkdir()
            write_sweep(local, sweep.recorded)  # without this file the folder would not be recognized as a sweep
            attempt.restore(order.cells, shard, local)
            work = _TaskRunner(sweep, attempt, order, shard)
            with gc_tuned():
                sweep.clock.run(work.run)
            return {"attempt": number, "error": None, "cells": work.progress_record(final=True)}
    except VivaError as error:
        return {"attempt": number, "error": _with_node(error), "cells": {}}


def _open_task_sweep(order: TaskOrder, shard: Shard | None, local: Path) -> Sweep:
    """Open a sweep of the task's cells on the local disk.

    Raises:
        ClusterError: The shared folder does not exist on this machine.
    """
    out = Path(order.out)
    if not (out / "sweep.json").exists():
        raise ClusterError(
            f"{out} does not exist on this machine; the sweep's folder must be on storage that all machines share"
        )
    recorded = read_sweep(out)
    checked = check_sweep_file(recorded.contents, recorded.folder, f"{out}/sweep.json")
    cells = [cell for cell in recorded.cells if cell.name in order.cells]
    return Sweep(
        RecordedSweep(recorded.folder, recorded.contents, recorded.until, cells),
        checked,
        local,
        retry_failed=order.retry_failed,
        concurrency=order.concurrency,
        selection=SweepSlice(shard=shard),
    )


class _TaskRunner:
    """Runner of a task that reports its progress and watches for stop requests."""

    def __init__(self, sweep: Sweep, attempt: Attempt, order: TaskOrder, shard: Shard | None) -> None:
        self._sweep, self._attempt, self._order, self._shard = sweep, attempt, order, shard
        self._copied, self._took = time.monotonic(), 0.0
        self._stopped: str | None = None

    async def run(self) -> None:
        """Run the task and publish its results.

        Raises:
            ClusterError: Another attempt has replaced this one.
            JournalError: The shared folder cannot be written.
        """
        failure: VivaError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat)
            try:
                await self._sweep.run()
            except VivaError as error:  # raised below, so that no exception group wraps it
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self._publish()

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() - self._copied >= max(self._order.copy_seconds, self._took / _MOST_COPYING)
            progress = {"cells": self.progress_record()}
            stop = await anyio.to_thread.run_sync(partial(self._report, progress, due))
            if stop is not None and stop != self._stopped:
                self._stopped = stop
                self._sweep.interrupt() if stop == "interrupt" else self._sweep.halt()
            await anyio.sleep(_BEAT_SECONDS)

    def _report(self, progress: dict[str, Any], copy: bool) -> str | None:
        """Report progress, publish if due, and return a requested stop; what fails is retried at the next call."""
        if self._attempt.is_fenced:
            return "halt"
        try:
            self._attempt.write_progress(progress)
            if copy:
                began = time.monotonic()
                self._publish()
                self._copied = time.monotonic()
                self._took = self._copied - began
        except (ClusterError, JournalError, OSError):
            self._copied = time.monotonic()
        return requested_stop(self._attempt.out)

    def _publish(self) -> None:
        self._attempt.publish(self._order.cells, self._shard, self._sweep.out)

    def progress_record(self, *, final: bool = False) -> dict[str, Any]:
        """Return the progress of each cell as plain data."""
        names = ("state", "total", "done", "failed", "in_flight", "calls", "tokens", "cost")
        cells = {run.cell.name: {name: getattr(run, name) for name in names} for run in self._sweep.runs}
        if final:
            for run in self._sweep.runs:
                begun = find_run(self._attempt.root, run.cell.name, self._shard) is not None
                error = None if run.error is None else _with_node(run.error)
                cells[run.cell.name] |= {"begun": begun, "error": error}
        return cells


def _with_node(error: VivaError) -> dict[str, Any]:
    record = error.to_record()
    return record | {"message": f"{record['message']} (on {platform.node()})"}


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Create a temporary folder under `TMPDIR`; remove folders that killed workers have left there."""
    for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        _remove_abandoned(path)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, ignore_cleanup_errors=True) as name:
        owner = os.open(Path(name) / "owner", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(owner)


def _remove_abandoned(folder: Path) -> None:
    """Remove a scratch folder if its lock is free, because its owner has then terminated."""
    try:
        if time.time() - folder.stat().st_mtime < _GRACE_SECONDS:  # its owner may not have locked the folder yet
            return
        owner = os.open(folder / "owner", os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(owner)

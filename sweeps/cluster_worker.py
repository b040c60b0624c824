"""The function that Ray runs: one task of a sweep, on the worker's disk, published to the shared folder.

What it is given and what it returns are names, numbers and paths, no keys: a model's key comes from the
environment of the worker's machine.
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
_MOST_COPYING = 0.05  # of the time, where journals are so large that copies take long
_SCRATCH_PREFIX = "viva-part-"
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """A part as its task is told it. ``out`` is the shared folder, full; ``part`` the part's id, ``cells`` the names of
    its cells. ``copy_seconds``: how often what has been done is published. ``code``: Python that the
    driver's command has granted.
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
    """Hold a part to its end, or until it is told to stop.

    Returns plain data: ``attempt`` (its number), ``error`` (as ``VivaError.to_record``; None where the part was held,
    whatever has become of its cells), and ``cells`` with the state, counts and error of each. It raises nothing of
    ours, for Ray would run it again.
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
            write_sweep(local, sweep.recorded)  # a folder with cells alone would be taken for something else
            attempt.restore(order.cells, shard, local)
            work = _TaskRunner(sweep, attempt, order, shard)
            with gc_tuned():
                sweep.clock.run(work.run)
            return {"attempt": number, "error": None, "cells": work.progress_record(final=True)}
    except VivaError as error:
        return {"attempt": number, "error": _with_node(error), "cells": {}}


def _open_task_sweep(order: TaskOrder, shard: Shard | None, local: Path) -> Sweep:
    """The sweep of the part's cells alone, on the local disk.

    :raises ClusterError: the shared folder cannot be seen from this machine.
    """
    out = Path(order.out)
    if not (out / "sweep.json").exists():
        raise ClusterError(f"{out} is not there on this machine; the sweep's folder must be shared by all")
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
    """A part being held: the sweep, and beside it what tells of it and listens to the driver."""

    def __init__(self, sweep: Sweep, attempt: Attempt, order: TaskOrder, shard: Shard | None) -> None:
        self._sweep, self._attempt, self._order, self._shard = sweep, attempt, order, shard
        self._copied, self._took = time.monotonic(), 0.0
        self._stopped: str | None = None

    async def run(self) -> None:
        """Hold the part, and publish it.

        :raises ClusterError: another attempt counts by now.
        :raises JournalError: the shared folder cannot be written.
        """
        failure: VivaError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat)
            try:
                await self._sweep.run()
            except VivaError as error:  # out of the group as itself
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
        """Tell how far it is, publish if it is time, and see whether to go on; what fails here is tried again."""
        if self._attempt.is_fenced:
            return "halt"
        try:
            self._attempt.tell(progress)
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
        """How far each cell is, as plain data."""
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
    """A folder on this machine's disk (``TMPDIR``), gone at the end; those of workers that were killed are cleared."""
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
    """Remove a scratch folder whose owner is gone: nobody holds its lock."""
    try:
        if time.time() - folder.stat().st_mtime < _GRACE_SECONDS:  # perhaps its owner has not locked it yet
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

"""A sweep whose cells and shards are held by the machines of a Ray cluster; the report is that of one process.

This process divides the sweep, hands parts to Ray, moves what they have made to its place, and merges shards at the
end. It asks no model.
What never belongs here: work on a part (``task``), Ray's own functions (``ray_client``), output.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from viva.data.selection import CheckedDatasets
from viva.engine.errors import ClusterError, ConfigurationError, JournalError, NotScheduled, VivaError
from viva.engine.folder import RunFolder
from viva.engine.permissions import permissions

from ..sweep.file import read_file
from ..sweep.merge import merge_sweep
from ..sweep.portion import Portion
from ..sweep.progress import CellRun
from ..sweep.record import write_sweep
from ..sweep.resources import Needs
from ..sweep.sweep import Sweep, planned_sweep
from ..sweep.sweep_folder import check_place
from .attempts import ask_to_stop, commit, settle
from .demands import demand_of
from .division import Part, divided
from .part_run import PartRun, add_up, shard_run
from .ray_client import RayClient
from .task import Order

_LOOK_SECONDS = 0.2
_STARTING_SECONDS = 60.0  # what Ray may take to start a worker where all is free
_FORCED_SECONDS = 20.0  # how long attempts that were told to halt may take to publish before they are ended


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """``address`` as ``RayClient`` has it. ``shards``: into how many a cell is divided. ``workers``: tasks at once at
    most, None for as many as the cluster has room for. ``timeout_seconds``: how long a part may wait for resources that
    no machine has, or for others to free them while nothing of the sweep runs. ``copy_seconds``: how often a worker
    publishes what it has done.
    """

    address: str = "auto"
    shards: int = 1
    workers: int | None = None
    timeout_seconds: float = 300.0
    copy_seconds: float = 10.0


class ClusterSweep(Sweep):
    """As ``Sweep``, its parts held by tasks of Ray. ``parts`` tells of each part, ``runs`` of the cells."""

    spread = True
    options = ClusterOptions()
    needs: Mapping[str, Needs] = {}
    parts: Sequence[PartRun] = ()
    _halted: float | None = None

    def _stop(self, how: str) -> None:
        self._stopping = True
        if how == "halt" and self._halted is None:
            self._halted = time.monotonic()
        ask_to_stop(self.out, how)

    async def run(self, ready: Callable[[Sweep], None] | None = None) -> None:
        """Carry all cells to their end, as ``Sweep.run``.

        :raises ConfigurationError: as ``Sweep.run``; or Ray cannot be reached.
        :raises JournalError: as ``Sweep.run``.
        """
        check_place(self.out)
        lock = RunFolder(self.out, {})
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock.lock()
        except OSError as error:
            raise JournalError(f"{self.out}: cannot make the sweep's folder: {error}") from error
        try:
            with tempfile.TemporaryDirectory(prefix="viva-cluster-") as scratch, CheckedDatasets().used():
                self._scratch = Path(scratch)
                settle(self.out, self._scratch)
                write_sweep(self.out, self.recorded)
                if ready is not None:
                    ready(self)
                self.parts = self._survey_parts()
                waiting = [part for part in self.parts if part.to_do]
                if waiting:
                    await self._hold(waiting)
                settle(self.out, self._scratch)
                self._conclude()
        finally:
            self.events.close()
            lock.unlock()

    def _survey_parts(self) -> list[PartRun]:
        by_name = {run.cell.name: run for run in self.runs}
        found = []
        for part in divided(self.recorded, [run.cell for run in self.runs], self.out, self.options.shards):
            cells = [by_name[cell.name] for cell in part.cells]
            if part.share is None:
                self._unit(cells)  # as one process finds them: rules that have ended them count
            else:
                cells = [shard_run(cells[0], part, self.out, retry_failed=self.retry_failed)]
            found.append(PartRun(part, demand_of(part.models, self.needs), cells))
        self._shards = {run: shards for run in self.runs if (shards := _shards_of(run, found))}
        self._add_up()
        return found

    def _add_up(self) -> None:
        for run, shards in self._shards.items():
            add_up(run, shards)

    async def _hold(self, waiting: list[PartRun]) -> None:
        client = RayClient(self.options.address)
        try:
            await self._drive(client, deque(waiting))
        finally:
            client.close()

    async def _drive(self, client: RayClient, waiting: deque[PartRun]) -> None:
        flying: dict[Any, PartRun] = {}
        moved = time.monotonic()  # when something of the sweep was last seen to run
        most = self.options.workers or len(waiting)
        while flying or (waiting and not self._stopping):
            while waiting and not self._stopping and len(flying) < most:
                part = waiting.popleft()
                part.submitted(self.out)
                flying[client.submit(self._order(part.part), part.demand, str(part.part))] = part
            for task in client.finished(list(flying)):
                moved = time.monotonic()
                await self._take(client, task, flying.pop(task))
            await anyio.to_thread.run_sync(self._look, list(flying.values()))
            self._add_up()
            if self._stopping:
                self._withdraw(client, flying)
            elif any(part.running for part in flying.values()):
                moved = time.monotonic()
            self._time_out(client, flying, moved)
            await anyio.sleep(_LOOK_SECONDS)

    def _order(self, part: Part) -> Order:
        return Order(
            out=str(self.out.resolve()),
            part=part.id,
            cells=tuple(cell.name for cell in part.cells),
            share=None if part.share is None else (part.share.index, part.share.of),
            concurrency=self._concurrency,
            retry_failed=self.retry_failed,
            copy_seconds=self.options.copy_seconds,
            code=tuple(sorted(permissions().code)),
        )

    def _look(self, flying: list[PartRun]) -> None:
        for part in flying:
            part.look(self.out)

    async def _take(self, client: RayClient, task: Any, part: PartRun) -> None:
        """A task has ended: what its attempt has made is moved to its place."""
        try:
            told = client.result(task)
            if told["error"] is not None:
                raise _as_error(told["error"])
            if any(one["begun"] for one in told["cells"].values()):
                attempt = told["attempt"]
                await anyio.to_thread.run_sync(commit, self.out, part.part.id, attempt, self._scratch)
            errors = {name: one["error"] and _as_error(one["error"]) for name, one in told["cells"].items()}
            part.ended(told["cells"], errors)
        except VivaError as error:
            part.fail(error)

    def _withdraw(self, client: RayClient, flying: dict[Any, PartRun]) -> None:
        """After a stop: tasks that have not begun are taken back, those that do not end in time are ended."""
        forced = self._halted is not None and time.monotonic() - self._halted > _FORCED_SECONDS
        for task, part in list(flying.items()):
            if forced or not part.running:
                client.cancel(task, force=forced)
                part.withdraw()
                del flying[task]

    def _time_out(self, client: RayClient, flying: dict[Any, PartRun], moved: float) -> None:
        """End the waiting of parts for what nobody has, or nobody frees."""
        queued = {task: part for task, part in flying.items() if not part.running}
        if not queued:
            return
        machines, now, limit = client.machines(), time.monotonic(), self.options.timeout_seconds
        for task, part in queued.items():
            missing, seconds = part.missing_for(machines, now)
            waited = limit if missing is not None else max(limit, _STARTING_SECONDS)
            if missing is not None and seconds > limit:
                said = f"no machine of the cluster can hold it: {missing}; add one, or change `resources`"
            elif missing is None and now - moved > waited:
                said = f"what it needs is in use by others: {part.demand.occupied(client.free())}"
            else:
                continue
            part.fail(NotScheduled(f"{said} (waited {waited:g} s)"))
            client.cancel(task)
            del flying[task]

    def _conclude(self) -> None:
        """Merge the cells whose shards are all at their end."""
        self._add_up()
        for run in self._shards:
            if run.state == "done":
                [merged] = merge_sweep(self.out, cell=run.cell.name.removeprefix("cells/"))
                if merged.problems:
                    run.state, run.error = "failed", ConfigurationError("; ".join(merged.problems))


def _shards_of(run: CellRun, parts: Sequence[PartRun]) -> list[CellRun]:
    return [one for part in parts if part.part.share is not None for one in part.cells if one.cell is run.cell]


def _as_error(record: dict[str, Any]) -> VivaError:
    """An error as a worker told it."""
    kinds = {kind.__name__: kind for kind in (ConfigurationError, JournalError, ClusterError)}
    return kinds.get(record["type"], VivaError)(record["message"])  # others are made of more than a message


def cluster_sweep(
    file: Path, out: Path | None, options: ClusterOptions, *, cell: str | None = None, **how: Any
) -> ClusterSweep:
    """The sweep in a file, to be held by a cluster; nothing is written yet.

    :param cell: one cell alone, as ``Portion`` has it; :param how: ``retry_failed`` and ``concurrency``, as ``Sweep``
        has them.
    :raises ConfigurationError: the file is wrong.
    """
    whole, (checked, _) = planned_sweep(file, out, portion=Portion(cell)), read_file(file)
    sweep = ClusterSweep(whole.recorded, checked, whole.out, whole.clock, portion=Portion(cell), **how)
    sweep.options = options
    sweep.needs = checked.resources
    return sweep

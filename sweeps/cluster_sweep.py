"""Sweep on a Ray cluster: its tasks (cells or shards) are submitted to Ray, and their results are merged at the end.

The driver process calls no model. The report equals that of a sweep in one process.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from viva.data.dataset import CheckedDatasets
from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ClusterError, ConfigurationError, JournalError, NotScheduled, VivaError
from viva.engine.permissions import permissions
from viva.engine.run_folder import RunFolder
from viva.orchestration.prepared_run import Shard

from .cell_run import CellRun
from .cells import Cell, group_cells
from .cluster_attempts import attempt_numbers, commit_attempt, read_progress, request_stop, settle_attempts
from .cluster_worker import TaskOrder
from .merge import merge_sweep
from .ray_client import RayClient, ResourceAmounts, ResourceDemand, total_demand
from .recorded_sweep import RecordedSweep, write_sweep
from .shards import SweepSlice
from .sweep import Sweep, open_sweep
from .sweep_file import ModelResources, read_sweep_file
from .sweep_folder import MERGE_RECORD, check_sweep_folder, shards_of


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Cells that run in one process; `shard` selects their conversations (None: all)."""

    cells: tuple[Cell, ...]
    shard: Shard | None = None

    @property
    def models(self) -> list[str]:
        """Models that the task needs."""
        return list(dict.fromkeys(model for cell in self.cells for model in cell.models))

    @property
    def id(self) -> str:
        """Name for files, stable across drivers of the same sweep."""
        text = "\n".join([*(cell.name for cell in self.cells), str(self.shard)])
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def __str__(self) -> str:
        more = f" and {len(self.cells) - 1} more" * (len(self.cells) > 1)
        return f"{self.cells[0].name}{more}" + (f", shard {self.shard}" if self.shard is not None else "")


def divide_sweep(recorded: RecordedSweep, cells: list[Cell], out: Path, shards: int) -> list[SweepTask]:
    """Return the tasks of the cells: `shards` of them for each cell that can be sharded, else one for the whole cell.

    A cell that has begun keeps its division, whole or in shards.
    """
    decided = recorded.until is not None and recorded.until.decided
    tasks: list[SweepTask] = []
    for group in group_cells(cells, decided):
        tasks += [SweepTask(tuple(group))] if len(group) > 1 else _tasks_of_cell(recorded, group[0], out, shards)
    return tasks


def _tasks_of_cell(recorded: RecordedSweep, cell: Cell, out: Path, shards: int) -> Iterator[SweepTask]:
    folder = out / cell.name
    existing = shards_of(folder)
    begun = (folder / "manifest.json").exists()
    if existing and (not begun or (folder / MERGE_RECORD).exists()):
        shards = existing[0][0].total
    elif begun or not _can_be_sharded(recorded, cell):
        shards = 1
    if shards == 1 and not existing:
        yield SweepTask((cell,))
        return
    for index in range(1, shards + 1):
        yield SweepTask((cell,), Shard(index, shards))


def _can_be_sharded(recorded: RecordedSweep, cell: Cell) -> bool:
    """Return True if a cell can be run in shards: no rule or budget needs all conversations in one process."""
    try:
        SweepSlice(cell.name, Shard(1, 2)).select_cells(recorded)
    except ConfigurationError:
        return False
    return True


_COUNTS = ("done", "failed", "in_flight", "calls", "tokens", "cost")
_UNFINISHED = ("waiting", "part")


class TaskProgress:
    """Progress of a task. `cells` are its cells, or its shard of a cell. `running`: a machine has started the task."""

    def __init__(self, task: SweepTask, demand: ResourceDemand, cells: Sequence[CellRun]) -> None:
        self.task, self.demand, self.cells = task, demand, cells
        self.running = False
        self._before = 0  # number of attempts that existed when the task was submitted
        self._missing_since: float | None = None

    @property
    def has_work(self) -> bool:
        """True if conversations remain; a shard may have none."""
        return any(run.state in _UNFINISHED and run.total != 0 for run in self.cells)

    def on_submit(self, out: Path) -> None:
        """Note the attempts that existed before the task was submitted."""
        self._before = max(attempt_numbers(out, self.task.id), default=0)

    def refresh(self, out: Path) -> None:
        """Read the progress of the latest attempt."""
        number = max(attempt_numbers(out, self.task.id), default=0)
        if number > self._before:
            self.running = True
            counts = read_progress(out, self.task.id, number).get("cells", {})
            for run in self.cells:
                if run.state in (*_UNFINISHED, "running"):
                    run.state = "running"
                    _take_counts(run, counts.get(run.cell.name, {}))

    def missing_for(self, machines: Sequence[ResourceAmounts], now: float) -> tuple[str | None, float]:
        """Return (demand that no machine can meet, for how many seconds); the demand is None if one can meet it."""
        missing = self.demand.missing(machines)
        if missing is None:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        return missing, 0.0 if self._missing_since is None else now - self._missing_since

    def on_end(self, results: Mapping[str, Mapping[str, Any]], errors: Mapping[str, VivaError | None]) -> None:
        """Record the final states and errors of the attempt."""
        self.running = False
        for run in self.cells:
            result = results[run.cell.name]
            _take_counts(run, result)
            run.state, run.total, run.error, run.in_flight = result["state"], result["total"], errors[run.cell.name], 0

    def fail(self, error: VivaError) -> None:
        """Mark all unfinished cells as failed."""
        self.running = False
        for run in self.cells:
            if run.state not in ("done", "stopped", "failed"):
                run.state, run.error, run.in_flight = "failed", error, 0

    def withdraw(self) -> None:
        """Return running cells to the waiting state."""
        self.running = False
        for run in self.cells:
            if run.state == "running":
                run.state, run.in_flight = "part" if run.done else "waiting", 0


def open_shard_run(run: CellRun, task: SweepTask, out: Path, *, retry_failed: bool) -> CellRun:
    """Return the progress of a cell's shard as recorded in the sweep's folder."""
    shard_run = CellRun(run.cell, run.folder)
    shard_run.apply(SweepSlice(shard=task.shard).find(shard_run, out, retry_failed=retry_failed))
    assert task.shard is not None
    if shard_run.folder == run.folder and task.shard.index > 1:  # the cell is merged: its conversations count once
        shard_run.total = shard_run.done = shard_run.failed = 0
    return shard_run


def sum_shards(run: CellRun, shards: Iterable[CellRun]) -> None:
    """Set a cell's progress to the sum of its shards' progress."""
    runs = list(shards)
    for name in _COUNTS:
        setattr(run, name, sum(getattr(shard, name) for shard in runs))
    totals = [shard.total for shard in runs]
    run.total = None if None in totals else sum(total for total in totals if total is not None)
    states = ["done" if shard.total == 0 else shard.state for shard in runs]
    run.error = next((shard.error for shard in runs if shard.error is not None), None)
    if "failed" in states or "running" in states:
        run.state = "running" if "running" in states else "failed"
    elif set(states) == {"done"}:
        run.state = "done"
    else:
        run.state = "part" if run.done else "waiting"


def _take_counts(run: CellRun, counts: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        if name in counts:
            setattr(run, name, counts[name])
    if counts.get("total") is not None:
        run.total = counts["total"]


_LOOK_SECONDS = 0.2
_STARTING_SECONDS = 60.0  # Ray may take this long to start a worker
_FORCED_SECONDS = 20.0  # grace period for attempts to publish after a halt


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of a cluster sweep.

    `address` as in `RayClient`. `shards`: number of shards per cell. `workers`: maximum number of concurrent tasks
    (None: as many as fit). `timeout_seconds`: how long a task may wait for resources that no machine has, or, while no
    task of the sweep is running, for resources in use. `copy_seconds`: interval at which a worker publishes its
    results.
    """

    address: str = "auto"
    shards: int = 1
    workers: int | None = None
    timeout_seconds: float = 300.0
    copy_seconds: float = 10.0


class ClusterSweep(Sweep):
    """Sweep whose tasks are run by Ray. `tasks` has the progress of each task, `runs` that of the cells."""

    spread = True
    options = ClusterOptions()
    needs: Mapping[str, ModelResources] = {}
    tasks: Sequence[TaskProgress] = ()
    _halted: float | None = None

    def _stop(self, action: str) -> None:
        self._stopping = True
        if action == "halt" and self._halted is None:
            self._halted = time.monotonic()
        request_stop(self.out, action)

    async def run(self, ready: Callable[[Sweep], None] | None = None) -> None:
        """Run all cells to their end, like `Sweep.run`.

        Raises:
            ConfigurationError: As for `Sweep.run`; Ray cannot be reached; or a model uses a batch API.
            JournalError: As for `Sweep.run`.
        """
        for model in dict.fromkeys(model for run in self.runs for model in run.cell.models):
            if ModelSpec.parse(model).is_batched:  # a worker that dies would take its record of paid batches with it
                raise ConfigurationError(f"model '{model}': batch=on does not work on a cluster; run the sweep here")
        check_sweep_folder(self.out)
        lock = RunFolder(self.out, {})
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock.lock()
        except OSError as error:
            raise JournalError(f"{self.out}: cannot create the sweep's folder: {error}") from error
        try:
            with tempfile.TemporaryDirectory(prefix="viva-cluster-") as scratch, CheckedDatasets().activate():
                self._scratch = Path(scratch)
                settle_attempts(self.out, self._scratch)
                write_sweep(self.out, self.recorded)
                if ready is not None:
                    ready(self)
                self.tasks = self._survey_tasks()
                waiting = [progress for progress in self.tasks if progress.has_work]
                if waiting:
                    await self._hold(waiting)
                settle_attempts(self.out, self._scratch)
                self._conclude()
        finally:
            self.events.close()
            lock.unlock()

    def _survey_tasks(self) -> list[TaskProgress]:
        by_name = {run.cell.name: run for run in self.runs}
        tasks = []
        for task in divide_sweep(self.recorded, [run.cell for run in self.runs], self.out, self.options.shards):
            cells = [by_name[cell.name] for cell in task.cells]
            if task.shard is None:
                self._unit(cells)  # marks cells that a rule has stopped, as in a single process
            else:
                cells = [open_shard_run(cells[0], task, self.out, retry_failed=self.retry_failed)]
            tasks.append(TaskProgress(task, total_demand(task.models, self.needs), cells))
        self._shards = {run: shards for run in self.runs if (shards := _shard_runs(run, tasks))}
        self._add_up()
        return tasks

    def _add_up(self) -> None:
        for run, shards in self._shards.items():
            sum_shards(run, shards)

    async def _hold(self, waiting: list[TaskProgress]) -> None:
        client = RayClient(self.options.address)
        try:
            await self._drive(client, deque(waiting))
        finally:
            client.close()

    async def _drive(self, client: RayClient, waiting: deque[TaskProgress]) -> None:
        in_flight: dict[Any, TaskProgress] = {}
        last_activity = time.monotonic()  # time at which a task was last seen running
        limit = self.options.workers or len(waiting)
        while in_flight or (waiting and not self._stopping):
            while waiting and not self._stopping and len(in_flight) < limit:
                progress = waiting.popleft()
                progress.on_submit(self.out)
                in_flight[client.submit(self._order(progress.task), progress.demand, str(progress.task))] = progress
            for reference in client.finished(list(in_flight)):
                last_activity = time.monotonic()
                await self._take(client, reference, in_flight.pop(reference))
            await anyio.to_thread.run_sync(self._refresh, list(in_flight.values()))
            self._add_up()
            if self._stopping:
                self._withdraw(client, in_flight)
            elif any(progress.running for progress in in_flight.values()):
                last_activity = time.monotonic()
            self._time_out(client, in_flight, last_activity)
            await anyio.sleep(_LOOK_SECONDS)

    def _order(self, task: SweepTask) -> TaskOrder:
        return TaskOrder(
            out=str(self.out.resolve()),
            task=task.id,
            cells=tuple(cell.name for cell in task.cells),
            shard=None if task.shard is None else (task.shard.index, task.shard.total),
            concurrency=self.concurrency,
            retry_failed=self.retry_failed,
            copy_seconds=self.options.copy_seconds,
            code=tuple(sorted(permissions().code)),
        )

    def _refresh(self, in_flight: list[TaskProgress]) -> None:
        for progress in in_flight:
            progress.refresh(self.out)

    async def _take(self, client: RayClient, reference: Any, progress: TaskProgress) -> None:
        """Commit the results of a finished task."""
        try:
            result = client.result(reference)
            if result["error"] is not None:
                raise _error_from_record(result["error"])
            if any(cell["begun"] for cell in result["cells"].values()):
                attempt = result["attempt"]
                await anyio.to_thread.run_sync(commit_attempt, self.out, progress.task.id, attempt, self._scratch)
            errors = {
                name: cell["error"] and _error_from_record(cell["error"]) for name, cell in result["cells"].items()
            }
            progress.on_end(result["cells"], errors)
        except VivaError as error:
            progress.fail(error)

    def _withdraw(self, client: RayClient, in_flight: dict[Any, TaskProgress]) -> None:
        """After a stop request, withdraw tasks that have not started, and cancel tasks that exceed the grace period."""
        forced = self._halted is not None and time.monotonic() - self._halted > _FORCED_SECONDS
        for reference, progress in list(in_flight.items()):
            if forced or not progress.running:
                client.cancel(reference, force=forced)
                progress.withdraw()
                del in_flight[reference]

    def _time_out(self, client: RayClient, in_flight: dict[Any, TaskProgress], last_activity: float) -> None:
        """Fail tasks that have waited too long for resources that no machine has, or that no machine frees."""
        queued = {reference: progress for reference, progress in in_flight.items() if not progress.running}
        if not queued:
            return
        machines, now, limit = client.machines(), time.monotonic(), self.options.timeout_seconds
        for reference, progress in queued.items():
            missing, seconds = progress.missing_for(machines, now)
            waited = limit if missing is not None else max(limit, _STARTING_SECONDS)
            if missing is not None and seconds > limit:
                message = f"no machine in the cluster can run it: {missing}; add a machine, or change `resources`"
            elif missing is None and now - last_activity > waited:
                message = (
                    f"the resources it needs are in use: {progress.demand.occupied(client.free())}; "
                    "free some, or raise --ray-timeout"
                )
            else:
                continue
            progress.fail(NotScheduled(f"{message} (waited {waited:g} s)"))
            client.cancel(reference)
            del in_flight[reference]

    def _conclude(self) -> None:
        """Merge the cells whose shards have all finished."""
        self._add_up()
        for run in self._shards:
            if run.state == "done":
                [merged] = merge_sweep(self.out, cell=run.cell.name.removeprefix("cells/"))
                if merged.problems:
                    run.state, run.error = "failed", ConfigurationError("; ".join(merged.problems))


def _shard_runs(run: CellRun, tasks: Sequence[TaskProgress]) -> list[CellRun]:
    return [
        shard_run
        for progress in tasks
        if progress.task.shard is not None
        for shard_run in progress.cells
        if shard_run.cell is run.cell
    ]


def _error_from_record(record: dict[str, Any]) -> VivaError:
    """Rebuild an error reported by a worker."""
    kinds = {kind.__name__: kind for kind in (ConfigurationError, JournalError, ClusterError)}
    return kinds.get(record["type"], VivaError)(record["message"])  # other classes need more than a message


def open_cluster_sweep(
    file: Path, out: Path | None, options: ClusterOptions, *, cell: str | None = None, **settings: Any
) -> ClusterSweep:
    """Open the sweep that a file describes, to be run on a cluster. Nothing is written yet.

    `cell` selects a single cell; `settings` are `retry_failed` and `concurrency`, as in `Sweep`.
    """
    base, (checked, _) = open_sweep(file, out, selection=SweepSlice(cell)), read_sweep_file(file)
    sweep = ClusterSweep(base.recorded, checked, base.out, base.clock, selection=SweepSlice(cell), **settings)
    sweep.options = options
    sweep.needs = checked.resources
    return sweep

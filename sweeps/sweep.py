"""Run a sweep: its cells in sequence or in parallel, in one event loop, with shared models and slots.

A cell begins when all conversations of the previous cells have begun, so slots stay in use until the end. A local model
is opened for the first cell that needs it, and closed after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from viva.data.dataset import CheckedDatasets
from viva.engine.backends.fault_injection import read_fault_plan
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import Clock, RealClock
from viva.engine.computation import StepExecutor
from viva.engine.errors import JournalError, VivaError, user_frame
from viva.engine.event_loop import LoopYield
from viva.engine.file_descriptors import limit_parallel_runs
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome, Slots
from viva.engine.stream import EventStream
from viva.orchestration.launch import SharedResources, continued_run, empty_results
from viva.orchestration.run_progress import ModelWaits
from viva.scoring.early_stopping import StoppingRule

from .cell_run import CellRun, CellState
from .cells import check_cost_bounds, group_cells, plan_cells
from .early_stopping import CellWatch
from .local_models import LoadedModels, order_by_weights, weights_of
from .recorded_sweep import RecordedSweep, read_sweep, write_sweep
from .shards import SweepSlice
from .sweep_file import SweepFile, check_resources, check_sweep_file, part_of, read_sweep_file
from .sweep_folder import check_sweep_folder, remove_empty_shards

_MOST_OPEN = 64  # maximum cells running at once, if the limit of open files allows; each has a journal and a thread


class Sweep:
    """A sweep ready to run or resume.

    `runs` has the state of every cell before, during and after the run; `events` are events of models (retries),
    `models` the models' counters. `interrupt` and `halt` act on all cells, as a runner's do on a run. `selection`: the
    slice of the sweep that this process runs. `spread` is True if other machines run the sweep.
    """

    spread = False

    def __init__(
        self,
        recorded: RecordedSweep,
        file: SweepFile,
        out: Path,
        clock: Clock | None = None,
        *,
        retry_failed: bool = False,
        concurrency: int | None = None,
        selection: SweepSlice | None = None,
    ) -> None:
        self.out, self.recorded, self.selection = out, recorded, selection or SweepSlice()
        self.clock = clock or RealClock()
        self.events = EventStream()
        self.runs = [CellRun(cell, out / cell.name) for cell in self.selection.select_cells(recorded)]
        self.concurrency = concurrency or file.concurrency
        self._chaos = None if file.chaos is None else read_fault_plan(Path(file.chaos))
        self._patience, self._local_models = file.patience, file.local_models
        self.retry_failed = retry_failed
        self._stopping = False
        self._active: list[CellRun] = []
        self._changed = anyio.Event()
        self._most_open = _MOST_OPEN
        self._shared: SharedResources | None = None
        self.models: dict[str, dict[str, object]] = {}

    @property
    def interrupted(self) -> bool:
        """True if the sweep stopped before its end because a stop was requested."""
        return self._stopping and any(run.state in ("waiting", "part") for run in self.runs)

    @property
    def failures(self) -> int:
        """Number of failed conversations in all cells."""
        return sum(run.failed for run in self.runs)

    def interrupt(self) -> None:
        """Finish the calls in flight and start nothing new."""
        self._stop("interrupt")

    def halt(self) -> None:
        """Stop now; calls in flight are repeated when the sweep is resumed."""
        self._stop("halt")

    def _stop(self, action: str) -> None:
        self._stopping = True
        for run in self._active:
            if run.runner is not None:
                getattr(run.runner, action)()
            else:  # the cell's models are still being opened: nothing has begun
                run.opening.cancel()

    def model_counters(self) -> dict[str, dict[str, object]]:
        """Return the counters of each model (`BackendPool.statistics`); empty before a model is open."""
        return {} if self._shared is None else self._shared.pool.statistics()

    async def run(self, ready: Callable[[Sweep], None] | None = None) -> None:
        """Run all cells to their end. `ready` is called immediately with the sweep, which can then be interrupted.

        A failed or interrupted cell is a state in `runs`, not an error.

        Raises:
            ConfigurationError: Another process is running this sweep, or the folder contains something other than it.
            JournalError: The folder cannot be written.
        """
        check_sweep_folder(self.out)
        lock = RunFolder(self.out, {})
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if self.selection.is_whole:  # several processes may run slices at once
                lock.lock()
        except OSError as error:
            raise JournalError(f"{self.out}: cannot create the sweep's folder: {error}") from error
        try:
            write_sweep(self.out, self.recorded)
            limit = min(_MOST_OPEN, len(self.runs))
            with CheckedDatasets().activate(), limit_parallel_runs(limit) as self._most_open:
                if ready is not None:
                    ready(self)
                units = self._survey()
                waits = ModelWaits()
                self.events.listen(waits.hear)
                async with BackendPool(
                    self.clock, self.events.publish, patience=self._patience, chaos=self._chaos, folder=self.out
                ) as pool:
                    computer = StepExecutor(self.clock)
                    self._shared = SharedResources(pool, Slots(self.concurrency), LoopYield(), computer, waits=waits)
                    self._loaded = LoadedModels(pool, [unit.models for unit in units], self._local_models)
                    try:
                        async with anyio.create_task_group() as group:
                            for unit in units:
                                await self._wait_for_room()
                                if self._stopping:
                                    break
                                await self._begin(unit, group)
                    finally:
                        computer.close()
                    self.models = pool.statistics()
        finally:
            self.events.close()
            lock.unlock()

    async def _wait_for_room(self) -> None:
        """Wait until neither too many cells nor too many local models are open for the next unit."""
        while not self._stopping:
            changed = self._changed  # a cell may end during `make_room`
            if len(self._active) < self._most_open and await self._loaded.make_room(self._in_use()):
                return
            await changed.wait()

    def _in_use(self) -> set[str]:
        return {model for run in self._active for model in run.cell.models}

    def survey(self, datasets: CheckedDatasets | None = None) -> None:
        """Determine the progress of every cell (`runs`) without opening a model; `datasets` caches checked datasets."""
        with (datasets or CheckedDatasets()).activate():
            self._survey()

    def _survey(self) -> list[_CellGroup]:
        """Return the remaining units in the order to run them."""
        by_name = {run.cell.name: run for run in self.runs}
        until = self.recorded.until
        decided = until is not None and until.decided
        units = []
        for group in group_cells([run.cell for run in self.runs], decided):
            runs = [by_name[cell.name] for cell in group]
            unit = self._unit(runs)
            if unit.runs:
                units.append(unit)
        return [units[index] for index in order_by_weights([weights_of(unit.models) for unit in units])]

    def _unit(self, runs: list[CellRun]) -> _CellGroup:
        states = {run: self.selection.find(run, self.out, retry_failed=self.retry_failed) for run in runs}
        for run, state in states.items():
            run.apply(state)
        planned = [run.total for run in runs if run.total is not None]
        until = self.recorded.until
        stopping: CellWatch | None = None
        if until is not None and part_of(runs[0].cell.scenario).scored and planned:
            if self._watched(until, states, max(planned), ended=False).stopped:
                for run in runs:
                    run.on_stopped_by_rule()
            else:  # running cells report these again
                stopping = self._watched(until, states, max(planned), ended=True)
        return _CellGroup([run for run in runs if run.state in ("waiting", "part")], stopping)

    def _watched(
        self, until: StoppingRule, states: dict[CellRun, CellState], planned: int, *, ended: bool
    ) -> CellWatch:
        """Return a watch with the scores in the cells' journals; with `ended`, only in those of finished cells."""
        clusters = next((state.clusters for state in states.values() if state.planned == planned), None)
        stopping = CellWatch(until, [run.cell for run in states], planned, clusters)
        for run, state in states.items():
            if state.run is not None and (not ended or state.state == "done"):
                try:
                    stopping.read(run.cell, state.run)
                except JournalError as error:
                    run.apply(CellState("failed", run.total, error=error))
        return stopping

    async def _begin(self, unit: _CellGroup, group: anyio.abc.TaskGroup) -> None:
        """Start a unit's cells in parallel; return when all of their conversations have begun.

        An adaptive exam has few conversations at a time, so it does not keep later cells waiting.
        """
        self._loaded.begin()
        for run in unit.runs:
            run.on_begin()
            self._active.append(run)
            group.start_soon(self._run_cell, run, unit.stopping)
        for run in unit.runs:
            await run.begun.wait()
        for run in unit.runs:
            if run.runner is not None and getattr(run.cell.settings, "adaptive", None) is None:
                await run.runner.admitted.wait()

    async def _run_cell(self, run: CellRun, stopping: CellWatch | None) -> None:
        outcome: Outcome | None = None
        error: VivaError | None = None
        try:
            with run.opening:
                outcome = await self._launch(run, stopping)
        except VivaError as problem:
            error = problem
        except Exception as fault:  # an error in our own code must not affect other cells
            error = VivaError(f"{type(fault).__name__} at {user_frame(fault)}: {fault}")
        finally:
            run.on_end(outcome, error, stopped=stopping is not None and stopping.stopped)
            self._active.remove(run)
            with anyio.CancelScope(shield=True):
                await self._loaded.close_unused(self._in_use())
            self._changed.set()
            self._changed = anyio.Event()

    async def _launch(self, run: CellRun, stopping: CellWatch | None) -> Outcome:
        cell = run.cell
        remove_empty_shards(run.folder)
        launch = continued_run(
            cell.scenario, cell.settings, run.folder, self.clock, retry_failed=self.retry_failed, shard=run.shard
        )
        run.aggregate = empty_results(launch.folder)
        launch.events.listen(run.hear)
        if stopping is not None:
            launch.events.listen(stopping.listener(cell))

        def ready(runner: Any) -> None:
            run.on_started(runner)
            if stopping is not None:
                stopping.on_begin(runner)

        return await launch.run(ready, self._shared)


class _CellGroup:
    """Cells that begin together, and the rule that may stop them."""

    __slots__ = ("models", "runs", "stopping")

    def __init__(self, runs: list[CellRun], stopping: CellWatch | None) -> None:
        self.runs, self.stopping = runs, stopping
        self.models = frozenset(model for run in runs for model in run.cell.models)


def open_sweep(file: Path, out: Path | None = None, clock: Clock | None = None, **options: Any) -> Sweep:
    """Open the sweep that a file describes, in `out` (default: `runs/NAME`, NAME of the file). Nothing is written yet.

    If the folder already contains the sweep, finished cells stay as they are and the others continue. `options` are
    `retry_failed`, `concurrency` and `selection`, as in `Sweep`.
    """
    checked, contents = read_sweep_file(file)
    folder = file.resolve().parent
    cells = plan_cells(checked, folder, str(file))
    check_cost_bounds(cells, str(file))
    check_resources(checked.resources, (model for cell in cells for model in cell.models), str(file))
    recorded = RecordedSweep(folder, contents, checked.until, cells)
    return Sweep(recorded, checked, out or Path("runs") / file.stem, clock, **options)


def reopen_sweep(out: Path, clock: Clock | None = None, **options: Any) -> Sweep:
    """Open the sweep in a folder with the file contents of its last start.

    Raises:
        ConfigurationError: The folder has no sweep, or data that the file names have changed.
    """
    earlier = read_sweep(out)
    file_name = f"{out}/sweep.json"
    checked = check_sweep_file(earlier.contents, earlier.folder, file_name)
    # Defaults may have changed, so cells that have begun keep their recorded settings.
    begun = {cell.name: cell for cell in earlier.cells if (out / cell.name / "manifest.json").exists()}
    cells = [begun.get(cell.name, cell) for cell in plan_cells(checked, earlier.folder, file_name)]
    return Sweep(RecordedSweep(earlier.folder, earlier.contents, checked.until, cells), checked, out, clock, **options)

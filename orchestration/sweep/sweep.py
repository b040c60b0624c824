"""The sweep itself: cells run one after the other or side by side, in one event loop, on shared models and slots.

A cell begins when those before it have let all of their conversations begin, so slots stay taken to the end and what
waits costs nothing. A local model is opened for its first cell, kept for its last, and closed.
What never belongs here: what a cell is (``cells``), how one run works (``orchestration.launch``), display.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from viva.data.selection import CheckedDatasets
from viva.engine.backends.chaos import read_chaos
from viva.engine.backends.registry import BackendPool
from viva.engine.blame import place_of
from viva.engine.clock import Clock, RealClock
from viva.engine.computation import Computer
from viva.engine.descriptors import runs_side_by_side
from viva.engine.errors import JournalError, VivaError
from viva.engine.folder import RunFolder
from viva.engine.runner import Outcome
from viva.engine.slots import Slots
from viva.engine.stream import EventStream
from viva.engine.turnstile import Turnstile
from viva.scoring.sequential import Until

from ..launch import SharedResources, continued_run, empty_results
from .cell_state import CellState
from .cells import cells, check_bounds, groups
from .file import SweepFile, check_file, read_file
from .loaded_models import LoadedModels, weights_of
from .order import ordered
from .parts import part_of
from .portion import Portion
from .progress import CellRun
from .record import Recorded, read_sweep, write_sweep
from .resources import check_names
from .shards import forget_none
from .stopping import Stopping
from .sweep_folder import check_place

_MOST_OPEN = 64  # cells that are led to their end at once, files allowing; each has a journal and its thread


class Sweep:
    """One sweep about to go on. ``runs`` tells of every cell, before, while and after it runs; ``events`` are the news
    of models (retries), ``models`` their counters. ``interrupt`` and ``halt`` are
    a runner's, for all cells. ``portion``: what of the sweep this process holds. ``spread``: other machines hold it.
    """

    spread = False

    def __init__(
        self,
        recorded: Recorded,
        file: SweepFile,
        out: Path,
        clock: Clock | None = None,
        *,
        retry_failed: bool = False,
        concurrency: int | None = None,
        portion: Portion | None = None,
    ) -> None:
        self.out, self.recorded, self.portion = out, recorded, portion or Portion()
        self.clock = clock or RealClock()
        self.events = EventStream()
        self.runs = [CellRun(cell, out / cell.name) for cell in self.portion.chosen(recorded)]
        self._concurrency = concurrency or file.concurrency
        self._chaos = None if file.chaos is None else read_chaos(Path(file.chaos))
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
        """Whether it was asked to stop, and did so before its end."""
        return self._stopping and any(run.state in ("waiting", "part") for run in self.runs)

    @property
    def failures(self) -> int:
        """Failed conversations, in all cells."""
        return sum(run.failed for run in self.runs)

    def interrupt(self) -> None:
        """Finish the calls under way, begin nothing new."""
        self._stop("interrupt")

    def halt(self) -> None:
        """Stop now. What is in flight goes on when the sweep is started again."""
        self._stop("halt")

    def _stop(self, how: str) -> None:
        self._stopping = True
        for run in self._active:
            if run.runner is not None:
                getattr(run.runner, how)()
            else:  # its models are still being opened: nothing has begun
                run.opening.cancel()

    def model_counters(self) -> dict[str, dict[str, object]]:
        """Each model's counters by its name (``BackendPool.statistics``); empty before any is open."""
        return {} if self._shared is None else self._shared.pool.statistics()

    async def run(self, ready: Callable[[Sweep], None] | None = None) -> None:
        """Carry all cells to their end. ``ready`` is given the sweep at once (to interrupt or halt it).

        A cell that fails is a state of it (``runs``), no error; so is one that was interrupted.

        :raises ConfigurationError: another process is at this sweep, or something else lies in its folder.
        :raises JournalError: the folder cannot be written.
        """
        check_place(self.out)
        lock = RunFolder(self.out, {})
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if self.portion.whole:  # those who hold parts of it know nothing of each other
                lock.lock()
        except OSError as error:
            raise JournalError(f"{self.out}: cannot make the sweep's folder: {error}") from error
        try:
            write_sweep(self.out, self.recorded)
            most = min(_MOST_OPEN, len(self.runs))
            with CheckedDatasets().used(), runs_side_by_side(most) as self._most_open:
                if ready is not None:
                    ready(self)
                units = self._survey()
                async with BackendPool(
                    self.clock, self.events.publish, patience=self._patience, chaos=self._chaos
                ) as pool:
                    computer = Computer(self.clock)
                    self._shared = SharedResources(pool, Slots(self._concurrency), Turnstile(), computer)
                    self._loaded = LoadedModels(pool, [unit.models for unit in units], self._local_models)
                    try:
                        async with anyio.create_task_group() as group:
                            for unit in units:
                                await self._room()
                                if self._stopping:
                                    break
                                await self._begin(unit, group)
                    finally:
                        computer.close()
                    self.models = pool.statistics()
        finally:
            self.events.close()
            lock.unlock()

    async def _room(self) -> None:
        """Wait until the next unit can begin: not too many cells are open, nor too many local models."""
        while not self._stopping:
            changed = self._changed  # a cell may end while room is being made
            if len(self._active) < self._most_open and await self._loaded.make_room(self._in_use()):
                return
            await changed.wait()

    def _in_use(self) -> set[str]:
        return {model for run in self._active for model in run.cell.models}

    def survey(self, datasets: CheckedDatasets | None = None) -> None:
        """Find out how far every cell has come (``runs``), without opening a model.

        ``datasets``: those that need not be read through again.
        """
        with (datasets or CheckedDatasets()).used():
            self._survey()

    def _survey(self) -> list[_Unit]:
        """What is still to be done, in the order to do it."""
        by_name = {run.cell.name: run for run in self.runs}
        until = self.recorded.until
        decided = until is not None and until.decided
        units = []
        for group in groups([run.cell for run in self.runs], decided):
            runs = [by_name[cell.name] for cell in group]
            unit = self._unit(runs)
            if unit.runs:
                units.append(unit)
        return [units[place] for place in ordered([weights_of(unit.models) for unit in units])]

    def _unit(self, runs: list[CellRun]) -> _Unit:
        found = {run: self.portion.find(run, self.out, retry_failed=self.retry_failed) for run in runs}
        for run, one in found.items():
            run.take(one)
        planned = [run.total for run in runs if run.total is not None]
        until = self.recorded.until
        stopping: Stopping | None = None
        if until is not None and part_of(runs[0].cell.scenario).scored and planned:
            if self._watched(until, found, max(planned), ended=False).stopped:
                for run in runs:
                    run.stopped_by_rule()
            else:  # those that go on tell theirs again as they run
                stopping = self._watched(until, found, max(planned), ended=True)
        return _Unit([run for run in runs if run.state in ("waiting", "part")], stopping)

    def _watched(self, until: Until, found: dict[CellRun, CellState], planned: int, *, ended: bool) -> Stopping:
        """The watch over the cells ``found``, fed with what their journals hold, or only those at their end."""
        clusters = next((one.clusters for one in found.values() if one.planned == planned), None)
        stopping = Stopping(until, [run.cell for run in found], planned, clusters)
        for run, one in found.items():
            if one.run is not None and (not ended or one.state == "done"):
                try:
                    stopping.read(run.cell, one.run)
                except JournalError as error:
                    run.take(CellState("failed", run.total, error=error))
        return stopping

    async def _begin(self, unit: _Unit, group: anyio.abc.TaskGroup) -> None:
        """Have a unit's cells begin, side by side; returns when all of their conversations have begun."""
        self._loaded.begin()
        for run in unit.runs:
            run.begins()
            self._active.append(run)
            group.start_soon(self._carry, run, unit.stopping)
        for run in unit.runs:
            await run.begun.wait()
        for run in unit.runs:
            if run.runner is not None:
                await run.runner.admitted.wait()

    async def _carry(self, run: CellRun, stopping: Stopping | None) -> None:
        outcome: Outcome | None = None
        error: VivaError | None = None
        try:
            with run.opening:
                outcome = await self._launch(run, stopping)
        except VivaError as problem:
            error = problem
        except Exception as fault:  # in our own code: the other cells can do without this one
            error = VivaError(f"{type(fault).__name__} at {place_of(fault)}: {fault}")
        finally:
            run.ended(outcome, error, stopped=stopping is not None and stopping.stopped)
            self._active.remove(run)
            with anyio.CancelScope(shield=True):
                await self._loaded.leave(self._in_use())
            self._changed.set()
            self._changed = anyio.Event()

    async def _launch(self, run: CellRun, stopping: Stopping | None) -> Outcome:
        cell = run.cell
        forget_none(run.folder)
        launch = continued_run(
            cell.scenario, cell.settings, run.folder, self.clock, retry_failed=self.retry_failed, share=run.share
        )
        run.aggregate = empty_results(launch.folder)
        launch.events.listen(run.hear)
        if stopping is not None:
            launch.events.listen(stopping.listener(cell))

        def ready(runner: Any) -> None:
            run.carried_by(runner)
            if stopping is not None:
                stopping.begun(runner)

        return await launch.run(ready, self._shared)


class _Unit:
    """Cells that begin together, and the rule that may end them."""

    __slots__ = ("models", "runs", "stopping")

    def __init__(self, runs: list[CellRun], stopping: Stopping | None) -> None:
        self.runs, self.stopping = runs, stopping
        self.models = frozenset(model for run in runs for model in run.cell.models)


def planned_sweep(file: Path, out: Path | None = None, clock: Clock | None = None, **how: Any) -> Sweep:
    """The sweep that a file describes, in ``out`` (default: ``runs/NAME`` of the file's name); nothing is written yet.

    If the folder holds a sweep already, cells that are finished stay as they are and the others go on.

    :param how: ``retry_failed``, ``concurrency`` and ``portion``, as ``Sweep`` has them.
    :raises ConfigurationError: the file is wrong; the message names file and field.
    """
    checked, written = read_file(file)
    folder = file.resolve().parent
    found = cells(checked, folder, str(file))
    check_bounds(found, str(file))
    check_names(checked.resources, (model for cell in found for model in cell.models), str(file))
    recorded = Recorded(folder, written, checked.until, found)
    return Sweep(recorded, checked, out or Path("runs") / file.stem, clock, **how)


def resumed_sweep(out: Path, clock: Clock | None = None, **how: Any) -> Sweep:
    """Go on with the sweep in a folder, as its file was when it was last started.

    :raises ConfigurationError: there is no sweep here, or what its file names is no longer what it was.
    """
    before = read_sweep(out)
    shown = f"{out}/sweep.json"
    checked = check_file(before.written, before.folder, shown)
    # Cells that have begun as they were, not as they would follow from the file today: defaults may be others.
    begun = {cell.name: cell for cell in before.cells if (out / cell.name / "manifest.json").exists()}
    found = [begun.get(cell.name, cell) for cell in cells(checked, before.folder, shown)]
    return Sweep(Recorded(before.folder, before.written, checked.until, found), checked, out, clock, **how)

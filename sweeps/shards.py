"""Slice of a sweep that one process runs: the whole sweep, one cell, or a shard (every n-th conversation) of each cell.

Processes share only the folder: each has its own run folders with locks. `merge` joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.orchestration.prepared_run import Shard

from .cell_run import CellRun, CellState, read_cell_state
from .cells import CELLS, Cell, group_cells
from .recorded_sweep import RecordedSweep
from .sweep_file import part_of
from .sweep_folder import MERGE_RECORD, new_shard, shard_text, shards_of

_BUDGETS = ("max_tokens_total", "max_calls", "max_cost", "max_seconds")
_MOST_NAMED = 5  # cells listed in an error


class SweepSlice:
    """Slice of a sweep: one `cell` (folder, or number from 1 in the file's order), a `shard` of each cell, or both."""

    def __init__(self, cell: str | None = None, shard: Shard | None = None) -> None:
        self.cell, self.shard = cell, shard

    @property
    def is_whole(self) -> bool:
        """True if the slice is the whole sweep."""
        return self.cell is None and self.shard is None

    def select_cells(self, recorded: RecordedSweep) -> list[Cell]:
        """Return the cells that this process runs completely or as a shard.

        Raises:
            ConfigurationError: There is no such cell, or the cell cannot be run separately.
        """
        if self.is_whole:
            return recorded.cells
        cells = recorded.cells if self.cell is None else [find_cell(self.cell, recorded.cells)]
        if self.shard is not None:
            for cell in cells:
                self._check_shardable(cell, recorded)
        elif recorded.until is not None and recorded.until.decided:
            self._check_alone(cells[0], recorded.cells)
        return cells

    def find(self, run: CellRun, out: Path, *, retry_failed: bool) -> CellState:
        """Return the state of this process's slice of a cell; set folder and shard of `run`."""
        folder = out / run.cell.name
        run.folder, run.shard = folder, None
        existing = shards_of(folder)
        begun = (folder / "manifest.json").exists()
        if (
            self.shard is not None and begun and existing and (folder / MERGE_RECORD).exists()
        ):  # the cell is merged, perhaps with `partial`
            state = read_cell_state(run.cell, folder)  # after the merge, failures are not retried in shards
            return self._shard(run, folder, existing, retry_failed) if state.state == "part" else state
        if self.shard is None or begun:
            state = read_cell_state(run.cell, folder, retry_failed=retry_failed)
            if self.shard is not None and state.state == "part":
                return _failed_state(state, f"{folder} was started by one process: continue without --shard")
            if self.shard is None and existing and not begun:
                total = existing[0][0].total
                return _failed_state(
                    state,
                    f"{folder} is run in shards: continue with --shard 1/{total} to {total}/{total}, then join with "
                    f"`viva sweep merge {out}`",
                )
            return state
        return self._shard(run, folder, existing, retry_failed)

    def _shard(self, run: CellRun, folder: Path, existing: list[tuple[Shard, Path]], retry_failed: bool) -> CellState:
        assert self.shard is not None
        own = [
            (shard, path)
            for shard, path in existing
            if (shard.index, shard.total) == (self.shard.index, self.shard.total)
        ]
        run.shard, run.folder = own[0] if own else new_shard(folder, self.shard)
        state = read_cell_state(run.cell, run.folder, run.shard, retry_failed=retry_failed)
        if len(own) > 1:
            names = ", ".join(shard_text(shard) for shard, _ in own)
            return _failed_state(state, f"{folder}: this shard was started more than once: {names}; remove all but one")
        other_totals = sorted({shard.total for shard, _ in existing} - {self.shard.total})
        if other_totals:
            return _failed_state(
                state,
                f"{folder} is divided into {other_totals[0]} shards: continue with these or remove them",
            )
        return state

    def _check_shardable(self, cell: Cell, recorded: RecordedSweep) -> None:
        if recorded.until is not None and part_of(cell.scenario).scored:
            raise ConfigurationError(
                f"--shard: {cell.name}: the rule under `until` needs all conversations of a cell in order, but a shard "
                "sees only its own: remove `until` from the file, or run whole cells with --cell"
            )
        if getattr(cell.settings, "adaptive", None) is not None:
            raise ConfigurationError(
                f"--shard: {cell.name}: an adaptive exam chooses each item by the answers to the earlier ones, so it "
                "cannot be divided: run whole cells with --cell"
            )
        bounds = [name for name in _BUDGETS if getattr(cell.settings, name) is not None]
        if bounds:
            raise ConfigurationError(
                f"--shard: {cell.name}: {', '.join(bounds)}: a budget applies to the whole cell, but a shard does not "
                "know what the others have used: remove it from the file, or run whole cells with --cell"
            )

    @staticmethod
    def _check_alone(cell: Cell, cells: Sequence[Cell]) -> None:
        [group] = [group for group in group_cells(list(cells), True) if cell in group]
        if len(group) > 1:
            raise ConfigurationError(
                f"--cell: {cell.name}: `until: decided` compares its candidate with {len(group) - 1} others while they "
                "run, so separate processes cannot run them: remove `until`, or do not use --cell"
            )


def find_cell(name: str, cells: Sequence[Cell]) -> Cell:
    """Return the cell with this name (its folder, with or without `cells/`) or number from 1.

    Raises:
        ConfigurationError: There is no such cell.
    """
    if name.isascii() and name.isdigit() and len(name) < 9:
        if 1 <= int(name) <= len(cells):
            return cells[int(name) - 1]
        raise ConfigurationError(f"--cell {name}: this sweep has cells 1 to {len(cells)}")
    folder = name.strip("/").removeprefix(f"{CELLS}/")
    for cell in cells:
        if cell.name == f"{CELLS}/{folder}":
            return cell
    names = ", ".join(cell.name for cell in cells[:_MOST_NAMED]) + (", …" if len(cells) > _MOST_NAMED else "")
    raise ConfigurationError(f"--cell {name}: no such cell in this sweep; its {len(cells)} cells are {names}")


def _failed_state(state: CellState, message: str) -> CellState:
    return CellState("failed", state.planned, state.finished, state.failed, error=ConfigurationError(message))

"""What one process runs of a sweep: all of it, one cell, or a shard (every n-th conversation) of each cell.

Processes share nothing but the folder: each has run folders of its own, with their locks. ``merge`` joins them.
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
_MOST_NAMED = 5  # cells that an error names


class SweepSlice:
    """``cell`` names one cell, by its folder or its number from 1 in the file's order; ``share`` is a share of each."""

    def __init__(self, cell: str | None = None, share: Shard | None = None) -> None:
        self.cell, self.share = cell, share

    @property
    def whole(self) -> bool:
        """Whether it is the sweep as a whole."""
        return self.cell is None and self.share is None

    def chosen(self, recorded: RecordedSweep) -> list[Cell]:
        """The cells that this process is to hold, or hold a share of.

        :raises ConfigurationError: there is no such cell, or it cannot be held apart from the others.
        """
        if self.whole:
            return recorded.cells
        found = recorded.cells if self.cell is None else [find_cell(self.cell, recorded.cells)]
        if self.share is not None:
            for cell in found:
                self._check_share(cell, recorded)
        elif recorded.until is not None and recorded.until.decided:
            self._check_alone(found[0], recorded.cells)
        return found

    def find(self, run: CellRun, out: Path, *, retry_failed: bool) -> CellState:
        """How far this process's part of a cell has come; where it lies is written into ``run``."""
        place = out / run.cell.name
        run.folder, run.share = place, None
        apart = shards_of(place)
        begun = (place / "manifest.json").exists()
        if self.share is not None and begun and apart and (place / MERGE_RECORD).exists():  # merged, perhaps in part
            found = read_cell_state(run.cell, place)  # what has failed is not tried again in shards: it is merged
            return self._shard(run, place, apart, retry_failed) if found.state == "part" else found
        if self.share is None or begun:
            found = read_cell_state(run.cell, place, retry_failed=retry_failed)
            if self.share is not None and found.state == "part":
                return _failed_state(found, f"{place} was begun by one process: go on without --shard")
            if self.share is None and apart and not begun:
                of = apart[0][0].total
                return _failed_state(
                    found,
                    f"{place} is held in shards: go on with --shard 1/{of} to {of}/{of}, and join them with "
                    f"`viva merge {out}`",
                )
            return found
        return self._shard(run, place, apart, retry_failed)

    def _shard(self, run: CellRun, place: Path, apart: list[tuple[Shard, Path]], retry_failed: bool) -> CellState:
        assert self.share is not None
        mine = [
            (share, path) for share, path in apart if (share.index, share.total) == (self.share.index, self.share.total)
        ]
        run.share, run.folder = mine[0] if mine else new_shard(place, self.share)
        found = read_cell_state(run.cell, run.folder, run.share, retry_failed=retry_failed)
        if len(mine) > 1:
            named = ", ".join(shard_text(share) for share, _ in mine)
            return _failed_state(found, f"{place}: this shard was begun more than once: {named}; remove all but one")
        others = sorted({share.total for share, _ in apart} - {self.share.total})
        if others:
            return _failed_state(
                found, f"{place} holds shards of {others[0]}: go on with those, or remove them; they would overlap"
            )
        return found

    def _check_share(self, cell: Cell, recorded: RecordedSweep) -> None:
        if recorded.until is not None and part_of(cell.scenario).scored:
            raise ConfigurationError(
                f"--shard: {cell.name}: a rule (until) looks at all conversations of a cell in order, and a shard "
                "sees only its own: leave `until` out of the file, or hold whole cells with --cell"
            )
        bounds = [name for name in _BUDGETS if getattr(cell.settings, name) is not None]
        if bounds:
            raise ConfigurationError(
                f"--shard: {cell.name}: {', '.join(bounds)}: a budget is one of the whole cell, and shards do not know "
                "what the others have used: leave it out of the file, or hold whole cells with --cell"
            )

    @staticmethod
    def _check_alone(cell: Cell, cells: Sequence[Cell]) -> None:
        [group] = [group for group in group_cells(list(cells), True) if cell in group]
        if len(group) > 1:
            raise ConfigurationError(
                f"--cell: {cell.name}: `until: decided` compares its candidate with {len(group) - 1} others while they "
                "run, so they cannot be held by processes of their own: leave `until` out, or do not use --cell"
            )


def find_cell(name: str, cells: Sequence[Cell]) -> Cell:
    """The cell of this name (its folder, with or without ``cells/``) or number from 1.

    :raises ConfigurationError: there is none.
    """
    if name.isascii() and name.isdigit() and len(name) < 9:
        if 1 <= int(name) <= len(cells):
            return cells[int(name) - 1]
        raise ConfigurationError(f"--cell {name}: this sweep has cells 1 to {len(cells)}")
    wanted = name.strip("/").removeprefix(f"{CELLS}/")
    for cell in cells:
        if cell.name == f"{CELLS}/{wanted}":
            return cell
    named = ", ".join(cell.name for cell in cells[:_MOST_NAMED]) + (", …" if len(cells) > _MOST_NAMED else "")
    raise ConfigurationError(f"--cell {name}: no cell of this sweep; its {len(cells)} cells are {named}")


def _failed_state(found: CellState, why: str) -> CellState:
    return CellState("failed", found.planned, found.finished, found.failed, error=ConfigurationError(why))

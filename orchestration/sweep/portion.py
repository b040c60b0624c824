"""What of a sweep one process holds: all of it, one cell, or every n-th conversation of each cell.

Processes that hold parts share nothing but the folder: each has run folders of its own, with their locks.
What never belongs here: how cells run (``sweep``), and joining what was held apart (``merge``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from viva.engine.errors import ConfigurationError

from ..share import Share
from .cell_state import CellState, cell_state
from .cells import CELLS, Cell, groups
from .parts import part_of
from .progress import CellRun
from .record import Recorded
from .shards import RECORD, described, new_shard, shards_of

_BUDGETS = ("max_tokens_total", "max_calls", "max_cost", "max_seconds")
_NAMED = 5  # cells that an error names


class Portion:
    """``cell`` names one cell, by its folder or its number from 1 in the file's order; ``share`` is a share of each."""

    def __init__(self, cell: str | None = None, share: Share | None = None) -> None:
        self.cell, self.share = cell, share

    @property
    def whole(self) -> bool:
        """Whether it is the sweep as a whole."""
        return self.cell is None and self.share is None

    def chosen(self, recorded: Recorded) -> list[Cell]:
        """The cells that this process is to hold, or hold a share of.

        :raises ConfigurationError: there is no such cell, or it cannot be held apart from the others.
        """
        if self.whole:
            return recorded.cells
        found = recorded.cells if self.cell is None else [cell_called(self.cell, recorded.cells)]
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
        if self.share is not None and begun and apart and (place / RECORD).exists():  # merged, perhaps in part
            found = cell_state(run.cell, place)  # what has failed is not tried again in shards: it is merged
            return self._shard(run, place, apart, retry_failed) if found.state == "part" else found
        if self.share is None or begun:
            found = cell_state(run.cell, place, retry_failed=retry_failed)
            if self.share is not None and found.state == "part":
                return _refused(found, f"{place} was begun by one process: go on without --shard")
            if self.share is None and apart and not begun:
                of = apart[0][0].of
                return _refused(
                    found,
                    f"{place} is held in shards: go on with --shard 1/{of} to {of}/{of}, and join them with "
                    f"`viva merge {out}`",
                )
            return found
        return self._shard(run, place, apart, retry_failed)

    def _shard(self, run: CellRun, place: Path, apart: list[tuple[Share, Path]], retry_failed: bool) -> CellState:
        assert self.share is not None
        mine = [(share, path) for share, path in apart if (share.index, share.of) == (self.share.index, self.share.of)]
        run.share, run.folder = mine[0] if mine else new_shard(place, self.share)
        found = cell_state(run.cell, run.folder, run.share, retry_failed=retry_failed)
        if len(mine) > 1:
            named = ", ".join(described(share) for share, _ in mine)
            return _refused(found, f"{place}: this shard was begun more than once: {named}; remove all but one")
        others = sorted({share.of for share, _ in apart} - {self.share.of})
        if others:
            return _refused(
                found, f"{place} holds shards of {others[0]}: go on with those, or remove them; they would overlap"
            )
        return found

    def _check_share(self, cell: Cell, recorded: Recorded) -> None:
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
        [group] = [group for group in groups(list(cells), True) if cell in group]
        if len(group) > 1:
            raise ConfigurationError(
                f"--cell: {cell.name}: `until: decided` compares its candidate with {len(group) - 1} others while they "
                "run, so they cannot be held by processes of their own: leave `until` out, or do not use --cell"
            )


def cell_called(name: str, cells: Sequence[Cell]) -> Cell:
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
    named = ", ".join(cell.name for cell in cells[:_NAMED]) + (", …" if len(cells) > _NAMED else "")
    raise ConfigurationError(f"--cell {name}: no cell of this sweep; its {len(cells)} cells are {named}")


def _refused(found: CellState, why: str) -> CellState:
    return CellState("failed", found.planned, found.finished, found.failed, error=ConfigurationError(why))

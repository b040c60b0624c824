"""A sweep divided into parts, each the work of one task: a cell, a shard of a cell, or cells that are decided together.

What never belongs here: what a machine must have for a part (``demands``), and carrying parts out (``task``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from viva.engine.errors import ConfigurationError

from ..share import Share
from ..sweep.cells import Cell, groups
from ..sweep.portion import Portion
from ..sweep.record import Recorded
from ..sweep.shards import RECORD, shards_of


@dataclass(frozen=True, slots=True)
class Part:
    """``cells`` run in one process; ``share`` says which of their conversations, None for all."""

    cells: tuple[Cell, ...]
    share: Share | None = None

    @property
    def models(self) -> list[str]:
        """All models that the part needs."""
        return list(dict.fromkeys(model for cell in self.cells for model in cell.models))

    @property
    def id(self) -> str:
        """A name for files: the same for the same part of the same sweep, whoever makes it."""
        text = "\n".join([*(cell.name for cell in self.cells), str(self.share)])
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def __str__(self) -> str:
        more = f" and {len(self.cells) - 1} more" * (len(self.cells) > 1)
        return f"{self.cells[0].name}{more}" + (f", shard {self.share}" if self.share is not None else "")


def divided(recorded: Recorded, chosen: list[Cell], out: Path, shards: int) -> list[Part]:
    """The parts of the ``chosen`` cells: ``shards`` of each cell that can be held in shards, else the whole cell.

    A cell that has begun goes on as it began: in one piece, or in as many shards.
    """
    decided = recorded.until is not None and recorded.until.decided
    found: list[Part] = []
    for group in groups(chosen, decided):
        found += [Part(tuple(group))] if len(group) > 1 else _parts(recorded, group[0], out, shards)
    return found


def _parts(recorded: Recorded, cell: Cell, out: Path, shards: int) -> Iterator[Part]:
    place = out / cell.name
    apart = shards_of(place)
    begun = (place / "manifest.json").exists()
    if apart and (not begun or (place / RECORD).exists()):
        shards = apart[0][0].of
    elif begun or not _divisible(recorded, cell):
        shards = 1
    if shards == 1 and not apart:
        yield Part((cell,))
        return
    for index in range(1, shards + 1):
        yield Part((cell,), Share(index, shards))


def _divisible(recorded: Recorded, cell: Cell) -> bool:
    """Whether the cell means the same in shards: no rule and no budget looks at all of its conversations."""
    try:
        Portion(cell.name, Share(1, 2)).chosen(recorded)
    except ConfigurationError:
        return False
    return True

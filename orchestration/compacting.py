"""Compacting the journals of a run, or of every cell and shard of a sweep; what is running is refused.

What never belongs here: how a journal is made small (``engine.compaction``), output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.compaction import Compaction, compacted
from viva.engine.errors import VivaError
from viva.engine.folder import RunFolder

from .sweep.record import read_sweep
from .sweep.shards import shards_of
from .sweep.sweep_folder import is_sweep


@dataclass(slots=True)
class CompactedRun:
    """A run folder (``name``: below the sweep's, or as it was given) and what came of it; ``problem`` says why nothing
    did.
    """

    name: str
    compaction: Compaction | None = None
    problem: str = ""

    def to_record(self) -> dict[str, Any]:
        """Plain data; sizes in bytes."""
        one = self.compaction
        sizes = (
            {} if one is None else {"before": one.before, "after": one.after, "packed": one.packed, "busy": one.busy}
        )
        return {"name": self.name, **sizes} | ({"problem": self.problem} if self.problem else {})


def compact(folder: Path, *, dry_run: bool = False) -> list[CompactedRun]:
    """Compact a run, or all that has begun of a sweep; a run that cannot be compacted keeps no other from it.

    :raises ConfigurationError: the folder is neither a run nor a sweep; or it is, and is running.
    :raises JournalError: it is a run, and its journal is damaged or cannot be written.
    """
    if not is_sweep(folder):
        return [CompactedRun(str(folder), _compacted(folder, dry_run))]
    cells = [folder / cell.name for cell in read_sweep(folder).cells]
    places = [path for cell in cells for path in (cell, *(shard for _, shard in shards_of(cell)))]
    with _held(RunFolder(folder, {})):
        begun = [path for path in places if (path / "manifest.json").exists()]
        return [_tried(path, str(path.relative_to(folder)), dry_run) for path in begun]


def _tried(path: Path, name: str, dry_run: bool) -> CompactedRun:
    try:
        return CompactedRun(name, _compacted(path, dry_run))
    except VivaError as error:
        return CompactedRun(name, problem=str(error))


def _compacted(path: Path, dry_run: bool) -> Compaction:
    run = RunFolder.open(path)
    with _held(run):
        run.require_journal()
        return compacted(run.journal, dry_run=dry_run)


@contextmanager
def _held(folder: RunFolder) -> Iterator[None]:
    """Keep others from writing meanwhile.

    :raises ConfigurationError: somebody does.
    """
    folder.lock()
    try:
        yield
    finally:
        folder.unlock()

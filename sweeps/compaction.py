"""Compact the journals of a run, or of every cell and shard of a sweep; a running run is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.errors import VivaError
from viva.engine.journal_compaction import Compaction, compact_journal
from viva.engine.run_folder import RunFolder

from .recorded_sweep import read_sweep
from .sweep_folder import is_sweep, shards_of


@dataclass(slots=True)
class CompactionResult:
    """Run folder with the outcome of its compaction.

    `name` is relative to the sweep's folder; for a single run, as given. `problem` says why it was not compacted.
    """

    name: str
    compaction: Compaction | None = None
    problem: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return plain data; sizes in bytes."""
        compaction = self.compaction
        sizes = (
            {}
            if compaction is None
            else {
                "before": compaction.before,
                "after": compaction.after,
                "packed": compaction.packed,
                "busy": compaction.busy,
            }
        )
        return {"name": self.name, **sizes} | ({"problem": self.problem} if self.problem else {})


def compact(folder: Path, *, dry_run: bool = False) -> list[CompactionResult]:
    """Compact a run, or all runs that have begun in a sweep. If one run fails, the remaining runs are still compacted.

    Raises:
        ConfigurationError: The folder is neither a run nor a sweep, or its run or sweep is in progress.
        JournalError: The folder is a run, and its journal is damaged or cannot be written.
    """
    if not is_sweep(folder):
        return [CompactionResult(str(folder), _compact_run(folder, dry_run))]
    cells = [folder / cell.name for cell in read_sweep(folder).cells]
    places = [path for cell in cells for path in (cell, *(shard for _, shard in shards_of(cell)))]
    with _lock(RunFolder(folder, {})):
        begun = [path for path in places if (path / "manifest.json").exists()]
        return [_try_compact(path, str(path.relative_to(folder)), dry_run) for path in begun]


def _try_compact(path: Path, name: str, dry_run: bool) -> CompactionResult:
    try:
        return CompactionResult(name, _compact_run(path, dry_run))
    except VivaError as error:
        return CompactionResult(name, problem=str(error))


def _compact_run(path: Path, dry_run: bool) -> Compaction:
    run = RunFolder.open(path)
    with _lock(run):
        run.require_journal()
        return compact_journal(run.journal, dry_run=dry_run)


@contextmanager
def _lock(folder: RunFolder) -> Iterator[None]:
    """Lock a run folder for the duration of the context.

    Raises:
        ConfigurationError: Another process is writing to the folder.
    """
    folder.lock()
    try:
        yield
    finally:
        folder.unlock()

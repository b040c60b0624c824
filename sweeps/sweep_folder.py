"""Layout of a sweep's folder: recognition, and location of the shards of a cell.

A shard is in `CELL/shards/2-of-8.ATTEMPT`. This module has no slow imports, because commands call `is_sweep` for every
folder argument. Each shard has its own journal and lock, so that no two processes write to the same file: if two
processes start the same shard at once, there are two attempts.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.engine.files import is_leftover
from viva.orchestration.prepared_run import Shard

SWEEP_FILE = "sweep.json"


def is_sweep(folder: Path) -> bool:
    """Return True if a folder is a sweep's."""
    return (folder / SWEEP_FILE).is_file()


_MAX_CELL_DEPTH = 8  # levels of folders between a sweep and a cell


def resumable_folder(run: Path) -> Path:
    """Return the folder to resume for a run: the sweep's folder if the run is a cell, else the run's."""
    return next((folder for folder in run.absolute().parents[:_MAX_CELL_DEPTH] if is_sweep(folder)), run)


def _is_sweep_leftover(name: str) -> bool:
    """Return True if a killed process can leave a file of this name before a sweep has begun."""
    return name in ("lock", f"{SWEEP_FILE}.part") or is_leftover(name, SWEEP_FILE)


def check_sweep_folder(out: Path) -> None:
    """Check that a sweep can use this folder.

    Raises:
        ConfigurationError: It contains something else.
    """
    if (out / "manifest.json").exists():
        raise ConfigurationError(f"{out} contains a run, not a sweep; choose another folder with --out")
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is not a folder; choose another one with --out")
    if out.exists() and not is_sweep(out) and any(not _is_sweep_leftover(path.name) for path in out.iterdir()):
        raise ConfigurationError(f"{out} exists and is not a sweep; choose another folder with --out")


MERGE_RECORD = "merged.json"  # file in a cell's folder: the shards that were merged
_SHARDS_FOLDER = "shards"
_SHARD_NAME = re.compile(r"(\d{1,6})-of-(\d{1,6})\.([0-9a-f]{8})", re.ASCII)


def shards_of(cell: Path) -> list[tuple[Shard, Path]]:
    """Return the shards below a cell's folder in order, with their folders; attempts that never began are omitted."""
    shards = []
    folder = cell / _SHARDS_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _SHARD_NAME.fullmatch(path.name)
        if match is not None and (path / "manifest.json").exists():
            shards.append((Shard(int(match[1]), int(match[2]), match[3]), path))
    return sorted(shards, key=lambda entry: (entry[0].total, entry[0].index, entry[0].attempt))


def new_shard(cell: Path, shard: Shard) -> tuple[Shard, Path]:
    """Return (shard with a new attempt, its future folder); nothing is created yet."""
    shard = replace(shard, attempt=secrets.token_hex(4))
    return shard, cell / _SHARDS_FOLDER / f"{shard.index}-of-{shard.total}.{shard.attempt}"


def remove_empty_shards(cell: Path) -> None:
    """Remove the empty folder that remains if no shard could begin."""
    with suppress(OSError):
        (cell / _SHARDS_FOLDER).rmdir()


def shard_text(shard: Shard) -> str:
    """Return a shard's name for error messages."""
    return f"shard {shard} (attempt {shard.attempt})"

"""Layout of a sweep's folder: how it is recognized, and where the shards of a cell lie.

A shard lies in ``CELL/shards/2-of-8.ATTEMPT``. Light on purpose: commands ask ``is_sweep`` of every folder that
they are given. Each shard has a journal and a lock of its own, so no two processes ever write one file: where
two begin the same shard at once, there are two attempts.
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
    """Whether a folder is that of a sweep."""
    return (folder / SWEEP_FILE).is_file()


def _is_sweep_leftover(name: str) -> bool:
    """Whether a kill leaves such a file where nothing has begun."""
    return name in ("lock", f"{SWEEP_FILE}.part") or is_leftover(name, SWEEP_FILE)


def check_sweep_folder(out: Path) -> None:
    """See that a sweep can lie in this folder.

    :raises ConfigurationError: something else does.
    """
    if (out / "manifest.json").exists():
        raise ConfigurationError(f"{out} holds a run, not a sweep; name another folder with --out")
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is not a folder; name another one with --out")
    if out.exists() and not is_sweep(out) and any(not _is_sweep_leftover(path.name) for path in out.iterdir()):
        raise ConfigurationError(f"{out} exists and is not the folder of a sweep; name another folder with --out")


MERGE_RECORD = "merged.json"  # in a cell's folder: what its run was merged from
_SHARDS_FOLDER = "shards"
_SHARD_NAME = re.compile(r"(\d{1,6})-of-(\d{1,6})\.([0-9a-f]{8})", re.ASCII)


def shards_of(cell: Path) -> list[tuple[Shard, Path]]:
    """The shards below a cell's folder by place, with the folder of each; attempts that never began are left out."""
    shards = []
    folder = cell / _SHARDS_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _SHARD_NAME.fullmatch(path.name)
        if match is not None and (path / "manifest.json").exists():
            shards.append((Shard(int(match[1]), int(match[2]), match[3]), path))
    return sorted(shards, key=lambda entry: (entry[0].total, entry[0].index, entry[0].attempt))


def new_shard(cell: Path, shard: Shard) -> tuple[Shard, Path]:
    """A new attempt at a share, and the folder that it will have; nothing is made yet."""
    shard = replace(shard, attempt=secrets.token_hex(4))
    return shard, cell / _SHARDS_FOLDER / f"{shard.index}-of-{shard.total}.{shard.attempt}"


def remove_empty_shards(cell: Path) -> None:
    """Take away the empty folder that shards leave which could not begin; one that holds anything stays."""
    with suppress(OSError):
        (cell / _SHARDS_FOLDER).rmdir()


def shard_text(shard: Shard) -> str:
    """A shard as errors name it."""
    return f"shard {shard} (attempt {shard.attempt})"

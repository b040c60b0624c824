"""Where the shards of a cell lie: a run folder of its own for each attempt, below the folder of the cell.

``CELL/shards/2-of-8.ATTEMPT``. Each has its own journal and lock, so no two processes ever write one file: where two
begin the same shard at the same moment, or on machines that do not see each other's locks, there are two attempts.
What never belongs here: running shards (``portion``), and joining them (``merge``).
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..share import Share

RECORD = "merged.json"  # in a cell's folder: what its run was merged from
_FOLDER = "shards"
_NAME = re.compile(r"(\d{1,6})-of-(\d{1,6})\.([0-9a-f]{8})", re.ASCII)


def shards_of(cell: Path) -> list[tuple[Share, Path]]:
    """The shards below a cell's folder by place, with the folder of each; attempts that never began are left out."""
    found = []
    below = cell / _FOLDER
    for path in sorted(below.iterdir()) if below.is_dir() else []:
        named = _NAME.fullmatch(path.name)
        if named is not None and (path / "manifest.json").exists():
            found.append((Share(int(named[1]), int(named[2]), named[3]), path))
    return sorted(found, key=lambda one: (one[0].of, one[0].index, one[0].attempt))


def new_shard(cell: Path, share: Share) -> tuple[Share, Path]:
    """A new attempt at a share, and the folder that it will have; nothing is made yet."""
    share = replace(share, attempt=secrets.token_hex(4))
    return share, cell / _FOLDER / f"{share.index}-of-{share.of}.{share.attempt}"


def forget_none(cell: Path) -> None:
    """Take away the empty folder that shards leave which could not begin; one that holds anything stays."""
    with suppress(OSError):
        (cell / _FOLDER).rmdir()


def described(share: Share) -> str:
    """A shard as errors name it."""
    return f"shard {share} (attempt {share.attempt})"

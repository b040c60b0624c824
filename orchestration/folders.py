"""Default name of a new run folder. This module has no slow imports, because commands import it at their start."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path


def fresh_folder(name: str, folder: Path = Path("runs"), reserved: Collection[str] = ()) -> Path:
    """Return a new path in `folder`, named after the scenario and the time, that is not in `reserved`."""
    base = folder / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, count = base, 1
    while path.exists() or path.name in reserved:
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path

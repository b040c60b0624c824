"""Where a new run goes when nobody has named a folder.

What never belongs here: what lies in a run folder (``engine.folder``).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path


def fresh_folder(name: str, within: Path = Path("runs")) -> Path:
    """A run folder that does not exist yet, named for what is run and when."""
    base = within / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path

"""What an import has made.

What never belongs here: making it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Imported:
    """The ``files`` or the run folder that were made, how many ``records`` (conversations, dialogs) they hold, and what
    a person should know of it, a sentence each. ``run``: it is a run folder.
    """

    files: list[Path] = field(default_factory=list)
    records: int = 0
    notes: list[str] = field(default_factory=list)
    run: bool = False

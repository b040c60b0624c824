"""What an export has written.

What never belongs here: writing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Exported:
    """``files`` that were written, how many ``records`` (conversations, lines or samples) they hold, and what a person
    should know of it, a sentence each.
    """

    files: list[Path] = field(default_factory=list)
    records: int = 0
    notes: list[str] = field(default_factory=list)

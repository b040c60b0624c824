"""What installed packages add: scenarios and kinds of models, by entry point.

What never belongs here: what an entry point must hold; who asks for it checks that.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, sorted. Read once: looking through installed packages takes milliseconds."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}

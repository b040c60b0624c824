"""Which items belong together, where they are taken cluster by cluster.

What never belongs here: statistics (``sequential``, ``clusters``) and reading items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Clusters:
    """Items that come cluster by cluster: how many each cluster has, in their order, and the field they share.

    Clusters have to come in random order, whole.
    """

    field: str
    sizes: tuple[int, ...]

    def to_record(self) -> dict[str, Any]:
        """Plain data; ``from_record`` reads it back."""
        return {"field": self.field, "sizes": list(self.sizes)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Clusters:
        """:raises KeyError, TypeError, ValueError: it is not one."""
        return cls(str(record["field"]), tuple(map(int, record["sizes"])))

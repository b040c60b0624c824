"""Items by number instead of by name, so that columns of a hundred thousand of them are small.

What never belongs here: what an item is.
"""

from __future__ import annotations

from collections.abc import Mapping

from viva.reports.figures import Codes

_CLUSTER = "\x1fcluster"  # behind the name of a cluster, so that no item has the same


class ItemNumbers:
    """Items of one dataset, and their clusters, by number, in the order in which they were met: columns hold the
    numbers.
    """

    __slots__ = ("_numbers", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, a new one if it is new."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def cluster(self, name: str, cluster: str) -> int:
        """The number of the cluster of an item: the item's own where ``cluster`` is empty."""
        return self.number(f"{cluster}{_CLUSTER}" if cluster else name)


class ItemCatalogue:
    """The items of all datasets numbered through, once all cells are read; ``labels`` are DATASET/ITEM."""

    __slots__ = ("_before", "labels")

    def __init__(self, items: Mapping[str, ItemNumbers]) -> None:
        self.labels: list[str] = []
        self._before: dict[str, int] = {}
        for dataset, numbers in items.items():
            self._before[dataset] = len(self.labels)
            self.labels += [f"{dataset}/{name}" for name in numbers.names]

    def codes(self, dataset: str, items: Codes) -> Codes:
        """The numbers here of items that ``ItemNumbers`` of their dataset numbered."""
        return self._before[dataset] + items

    def named(self, codes: Codes) -> list[str]:
        """The labels of codes."""
        labels = self.labels
        return [labels[code] for code in codes.tolist()]

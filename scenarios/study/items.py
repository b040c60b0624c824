"""Items by number instead of by name, so that columns of a hundred thousand of them are small.

What never belongs here: what an item is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
    """The items of all datasets numbered through, once all cells are read; ``labels`` are DATASET/ITEM.

    An item is in one cluster, whichever run says so (``join``).
    """

    __slots__ = ("_before", "_joined", "labels")

    def __init__(self, items: Mapping[str, ItemNumbers]) -> None:
        self.labels: list[str] = []
        self._before: dict[str, int] = {}
        self._joined: dict[int, int] = {}
        for dataset, numbers in items.items():
            self._before[dataset] = len(self.labels)
            self.labels += [f"{dataset}/{name}" for name in numbers.names]

    def codes(self, dataset: str, items: Codes) -> Codes:
        """The numbers here of items that ``ItemNumbers`` of their dataset numbered."""
        return self._before[dataset] + items

    def join(self, items: Codes, clusters: Codes) -> None:
        """Take in what a run says of its items' clusters, both by their numbers here."""
        pairs = np.unique(np.stack((items, clusters)), axis=1).T
        for item, cluster in pairs[pairs[:, 0] != pairs[:, 1]].tolist():
            one, other = self._root(item), self._root(cluster)
            if one != other:
                self._joined[one] = other

    def clusters(self, codes: Codes) -> Codes:
        """The clusters of items, or of clusters, over all runs."""
        if not self._joined:
            return codes
        known, places = np.unique(codes, return_inverse=True)
        return np.array([self._root(code) for code in known.tolist()], dtype=np.int64)[places]

    def _root(self, code: int) -> int:
        while (joined := self._joined.get(code)) is not None:
            code = joined
        return code

    def named(self, codes: Codes) -> list[str]:
        """The labels of codes."""
        labels = self.labels
        return [labels[code] for code in codes.tolist()]

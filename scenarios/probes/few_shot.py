"""Few-shot examples: sampled once by the seed, the same for all items of a subject, never the item itself."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from viva.data.dataset import Dataset, open_dataset
from viva.data.items import Item
from viva.data.sources import development_source
from viva.engine import seeds
from viva.engine.errors import ConfigurationError


def open_examples(dataset: str, shots_from: str | None, *, without: str, skip_bad: bool) -> Dataset:
    """Open the source of examples: the named one, or the dataset's dev split.

    `without` is the advice in the error if neither is found.
    """
    source = shots_from or development_source(dataset)
    if source is None:
        raise ConfigurationError(
            f"shots: no dev split found beside {dataset}; name one with --shots-from, or {without}"
        )
    return open_dataset(source, skip_bad=skip_bad)


class Shots:
    """Examples for items, `count` each, preferably of the item's own subject.

    `by_subject` has the sampled examples by subject, and all of them under "".
    """

    def __init__(self, count: int, by_subject: dict[str, list[Item]]) -> None:
        self.count = count
        self._by_subject = by_subject

    @classmethod
    def sample(cls, source: Dataset, count: int, seed: int) -> Shots:
        """Sample examples from a source by the seed.

        Raises:
            ConfigurationError: The source has fewer items than requested.
        """
        # Twice as many as needed and one more: some may be of the item's own subject, or the item itself.
        limit = 2 * count + 1
        ranked: dict[str, list[tuple[float, int, Item]]] = {}
        for position, item in enumerate(source):
            rank = (-seeds.uniform(seed, "shot", item.id), -position, item)
            for group in {"", item.subject}:
                best = ranked.setdefault(group, [])
                if len(best) < limit:
                    heapq.heappush(best, rank)
                else:
                    heapq.heappushpop(best, rank)
        by_subject = {
            group: [item for _, _, item in sorted(best, key=lambda entry: entry[:2], reverse=True)]
            for group, best in sorted(ranked.items())
        }
        if len(by_subject[""]) < count:
            raise ConfigurationError(
                f"shots: {count} requested, {source.name} has {len(by_subject[''])} items; ask for fewer --shots"
            )
        return cls(count, by_subject)

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a manifest: each example once, and the examples of each subject."""
        places: dict[str, int] = {}
        items: list[dict[str, Any]] = []
        groups: dict[str, list[int]] = {}
        for group, shots in self._by_subject.items():
            for item in shots:
                if item.id not in places:
                    places[item.id] = len(items)
                    items.append(item.to_record())
            groups[group] = [places[item.id] for item in shots]
        return {"count": self.count, "items": items, "groups": groups}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Shots:
        items = [Item(**item) for item in record["items"]]
        return cls(
            record["count"], {group: [items[at] for at in positions] for group, positions in record["groups"].items()}
        )

    def check(self, items: Iterable[Item]) -> None:
        """Raise `ConfigurationError` if an item has too few examples besides itself."""
        if len(self._by_subject[""]) <= 2 * self.count:  # otherwise every item has enough
            for item in items:
                self.for_item(item)

    def for_item(self, item: Item) -> list[Item]:
        """Return the examples for an item: of its own subject, preceded by others if these are too few.

        Raises:
            ConfigurationError: There are too few besides the item itself.
        """
        own = self._excluding(item.subject, item)[: self.count]
        if len(own) < self.count and item.subject:
            own_ids = {shot.id for shot in own}
            more = [shot for shot in self._excluding("", item) if shot.id not in own_ids]
            own = more[: self.count - len(own)] + own
        if len(own) < self.count:
            raise ConfigurationError(f"shots: too few examples besides item {item.id} itself; ask for fewer --shots")
        return own

    def _excluding(self, group: str, item: Item) -> list[Item]:
        return [
            shot for shot in self._by_subject.get(group, ()) if shot.id != item.id and shot.question != item.question
        ]

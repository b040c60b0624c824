"""Few-shot examples: drawn once by the seed, the same before every item of a subject, and never the item itself.

What never belongs here: wording (a pack's business).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from viva.data.items import Item
from viva.data.selection import Dataset, open_dataset
from viva.data.sources import dev_source
from viva.engine import seeds
from viva.engine.errors import ConfigurationError


def open_examples(dataset: str, shots_from: str | None, *, without: str, skip_bad: bool) -> Dataset:
    """Where examples are drawn from: the source named, or the dataset's dev split.

    ``without`` says what to write where there is none.

    :raises ConfigurationError: no source is named and no dev split is found.
    """
    source = shots_from or dev_source(dataset)
    if source is None:
        raise ConfigurationError(
            f"shots: no dev split was found beside {dataset}; name one with --shots-from, or {without}"
        )
    return open_dataset(source, skip_bad=skip_bad)


class Shots:
    """``count`` examples an item, drawn from ``source``, those of the item's own subject first."""

    def __init__(self, source: Dataset, count: int, seed: int) -> None:
        """:raises ConfigurationError: the source has fewer items than are wanted."""
        self.count = count
        # Of all subjects twice as many as wanted and one more: some may be the item's own, or the item itself.
        most = 2 * count + 1
        ranked: dict[str, list[tuple[float, int, Item]]] = {}
        for place, item in enumerate(source.items()):
            rank = (-seeds.uniform(seed, "shot", item.id), -place, item)
            for group in {"", item.subject}:
                best = ranked.setdefault(group, [])
                if len(best) < most:
                    heapq.heappush(best, rank)
                else:
                    heapq.heappushpop(best, rank)
        self._drawn = {
            group: [item for _, _, item in sorted(best, key=lambda entry: entry[:2], reverse=True)]
            for group, best in ranked.items()
        }
        if len(self._drawn[""]) < count:
            raise ConfigurationError(
                f"shots: {count} are wanted, {source.name} has {len(self._drawn[''])} items; ask for fewer --shots"
            )

    def check(self, items: Iterable[Item]) -> None:
        """Find out before the run whether every item has examples enough besides itself.

        :raises ConfigurationError: one has not.
        """
        if len(self._drawn[""]) <= 2 * self.count:  # else there are more than any item can rule out
            for item in items:
                self.of(item)

    def of(self, item: Item) -> list[Item]:
        """The examples that stand before an item: of its own subject, and before them of any where that has too few.

        :raises ConfigurationError: there are too few besides the item itself.
        """
        own = self._others(item.subject, item)[: self.count]
        if len(own) < self.count and item.subject:
            mine = {shot.id for shot in own}
            more = [shot for shot in self._others("", item) if shot.id not in mine]
            own = more[: self.count - len(own)] + own
        if len(own) < self.count:
            raise ConfigurationError(f"shots: too few examples besides item {item.id} itself; ask for fewer --shots")
        return own

    def _others(self, group: str, item: Item) -> list[Item]:
        return [shot for shot in self._drawn.get(group, ()) if shot.id != item.id and shot.question != item.question]

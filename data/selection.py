"""A dataset as a scenario uses it: checked once from end to end, then streamed; of it, the chosen items.

The first pass reads every line, so that whatever is wrong is said before the first model call; it keeps one number per
chosen item, and a hash of each item, by which later passes know that the file is still the same. Sampling ranks items
by a hash of seed and id: the choice does not change when the file is reordered, and changes little when it grows.

What never belongs here: file forms, and holding items (but where they are wanted in the seed's order).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from viva.engine import seeds
from viva.engine.errors import DatasetError
from viva.scoring.item_clusters import Clusters

from .idlist import IdList, read_ids
from .items import Item
from .passes import Pass
from .sources import Source, open_source
from .unchanged import FirstReading

Cluster = Literal["subject", "passage"]  # fields of an item by which items can be grouped


@dataclass(slots=True)
class Dataset:
    """A checked benchmark. ``digest`` identifies its content.

    ``total`` counts its items, ``repeats`` the exact repeats that the form drops, ``skipped`` the lines that are not
    items; ``bad`` holds the errors of the first of those. ``notes``: what a person should know of it before a run, a
    sentence each. ``ids`` tells of the list that items were chosen by, and ``matched`` how many are on it. ``clusters``
    are the chosen items' by the field that groups them, in the order in which they are given; None where items are
    given one by one. ``free`` counts the items without choices.
    """

    name: str
    form: str
    digest: str
    total: int
    repeats: int
    skipped: int
    bad: list[DatasetError]
    notes: list[str]
    ids: IdList | None
    matched: int
    chosen: frozenset[int] | None
    source: Source
    _skip_bad: bool
    _first: FirstReading
    _order: int | None = None
    clusters: Clusters | None = None
    free: int = 0

    def __len__(self) -> int:
        return self.total if self.chosen is None else len(self.chosen)

    def __iter__(self) -> Iterator[Item]:
        """The chosen items in the source's order, read as they are taken; or, all held at once, in the seed's.

        :raises DatasetError: the source is no longer what it was when it was checked.
        """
        if self._order is None:
            yield from self._read()
        else:
            field = None if self.clusters is None else self.clusters.field
            ranked = []
            for place, item in enumerate(self._read()):
                group = ("", 0.0) if field is None else _group(self._order, item, field)
                ranked.append((group[1], group[0], _rank(self._order, item), place, item))
            ranked.sort(key=lambda entry: entry[:4])
            for *_, item in ranked:
                yield item

    def _read(self) -> Iterator[Item]:
        reading = Pass(self.source, "lines" if self._skip_bad else "nothing")
        found = 0
        for position, item in enumerate(reading):
            if self.chosen is None or position in self.chosen:
                self._first.check(position, _content(item), item.id, reading.path, reading.line)
                found += 1
                yield item
        self._first.check_end(found, len(self), self.source.path)

    def to_record(self) -> dict[str, Any]:
        """What a run's manifest says of its dataset; ``ids`` only where a list was given, ``free`` only where items
        have no choices, and of a published benchmark its name and licence.
        """
        record: dict[str, Any] = {
            "name": self.name,
            "form": self.form,
            "digest": self.digest,
            "items": self.total,
            "chosen": len(self),
            "skipped": self.skipped,
            "repeats": self.repeats,
        }
        if self.ids is not None:
            record["ids"] = {"digest": self.ids.digest, "listed": len(self.ids.ids), "matched": self.matched}
        if self.clusters is not None:
            record["clusters"] = self.clusters.to_record()
        if self.free:
            record["free"] = self.free
        if (published := self.source.published) is not None:
            record |= {"benchmark": published.name, "licence": published.licence}
            record |= {"revision": self.source.revision} if self.source.revision else {}
        return record


def open_dataset(
    source: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    ids: str | None = None,
    shuffled: bool = False,
    cluster: str | None = None,
) -> Dataset:
    """Open a source (see ``sources``), check all of it, and choose items.

    :param limit: how many are drawn by ``seed``; all if None.
    :param skip_bad: pass over lines that are not items, and count them.
    :param ids: a file of item ids; only items on that list are drawn from.
    :param shuffled: give the items in an order that follows from ``seed`` and their ids. Of fewer items (``limit``) it
        gives the beginning of the same order.
    :param cluster: the items' field (``subject`` or ``passage``) by which they are given group by group, groups and the
        items of each in an order that follows from ``seed``. An item without the field is a group of its own. Fewer
        items (``limit``) are drawn as without it, so they are of as many groups.
    :raises DatasetError: the source or a line is wrong, nothing is left, no item is on the list, or the chosen items
        have no ``cluster`` field, or only one of it.
    :raises ConfigurationError: the form is unknown, or a package is missing.
    """
    key = (source, limit, seed, skip_bad, ids, shuffled, cluster)
    held = _in_use.get()
    return _opened(*key) if held is None else held.opened(key)


class CheckedDatasets:
    """Datasets that were checked already, for many runs on the same ones; whoever runs them holds this object.

    Within ``used``, a dataset that is opened again in the same way is not read through again. A file that changes
    meanwhile ends the runs that come to the place.
    """

    def __init__(self) -> None:
        self._checked: dict[tuple[Any, ...], Dataset] = {}

    @contextmanager
    def used(self) -> Iterator[CheckedDatasets]:
        """Have ``open_dataset`` look here, in this task or thread and in tasks that begin within; nowhere else."""
        token = _in_use.set(self)
        try:
            yield self
        finally:
            _in_use.reset(token)

    def opened(self, key: tuple[Any, ...]) -> Dataset:
        """The dataset opened with these arguments, read through if that was not done yet."""
        if key not in self._checked:
            self._checked[key] = _opened(*key)
        return self._checked[key]


_in_use: ContextVar[CheckedDatasets | None] = ContextVar("datasets checked already", default=None)


def _opened(
    source: str, limit: int | None, seed: int, skip_bad: bool, ids: str | None, shuffled: bool, cluster: str | None
) -> Dataset:
    listed = read_ids(Path(ids)) if ids is not None else None
    found = open_source(source)
    reading = Pass(found, "lines" if skip_bad else "nothing")
    first = FirstReading()
    total = matched = free = 0
    kept: list[int] = []
    ranked: list[tuple[float, int]] = []
    groups: dict[int, tuple[str, float]] = {}
    for position, item in enumerate(reading):
        total += 1
        free += item.free
        first.add(_content(item))
        if listed is not None and item.id not in listed.ids:
            continue
        matched += 1
        if cluster is not None:
            groups[position] = _group(seed, item, cluster)
        if limit is None:
            if listed is not None:
                kept.append(position)
            continue
        rank = (-_rank(seed, item), -position)
        if len(ranked) < limit:
            heapq.heappush(ranked, rank)
        else:
            heapq.heappushpop(ranked, rank)
    if total == 0:
        bad = f" ({reading.bad_count} bad lines)" if reading.bad_count else ""
        raise DatasetError(f"holds no usable item{bad}", path=found.path)
    if listed is not None and matched == 0:
        message = f"none of its {len(listed.ids):,} ids is among the {total:,} items of {source}"
        raise DatasetError(message, path=listed.path)
    if limit is not None:
        kept = [-position for _, position in ranked]
    clusters = None
    if cluster is not None:
        clusters = _clusters(cluster, [groups[place] for place in (kept or groups)], found.path)
    chosen = None if len(kept) == total or (limit is None and listed is None) else frozenset(kept)
    return Dataset(
        name=found.name,
        form=found.form.name,
        digest=found.digest(),
        total=total,
        repeats=reading.repeat_count,
        skipped=reading.bad_count,
        bad=reading.bad,
        notes=_notes(source, reading),
        ids=listed,
        matched=matched,
        chosen=chosen,
        source=found,
        _skip_bad=skip_bad,
        _first=first,
        _order=seed if shuffled or cluster is not None else None,
        clusters=clusters,
        free=free,
    )


def _notes(source: str, reading: Pass) -> list[str]:
    notes = []
    if reading.lettered_count:
        many = f"the choices of {reading.lettered_count:,} items of {source} begin with their letters"
        notes.append(f"{many}; these were taken off, for prompts add their own")
    if not reading.equal_count:
        return notes
    many = f"{reading.equal_count:,} items of {source} have equal choices"
    wrong = f"in {reading.equal_answers:,} of them the right answer is one of the equals"
    return [*notes, f"{many}, {wrong}; see them with: viva data check {source}"]


def _content(item: Item) -> tuple[str, str, list[str], int, str, str, str]:
    return (item.id, item.question, item.choices, item.answer, item.subject, item.passage, item.reference)


def _group(seed: int, item: Item, field: str) -> tuple[str, float]:
    """The group of an item, and its place in the order that the seed gives."""
    named = str(getattr(item, field))
    name = f"{field} {named}" if named else f"item {item.id}"
    return name, seeds.uniform(seed, "cluster", name)


def _clusters(field: str, groups: list[tuple[str, float]], path: str) -> Clusters:
    sizes = Counter(groups)
    named = sum(name.startswith(f"{field} ") for name, _ in groups)
    if not named:
        raise DatasetError(f"no item has a {field}; cluster by another field, or by none", path=path)
    if len(sizes) == 1:
        raise DatasetError(f"all items have one {field}; clusters need several", path=path)
    return Clusters(field, tuple(sizes[group] for group in sorted(sizes, key=lambda group: (group[1], group[0]))))


def _rank(seed: int, item: Item) -> float:
    return seeds.uniform(seed, "sample", item.id)

"""Datasets, which are checked once from end to end and then streamed; and selection of the items of a run.

The first pass reads every line, so that errors are reported before the first model call. It keeps one number per chosen
item, and a hash of each item, so that later passes notice if the file has changed. Ids to choose come from a file:
one per line, a JSON list, or a JSON object such as the validated items of Yu et al. 2024.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from viva.engine import seeds
from viva.engine.errors import DatasetError
from viva.scoring.aggregates import ItemClusters

from .forms import RecordLocation
from .items import (
    CaseInsensitiveRecord,
    FieldError,
    Item,
    Raw,
    choice_letter,
    duplicate_choices,
    strip_letters,
)
from .record_files import BadLine, Record, misspelt_field_hint, read_lines, require_regular_file
from .sources import Source, SourcePart, open_source

# Names under which a JSON object may have the list; the first that exists counts. The file of Yu et al. also has
# `invalid_uuids`.
ID_LIST_KEYS = ("ids", "valid_uuids")
_MAX_ID_FILE = 2**28


@dataclass(frozen=True, slots=True)
class IdList:
    """The ids in a file; `digest` identifies its content."""

    path: str
    ids: frozenset[str]
    digest: str


def read_ids(path: Path) -> IdList:
    """Read a list of item ids. Ids that no dataset has are no error: a list may serve several benchmarks.

    Raises:
        DatasetError: The file cannot be read, is no such list, or is empty.
    """
    require_regular_file(path)
    try:
        if path.stat().st_size > _MAX_ID_FILE:
            raise DatasetError(f"has more than {_MAX_ID_FILE:,} bytes: too many for a list of ids", path=str(path))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            file.seek(0)
            is_json = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    ids = frozenset(_ids_from_json(path) if is_json else _ids_from_lines(path))
    if not ids:
        raise DatasetError("lists no id", path=str(path))
    return IdList(str(path), ids, digest)


def _ids_from_lines(path: Path) -> Iterable[str]:
    for number, line in read_lines(path):
        if isinstance(line, BadLine):
            raise DatasetError(line.message, path=str(path), line=number)
        if line.strip():
            yield line.strip()


def _ids_from_json(path: Path) -> Iterable[str]:
    try:
        content: Any = orjson.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"not valid JSON: {error.msg}", path=str(path), line=error.lineno) from None
    field = None
    if isinstance(content, dict):
        field = next((name for name in ID_LIST_KEYS if name in content), None)
        if field is None:
            message = (
                f"expected the ids under one of {', '.join(ID_LIST_KEYS)}; found {', '.join(map(str, content))[:120]}"
            )
            raise DatasetError(message, path=str(path))
        content = content[field]
    if not isinstance(content, list):
        raise DatasetError(f"expected a list of ids, found {type(content).__name__}", path=str(path), field=field)
    for value in content:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise DatasetError(f"expected ids as text, found {str(value)[:60]!r}", path=str(path), field=field)
        yield str(value)


_CHANGED_ADVICE = "restore the file and continue with viva resume, or start a new run"


class ChangeDetector:
    """Eight bytes of hash per record, in the order of the first pass."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests = array("Q")

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, record: Any) -> None:
        """Add the next record: plain data, identified by its `repr`."""
        self._digests.append(_record_digest(record))

    def check(self, position: int, record: Any, id_: str, path: str, line: int | None = None) -> None:
        """Raise DatasetError unless a record of a later pass equals the one at the same position in the first."""
        if position >= len(self._digests) or self._digests[position] != _record_digest(record):
            problem = f"changed since the run began: '{id_}' differs from the item that was checked"
            raise DatasetError(f"{problem}; {_CHANGED_ADVICE}", path=path, line=line)

    def check_end(self, count: int, expected: int, path: str) -> None:
        """Raise `DatasetError` if a later pass returned fewer records than the first."""
        if count < expected:
            problem = f"changed since the run began: {expected - count} of its {expected} records are no longer there"
            raise DatasetError(f"{problem}; {_CHANGED_ADVICE}", path=path)


def _record_digest(record: Any) -> int:
    text = repr(record).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


MAX_KEPT_ERRORS = 20
_BAD_LINE_ADVICE = "fix the line, or skip such lines with --skip-bad-items"
_LINES = 2**40


class DatasetReader:
    """Reader of a source's items. Iterate over it once; its counts are complete when the iteration is.

    `bad` has the first `MAX_KEPT_ERRORS` errors of lines that are not items, and `bad_count` counts all such lines.
    `repeats` and `repeat_count` are the same for exact repeats, which are dropped if the form says so. `lettered_count`
    counts items whose choices began with letters, which were removed because prompts add their own. `equals` and
    `equal_count` report items with equal choices, and `equal_answers` counts the items in which the right answer is one
    of the equal choices. `path` and `line` are the location of the latest item. To detect repeats, eight bytes of hash
    and the location of each item are kept.

    Args:
        source: The source.
        tolerance: `nothing`: an error is raised as a `DatasetError` with path, line and field. `lines`: a bad line is
            recorded and skipped. `files`: the rest of an unreadable file is skipped, too.
    """

    def __init__(self, source: Source, tolerance: Literal["nothing", "lines", "files"] = "nothing") -> None:
        self.source, self.tolerance = source, tolerance
        self.bad: list[DatasetError] = []
        self.repeats: list[DatasetError] = []
        self.equals: list[DatasetError] = []
        self.bad_count = self.repeat_count = self.equal_count = self.equal_answers = self.lettered_count = 0
        self.path, self.line = source.path, 0
        self._locations: dict[int, int] = {}

    def __iter__(self) -> Iterator[Item]:
        row = 0
        for number, part in enumerate(self.source.parts):
            location = RecordLocation(0, row, part.subject, part.split)
            for line, raw in self._records(part):
                item = self._item(number, line, raw, location)
                location.position += 1
                location.row = row = row + 1
                if item is not None:
                    self.path, self.line = part.path, line
                    self._compare_choices(item)
                    yield item
            if location.position == 0 and len(self.source.parts) > 1:
                self._reject(DatasetError("contains no record", path=part.path))

    def _records(self, part: SourcePart) -> Iterator[Record]:
        try:
            yield from part.read()
        except DatasetError as error:
            if self.tolerance != "files":
                raise
            self._note(error)

    def _item(self, number: int, line: int, raw: Raw | DatasetError, location: RecordLocation) -> Item | None:
        if isinstance(raw, DatasetError):
            self._reject(raw)
            return None
        path, form = self.source.parts[number].path, self.source.form
        try:
            record = CaseInsensitiveRecord(raw)
            item = form.read(record, location)
            if not self.source.accepts(item):
                return None
            first = self._earlier_location(str(record[form.unique]) if form.unique else item.id, number, line)
            if first is None:
                if item.choices and (stripped := strip_letters(item.choices)) is not None:
                    item.choices = stripped  # the item's id is unchanged
                    self.lettered_count += 1
                return item
            problem = DatasetError(f"the same item as in {first} ('{item.id}')", path=path, line=line, field="id")
        except FieldError as error:
            problem = DatasetError(
                f"{error}{missing_field_hint(raw, error.field)}", path=path, line=line, field=error.field
            )
        else:
            if form.drops_repeats:
                self.repeat_count += 1
                self.repeats += [problem] if len(self.repeats) < MAX_KEPT_ERRORS else []
                return None
        self._reject(problem)
        return None

    def _earlier_location(self, identity: str, number: int, line: int) -> str | None:
        """Return where an item with this id was read earlier; if it is new, remember the id and return None."""
        key = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")
        location = number * _LINES + line
        part, first_line = divmod(self._locations.setdefault(key, location), _LINES)
        if (part, first_line) == (number, line):
            return None
        return f"line {first_line}" if part == number else f"{self.source.parts[part].path}:{first_line}"

    def _compare_choices(self, item: Item) -> None:
        groups = duplicate_choices(item.choices)
        if not groups:
            return
        self.equal_count += 1
        right = any(item.answer in places for places in groups)
        self.equal_answers += right
        if len(self.equals) < MAX_KEPT_ERRORS:
            pairs = "; ".join(f"the choices {', '.join(map(choice_letter, places))} are equal" for places in groups)
            suffix = f"; the right answer is {choice_letter(item.answer)}" if right else ""
            self.equals.append(DatasetError(f"{pairs} ('{item.id}'){suffix}", path=self.path, line=self.line))

    def _reject(self, problem: DatasetError) -> None:
        if self.tolerance == "nothing":
            message = problem.message if problem.line is None else f"{problem.message}; {_BAD_LINE_ADVICE}"
            raise DatasetError(message, path=problem.path, line=problem.line, field=problem.field)
        self._note(problem)

    def _note(self, problem: DatasetError) -> None:
        self.bad_count += 1
        if len(self.bad) < MAX_KEPT_ERRORS:
            self.bad.append(problem)


def missing_field_hint(raw: Raw, field: str) -> str:
    """Return a hint for a record that lacks a field: a field of a similar name, or a list that wraps the records."""
    if field in raw or "." in field:
        return ""
    return misspelt_field_hint(field, map(str, raw)) or wrapped_records_hint(raw)


def wrapped_records_hint(raw: Raw) -> str:
    """Return what to save instead of an object that wraps all records of a file; "" if it seems to be one record."""
    lists = [name for name, value in raw.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) > 1:
        return f"; the object has several lists of objects ({', '.join(lists)}): save only one of them as the file"
    if len(raw) > 1 and all(isinstance(value, dict) for value in raw.values()):
        return f"; the object has {len(raw):,} named objects: save them as a list, or one per line"
    if lists:
        count = len(raw[lists[0]])
        return f"; the object has a list '{lists[0]}' of {count:,} objects: save only that list as the file"
    return ""


class ManifestPart(BaseModel):
    """A part of a manifest; unknown fields are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class PackRecord(ManifestPart):
    """Prompt pack of a run."""

    name: str
    version: str
    digest: str


class DataRecord(ManifestPart):
    """Data of a run. `chosen` counts the entries that the run uses."""

    name: str
    digest: str
    chosen: int = Field(ge=0)


class DatasetRecord(DataRecord):
    """A dataset of multiple-choice items; `skipped` counts bad lines."""

    items: int = Field(ge=0)
    skipped: int = Field(ge=0)


Cluster = Literal["subject", "passage"]  # item fields to group by


@dataclass(slots=True)
class Dataset:
    """A checked benchmark. `digest` identifies its content.

    `total` counts its items, `repeats` the exact repeats that the form drops, `skipped` the lines that are not items;
    `bad` has the errors of the first such lines. `notes`: what a person should know about the dataset before a run, one
    sentence each. `ids` is the list that items were chosen by, and `matched` the number of items on it. `clusters` are
    the sizes of the chosen items' clusters, in the order in which the iteration yields the clusters; None if items are
    not clustered. `free` counts the items without choices. `later` are the positions of the items after the
    chosen ones, if these are the first of the source.
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
    _detector: ChangeDetector
    _order: int | None = None
    clusters: ItemClusters | None = None
    free: int = 0
    later: Sequence[int] = ()

    def __len__(self) -> int:
        return self.total if self.chosen is None else len(self.chosen)

    def __iter__(self) -> Iterator[Item]:
        """Yield the chosen items, streamed in the source's order.

        If the dataset was opened with `shuffled` or `cluster`, all chosen items are held in memory and follow the
        seed's order.

        Raises:
            DatasetError: The source has changed since it was checked.
        """
        if self._order is None:
            yield from self._read(self.chosen)
        else:
            field = None if self.clusters is None else self.clusters.field
            ranked = []
            for position, item in enumerate(self._read(self.chosen)):
                group = ("", 0.0) if field is None else _group_order(self._order, item, field)
                ranked.append((group[1], group[0], _item_rank(self._order, item), position, item))
            ranked.sort(key=lambda entry: entry[:4])
            for *_, item in ranked:
                yield item

    def later_items(self) -> Iterator[Item]:
        """Yield the items at the positions `later`, in the source's order.

        Raises:
            DatasetError: The source has changed since it was checked.
        """
        return self._read(frozenset(self.later))

    def _read(self, chosen: frozenset[int] | None) -> Iterator[Item]:
        reading = DatasetReader(self.source, "lines" if self._skip_bad else "nothing")
        count = 0
        for position, item in enumerate(reading):
            if chosen is None or position in chosen:
                self._detector.check(position, _item_content(item), item.id, reading.path, reading.line)
                count += 1
                yield item
        self._detector.check_end(count, self.total if chosen is None else len(chosen), self.source.path)

    def to_record(self) -> dict[str, Any]:
        """Return what a run's manifest records of its dataset.

        It has `ids` only with a list of ids, `free` only if items have no choices, and a published benchmark's name and
        licence.
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
        if self.later:
            record["later"] = len(self.later)
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
    in_order: bool = False,
) -> Dataset:
    """Open a source (see `sources`), check all of it, and choose items.

    Args:
        source: Name of the dataset.
        limit: Number of items to draw by `seed`; None: all.
        seed: Seed of the draw and of the order.
        skip_bad: Skip and count lines that are not items.
        ids: A file of item ids; only items on that list are drawn.
        shuffled: Yield the items in an order that follows from `seed` and their ids. With a smaller `limit`, the items
            are the beginning of the same order.
        cluster: The items' field (`subject` or `passage`) that groups them; groups and the items in each
            follow an order by `seed`. An item without the field is a separate group. Clusters do not change which items
            `limit` draws.
        in_order: Choose the first `limit` items of the source instead of drawing them.

    Raises:
        DatasetError: The source or a line is invalid, nothing is left, no item is on the list, or the chosen items have
            no `cluster` field, or only one value of it.
        ConfigurationError: The form is unknown, or a package is missing.
    """
    key = (source, limit, seed, skip_bad, ids, shuffled, cluster, in_order)
    cache = _checked_datasets.get()
    return _open_checked(*key) if cache is None else cache.open(key)


class CheckedDatasets:
    """Cache of checked datasets, for many runs on the same ones.

    Within `activate`, a dataset that is opened again with the same arguments is not checked again. If a file changes
    meanwhile, the runs that read the changed record end.
    """

    def __init__(self) -> None:
        self._checked: dict[tuple[Any, ...], Dataset] = {}

    @contextmanager
    def activate(self) -> Iterator[CheckedDatasets]:
        """Make `open_dataset` use this cache, in this task or thread and in tasks that begin within."""
        token = _checked_datasets.set(self)
        try:
            yield self
        finally:
            _checked_datasets.reset(token)

    def open(self, key: tuple[Any, ...]) -> Dataset:
        """Return the dataset opened with these arguments, checking it the first time."""
        if key not in self._checked:
            self._checked[key] = _open_checked(*key)
        return self._checked[key]


_checked_datasets: ContextVar[CheckedDatasets | None] = ContextVar("datasets checked already", default=None)


def _open_checked(
    source: str,
    limit: int | None,
    seed: int,
    skip_bad: bool,
    ids: str | None,
    shuffled: bool,
    cluster: str | None,
    in_order: bool,
) -> Dataset:
    listed = read_ids(Path(ids)) if ids is not None else None
    opened_source = open_source(source)
    reading = DatasetReader(opened_source, "lines" if skip_bad else "nothing")
    first = ChangeDetector()
    total = matched = free = 0
    positions: list[int] = []
    ranked: list[tuple[float, int]] = []
    groups: dict[int, tuple[str, float]] = {}
    for position, item in enumerate(reading):
        total += 1
        free += item.free
        first.add(_item_content(item))
        if listed is not None and item.id not in listed.ids:
            continue
        matched += 1
        if cluster is not None:
            groups[position] = _group_order(seed, item, cluster)
        if limit is None or in_order:
            if limit is not None or listed is not None:
                positions.append(position)
            continue
        rank = (-_item_rank(seed, item), -position)
        if len(ranked) < limit:
            heapq.heappush(ranked, rank)
        else:
            heapq.heappushpop(ranked, rank)
    if total == 0:
        bad = f" ({reading.bad_count} bad lines)" if reading.bad_count else ""
        raise DatasetError(f"contains no usable item{bad}", path=opened_source.path)
    if listed is not None and matched == 0:
        message = f"none of its {len(listed.ids):,} ids is an id of the {total:,} items of {source}"
        raise DatasetError(message, path=listed.path)
    later: Sequence[int] = ()
    if limit is not None and in_order:
        positions, later = positions[:limit], array("q", positions[limit:])
    elif limit is not None:
        positions = [-position for _, position in ranked]
    clusters = None
    if cluster is not None:
        clusters = _item_clusters(cluster, [groups[index] for index in (positions or groups)], opened_source.path)
    chosen = None if len(positions) == total or (limit is None and listed is None) else frozenset(positions)
    return Dataset(
        name=opened_source.name,
        form=opened_source.form.name,
        digest=opened_source.digest(),
        total=total,
        repeats=reading.repeat_count,
        skipped=reading.bad_count,
        bad=reading.bad,
        notes=_reading_notes(source, reading),
        ids=listed,
        matched=matched,
        chosen=chosen,
        source=opened_source,
        _skip_bad=skip_bad,
        _detector=first,
        _order=seed if shuffled or cluster is not None else None,
        clusters=clusters,
        free=free,
        later=later,
    )


def _reading_notes(source: str, reading: DatasetReader) -> list[str]:
    notes = []
    if reading.lettered_count:
        count = f"the choices of {reading.lettered_count:,} items of {source} begin with their letters"
        notes.append(f"{count}; these were removed, because prompts add their own")
    if not reading.equal_count:
        return notes
    count = f"{reading.equal_count:,} items of {source} have equal choices"
    wrong = f"in {reading.equal_answers:,} of them the right answer is one of the equal choices"
    return [*notes, f"{count}, {wrong}; list them with: viva data check {source}"]


def _item_content(item: Item) -> tuple[str, str, list[str], int, str, str, str]:
    return (item.id, item.question, item.choices, item.answer, item.subject, item.passage, item.reference)


def _group_order(seed: int, item: Item, field: str) -> tuple[str, float]:
    """Return the group of an item, and its position in the seed's order."""
    value = str(getattr(item, field))
    name = f"{field} {value}" if value else f"item {item.id}"
    return name, seeds.uniform(seed, "cluster", name)


def _item_clusters(field: str, groups: list[tuple[str, float]], path: str) -> ItemClusters:
    sizes = Counter(groups)
    grouped = sum(name.startswith(f"{field} ") for name, _ in groups)
    if not grouped:
        raise DatasetError(f"no item has a {field}; use another field for clusters, or none", path=path)
    if len(sizes) == 1:
        raise DatasetError(f"all items have the same {field}; clusters need several", path=path)
    return ItemClusters(field, tuple(sizes[group] for group in sorted(sizes, key=lambda group: (group[1], group[0]))))


def _item_rank(seed: int, item: Item) -> float:
    return seeds.uniform(seed, "sample", item.id)

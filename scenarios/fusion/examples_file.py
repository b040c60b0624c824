"""The examples of a data file (JSON lines, or one JSON array), in the fields that a task names.

What never belongs here: what a task may say (``task_file``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any

import orjson

from viva.data.fields import shown
from viva.data.lines import check_regular
from viva.data.reading import read_records
from viva.engine import seeds
from viva.engine.errors import DatasetError

from .task_file import Criterion, TaskFile

_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class JudgedExample:
    """One response with the texts around it. ``ratings``: human ones by criterion, where the data have them."""

    id: str
    texts: dict[str, str]
    system: str = ""
    group: str = ""
    ratings: dict[str, float] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "texts": self.texts,
            "system": self.system,
            "group": self.group,
            "ratings": self.ratings,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> JudgedExample:
        """The inverse of ``to_record``."""
        return cls(**record)


class Examples:
    """The chosen examples of a file, all held.

    :raises DatasetError: the file or an example in it is wrong; the message names line (or place) and field.
    """

    def __init__(self, path: Path, task: TaskFile, *, limit: int | None, seed: int) -> None:
        self.name = path.stem
        every: dict[str, JudgedExample] = {}
        whole = hashlib.sha256()
        for place, (line, raw) in enumerate(_records(path), 1):
            whole.update(orjson.dumps(raw, option=orjson.OPT_SORT_KEYS))
            one = _example(raw, task, place, path, line)
            if one.id in every:
                told = (
                    f"a second example has the id '{one.id}'; ids must differ (`id:` in the task file names the field; "
                )
                told += "without it, places are ids)"
                raise DatasetError(told, path=str(path), line=line, field=task.id)
            every[one.id] = one
        if not every:
            raise DatasetError("holds no example", path=str(path))
        self.digest, self.total = whole.hexdigest()[:16], len(every)
        chosen = set(every)
        if limit is not None:
            chosen = set(nsmallest(limit, every, key=lambda id_: (seeds.uniform(seed, "sample", id_), id_)))
        self._examples = [one for id_, one in every.items() if id_ in chosen]

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[JudgedExample]:
        return iter(self._examples)

    def to_record(self) -> dict[str, Any]:
        """What a run's manifest says of them."""
        return {"name": self.name, "digest": self.digest, "examples": self.total, "chosen": len(self)}


def _records(path: Path) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The raw examples, with their lines; those of an array have none that could be told."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            begins = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            array = begins == b"[" and file.seek(0) == 0 and file.read(_MOST_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    if array is False:
        for line, raw in read_records(path):
            if isinstance(raw, DatasetError):
                raise raw
            yield line, dict(raw)
        return
    if len(array) > _MOST_BYTES:
        raise DatasetError(f"an array of more than {_MOST_BYTES >> 20} MiB; write one object a line", path=str(path))
    try:
        entries = orjson.loads(array)
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"not JSON: {error}", path=str(path)) from None
    for place, raw in enumerate(entries, 1):
        if not isinstance(raw, dict):
            raise DatasetError(f"entry {place}: expected a JSON object, found {shown(raw)}", path=str(path))
        yield None, raw


def _example(raw: dict[str, Any], task: TaskFile, place: int, path: Path, line: int | None) -> JudgedExample:
    def wrong(name: str, message: str) -> DatasetError:
        said = message if line is not None else f"{message} (entry {place})"
        return DatasetError(said, path=str(path), line=line, field=name)

    texts: dict[str, str] = {}
    for name, text in task.texts.items():
        value = _text(_at(raw, text.field))
        # An empty response is one that can be judged; without the texts around it nothing can.
        if value is None or not (value.strip() or text.optional or name == task.response):
            if text.optional:
                continue
            found = _at(raw, text.field)
            raise wrong(text.field, "is missing" if found is None else f"expected text, found {shown(found)}")
        texts[name] = value
    ratings: dict[str, float] = {}
    for name, criterion in task.criteria.items():
        if criterion.rating is not None and (value := _at(raw, criterion.rating)) is not None:
            problem = _rating_problem(value, criterion)
            if problem:
                raise wrong(criterion.rating, problem)
            ratings[name] = float(value)
    identity = {name: "" if named is None else _label(_at(raw, named))
                for name, named in (("id", task.id), ("system", task.system), ("group", task.group))}  # fmt: skip
    for name, needed in (("id", task.id), ("system", task.system)):
        if needed is not None and not identity[name]:
            raise wrong(needed, "is missing, or neither text nor a number")
    around = "\0".join(text for name, text in texts.items() if name != task.response)
    group = identity["group"] or hashlib.sha256(around.encode("utf-8", "replace")).hexdigest()[:12]
    return JudgedExample(identity["id"] or str(place), texts, identity["system"], group, ratings)


def _at(raw: Any, path: str) -> Any:
    """What stands at a path of keys; None where nothing does. A key may itself hold dots."""
    if isinstance(raw, dict) and path in raw:
        return raw[path]
    for step in path.split("."):
        raw = raw.get(step) if isinstance(raw, dict) else None
    return raw


def _text(value: Any) -> str | None:
    """A field's text; a list of texts is one with a line for each. None of anything else."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _label(value: Any) -> str:
    usable = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).strip() if usable else ""


def _rating_problem(value: Any, criterion: Criterion) -> str:
    low, high = criterion.range
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected a number, found {shown(value)}"
    return "" if low <= value <= high else f"{value:g} is outside of the criterion's range, {low:g} to {high:g}"

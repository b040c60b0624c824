"""A dataset as a scenario uses it: checked once from end to end, then streamed; of it, the chosen items.

The first pass reads every line, so that whatever is wrong is said before the first model call; it keeps one number per
chosen item and nothing else. Sampling ranks items by a hash of seed and id: the choice does not change when the file
is reordered, and changes little when it grows.

What never belongs here: file forms, and holding items.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError

from ..items import Item
from .forms import FORMS, recognise
from .reading import FieldError, read_raw


@dataclass(slots=True)
class Dataset:
    """A checked benchmark file. ``bad`` holds the errors of skipped lines; ``digest`` identifies the file's content."""

    name: str
    path: Path
    form: str
    digest: str
    total: int
    bad: list[DatasetError]
    chosen: frozenset[int] | None
    _skip_bad: bool

    def __len__(self) -> int:
        return self.total if self.chosen is None else len(self.chosen)

    def items(self) -> Iterator[Item]:
        """The chosen items in the file's order, read as they are taken."""
        for position, item in enumerate(_parse(self.path, self.form, [] if self._skip_bad else None)):
            if self.chosen is None or position in self.chosen:
                yield item


def open_dataset(source: str, *, limit: int | None = None, seed: int = 0, skip_bad: bool = False) -> Dataset:
    """Open ``FILE`` or ``form:FILE``, check all of it, and choose ``limit`` items by ``seed`` (all if None).

    :raises DatasetError: the file or a line is wrong (unless ``skip_bad``), or nothing is left.
    :raises ConfigurationError: the form is unknown.
    """
    form, path = _source(source)
    form = form or _sniff(path)
    bad: list[DatasetError] = []
    ranked: list[tuple[float, int]] = []
    total = 0
    for position, item in enumerate(_parse(path, form, bad if skip_bad else None)):
        total += 1
        if limit is None:
            continue
        rank = (-seeds.uniform(seed, "sample", item.id), -position)
        if len(ranked) < limit:
            heapq.heappush(ranked, rank)
        else:
            heapq.heappushpop(ranked, rank)
    if total == 0:
        raise DatasetError("holds no usable item" + (f" ({len(bad)} bad lines)" if bad else ""), path=str(path))
    chosen = None if limit is None or limit >= total else frozenset(-position for _, position in ranked)
    return Dataset(path.stem, path, form, _digest(path), total, bad, chosen, skip_bad)


def _source(source: str) -> tuple[str | None, Path]:
    form, colon, rest = source.partition(":")
    if colon and not _exists(source):
        if form not in FORMS:
            raise ConfigurationError(f"dataset '{source}': unknown form '{form}'; known: {', '.join(FORMS)}")
        return form, Path(rest)
    return None, Path(source)


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except OSError:  # too long to be a path at all
        return False


def _sniff(path: Path) -> str:
    for _, raw in read_raw(path):
        if not isinstance(raw, DatasetError):
            return recognise(raw)
    return "generic"


def _parse(path: Path, form: str, bad: list[DatasetError] | None) -> Iterator[Item]:
    """The items of a file; errors are collected in ``bad``, or raised if it is None."""
    seen: dict[bytes, int] = {}
    for line, raw in read_raw(path):
        try:
            if isinstance(raw, DatasetError):
                raise raw
            item = FORMS[form](raw)
            key = hashlib.blake2b(item.id.encode(), digest_size=8).digest()
            first = seen.setdefault(key, line)
            if first != line:
                raise FieldError("id", f"the same item as in line {first} ('{item.id}')")
        except FieldError as error:
            problem = DatasetError(_advised(str(error), bad), path=str(path), line=line, field=error.field)
        except DatasetError as error:
            if error.line is None or not isinstance(raw, DatasetError):
                raise
            problem = error if bad is not None else _with_advice(error)
        else:
            yield item
            continue
        if bad is None:
            raise problem
        bad.append(problem)


def _with_advice(error: DatasetError) -> DatasetError:
    text = str(error).removeprefix(f"{error.path}:{error.line}: ")
    return DatasetError(_advised(text, None), path=error.path, line=error.line)


def _advised(message: str, bad: list[DatasetError] | None) -> str:
    return message if bad is not None else f"{message}; mend the line, or skip such lines with --skip-bad-items"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]

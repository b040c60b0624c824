"""The turns of a run: which files they stand in, which of them are chosen, and what the manifest says of them.

Everything is read through once before the first model call, so that whatever is wrong with it is said then; after that
turns stream. What never belongs here: the files' forms (``items``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any

import orjson

from viva.engine import seeds
from viva.engine.errors import DatasetError
from viva.engine.tools import Toolbox

from ..datasets.reading import read_records
from ..datasets.unchanged import FirstReading
from .items import Turn, read_dialogs, read_singlecall
from .settings import Subsets

FILES = {"singlecall": "FunctionChat-Singlecall.jsonl", "dialog": "FunctionChat-Dialog.jsonl"}
_READERS: dict[str, Callable[[Path], Iterator[Turn]]] = {"singlecall": read_singlecall, "dialog": read_dialogs}


@dataclass(slots=True)
class Turns:
    """A checked source of turns. ``counts``: subset, then tool list or type, to turns."""

    name: str
    digest: str
    files: list[tuple[str, Path]]
    total: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    _chosen: frozenset[str] | None = None
    _first: FirstReading = field(default_factory=FirstReading)

    def __len__(self) -> int:
        return self.total if self._chosen is None else len(self._chosen)

    def __iter__(self) -> Iterator[Turn]:
        """The chosen turns in the files' order, read as they are taken.

        :raises DatasetError: a file is no longer what it was when it was checked.
        """
        found = 0
        for place, (path, turn) in enumerate(self._read()):
            if self._chosen is None or turn.id in self._chosen:
                self._first.check(place, turn.to_record(), turn.id, str(path))
                found += 1
                yield turn
        self._first.check_end(found, len(self), self.name)

    def _read(self) -> Iterator[tuple[Path, Turn]]:
        for subset, path in self.files:
            for turn in _READERS[subset](path):
                yield path, turn

    def check(self, limit: int | None, seed: int) -> None:
        """Read all of it, and choose ``limit`` turns by the seed, whatever their order in the files.

        :raises DatasetError: a line is wrong, or an id holds a #.
        """
        ranked: dict[str, float] = {}
        for _, turn in self._read():
            self._first.add(turn.to_record())
            if "#" in turn.id:  # behind it a conversation's key has the number of the repeat
                raise DatasetError(f"the id {turn.id} holds '#'; number dialogs and turns without it", path=self.name)
            ranked[turn.id] = seeds.uniform(seed, "sample", turn.id)
            parts = self.counts.setdefault(turn.subset, {})
            part = turn.tool_list or turn.type
            parts[part] = parts.get(part, 0) + 1
        self.total = len(ranked)
        if limit is not None and limit < self.total:
            self._chosen = frozenset(nsmallest(limit, ranked, key=lambda id_: (ranked[id_], id_)))

    def to_record(self) -> dict[str, Any]:
        """What a run's manifest says of them."""
        return {
            "name": self.name,
            "digest": self.digest,
            "turns": self.total,
            "chosen": len(self),
            "counts": self.counts,
        }


def open_turns(data: str, subset: Subsets, *, limit: int | None, seed: int) -> Turns:
    """Find the files of ``data`` (a folder with both, or one JSONL file of either form), check them, choose turns.

    :raises DatasetError: a file is missing, one of its lines is wrong, or it does not hold the subset.
    """
    path = Path(data)
    if path.is_dir():
        wanted = list(FILES) if subset == "both" else [subset]
        files = [(name, path / FILES[name]) for name in wanted]
        missing = [file.name for _, file in files if not file.is_file()]
        if missing:
            raise DatasetError(f"has no {' and no '.join(missing)}; name one file, or a --subset", path=data)
    else:
        files = [(_form(path), path)]
        if subset not in ("both", files[0][0]):
            raise DatasetError(f"holds turns of the form {files[0][0]}, not {subset}; leave --subset out", path=data)
    turns = Turns(path.resolve().name, file_digest([file for _, file in files]), files)
    turns.check(limit, seed)
    return turns


def file_digest(files: list[Path]) -> str:
    """What tells these files from others of the same names.

    :raises DatasetError: one cannot be read.
    """
    whole = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                whole.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(file)) from None
    return whole.hexdigest()[:16]


def _form(path: Path) -> str:
    """Which of the two forms a file has, by the fields of its first record."""
    for number, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        if "turns" in raw:
            return "dialog"
        if "query" in raw:
            return "singlecall"
        message = "neither a dialog (it has no 'turns') nor a single call (it has no 'query')"
        raise DatasetError(message, path=str(path), line=number)
    raise DatasetError("is empty", path=str(path))


class Toolboxes:
    """Toolboxes by the tools in them: turns with the same tools share one. Holds so many and no more."""

    MOST = 512

    def __init__(self) -> None:
        self._known: dict[bytes, Toolbox] = {}

    def of(self, tools: list[dict[str, Any]]) -> Toolbox:
        """The toolbox of these tools.

        :raises ConfigurationError: one of the tools is not of the form.
        """
        key = hashlib.blake2b(orjson.dumps(tools), digest_size=16).digest()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.MOST:
                self._known.clear()
            found = self._known[key] = Toolbox(tools)
        return found

"""The turns of a run: which files they stand in, which of them are chosen, and what the manifest says of them.

Everything is read through once before the first model call, so that whatever is wrong with it is said then; after that
turns stream. What never belongs here: the files' forms (``items``).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any

from viva.data.reading import read_records
from viva.data.unchanged import FirstReading
from viva.engine import seeds
from viva.engine.errors import DatasetError

from .items import DialogTurn, Note, read_common, read_dialogs, read_singlecall
from .language import written_language
from .settings import Subsets
from .turns import Subset

FILES: dict[Subset, str] = {
    "singlecall": "FunctionChat-Singlecall.jsonl",
    "dialog": "FunctionChat-Dialog.jsonl",
    "calldecision": "FunctionChat-CallDecision.jsonl",
    "parallel": "FunctionChat-Parallel.jsonl",
    "sequential": "FunctionChat-Sequential.jsonl",
}
_PAPER: tuple[Subset, ...] = ("singlecall", "dialog")
_NAMED = 20  # lines that were passed over are counted, and so many of them named


@dataclass(slots=True)
class DialogTurns:
    """A checked source of turns.

    ``counts``: subset, then tool list, type or category, to turns. ``unread``: files in the same folder that are named
    like the benchmark's and are none of ``FILES``. ``language``: that of most turns' users, where its script tells it,
    else empty. ``skipped`` and ``bad``: how many lines were passed over, and the errors of the first.
    """

    name: str
    digest: str
    files: list[tuple[Subset, Path]]
    unread: list[str] = field(default_factory=list)
    skip_bad: bool = False
    total: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    language: str = ""
    skipped: int = 0
    bad: list[DatasetError] = field(default_factory=list)
    _chosen: frozenset[str] | None = None
    _first: FirstReading = field(default_factory=FirstReading)

    def __len__(self) -> int:
        return self.total if self._chosen is None else len(self._chosen)

    def __iter__(self) -> Iterator[DialogTurn]:
        """The chosen turns in the files' order, read as they are taken.

        :raises DatasetError: a file is no longer what it was when it was checked.
        """
        found = 0
        for place, (path, turn) in enumerate(self._read(lambda problem: None)):
            if self._chosen is None or turn.id in self._chosen:
                self._first.check(place, turn.to_record(), turn.id, str(path))
                found += 1
                yield turn
        self._first.check_end(found, len(self), self.name)

    def _read(self, skipped: Note) -> Iterator[tuple[Path, DialogTurn]]:
        for subset, path in self.files:
            for turn in _turns(subset, path, skipped if self.skip_bad else None):
                yield path, turn

    def check(self, limit: int | None, seed: int) -> None:
        """Read all of it, and choose ``limit`` turns by the seed, whatever their order in the files.

        :raises DatasetError: a line is wrong, or an id holds a #.
        """
        ranked: dict[str, float] = {}
        languages: Counter[str] = Counter()
        for _, turn in self._read(self._pass_over):
            self._first.add(turn.to_record())
            if "#" in turn.id:  # behind it a conversation's key has the number of the repeat
                raise DatasetError(f"the id {turn.id} holds '#'; number dialogs and turns without it", path=self.name)
            ranked[turn.id] = seeds.uniform(seed, "sample", turn.id)
            parts = self.counts.setdefault(turn.subset, {})
            part = turn.category or turn.tool_list or turn.type
            parts[part] = parts.get(part, 0) + 1
            languages[written_language(one["content"] for one in turn.messages if one["role"] == "user")] += 1
        self.total = len(ranked)
        most, count = languages.most_common(1)[0]
        self.language = most if 2 * count > self.total else ""
        if limit is not None and limit < self.total:
            self._chosen = frozenset(nsmallest(limit, ranked, key=lambda id_: (ranked[id_], id_)))

    def _pass_over(self, problem: DatasetError) -> None:
        self.skipped += 1
        if len(self.bad) < _NAMED:
            self.bad.append(problem)

    @property
    def notes(self) -> list[str]:
        """What was left out, a sentence each."""
        said = [
            f"{name} is no known file of the benchmark and was not read; name it with --data" for name in self.unread
        ]
        if self.skipped:
            first = "; ".join(map(str, self.bad[:3]))
            said.append(f"{self.skipped} lines that cannot be used were left out, the first: {first}")
        return said

    def to_record(self) -> dict[str, Any]:
        """What a run's manifest says of them; of what was left out only where something was."""
        record: dict[str, Any] = {
            "name": self.name,
            "digest": self.digest,
            "turns": self.total,
            "chosen": len(self),
            "counts": self.counts,
        }
        if self.unread:
            record["unread_files"] = self.unread
        if self.skipped:
            where = [{"file": Path(one.path).name, "line": one.line, "problem": one.message} for one in self.bad]
            record["skipped_lines"] = {"count": self.skipped, "first": where}
        return record


def open_turns(data: str, subset: Subsets, *, limit: int | None, seed: int, skip_bad: bool = False) -> DialogTurns:
    """Find the files of ``data`` (a folder, or one JSONL file of a known form), check them, choose turns.

    ``subset``: ``both`` are the paper's; ``all`` are these and whatever else of the benchmark the folder has.
    ``skip_bad``: pass over lines that cannot be used, and count them.

    :raises DatasetError: a file is missing, one of its lines is wrong, or it does not hold the subset.
    """
    path = Path(data)
    unread: list[str] = []
    if path.is_dir():
        wanted = [name for name in FILES if subset in (name, "all") or (subset == "both" and name in _PAPER)]
        if subset == "all":
            wanted = [name for name in wanted if name in _PAPER or (path / FILES[name]).is_file()]
            unread = sorted({file.name for file in path.glob("FunctionChat-*.jsonl")} - set(FILES.values()))
        if not wanted:
            raise DatasetError(f"is a folder, which has no file of the subset {subset}; name the file", path=data)
        files = [(name, path / FILES[name]) for name in wanted]
        missing = [file.name for _, file in files if not file.is_file()]
        if missing:
            raise DatasetError(f"has no {' and no '.join(missing)}; name one file, or a --subset", path=data)
    else:
        form = _form(path)
        files = [(form, path)]
        if subset not in ("both", "all", form):
            raise DatasetError(f"holds turns of the form {form}, not {subset}; leave --subset out", path=data)
    digest = file_digest([file for _, file in files])
    turns = DialogTurns(path.resolve().name, digest, files, unread, skip_bad)
    turns.check(limit, seed)
    return turns


def _turns(subset: Subset, path: Path, skipped: Note | None) -> Iterator[DialogTurn]:
    match subset:
        case "singlecall":
            return read_singlecall(path, skipped)
        case "dialog":
            return read_dialogs(path, skipped)
        case _:
            return read_common(path, subset, skipped)


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


def _form(path: Path) -> Subset:
    """Which form a file has, by the fields of its first record; of the common form, which subset by its name."""
    for number, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        if "turns" in raw:
            return "dialog"
        if "query" in raw:
            return "singlecall"
        if "input_messages" in raw:
            return next((name for name, file in FILES.items() if file == path.name), "common")
        message = (
            "no dialog (it has no 'turns'), no single call ('query'), and not of the common form ('input_messages')"
        )
        raise DatasetError(message, path=str(path), line=number)
    raise DatasetError("is empty", path=str(path))

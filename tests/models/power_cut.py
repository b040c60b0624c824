"""A simulated power cut: what a disk certainly has of the files that a program wrote, and some of what it may have.

``power_cut.c`` logs the writes and syncs of a program below a folder. ``rebuilt`` makes a folder from the beginning of
such a log: what was synced, and a random part of what was not: whole writes, sectors of a write, names of files. Like
the file systems that SQLite is made for, a disk tears no sector, and a file that is synced is on it as a whole.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SECTOR = 512
_SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class Operation:
    """A record of the log; ``kind`` is as in ``power_cut.c``."""

    kind: str
    path: str
    offset: int
    data: bytes


def compiled(folder: Path) -> Path:
    """Return the library for ``LD_PRELOAD``, compiled into a folder."""
    library = folder / "power_cut.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def logged(command: Sequence[str | Path], disk: Path, library: Path) -> list[Operation]:
    """Run a program and return what it did below the folder ``disk``."""
    log = disk.with_name(f"{disk.name}.log")
    variables = {"LD_PRELOAD": str(library), "POWER_CUT_FOLDER": str(disk), "POWER_CUT_LOG": str(log)}
    subprocess.run(list(map(str, command)), check=True, env=os.environ | variables)
    return _read(log)


def _read(log: Path) -> list[Operation]:
    operations = []
    with log.open("rb") as lines:
        for line in lines:
            kind, offset, length, path = line.decode().rstrip("\n").split(" ", 3)
            operations.append(Operation(kind, path, int(offset), lines.read(int(length))))
    return operations


@dataclass(slots=True)
class _File:
    """Content on the disk, and the writes since the last sync."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.content, operation)
        self.pending.clear()

    def after_cut(self, chance: random.Random) -> bytes:
        """Return the content with some of the pending writes, whole or in part."""
        content = bytearray(self.content)
        for operation in self.pending:
            fate = chance.random()
            if fate < 0.4:
                _apply(content, operation)
            elif fate < 0.7 and operation.kind == "W":
                _tear(content, operation, chance)
        return bytes(content)


def _apply(content: bytearray, operation: Operation) -> None:
    end = operation.offset + len(operation.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if operation.kind == "T":
        del content[operation.offset :]
    else:
        content[operation.offset : end] = operation.data


def _tear(content: bytearray, operation: Operation, chance: random.Random) -> None:
    """Write some of the sectors."""
    begin, end = operation.offset, operation.offset + len(operation.data)
    while begin < end:
        after = min(end, begin - begin % _SECTOR + _SECTOR)
        if chance.random() < 0.5:
            part = operation.data[begin - operation.offset : after - operation.offset]
            _apply(content, Operation("W", operation.path, begin, part))
        begin = after


def rebuilt(
    operations: Iterable[Operation], disk: Path, target: Path, chance: random.Random | None, settled: Sequence[str] = ()
) -> None:
    """Make the folder ``target`` from what the disk has of the folder ``disk`` after these operations.

    Files whose names are ``settled`` are there as they were last written. Without ``chance``, all writes are.
    """
    names: dict[str, _File] = {}
    on_disk: dict[str, _File] = {}
    pending: list[tuple[str, _File | None]] = []  # changes of names since their folder was synced
    for operation in operations:
        path = operation.path
        match operation.kind:
            case "R" if path not in names:
                pass  # a socket: it is there while its program runs
            case "C" | "R" | "U":
                changes: list[tuple[str, _File | None]] = [(path, _File() if operation.kind == "C" else None)]
                if operation.kind == "R":
                    changes.append((operation.data.decode(), names[path]))
                for name, file in changes:
                    names.pop(name, None) if file is None else names.update({name: file})
                pending += changes
            case "S" if path in names:
                names[path].sync()
            case "S":
                for name, file in pending:
                    if os.path.dirname(name) == path:
                        on_disk.pop(name, None) if file is None else on_disk.update({name: file})
                pending = [change for change in pending if os.path.dirname(change[0]) != path]
            case "W" | "T":
                names[path].pending.append(operation)
    for name, file in pending:
        if chance is None or chance.random() < 0.5:
            on_disk.pop(name, None) if file is None else on_disk.update({name: file})
    for name, file in names.items():
        if chance is None or os.path.basename(name) in settled:
            file.sync()
            on_disk[name] = file
    for name, file in on_disk.items():
        path = str(target / Path(name).relative_to(disk))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(bytes(file.content) if chance is None else file.after_cut(chance))

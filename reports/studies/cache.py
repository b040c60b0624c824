"""Report cache: what earlier reports have read and computed, in the user's cache folder.

An entry's name is a hash of all its inputs: the files of the run's folder (names, sizes, times), how results are
scored, the items already numbered, and this program's own code. So a changed cell, option or program misses the
cache, and damaged entries are recomputed. Runs with damaged records are not cached; nor are runs with files written in
the last seconds, because their times might not show the next change. Entries are pickles, so the folder must be
writable by the user alone.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import time
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

from viva.engine.files import user_cache, write_atomically

_DIGEST = 16
_SETTLED_SECONDS = 2.0  # age of a file after which a change surely gets a different time stamp
_MAX_ENTRIES = 1_000
_PACKAGES = ("numpy", "scipy", "scikit-learn")  # packages whose versions may affect figures
_ROOT = Path(__file__).parents[2]

FolderState = tuple[tuple[str, int, int, int, int], ...]


class ReportCache:
    """Entries in `folder`; `hits` and `misses` count lookups. An unusable folder is an empty cache."""

    def __init__(self, folder: Path) -> None:
        self.hits = self.misses = 0
        self._folder: Path | None = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_private(folder):
                self._folder = None
        except OSError:
            self._folder = None

    def load(self, key: str | None, shared: dict[str, Any]) -> Any:
        """Return what was stored under a key; None if there is nothing, or it is damaged.

        Args:
            key: From `cache_key`; None finds nothing.
            shared: By name, objects that entries refer to instead of containing them.
        """
        value = None
        if key is not None and self._folder is not None:
            with suppress(Exception):  # a bad entry is recomputed
                data = (self._folder / key).read_bytes()
                if hashlib.blake2b(data[_DIGEST:], digest_size=_DIGEST).digest() == data[:_DIGEST]:
                    value = _Reader(BytesIO(data[_DIGEST:]), shared).load()
                    os.utime(self._folder / key)
        self.hits, self.misses = self.hits + (value is not None), self.misses + (value is None)
        return value

    def store(self, key: str | None, value: Any, shared: dict[str, Any]) -> None:
        """Store a value, if it can be pickled and written."""
        if key is None or self._folder is None:
            return
        buffer = BytesIO()
        with suppress(OSError, pickle.PicklingError, AttributeError, TypeError):
            _Writer(buffer, shared).dump(value)
            data = buffer.getvalue()
            write_atomically(self._folder / key, hashlib.blake2b(data, digest_size=_DIGEST).digest() + data)
            self._prune(self._folder)

    def _prune(self, folder: Path) -> None:
        """Remove the least recently used entries beyond the limit."""
        entries = _files(folder)
        if len(entries) > _MAX_ENTRIES:
            for entry in sorted(entries, key=lambda file: file.stat().st_mtime)[: len(entries) - _MAX_ENTRIES]:
                os.unlink(entry.path)


class _Writer(pickle.Pickler):
    def __init__(self, file: BytesIO, shared: dict[str, Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = {id(item): name for name, item in shared.items()}

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))


class _Reader(pickle.Unpickler):
    def __init__(self, file: BytesIO, shared: dict[str, Any]) -> None:
        super().__init__(file)
        self._known = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]


def users_report_cache() -> ReportCache:
    """Return the cache of the current user."""
    try:
        return ReportCache(user_cache("reports"))
    except RuntimeError:  # no home directory
        return ReportCache(Path(os.devnull))


def cache_key(*parts: Any) -> str:
    """Return the key of a value that depends only on these parts, by their `repr`, and on this program."""
    text = repr((program_state(), *parts)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=20).hexdigest()


def folder_state(folder: Path) -> FolderState | None:
    """Return name, inode, size and times of each file of a run's folder, except for its lock.

    None if a file was written just now, because its next change might not show.
    """
    states = []
    try:
        for entry in _files(folder):
            status = entry.stat()
            # SQLite creates and removes the index of its log on every read.
            if not stat.S_ISREG(status.st_mode) or entry.name == "lock" or entry.name.endswith("-shm"):
                continue
            if entry.name.endswith("-wal") and status.st_size == 0:
                continue
            if time.time() - status.st_mtime < _SETTLED_SECONDS:
                return None
            states.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError:
        return None
    return tuple(sorted(states))


@cache
def program_state() -> tuple[Any, ...]:
    """Return what identifies this program: its modules by size and time, and versions of numerical packages."""
    modules = []
    for room in sorted(_ROOT.iterdir()):
        if room.is_dir() and (room / "__init__.py").exists():
            for path, _, names in os.walk(room):
                for name in names:
                    if name.endswith((".py", ".yaml", ".json")):
                        status = os.stat(os.path.join(path, name))
                        modules.append((os.path.join(path, name), status.st_size, status.st_mtime_ns))
    packages = []
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages.append((package, version(package)))
    return sys.version, tuple(sorted(modules)), tuple(packages)


def _files(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _is_private(folder: Path) -> bool:
    status = os.stat(folder)
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

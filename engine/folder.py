"""A run's folder: ``manifest.json`` beside ``journal.sqlite``, and the lock that keeps a second writer out.

The manifest says what was run, exactly enough to run it again: versions, seed, tier, models, hashes of prompt pack
and dataset, and the protocol's own options. It never holds a key or password.
What never belongs here: results (they are in the journal).
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from .errors import ConfigurationError, JournalError
from .files import is_leftover, write_atomically
from .history import has_begun, has_records, is_unmade
from .journal import open_database
from .journal_errors import making_advice, missing_journal
from .manifest import MANIFEST_VERSION, RunManifest, checked, read_manifest
from .permissions import SEAL, permissions, recall, sealed

_JOURNAL = "journal.sqlite"
_JOURNAL_FILES = (_JOURNAL, f"{_JOURNAL}-wal", f"{_JOURNAL}-shm", f"{_JOURNAL}-journal")
# What a kill leaves where nothing has begun.
_LEFTOVERS = ("lock", "manifest.json.part", *_JOURNAL_FILES)  # and what ``write_atomically`` leaves
# Facts about one making of a run; two runs that differ only here are the same experiment.
_CIRCUMSTANCES = ("versions", "manifest", "journal", SEAL)


def versions() -> dict[str, str]:
    """What the run was made with."""
    from importlib.metadata import version

    return {"viva": version("viva-exam"), "python": platform.python_version(), "platform": platform.platform()}


class RunFolder:
    """One run on disk. Make it with ``create`` or ``open``; ``lock`` before writing."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._lock: int | None = None
        self._made: list[Path] = []  # files that this very object has made, and its folder

    @property
    def journal(self) -> Path:
        """The SQLite file with the calls and results."""
        return self.path / _JOURNAL

    @classmethod
    def create(cls, path: Path, manifest: dict[str, Any], files: Mapping[str, bytes] | None = None) -> RunFolder:
        """Make the folder, an empty journal in it, and then the manifest: a manifest never stands without a journal
        unless somebody took that away. ``files``, by name, are put beside them.

        :raises ConfigurationError: the folder already holds a run; the message says whether it is this one. Or a text
            of the manifest is not UTF-8.
        :raises JournalError: the folder cannot be written.
        """
        folder = cls(path, sealed({"manifest": MANIFEST_VERSION, "journal": _JOURNAL, **manifest}))
        data = _as_json(folder.manifest)
        try:
            _check_free(path, manifest)
            if not path.exists():
                path.mkdir(parents=True)
                folder._made.append(path)
            folder._make_journal()
            for name, content in (files or {}).items():
                folder._made.append(path / name)
                write_atomically(path / name, content)
            folder._made.append(path / "manifest.json")
            write_atomically(path / "manifest.json", data)
        except (OSError, JournalError) as error:
            folder.remove()
            cause = (
                error.__cause__ if isinstance(error, JournalError) else None
            )  # its advice is for runs that have begun
            said = f"{cause or error}{making_advice(cause or error)}"
            raise JournalError(f"{path}: cannot make the run folder: {said}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        :raises ConfigurationError: there is none here, or its manifest cannot be read.
        """
        file = path / "manifest.json"
        permissions().check_file(path)
        manifest = read_manifest(file, "a run folder")
        checked(RunManifest, manifest, file)
        recall(manifest)
        return cls(path, manifest)

    @property
    def begun(self) -> bool:
        """Whether the journal has its tables, or had them: then reading it says what has become of it."""
        return "journal" in self.manifest or has_begun(self.journal)

    def require_journal(self) -> None:
        """See that the journal is there; where it is certain that nothing was ever written to it, make it.

        Earlier versions wrote the manifest before the journal: a folder with nothing but the manifest was left by a
        kill before the run took its lock, a journal without tables by one before they were made.

        :raises JournalError: it was taken away or emptied.
        """
        if self.journal.exists():
            if not is_unmade(self.journal):
                return
            if "journal" in self.manifest:
                raise JournalError(
                    f"{self.journal}: the journal of this run is empty, and was not when the run was made: restore it "
                    "from a copy, or start the run anew in another folder"
                )
        elif "journal" in self.manifest or [one.name for one in self.path.iterdir()] != ["manifest.json"]:
            raise missing_journal(self.journal)
        self._make_journal()

    def lock(self) -> None:
        """Keep other processes from writing this run until this one ends.

        :raises ConfigurationError: another process is at it.
        :raises JournalError: the folder cannot be written.
        """
        file = self.path / "lock"
        made = not file.exists()
        try:
            self._lock = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise ConfigurationError(f"{self.path}: another process is running this run") from None
        except OSError as error:
            self.unlock()
            raise JournalError(f"{file}: cannot lock the run folder: {error.strerror}; make it writable") from None
        if made:
            self._made.append(file)

    def remove(self) -> None:
        """Take away what this object has made, unless something is recorded there by now. Nothing else is touched:
        neither a folder that was opened, nor files that somebody has put beside ours.
        """
        if has_records(self.journal):
            return
        order = {self.path: 2, self.path / "manifest.json": 0}  # a manifest never without its journal, the folder last
        for made in sorted(self._made, key=lambda one: order.get(one, 1)):
            with suppress(OSError):
                made.rmdir() if made == self.path else made.unlink()
        self._made.clear()

    def _make_journal(self) -> None:
        self._made += [file for name in _JOURNAL_FILES if not (file := self.path / name).exists()]
        open_database(self.journal).close()

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _as_json(manifest: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(manifest, option=orjson.OPT_INDENT_2)
    except TypeError as error:
        raise ConfigurationError(
            f"the manifest cannot hold what the run is made of: {error}; rename files and folders "
            "whose names are not UTF-8"
        ) from None


def _is_leftover(name: str) -> bool:
    return name in _LEFTOVERS or is_leftover(name, "manifest.json")


def _check_free(path: Path, manifest: dict[str, Any]) -> None:
    """:raises ConfigurationError: something lies in this place already."""
    if (path / "manifest.json").exists():
        different = differences(RunFolder.open(path).manifest, manifest)
        if different:
            raise ConfigurationError(
                f"{path} holds a run from another configuration (different: {', '.join(different)}); "
                "name another folder with --out"
            )
        raise ConfigurationError(f"{path} already holds this run; go on with `viva resume {path}`")
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is not a folder; name another place with --out")
    if path.exists() and any(not _is_leftover(one.name) for one in path.iterdir()):
        raise ConfigurationError(f"{path} exists and is not a run folder; name another folder with --out")
    if has_records(path / _JOURNAL):
        raise ConfigurationError(
            f"{path} holds the journal of a run whose manifest.json is missing; put that back, or name another folder "
            "with --out"
        )


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of the manifest fields, and of the settings, in which two runs differ as experiments."""
    found = []
    for name in sorted((one.keys() | other.keys()) - set(_CIRCUMSTANCES)):
        mine, others = one.get(name), other.get(name)
        if name == "settings" and isinstance(mine, dict) and isinstance(others, dict):
            found += [
                f"settings.{key}" for key in sorted(mine.keys() | others.keys()) if mine.get(key) != others.get(key)
            ]
        elif mine != others:
            found.append(name)
    return found

"""A run's folder: ``manifest.json`` beside ``journal.sqlite``, and the lock that keeps a second writer out.

The manifest says what was run, exactly enough to run it again: versions, seed, tier, models, hashes of prompt pack
and dataset, and the protocol's own options. It never holds a key or password.
What never belongs here: results (they are in the journal).
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import orjson

from .errors import ConfigurationError, JournalError

MANIFEST_VERSION = 1
_LEFTOVERS = ("lock", "manifest.json.part")  # what a kill leaves where nothing has begun
# Facts about one making of a run; two runs that differ only here are the same experiment.
_CIRCUMSTANCES = ("versions", "manifest")


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

    @property
    def journal(self) -> Path:
        """The SQLite file with the calls and results."""
        return self.path / "journal.sqlite"

    @classmethod
    def create(cls, path: Path, manifest: dict[str, Any]) -> RunFolder:
        """Make the folder and write the manifest.

        :raises ConfigurationError: the folder already holds a run; the message says whether it is this one.
        """
        if (path / "manifest.json").exists():
            different = differences(cls.open(path).manifest, manifest)
            if different:
                raise ConfigurationError(
                    f"{path} holds a run from another configuration (different: {', '.join(different)}); "
                    "name another folder with --out"
                )
            raise ConfigurationError(f"{path} already holds this run; go on with `viva resume {path}`")
        if path.exists() and any(one.name not in _LEFTOVERS for one in path.iterdir()):
            raise ConfigurationError(f"{path} exists and is not a run folder; name another folder with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            manifest = {"manifest": MANIFEST_VERSION, **manifest}
            write_atomically(path / "manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise JournalError(f"{path}: cannot make the run folder: {error}") from error
        return cls(path, manifest)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        :raises ConfigurationError: there is none here, or its manifest cannot be read.
        """
        file = path / "manifest.json"
        manifest = read_manifest(file, "a run folder")
        if not isinstance(manifest, dict) or manifest.get("manifest") != MANIFEST_VERSION:
            raise ConfigurationError(f"{file}: not a manifest of version {MANIFEST_VERSION}")
        return cls(path, manifest)

    def lock(self) -> None:
        """Keep other processes from writing this run until this one ends.

        :raises ConfigurationError: another process is at it.
        """
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise ConfigurationError(f"{self.path}: another process is running this run") from None

    def remove(self) -> None:
        """Take away a folder in which no run has begun."""
        if not self.journal.exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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


def read_manifest(file: Path, what: str) -> Any:
    """The JSON in a file that makes its folder ``what`` it is.

    :raises ConfigurationError: there is none, or it cannot be read.
    """
    try:
        return orjson.loads(file.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"{file.parent}: not {what} (it has no {file.name})") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    os.replace(temporary, path)

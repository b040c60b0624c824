"""The folder of a load test: ``load.json`` says what is tested, ``load.sqlite`` what came of it; and the lock.

What never belongs here: what the fields of a test mean, and its log.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, JournalError
from viva.engine.files import write_atomically
from viva.engine.folder import RunFolder, versions
from viva.engine.formats import other_version
from viva.engine.permissions import recall, sealed

from .log import FILE

NAME = "load.json"
_LOCK = "lock"
_FORM = 1


class LoadFolder:
    """A load test on disk. Make it with ``create`` or ``open``; ``lock`` before writing."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path, self.fields = path, fields
        self._made: list[Path] = []  # by this very object
        self._lock = RunFolder(path, {})

    @classmethod
    def create(cls, path: Path, fields: dict[str, Any]) -> LoadFolder:
        """Make the folder, and keep ``fields`` (JSON data) in it.

        :raises ConfigurationError: something else lies there. :raises JournalError: it cannot be written.
        """
        if (path / NAME).exists():
            raise ConfigurationError(
                f"{path} already holds a load test; go on with `viva bench judge --resume {path}`, or name another "
                "folder with --out"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigurationError(f"{path} exists and is not a load test; name another folder with --out")
        made = [path / NAME, path / _LOCK, *([] if path.exists() else [path])]
        try:
            path.mkdir(parents=True, exist_ok=True)
            record = sealed({"load_test": _FORM, **fields, "versions": versions()})
            data = orjson.dumps(record, option=orjson.OPT_INDENT_2)
            write_atomically(path / NAME, data)
        except OSError as error:
            raise JournalError(f"{path}: cannot make the folder of the load test: {error.strerror}") from error
        folder = cls.open(path)
        folder._made = made
        return folder

    @classmethod
    def open(cls, path: Path) -> LoadFolder:
        """Open a load test.

        :raises ConfigurationError: there is none here, or its ``load.json`` cannot be read.
        """
        file = path / NAME
        try:
            fields = orjson.loads(file.read_bytes())
        except FileNotFoundError:
            raise ConfigurationError(f"{path}: not the folder of a load test: there is no {NAME}") from None
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigurationError(f"{file}: cannot be read: {error}") from None
        if not isinstance(fields, dict) or fields.get("load_test") != _FORM:
            found = fields.get("load_test") if isinstance(fields, dict) else None
            raise ConfigurationError(f"{file}: {other_version('load_test', found, [_FORM])}")
        recall(fields)
        return cls(path, fields)

    def lock(self) -> None:
        """Keep other processes from writing this test until this one ends.

        :raises ConfigurationError: another process is at it.
        """
        self._lock.lock()

    def unlock(self) -> None:
        """Let others write. Where nothing has begun, what this object has made is taken away again."""
        if not (self.path / FILE).exists():
            for made in self._made:
                with suppress(OSError):
                    made.rmdir() if made == self.path else made.unlink()
        self._lock.unlock()

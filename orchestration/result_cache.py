"""Caches of tests of models: a model is tested once on this machine, under its name, files, prompts and sampling.

Entries are JSON files in the user's cache folder; if the folder is unusable, nothing is cached. An endpoint may change
the model behind a name, so an entry about one is valid for a week.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import orjson

from viva.engine.files import user_cache, write_atomically

WEEK = 7 * 86_400.0  # seconds
_FIELDS = ("scenario", "models", "files", "pack", "dataset")  # of the test's manifest


class ResultCache:
    """Records by key, in one folder of the user's cache."""

    def __init__(self, name: str) -> None:
        try:
            self._folder: Path | None = user_cache(name)
        except RuntimeError:  # no home directory
            self._folder = None

    @property
    def is_empty(self) -> bool:
        """True if there is no entry."""
        with suppress(OSError):
            return self._folder is None or next(self._folder.iterdir(), None) is None
        return True

    def load(self, key: str, seconds: float = inf) -> Any | None:
        """Return the JSON of an entry; None if there is none, or if it is unreadable or older than `seconds`."""
        if self._folder is not None:
            with suppress(OSError, ValueError):
                file = self._folder / key
                if time.time() - file.stat().st_mtime < seconds:
                    return orjson.loads(file.read_bytes())
        return None

    def store(self, key: str, record: Mapping[str, Any]) -> None:
        """Store an entry, if the folder is writable."""
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(self._folder / key, orjson.dumps(record))


class FitnessCache:
    """Verdicts by the manifest of the test. A model without a file's hash is tested again if it was not usable."""

    def __init__(self) -> None:
        self._cache = ResultCache("qualifications")

    def load(self, manifest: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the verdict of the test with this manifest; None if there is no entry, or it is too old."""
        hashed = bool(manifest["files"])
        record: dict[str, str] | None = self._cache.load(_fitness_key(manifest), inf if hashed else WEEK)
        if not isinstance(record, dict) or "verdict" not in record:
            return None
        return record if hashed or record["verdict"] != "not_usable" else None

    def store(self, manifest: Mapping[str, Any], record: Mapping[str, str]) -> None:
        """Store the verdict of a test, if the folder is writable."""
        self._cache.store(_fitness_key(manifest), record)


def result_key(*parts: Any) -> str:
    """Return the key of an entry that is identified by these parts, which are JSON data."""
    try:
        data = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # the name of a file is not UTF-8
        data = json.dumps(parts, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _fitness_key(manifest: Mapping[str, Any]) -> str:
    settings = manifest["settings"]
    sampling = {
        name: settings[name] for name in settings if name.endswith(("temperature", "_tokens")) or name == "seed"
    }
    return result_key(
        {name: manifest[name] for name in _FIELDS}, sampling, settings.get("role"), manifest["versions"]["viva"]
    )

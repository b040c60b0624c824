"""Cache of fitness tests: a model is tested once on this machine, under its name, files, prompts and sampling.

Entries are JSON files in the user's cache folder; if the folder is unusable, nothing is cached. An endpoint may change
the model behind a name, so an entry without a file's hash is valid for a week, and only if the model was usable.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from viva.engine.files import user_cache, write_atomically

_UNHASHED_SECONDS = 7 * 86_400.0
_FIELDS = ("scenario", "models", "files", "pack", "dataset")  # of the test's manifest


class FitnessCache:
    """Verdicts by the manifest of the test."""

    def __init__(self) -> None:
        try:
            self._folder: Path | None = user_cache("qualifications")
        except RuntimeError:  # no home directory
            self._folder = None

    def load(self, manifest: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the verdict of the test with this manifest; None if there is no entry, or it is too old."""
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            file = self._folder / _key(manifest)
            record: dict[str, str] = orjson.loads(file.read_bytes())
            if manifest["files"] or (
                record["verdict"] != "not_usable" and time.time() - file.stat().st_mtime < _UNHASHED_SECONDS
            ):
                return record
        return None

    def store(self, manifest: Mapping[str, Any], record: Mapping[str, str]) -> None:
        """Store the verdict of a test, if the folder is writable."""
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(self._folder / _key(manifest), orjson.dumps(record))


def _key(manifest: Mapping[str, Any]) -> str:
    settings = manifest["settings"]
    sampling = {
        name: settings[name] for name in settings if name.endswith(("temperature", "_tokens")) or name == "seed"
    }
    parts = [{name: manifest[name] for name in _FIELDS}, sampling, settings.get("role"), manifest["versions"]["viva"]]
    return hashlib.blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=20).hexdigest()

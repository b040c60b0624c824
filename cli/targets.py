"""Files that commands write to: two results never share one, and a run's own records are never written over.

What never belongs here: writing (``engine.files``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from viva.engine.errors import ConfigurationError

_JOURNAL = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm")
_RECORDS = ("manifest.json", "sweep.json", "lock", "corrections.jsonl", "merged.json", *_JOURNAL)


def check_targets(targets: Mapping[str, Path | None], read: Iterable[Path] = ()) -> None:
    """See that the files of these options can be written, and that no file is lost then.

    :param targets: the option's name with the file it names; None where it is not given.
    :param read: files that the command reads and that must outlast it.
    :raises ConfigurationError: two options name one file, or an option names a record of a run or sweep, one of the
        files that are read, a folder, or a file in a folder that does not exist.
    """
    kept = {_place(path) for path in read}
    options: dict[Path, str] = {}
    for option, path in targets.items():
        if path is None:
            continue
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: cannot be written: there is no folder {path.parent}; make it")
        if path.exists() and not path.is_file():  # a device takes whatever comes
            continue
        place = _place(path)
        if place in options:
            raise ConfigurationError(f"{options[place]} and {option} name the same file, {path}; name two files")
        if place in kept:
            raise ConfigurationError(f"{option} {path}: this command reads that file; name another one")
        if place.name in _RECORDS and _is_run(place.parent):
            raise ConfigurationError(f"{option} {path}: a record of the run there; name another file")
        options[place] = option


def _place(path: Path) -> Path:
    return Path(os.path.realpath(path))  # of links in a circle, too, which Path.resolve refuses


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("manifest.json", "sweep.json"))

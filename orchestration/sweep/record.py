"""``sweep.json``: what a sweep's file said, and the cells that followed from it.

Everything that a report needs to find the cells stands in it, so that it can be made where neither the file nor the
datasets are any more. What never belongs here: results (the cells have them).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, JournalError
from viva.engine.files import write_atomically
from viva.engine.formats import other_version
from viva.engine.manifest import read_manifest
from viva.engine.permissions import recall, sealed
from viva.scoring.sequential import Until

from .cells import Cell
from .file import one_value_lists
from .parts import part_of
from .sweep_folder import NAME

VERSION = 2
READABLE = (1, VERSION)  # version 1 leaves out settings that were at the defaults of their time


@dataclass(frozen=True, slots=True)
class Recorded:
    """``folder`` is where the file's relative paths begin, ``written`` what it said, ``until`` its rule that ends
    interviews early."""

    folder: Path
    written: dict[str, Any]
    until: Until | None
    cells: list[Cell]


def write_sweep(out: Path, recorded: Recorded) -> None:
    """Write the manifest; the same sweep leaves the file as it is.

    :raises JournalError: it cannot be written.
    """
    data = {
        "sweep": VERSION,
        "folder": str(recorded.folder),
        "file": recorded.written,
        "cells": [cell.to_record() for cell in recorded.cells],
    }
    text = orjson.dumps(sealed(data), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
    try:
        if not (out / NAME).exists() or (out / NAME).read_bytes() != text:
            write_atomically(out / NAME, text)
    except OSError as error:
        raise JournalError(f"{out}: cannot write {NAME}: {error}") from error


def read_sweep(out: Path) -> Recorded:
    """The manifest of the sweep in a folder.

    :raises ConfigurationError: there is none, or it is not one of this version.
    """
    file = out / NAME
    data = read_manifest(file, "the folder of a sweep")
    found = data.get("sweep") if isinstance(data, dict) else None
    if found not in READABLE or isinstance(found, bool):
        raise ConfigurationError(f"{file}: {other_version('sweep', found, READABLE)}")
    recall(data)
    try:
        rule = data["file"].get("until")
        until = None if rule is None else Until.parse(rule)
        written = one_value_lists(data["file"])
        return Recorded(Path(data["folder"]), written, until, [_cell(one, data["sweep"]) for one in data["cells"]])
    except (AttributeError, KeyError, TypeError, ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{file}: cannot be used: {error}") from None


def _cell(record: dict[str, Any], version: int) -> Cell:
    if version == 1:
        defaults = part_of(record["scenario"]).scenario.settings.first_defaults
        record = {**record, "settings": {**defaults, **record["settings"]}}
    return Cell.from_record(record)

"""What is wrong with a journal's file, and what to do: the errors of writing and of reading it.

What never belongs here: opening the file.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from .descriptors import descriptors_left
from .errors import JournalError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILES = 4  # that SQLite opens of one database: itself, its log, its index, its folder


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """Say what is wrong with the file and what to do, keeping SQLite's own words."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR")) and not descriptors_left(_FILES):
        advice = "too many open files, raise the limit (ulimit -n)"
    elif code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        advice = "free space on that disk (or raise the file-size limit), then `viva resume` the run"
    elif is_busy(error):
        advice = "another program holds a lock on it: close that program, then `viva resume` the run"
    elif code == "SQLITE_ERROR" or code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):  # no such table, say
        advice = "the file is damaged: restore it from a copy, or start the run anew in another folder"
    else:
        advice = "check that the folder exists and may be written"
    return JournalError(f"{path}: cannot use the journal: {error} ({code or 'sqlite'}); {advice}")


def making_advice(error: BaseException | None) -> str:
    """What to do where a run folder could not be made, behind the error's own words; empty where they say it all."""
    code = getattr(error, "sqlite_errorname", "") or ""
    full = code.startswith("SQLITE_FULL") or (code.startswith("SQLITE_IOERR") and descriptors_left(_FILES))
    if full or getattr(error, "errno", None) in _NO_SPACE:
        return "; free space on that disk, then give the same command again"
    return ""


def damaged_journal(path: Path) -> JournalError:
    """The error where a journal is to be written whose structure is broken."""
    return JournalError(
        f"{path}: the file is damaged and cannot be written any more: restore it from a copy, or start the run anew in "
        "another folder; `viva report` and `viva show` still read what is left"
    )


def missing_journal(path: Path) -> JournalError:
    """The error where a run's manifest is there and its journal is not."""
    return JournalError(
        f"{path}: the journal of this run is missing; put it back where it was (gunzip it if it is packed), "
        "or start the run anew in another folder"
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another program holds a lock."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

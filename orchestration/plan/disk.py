"""How much a sweep's journals will hold on disk: as many bytes a call as in journals that are there.

What never belongs here: reading what was said.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

GUESSED_BYTES = 400.0  # of a call's row with its indices, beside its text
GUESSED_PER_TOKEN = 4.5  # bytes of answers
_EMPTY_PAGES = 6  # of a journal without records


def bytes_per_call(journals: Iterable[Path]) -> float | None:
    """Bytes that a call has taken so far, with its conversation's own rows; None where no call is recorded.

    A log beside a journal (``-wal``) is not counted: it goes into the journal, or is empty.
    """
    size = calls = 0
    for journal in journals:
        try:
            with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
                (count,) = database.execute("select count(*) from calls").fetchone()
                (pages,) = database.execute("pragma page_count").fetchone()
                (page,) = database.execute("pragma page_size").fetchone()
        except sqlite3.Error:
            continue  # whoever reads the conversations says what is wrong with it
        if count:
            size, calls = size + (pages - _EMPTY_PAGES) * page, calls + count
    return size / calls if calls else None

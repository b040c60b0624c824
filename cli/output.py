"""Results on stdout: tables for people, JSON for programs.

What never belongs here: progress and complaints (stderr).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import orjson

Table = tuple[str, list[str], list[list[str]]]


def print_json(data: Any) -> None:
    """Indented JSON; the same data gives the same bytes."""
    sys.stdout.buffer.write(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def print_tables(tables: Iterable[Table]) -> None:
    """Titled tables; those without rows are left out. Never wraps or cuts when the output is not a terminal."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console() if sys.stdout.isatty() else Console(width=400)
    for title, header, rows in tables:
        if not rows:
            continue
        table = RichTable(title=title, box=SIMPLE, title_justify="left", title_style="bold")
        for index, name in enumerate(header):
            texts = [row[index] for row in rows]
            numeric = all(text[:1].isdigit() or text[:1] in "–-" for text in texts)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)

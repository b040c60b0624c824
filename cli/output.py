"""Results on stdout: tables for people, JSON for programs.

What never belongs here: progress and complaints (stderr).
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from viva.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

Table = tuple[str, list[str], list[list[str]]]
# What could move a cursor, set a title or hide text, were it printed as a model wrote it.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_json(data: Any, *, line: bool = False) -> None:
    """Indented JSON, or one ``line`` of it; the same data gives the same bytes."""
    option = orjson.OPT_APPEND_NEWLINE | (0 if line else orjson.OPT_INDENT_2)
    _write(orjson.dumps(data, option=option))


def print_text(text: str) -> None:
    """Text as it is, in UTF-8."""
    _write(text.encode("utf-8", "replace"))


def print_tables(tables: Iterable[Table]) -> None:
    """Titled tables; those without rows are left out. Never wraps or cuts when the output is not a terminal."""
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    for title, header, rows in tables:
        if not rows:
            continue
        table = RichTable(box=SIMPLE)
        for index, name in enumerate(header):
            texts = [row[index] for row in rows]
            numeric = all(text[:1].isdigit() or text[:1] in "–-" for text in texts)
            table.add_column(Text(harmless(name)), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        print_rich(Text(harmless(title), style="bold"), table)


def print_rich(*parts: RenderableType, width: int | None = None) -> None:
    """Anything rich can draw; outside of a terminal plain, and as wide as it needs to be."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=width if terminal or width else 10_000)
    if terminal:
        console.width = os.get_terminal_size().columns
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))
    _write(text.encode(sys.stdout.encoding or "utf-8", "replace"))


def harmless(text: str) -> str:
    """The text with its control characters made visible."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _write(data: bytes) -> None:
    """:raises ConfigurationError: stdout cannot take it (a full disk behind a redirection, say)."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has left (`viva show | head`): the rest is for nobody, and no reason to fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ConfigurationError(f"cannot write the results to stdout: {error.strerror}") from None

"""``viva suite init``: a small suite with comments that runs at once against a simulated application.

What never belongs here: the files themselves (``templates``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FILES = ("suite.yaml", "conversations.jsonl", "metrics.py")
_TEMPLATES = Path(__file__).parent.parent / "templates"


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")] = Path("suite"),
) -> None:
    """Write a small suite with comments; it runs at once against a simulated application."""
    import shlex

    from viva.engine.errors import ConfigurationError

    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise ConfigurationError(f"{folder}: holds {', '.join(there)} already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            template = (_TEMPLATES / name).with_suffix(".txt" if name.endswith(".py") else Path(name).suffix)
            (folder / name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be made: {error.strerror}") from None
    for name, what in zip(
        _FILES, ("the suite, with comments", "ten conversations", "metrics of your own"), strict=True
    ):
        typer.echo(f"{folder / name}: {what}")
    typer.echo(f"run it with: viva suite run {shlex.quote(str(folder / 'suite.yaml'))}")

"""``viva grade init``: a small project with comments that passes ``viva grade check`` and can be collected at once.

What never belongs here: the files themselves (``templates``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FILES = ("project.yaml", "questions.jsonl")
TEMPLATES = Path(__file__).parent.parent / "templates"


def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")]) -> None:
    """Write a small project with comments, and questions that can be imported into its bank."""
    import shlex

    from viva.engine.errors import ConfigurationError

    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise ConfigurationError(f"{folder}: holds {', '.join(there)} already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (folder / name).write_text((TEMPLATES / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be made: {error.strerror}") from None
    named = shlex.quote(str(folder))
    typer.echo(f"{folder / _FILES[0]}: the project, with comments\n{folder / _FILES[1]}: eight questions for its bank")
    typer.echo(
        f"go on with:\n  viva grade bank import {named} {shlex.quote(str(folder / _FILES[1]))}\n"
        f"  viva grade bank inspect {named} --all\n  viva grade bank accept {named} --all\n  viva grade check {named}"
    )

"""The folder of a sweep: what it is known by, and what may not lie there.

Light on purpose: commands ask this of every folder that they are given. What never belongs here: reading the sweep.
"""

from __future__ import annotations

from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.engine.files import is_leftover

NAME = "sweep.json"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / NAME).is_file()


def _is_leftover(name: str) -> bool:
    """Whether a kill leaves such a file where nothing has begun."""
    return name in ("lock", f"{NAME}.part") or is_leftover(name, NAME)


def check_place(out: Path) -> None:
    """See that a sweep can lie in this folder.

    :raises ConfigurationError: something else does.
    """
    if (out / "manifest.json").exists():
        raise ConfigurationError(f"{out} holds a run, not a sweep; name another folder with --out")
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out} is not a folder; name another one with --out")
    if out.exists() and not is_sweep(out) and any(not _is_leftover(one.name) for one in out.iterdir()):
        raise ConfigurationError(f"{out} exists and is not the folder of a sweep; name another folder with --out")

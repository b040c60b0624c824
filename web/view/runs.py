"""Run discovery below a folder: runs, cells of sweeps, folders of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.sweeps.recorded_sweep import read_sweep
from viva.sweeps.sweep_folder import is_sweep

_MOST_LEVELS = 6  # maximum levels of folders below the given folder
_MOST_RUNS = 5_000  # maximum folders to search


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over the runs below a folder, each with its relative path as a name.

    If `root` is a run, its name is that of the folder. Cells are in the order of their sweep, other runs in the
    order of their paths.
    """
    if _is_run(root):
        yield root.resolve().name or "run", root
        return
    budget = [_MOST_RUNS]
    seen: set[Path] = set()
    for path in _runs_below(root, 0, budget):
        if path not in seen:
            seen.add(path)
            yield path.relative_to(root).as_posix(), path


def study_folders(root: Path) -> list[Path]:
    """Return the folders that a report on a folder covers: sweeps, and runs that are no cells of a sweep."""
    if _is_run(root) or is_sweep(root):
        return [root]
    folders: dict[Path, None] = {}
    for _, path in find_runs(root):
        above = [parent for parent in path.parents if parent.is_relative_to(root) and is_sweep(parent)]
        folders[above[-1] if above else path] = None
    return list(folders)


def check_root(root: Path, *, may_be_empty: bool = False) -> None:
    """Check that this is a folder, and that it contains runs unless it `may_be_empty`."""
    if not root.is_dir():
        problem = "not a folder" if root.exists() else "no such folder"
        raise ConfigurationError(f"{root}: {problem}; give the folder of a run or sweep, or one for runs")
    if not may_be_empty and not is_sweep(root) and next(find_runs(root), None) is None:
        raise ConfigurationError(f"{root}: no run in this folder (a run has a manifest.json); give another folder")


def _is_run(path: Path) -> bool:
    return (path / "manifest.json").is_file()


def _runs_below(folder: Path, depth: int, budget: list[int]) -> Iterator[Path]:
    if _is_run(folder):
        yield folder
        return
    if is_sweep(folder):
        try:
            names = [cell.name for cell in read_sweep(folder).cells]
        except ConfigurationError:
            names = []
        yield from (folder / name for name in names if _is_run(folder / name))
    if depth == _MOST_LEVELS:
        return
    try:
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in inner:
        budget[0] -= 1
        if budget[0] < 0:
            return
        if not name.startswith("."):
            yield from _runs_below(folder / name, depth + 1, budget)

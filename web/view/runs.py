"""Run discovery below a folder: runs, cells of sweeps, folders of both.

The folder may be somebody else's: cells and links that lead out of it are not followed, and the search is bounded. What
it leaves out, it says.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.sweeps.recorded_sweep import cell_names
from viva.sweeps.sweep_folder import SWEEP_FILE, is_sweep

_MOST_LEVELS = 6  # maximum levels of folders below the given folder
_MOST_FOLDERS = 5_000  # maximum folders to search
_LARGEST_SWEEP = 16 << 20  # bytes of a sweep's manifest that is read again and again
_LEAST_SHARE = 20  # folders that are searched in each of many folders, before the others get less
_MOST_NOTES = 20
_LONGEST_NOTE = 300  # characters


class RunSearch:
    """The search for the runs below a folder. When it has ended, `notes` says what was left out.

    `refused` are the folders of runs that a link would lead out of the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real_root = root.resolve()
        self._seen: set[Path] = set()
        self.notes: list[str] = []
        self.refused: list[Path] = []

    def runs(self) -> Iterator[tuple[str, Path]]:
        """Iterate over the runs, each with its relative path as a name.

        If the folder is a run, its name is that of the folder. Cells are in the order of their sweep, other runs in the
        order of their paths.
        """
        if _is_run(self._root):
            yield self._real_root.name or "run", self._root
            return
        for path in self._below(self._root, 0, _MOST_FOLDERS):
            yield path.relative_to(self._root).as_posix(), path

    def _below(self, folder: Path, depth: int, budget: int) -> Generator[Path, None, int]:
        """Yield the new runs in and below a folder; return how many folders were searched, at most `budget`.

        Folders beside each other share the budget, so that one with many others in it hides no run.
        """
        searched = 0
        if _is_run(folder):
            yield from self._new_run(folder)
            return searched
        if is_sweep(folder):
            names = self._cells(folder, budget // 2)  # the search below meets the others
            searched += len(names)
            for path in (folder / name for name in names):
                if _is_run(path) and self._is_inside(path):
                    yield from self._new_run(path)
        if depth == _MOST_LEVELS:
            return searched
        inner = [path for path in self._folders_in(folder) if path not in self._seen]
        for position, path in enumerate(inner):
            left = budget - searched
            if left <= 0:
                self._note(f"only {position:,} of the {len(inner):,} folders in {folder} were searched")
                break
            share = max(left // (len(inner) - position), min(left, _LEAST_SHARE))
            searched += 1 + (yield from self._below(path, depth + 1, share - 1))
        return searched

    def _new_run(self, path: Path) -> Iterator[Path]:
        if path in self._seen:
            return
        self._seen.add(path)
        for name in ("manifest.json", "journal.sqlite"):
            if (path / name).is_symlink() and not self._is_inside(path / name):
                self._note(f"{path / name} is a link out of the folder, so this run is left out")
                self.refused.append(path)
                return
        yield path

    def _cells(self, sweep: Path, budget: int) -> list[str]:
        try:
            if (sweep / SWEEP_FILE).stat().st_size > _LARGEST_SWEEP:
                return []  # its cells are in the order of their paths
            return cell_names(sweep, budget)
        except OSError:
            return []
        except ConfigurationError as error:
            self._note(f"{sweep}: {error}" if str(sweep) not in str(error) else str(error))
            return []

    def _folders_in(self, folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                )
        except OSError:
            return []
        paths = []
        for name in names:
            try:
                name.encode()
                paths.append(folder / name)
            except UnicodeEncodeError:
                self._note(f"{folder}: the folder {os.fsencode(name)!r} is left out, because its name is not UTF-8")
        return paths

    def _is_inside(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self._real_root)
        except (OSError, RuntimeError):  # a loop of links
            return False

    def _note(self, sentence: str) -> None:
        sentence = sentence.replace(f"{self._root}{os.sep}", "")[:_LONGEST_NOTE]
        if len(self.notes) < _MOST_NOTES and sentence not in self.notes:
            self.notes.append(sentence)


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over the runs below a folder; see `RunSearch.runs`."""
    return RunSearch(root).runs()


def left_out(root: Path) -> list[str]:
    """Return what the search for runs below a folder leaves out, as sentences."""
    search = RunSearch(root)
    deque(search.runs(), maxlen=0)
    return search.notes


def study_folders(root: Path) -> list[Path]:
    """Return the folders that a report on a folder covers: sweeps, and runs that are no cells of a sweep."""
    if _is_run(root):
        return [root]
    search = RunSearch(root)
    paths = [path for _, path in search.runs()]
    refused = {parent for path in search.refused for parent in path.parents}  # their sweeps are not read as a whole
    folders: dict[Path, None] = {}
    for path in paths:
        above = [
            parent
            for parent in path.parents
            if parent.is_relative_to(root) and parent not in refused and is_sweep(parent)
        ]
        folders[above[-1] if above else path] = None
    return list(folders) or ([root] if is_sweep(root) else [])


def check_root(root: Path, *, may_be_empty: bool = False) -> None:
    """Check that this is a folder, and that it contains runs unless it `may_be_empty`."""
    if not root.is_dir():
        problem = "not a folder" if root.exists() else "no such folder"
        raise ConfigurationError(f"{root}: {problem}; give the folder of a run or sweep, or one for runs")
    if may_be_empty or is_sweep(root):
        return
    search = RunSearch(root)
    if next(search.runs(), None) is None:
        left_out = f"; {search.notes[0]}" if search.notes else ""
        raise ConfigurationError(
            f"{root}: no run in this folder (a run has a manifest.json); give another folder{left_out}"
        )


def _is_run(path: Path) -> bool:
    return (path / "manifest.json").is_file()

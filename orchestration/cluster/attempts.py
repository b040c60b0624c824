"""Attempts at parts, in the shared folder: each has a number and a folder of its own, and one of them counts.

``FOLDER/attempts/PART/2/`` holds copies of the runs as the second attempt has published them, laid out as the sweep's
own folder. Ray runs a task at least once: a worker that was given up may still work. So attempts never write to the
places of the cells. The process that drives the sweep moves there what the attempt has made whose result it was given;
an attempt that finds a later one, or its own folder gone, is fenced: it publishes nothing more.
What never belongs here: copying (``copies``), running parts (``task``), and Ray.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ClusterError, JournalError
from viva.engine.files import write_atomically

from ..share import Share
from ..sweep.cells import CELLS
from .copies import PART, move_into_place, publish, restore, rows_in, run_of

FOLDER = "attempts"
_STOP = "stop"
_RECORD = "attempt.json"
_PROGRESS = "progress.json"


class Attempt:
    """One attempt at a part. ``number`` counts from 1; ``root`` is its folder, ``scratch`` a folder on a local disk."""

    def __init__(self, out: Path, part: str, scratch: Path) -> None:
        """Begin the next attempt; the name of a new folder is what no two can have.

        :raises JournalError: the shared folder cannot be written.
        """
        self.out, self._scratch = out, scratch
        self._folder = out / FOLDER / part
        self.number = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while not self.number:
                number = max(numbers(out, part), default=0) + 1
                try:
                    (self._folder / str(number)).mkdir()
                    self.number = number
                except FileExistsError:  # another one began at the same moment
                    continue
        except OSError as error:
            raise JournalError(f"{self._folder}: cannot be written: {error.strerror or error}") from error
        self.root = self._folder / str(self.number)

    @property
    def fenced(self) -> bool:
        """Whether another attempt counts by now: a later one has begun, or one has been moved to the cell's place."""
        return not self.root.is_dir() or max(_numbered(self._folder), default=0) > self.number

    def restore(self, cells: Iterable[str], share: Share | None, local: Path) -> None:
        """Copy what there is of each cell to the ``local`` sweep folder: the latest copy that an earlier attempt has
        published, if it goes on from what lies in the cell's place, else that.

        :raises JournalError: a copy cannot be read.
        """
        basis: dict[str, dict[str, int] | None] = {}
        for cell in cells:
            place = run_of(self.out, cell, share)
            basis[cell] = None if place is None else rows_in(place, self._scratch)
            found, under = place, self.out
            for number in sorted(_numbered(self._folder), reverse=True):
                earlier = self._folder / str(number)
                run = run_of(earlier, cell, share) if number < self.number else None
                if run is not None and _basis(earlier).get(cell) == basis[cell]:
                    found, under = run, earlier
                    break
            if found is not None:
                restore(found, local / found.relative_to(under))
        write_atomically(self.root / _RECORD, orjson.dumps({"attempt": 1, "basis": basis}))

    def publish(self, cells: Iterable[str], share: Share | None, local: Path) -> None:
        """Copy what the local runs hold by now into this attempt's folder.

        :raises ClusterError: another attempt counts by now.
        :raises JournalError: a copy cannot be written.
        """
        for cell in cells:
            run = run_of(local, cell, share)
            if run is not None:
                if self.fenced:
                    raise ClusterError(f"attempt {self.number}: another attempt at this part counts by now")
                publish(run, self.root / run.relative_to(local), self._scratch)

    def tell(self, progress: dict[str, Any]) -> None:
        """Write how far it has come, for the driver to show."""
        write_atomically(self.root / _PROGRESS, orjson.dumps(progress))


def numbers(out: Path, part: str) -> list[int]:
    """The numbers of a part's attempts that have begun."""
    return sorted(_numbered(out / FOLDER / part))


def progress_of(out: Path, part: str, number: int) -> dict[str, Any]:
    """What an attempt has told last; empty where it has told nothing."""
    return _read(out / FOLDER / part / str(number) / _PROGRESS)


def commit(out: Path, part: str, number: int, scratch: Path) -> None:
    """Move what an attempt has published to the places of its cells, and forget all attempts at this part.

    :raises ClusterError: nothing is there of this attempt, or the run in a cell's place is not what the attempt went on
        from; what lies there stays as it is.
    :raises JournalError: a place cannot be read or written.
    """
    root = out / FOLDER / part / str(number)
    runs = _published(root)
    if not runs:
        raise ClusterError(f"attempt {number} has published nothing, or another attempt was taken in its place")
    basis = _basis(root)
    refused = []
    for run in runs:
        place = out / run.relative_to(root)
        there = rows_in(place, scratch) if (place / "manifest.json").exists() else None
        cell = next((name for name in basis if place == out / name or (out / name) in place.parents), "")
        if there == basis.get(cell):
            move_into_place(run, place)
        else:
            refused.append(str(place))
    shutil.rmtree(out / FOLDER / part, ignore_errors=True)
    if refused:
        raise ClusterError(
            f"{', '.join(refused)}: holds something else than attempt {number} went on from; it stays as it is, and "
            "what the attempt has made is dropped"
        )


def settle(out: Path, scratch: Path) -> None:
    """Move to their places what attempts of a driver that is gone have published: of each part the latest that has
    published something and fits. Attempts that still run are fenced by it.

    :raises JournalError: a place cannot be read or written.
    """
    for folder in sorted((out / FOLDER).iterdir()) if (out / FOLDER).is_dir() else []:
        if folder.is_dir():
            made = [number for number in numbers(out, folder.name) if _published(folder / str(number))]
            if made:
                try:
                    commit(out, folder.name, made[-1], scratch)
                except ClusterError:  # the cell has gone on otherwise
                    pass
            shutil.rmtree(folder, ignore_errors=True)
    (out / FOLDER / _STOP).unlink(missing_ok=True)
    try:
        (out / FOLDER).rmdir()
    except OSError:  # there is none, or an attempt that is fenced has written once more
        pass


def left_over(out: Path) -> bool:
    """Whether attempts lie in a sweep's folder: a cluster is at it, or its driver was killed."""
    return any((out / FOLDER).glob(f"*/*/{_RECORD}"))


def ask_to_stop(out: Path, how: str) -> None:
    """Tell all attempts to ``interrupt`` or ``halt``."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomically(out / FOLDER / _STOP, how.encode())


def asked_to_stop(out: Path) -> str | None:
    """What attempts were told; None where they may go on."""
    try:
        return (out / FOLDER / _STOP).read_text()
    except OSError:
        return None


def _published(root: Path) -> list[Path]:
    return sorted(one.parent for one in (root / CELLS).rglob("manifest.json") if not one.parent.name.endswith(PART))


def _numbered(folder: Path) -> list[int]:
    try:
        return [int(one.name) for one in folder.iterdir() if one.name.isascii() and one.name.isdigit()]
    except OSError:
        return []


def _basis(root: Path) -> dict[str, dict[str, int] | None]:
    basis: dict[str, dict[str, int] | None] = _read(root / _RECORD).get("basis", {})
    return basis


def _read(file: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}

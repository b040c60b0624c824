"""Merging: the shards of each cell become the cell's run, as one process would have left it.

A cell is merged whole or not at all, and its shards stay as they are. Refused are conversations that are missing or
held twice, shards of another run than the cell, and shards that still run.
What never belongs here: copying rows (``engine.joining``), where shards lie (``shards``), output.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from viva.engine.errors import ConfigurationError, JournalError, JournalNotice, VivaError
from viva.engine.files import write_atomically
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.joining import JointJournal, copied, put_in_place, rows_of
from viva.engine.manifest import read_manifest

from ..launch import check_settings
from ..share import Share
from .cells import Cell
from .merge_checks import ReadShard, doubled, foreign, missing
from .portion import cell_called
from .record import read_sweep
from .results import planned_of, whole_of
from .shards import RECORD, described, shards_of

VERSION = 1
_NAMED = 5  # damaged records that a refusal names
# merged: just now. whole: it was before, or one process has held it. waiting: nothing is there. part: begun by one
# process and not at its end. refused: see ``problems``.
State = Literal["merged", "whole", "waiting", "part", "refused"]


@dataclass(slots=True)
class MergedCell:
    """What has become of a cell. ``planned`` and ``ended`` count conversations (``planned`` None: nothing is there)."""

    cell: Cell
    state: State = "waiting"
    shards: int = 0
    planned: int | None = None
    ended: int = 0
    problems: list[str] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Plain data."""
        names = ("state", "shards", "planned", "ended", "problems")
        return {"name": self.cell.name} | {name: getattr(self, name) for name in names}


def merge_sweep(out: Path, *, cell: str | None = None, partial: bool = False) -> list[MergedCell]:
    """Merge the shards of a sweep's cells, or of one; a cell that is refused keeps none of the others from it.

    :param cell: as ``Portion`` has it; :param partial: conversations may be missing; they can be held later, by shards
        that are merged again, or by ``viva resume`` on the cell.
    :raises ConfigurationError: the folder is not that of a sweep, or has no such cell.
    """
    cells = read_sweep(out).cells
    merged = [MergedCell(one) for one in (cells if cell is None else [cell_called(cell, cells)])]
    for one in merged:
        try:
            _merge(one, out, partial)
        except VivaError as error:
            one.problems.append(str(error))
        if one.problems:
            one.state = "refused"
    return merged


def _merge(cell: MergedCell, out: Path, partial: bool) -> None:
    place = out / cell.cell.name
    apart = shards_of(place)
    cell.shards = len(apart)
    begun = (place / "manifest.json").exists()
    if not apart and not begun:
        if not partial:
            cell.problems.append("missing: all of its conversations: no shard of it has begun")
        return
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="viva-merge-") as scratch:
        _hold(RunFolder(place, {}), held, f"{place} still runs, or is being merged", cell.problems)
        folders = [(share, RunFolder.open(path)) for share, path in apart]
        for share, folder in folders:
            _hold(folder, held, f"{described(share)} still runs", cell.problems)
        if cell.problems:
            return
        merged = read_manifest(place / RECORD, "a merged cell") if (place / RECORD).exists() and begun else None
        if begun and (merged is None or not apart):
            _own_run(cell, place, Path(scratch), partial, shards=bool(apart))
            return
        if merged is not None and _is_whole(merged, place, [share for share, _ in apart], Path(scratch)):
            cell.planned = cell.ended = merged["planned"]
            cell.state = "whole"
            return
        joint = Path(scratch) / "joint.sqlite"
        with JointJournal(joint) as journal:
            seen: set[int] = set()
            shards = [_read(cell, share, folder, Path(scratch), journal, seen) for share, folder in folders]
            rows = journal.rows()
        cell.planned = whole_of(shards[0].folder)
        cell.ended = len(set().union(*(shard.ended for shard in shards)))
        cell.problems += foreign(cell.cell, shards)
        if not cell.problems:
            cell.problems += doubled(shards)
            cell.problems += [] if partial else missing(cell.cell, cell.planned, shards)
        if cell.problems:
            return
        record = {
            "merge": VERSION,
            "shards": [shard.share.to_record() for shard in shards],
            "planned": cell.planned,
            "missing": cell.planned - cell.ended,
            "rows": rows,
        }
        if merged is not None:
            if merged == record:
                cell.state = "part"
                return
            _check_grown(place, merged, shards, Path(scratch))
        _write(place, cell.cell, shards[0].folder.manifest, joint, record)
        cell.state = "merged"


def _hold(folder: RunFolder, held: ExitStack, said: str, problems: list[str]) -> None:
    """Lock a run folder until the merge of its cell has ended."""
    try:
        folder.lock()
    except ConfigurationError:
        problems.append(f"{said}: let it end, or stop it")
    held.callback(folder.unlock)


def _own_run(cell: MergedCell, place: Path, scratch: Path, partial: bool, *, shards: bool) -> None:
    """A cell with a run in its usual place that no shard can add to."""
    if shards:
        cell.problems.append(
            f"doubled: {place} holds a run that one process began, and shards besides: remove one of the two"
        )
        return
    run = RunFolder.open(place)
    check_settings(run, cell.cell.scenario, cell.cell.settings)
    with History(copied(run.journal, scratch)) as history:
        cell.planned, cell.ended = planned_of(run), len(history.ended_numbers())
    cell.state = "whole" if cell.ended >= cell.planned else "part"
    if cell.state == "part" and not partial:
        missing = cell.planned - cell.ended
        cell.problems.append(f"missing: {missing} of {cell.planned} conversations: go on with `viva resume {place}`")


def _read(
    cell: MergedCell, share: Share, folder: RunFolder, scratch: Path, journal: JointJournal, seen: set[int]
) -> ReadShard:
    """What a shard holds; its rows are added to the joint journal unless one of its conversations was ``seen``."""
    name = described(share)
    try:
        check_settings(folder, cell.cell.scenario, cell.cell.settings)
        if Share.of_manifest(folder.manifest) != share:
            raise ConfigurationError(f"{folder.path}: its manifest is not that of this shard")
    except ConfigurationError as error:
        cell.problems.append(f"{name}: of another run: {error}")
    with tempfile.TemporaryDirectory(dir=scratch) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalNotice)  # damage is told below, with the shard's own place
        copy = copied(folder.journal, Path(own))
        with History(copy) as history:
            started = {number: key for key, number in history.keys().items()}
            ended = history.ended_numbers()
            sound, damage = history.sound, list(history.damage)
        if damage or not sound:
            cell.problems.append(
                f"{name}: damaged: {', '.join(damage[:_NAMED])}; `viva resume {folder.path}`, or restore a copy"
            )
        if not cell.problems and seen.isdisjoint(started):  # else nothing will be made of it
            journal.add(copy)
        seen.update(started)
    return ReadShard(share, folder, started, ended)


def _is_whole(merged: Any, place: Path, there: list[Share], scratch: Path) -> bool:
    """Whether an earlier merge has everything, or has been led to its end since, and no shard has come; some may be
    gone.

    :raises ConfigurationError: its record is damaged.
    """
    try:
        known = all(share.to_record() in merged["shards"] for share in there)
        missing, planned = int(merged["missing"]), int(merged["planned"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place / RECORD}: cannot be used: {error!r}") from None
    if not known or missing == 0:
        return known
    journal = RunFolder(place, {}).journal
    with tempfile.TemporaryDirectory(dir=scratch) as own, History(copied(journal, Path(own))) as history:
        return len(history.ended_numbers()) >= planned


def _check_grown(place: Path, merged: Any, shards: list[ReadShard], scratch: Path) -> None:
    """See that nothing is lost when the run of an earlier merge is replaced.

    :raises ConfigurationError: something would be.
    """
    known = [shard.share.to_record() for shard in shards]
    try:
        gone = [one for one in merged["shards"] if one not in known]
        rows = merged["rows"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place / RECORD}: cannot be used: {error!r}") from None
    if gone:
        named = ", ".join(f"{one['index']}/{one['of']} (attempt {one['attempt']})" for one in gone)
        raise ConfigurationError(f"{place} was merged from shards that are gone: {named}; put them back")
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        if rows_of(copied(place / "journal.sqlite", Path(own))) != rows:
            raise ConfigurationError(
                f"{place} has gone on by itself since it was merged in part: go on with `viva resume {place}`, "
                "and remove the shards that came since"
            )


def _write(place: Path, cell: Cell, manifest: Mapping[str, Any], joint: Path, record: dict[str, Any]) -> None:
    """The cell's run folder: first the journal, last the manifest, so that a kill leaves no run that is not whole."""
    settings = manifest["settings"] | {name: value for name, value in cell.settings.model_dump(mode="json").items()
                                       if name in cell.settings.circumstances}  # fmt: skip
    whole = {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}
    try:
        for name in ("manifest.json", RECORD):  # of an earlier merge: until this one is whole, there are shards only
            (place / name).unlink(missing_ok=True)
        put_in_place(joint, RunFolder(place, whole).journal)
        write_atomically(place / RECORD, orjson.dumps(record, option=orjson.OPT_INDENT_2))
        write_atomically(place / "manifest.json", orjson.dumps(whole, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise JournalError(f"{place}: cannot write the merged run: {error.strerror or error}") from error

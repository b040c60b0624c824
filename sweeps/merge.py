"""Merge the shards of each cell into the cell's run, as one process would have left it.

A cell is merged whole or not at all, and its shards stay as they are. Refused are conversations that are
missing or duplicated, shards of another run than the cell, and shards that still run.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from viva.engine.errors import ConfigurationError, JournalError, JournalNotice, VivaError
from viva.engine.files import write_atomically
from viva.engine.journal_merge import JournalMerger, copy_journal, count_rows, replace_journal
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder, compare_manifests, read_manifest
from viva.orchestration.launch import check_settings
from viva.orchestration.prepared_run import PreparedRun, Shard
from viva.scenarios.registry import get_scenario

from .cells import Cell
from .recorded_sweep import planned_conversations, planned_in_all_shards, read_sweep
from .shards import find_cell
from .sweep_folder import MERGE_RECORD, shard_text, shards_of

_MOST_NAMED_KEYS = 5  # conversations that a refusal names for each shard


@dataclass(slots=True)
class ShardContents:
    """What a shard holds: the keys of its conversations by number, and the numbers of those that have ended."""

    share: Shard
    folder: RunFolder
    started: dict[int, str]
    ended: set[int]


def foreign_shards(cell: Cell, shards: Sequence[ShardContents]) -> list[str]:
    """The shards that are not of one run with the first: dataset, prompt pack, models or versions of files differ."""
    first, found = shards[0], []
    for shard in shards[1:]:
        different = compare_manifests(
            _common_manifest(first.folder.manifest, cell), _common_manifest(shard.folder.manifest, cell)
        )
        if different:
            found.append(
                f"{shard_text(shard.share)}: of another run than {shard_text(first.share)}: different: "
                f"{', '.join(different)}"
            )
    return found


def duplicate_conversations(shards: Sequence[ShardContents]) -> list[str]:
    """The conversations that more than one shard has begun, by the shards that have."""
    holders: dict[int, list[ShardContents]] = {}
    for shard in shards:
        for number in shard.started:
            holders.setdefault(number, []).append(shard)
    found: dict[str, list[str]] = {}
    for number, several in sorted(holders.items()):
        if len(several) > 1:
            found.setdefault(_holders_text(several), []).append(several[0].started[number])
    return [
        f"doubled: in {names}: {_keys_text(keys)}; remove all of these shards but one" for names, keys in found.items()
    ]


def missing_conversations(cell: Cell, planned: int, shards: Sequence[ShardContents]) -> list[str]:
    """The conversations that no shard has ended, by the shard that should; named where the dataset can be read, or
    where they have begun.
    """
    numbers = sorted(set(range(planned)).difference(*(shard.ended for shard in shards)))
    if not numbers:
        return []
    keys = _planned_keys(cell, set(numbers)) or {
        number: key for shard in shards for number, key in shard.started.items()
    }
    by_shard: dict[int, list[str]] = {}
    of = {shard.share.total for shard in shards}
    for number in numbers:
        holder = number % min(of) + 1 if len(of) == 1 else 0
        by_shard.setdefault(holder, []).append(keys.get(number) or f"number {number}")
    there = {shard.share.index: shard_text(shard.share) for shard in shards}
    found = []
    for index, named in sorted(by_shard.items()):
        which = f"of {there.get(index) or f'shard {index}/{min(of)}, which has not begun'}: " if index else ""
        found.append(f"missing: {which}{_keys_text(named)}")
    return found


def _planned_keys(cell: Cell, wanted: set[int]) -> dict[int, str]:
    try:
        prepared = PreparedRun(get_scenario(cell.scenario), cell.settings)
        return {number: key for number, key in prepared.numbered_keys() if number in wanted}
    except VivaError:  # the dataset is not here
        return {}


def _common_manifest(manifest: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """What the manifests of one cell's shards have in common: all but which share it is, and circumstances."""
    settings = {name: value for name, value in manifest["settings"].items()
                if name not in cell.settings.circumstances}  # fmt: skip
    return {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}


def _holders_text(shards: Iterable[ShardContents]) -> str:
    return " and ".join(f"{shard_text(one.share)} with {len(one.ended)} ended" for one in shards)


def _keys_text(keys: list[str]) -> str:
    more = f" and {len(keys) - _MOST_NAMED_KEYS} more" if len(keys) > _MOST_NAMED_KEYS else ""
    return f"{len(keys)} conversation{'s' * (len(keys) > 1)}: {', '.join(keys[:_MOST_NAMED_KEYS])}{more}"


MERGE_VERSION = 1
_MOST_NAMED_RECORDS = 5  # damaged records that a refusal names
# merged: just now. whole: it was before, or one process has held it. waiting: nothing is there. part: begun by one
# process and not at its end. refused: see ``problems``.
MergeStatus = Literal["merged", "whole", "waiting", "part", "refused"]


@dataclass(slots=True)
class MergedCell:
    """What has become of a cell. ``planned`` and ``ended`` count conversations (``planned`` None: nothing is there)."""

    cell: Cell
    state: MergeStatus = "waiting"
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
    merged = [MergedCell(one) for one in (cells if cell is None else [find_cell(cell, cells)])]
    for one in merged:
        try:
            _merge_cell(one, out, partial)
        except VivaError as error:
            one.problems.append(str(error))
        if one.problems:
            one.state = "refused"
    return merged


def _merge_cell(cell: MergedCell, out: Path, partial: bool) -> None:
    place = out / cell.cell.name
    apart = shards_of(place)
    cell.shards = len(apart)
    begun = (place / "manifest.json").exists()
    if not apart and not begun:
        if not partial:
            cell.problems.append("missing: all of its conversations: no shard of it has begun")
        return
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="viva-merge-") as scratch:
        _lock_folder(RunFolder(place, {}), held, f"{place} still runs, or is being merged", cell.problems)
        folders = [(share, RunFolder.open(path)) for share, path in apart]
        for share, folder in folders:
            _lock_folder(folder, held, f"{shard_text(share)} still runs", cell.problems)
        if cell.problems:
            return
        merged = (
            read_manifest(place / MERGE_RECORD, "a merged cell") if (place / MERGE_RECORD).exists() and begun else None
        )
        if begun and (merged is None or not apart):
            _check_own_run(cell, place, Path(scratch), partial, shards=bool(apart))
            return
        if merged is not None and _is_whole(merged, place, [share for share, _ in apart], Path(scratch)):
            cell.planned = cell.ended = merged["planned"]
            cell.state = "whole"
            return
        joint = Path(scratch) / "joint.sqlite"
        with JournalMerger(joint) as journal:
            seen: set[int] = set()
            shards = [_read_shard(cell, share, folder, Path(scratch), journal, seen) for share, folder in folders]
            rows = journal.rows()
        cell.planned = planned_in_all_shards(shards[0].folder)
        cell.ended = len(set().union(*(shard.ended for shard in shards)))
        cell.problems += foreign_shards(cell.cell, shards)
        if not cell.problems:
            cell.problems += duplicate_conversations(shards)
            cell.problems += [] if partial else missing_conversations(cell.cell, cell.planned, shards)
        if cell.problems:
            return
        record = {
            "merge": MERGE_VERSION,
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
        _write_merged_run(place, cell.cell, shards[0].folder.manifest, joint, record)
        cell.state = "merged"


def _lock_folder(folder: RunFolder, held: ExitStack, said: str, problems: list[str]) -> None:
    """Lock a run folder until the merge of its cell has ended."""
    try:
        folder.lock()
    except ConfigurationError:
        problems.append(f"{said}: let it end, or stop it")
    held.callback(folder.unlock)


def _check_own_run(cell: MergedCell, place: Path, scratch: Path, partial: bool, *, shards: bool) -> None:
    """A cell with a run in its usual place that no shard can add to."""
    if shards:
        cell.problems.append(
            f"doubled: {place} holds a run that one process began, and shards besides: remove one of the two"
        )
        return
    run = RunFolder.open(place)
    check_settings(run, cell.cell.scenario, cell.cell.settings)
    with History(copy_journal(run.journal, scratch)) as history:
        cell.planned, cell.ended = planned_conversations(run), len(history.ended_numbers())
    cell.state = "whole" if cell.ended >= cell.planned else "part"
    if cell.state == "part" and not partial:
        missing = cell.planned - cell.ended
        cell.problems.append(f"missing: {missing} of {cell.planned} conversations: go on with `viva resume {place}`")


def _read_shard(
    cell: MergedCell, share: Shard, folder: RunFolder, scratch: Path, journal: JournalMerger, seen: set[int]
) -> ShardContents:
    """What a shard holds; its rows are added to the joint journal unless one of its conversations was ``seen``."""
    name = shard_text(share)
    try:
        check_settings(folder, cell.cell.scenario, cell.cell.settings)
        if Shard.from_manifest(folder.manifest) != share:
            raise ConfigurationError(f"{folder.path}: its manifest is not that of this shard")
    except ConfigurationError as error:
        cell.problems.append(f"{name}: of another run: {error}")
    with tempfile.TemporaryDirectory(dir=scratch) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalNotice)  # damage is told below, with the shard's own place
        copy = copy_journal(folder.journal, Path(own))
        with History(copy) as history:
            started = {number: key for key, number in history.keys().items()}
            ended = history.ended_numbers()
            sound, damage = history.sound, list(history.damage)
        if damage or not sound:
            cell.problems.append(
                f"{name}: damaged: {', '.join(damage[:_MOST_NAMED_RECORDS])}; `viva resume {folder.path}`, or "
                f"restore a copy"
            )
        if not cell.problems and seen.isdisjoint(started):  # else nothing will be made of it
            journal.add(copy)
        seen.update(started)
    return ShardContents(share, folder, started, ended)


def _is_whole(merged: Any, place: Path, there: list[Shard], scratch: Path) -> bool:
    """Whether an earlier merge has everything, or has been led to its end since, and no shard has come; some may be
    gone.

    :raises ConfigurationError: its record is damaged.
    """
    try:
        known = all(share.to_record() in merged["shards"] for share in there)
        missing, planned = int(merged["missing"]), int(merged["planned"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place / MERGE_RECORD}: cannot be used: {error!r}") from None
    if not known or missing == 0:
        return known
    journal = RunFolder(place, {}).journal
    with tempfile.TemporaryDirectory(dir=scratch) as own, History(copy_journal(journal, Path(own))) as history:
        return len(history.ended_numbers()) >= planned


def _check_grown(place: Path, merged: Any, shards: list[ShardContents], scratch: Path) -> None:
    """See that nothing is lost when the run of an earlier merge is replaced.

    :raises ConfigurationError: something would be.
    """
    known = [shard.share.to_record() for shard in shards]
    try:
        gone = [one for one in merged["shards"] if one not in known]
        rows = merged["rows"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place / MERGE_RECORD}: cannot be used: {error!r}") from None
    if gone:
        named = ", ".join(f"{one['index']}/{one['of']} (attempt {one['attempt']})" for one in gone)
        raise ConfigurationError(f"{place} was merged from shards that are gone: {named}; put them back")
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        if count_rows(copy_journal(place / "journal.sqlite", Path(own))) != rows:
            raise ConfigurationError(
                f"{place} has gone on by itself since it was merged in part: go on with `viva resume {place}`, "
                "and remove the shards that came since"
            )


def _write_merged_run(
    place: Path, cell: Cell, manifest: Mapping[str, Any], joint: Path, record: dict[str, Any]
) -> None:
    """The cell's run folder: first the journal, last the manifest, so that a kill leaves no run that is not whole."""
    settings = manifest["settings"] | {name: value for name, value in cell.settings.model_dump(mode="json").items()
                                       if name in cell.settings.circumstances}  # fmt: skip
    whole = {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}
    try:
        for name in (
            "manifest.json",
            MERGE_RECORD,
        ):  # of an earlier merge: until this one is whole, there are shards only
            (place / name).unlink(missing_ok=True)
        replace_journal(joint, RunFolder(place, whole).journal)
        write_atomically(place / MERGE_RECORD, orjson.dumps(record, option=orjson.OPT_INDENT_2))
        write_atomically(place / "manifest.json", orjson.dumps(whole, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise JournalError(f"{place}: cannot write the merged run: {error.strerror or error}") from error

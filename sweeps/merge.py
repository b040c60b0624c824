"""Merge the shards of each cell into the cell's run, as if one process had run it.

A cell is merged completely or not at all, and its shards stay unchanged. Missing or duplicated conversations, shards of
another run, and running shards are refused.
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
from viva.orchestration.completeness import planned_conversations, planned_in_all_shards
from viva.orchestration.launch import check_settings
from viva.orchestration.prepared_run import PreparedRun, Shard
from viva.scenarios.registry import get_scenario

from .cells import Cell
from .recorded_sweep import read_sweep
from .shards import find_cell
from .sweep_folder import MERGE_RECORD, shard_text, shards_of

_MOST_NAMED_KEYS = 5  # maximum conversations that an error names for each shard


@dataclass(slots=True)
class ShardContents:
    """Contents of a shard: the keys of its conversations by number, and the numbers of its ended conversations."""

    shard: Shard
    folder: RunFolder
    started: dict[int, str]
    ended: set[int]


def foreign_shards(cell: Cell, shards: Sequence[ShardContents]) -> list[str]:
    """Return a problem for each shard with another dataset, prompt pack, models or file versions than the first."""
    first, problems = shards[0], []
    for contents in shards[1:]:
        different = compare_manifests(
            _common_manifest(first.folder.manifest, cell), _common_manifest(contents.folder.manifest, cell)
        )
        if different:
            problems.append(
                f"{shard_text(contents.shard)}: belongs to a different run from {shard_text(first.shard)}; "
                f"differences: {', '.join(different)}"
            )
    return problems


def duplicate_conversations(shards: Sequence[ShardContents]) -> list[str]:
    """Return a problem for each group of shards that have begun the same conversation."""
    holders: dict[int, list[ShardContents]] = {}
    for contents in shards:
        for number in contents.started:
            holders.setdefault(number, []).append(contents)
    duplicates: dict[str, list[str]] = {}
    for number, copies in sorted(holders.items()):
        if len(copies) > 1:
            duplicates.setdefault(_holders_text(copies), []).append(copies[0].started[number])
    return [
        f"duplicated: in {names}: {_keys_text(keys)}; remove all but one of these shards"
        for names, keys in duplicates.items()
    ]


def missing_conversations(cell: Cell, planned: int, shards: Sequence[ShardContents]) -> list[str]:
    """Return a problem for each shard with unfinished conversations.

    Conversations are listed by key; by number if they have not begun and the dataset cannot be read.
    """
    numbers = sorted(set(range(planned)).difference(*(contents.ended for contents in shards)))
    if not numbers:
        return []
    keys = _planned_keys(cell, set(numbers)) or {
        number: key for contents in shards for number, key in contents.started.items()
    }
    by_shard: dict[int, list[str]] = {}
    totals = {contents.shard.total for contents in shards}
    for number in numbers:
        holder = number % min(totals) + 1 if len(totals) == 1 else 0
        by_shard.setdefault(holder, []).append(keys.get(number) or f"number {number}")
    shard_names = {contents.shard.index: shard_text(contents.shard) for contents in shards}
    problems = []
    for index, names in sorted(by_shard.items()):
        prefix = (
            f"from {shard_names.get(index) or f'shard {index}/{min(totals)}, which has not begun'}: " if index else ""
        )
        problems.append(f"missing: {prefix}{_keys_text(names)}")
    return problems


def _planned_keys(cell: Cell, numbers: set[int]) -> dict[int, str]:
    try:
        prepared = PreparedRun(get_scenario(cell.scenario), cell.settings)
        return {position: key for position, key in prepared.numbered_keys() if position in numbers}
    except VivaError:  # the dataset is not on this machine
        return {}


def _common_manifest(manifest: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the fields of a manifest that must be equal in all shards of a cell."""
    settings = {name: value for name, value in manifest["settings"].items()
                if name not in cell.settings.circumstances}  # fmt: skip
    return {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}


def _holders_text(shards: Iterable[ShardContents]) -> str:
    return " and ".join(f"{shard_text(contents.shard)} with {len(contents.ended)} ended" for contents in shards)


def _keys_text(keys: list[str]) -> str:
    more = f" and {len(keys) - _MOST_NAMED_KEYS} more" if len(keys) > _MOST_NAMED_KEYS else ""
    return f"{len(keys)} conversation{'s' * (len(keys) > 1)}: {', '.join(keys[:_MOST_NAMED_KEYS])}{more}"


MERGE_VERSION = 1
_MOST_NAMED_RECORDS = 5  # maximum damaged records that an error names
# merged: by this call. whole: merged earlier, or run by one process. waiting: not begun. part: begun by one process
# and unfinished. refused: see `problems`.
MergeStatus = Literal["merged", "whole", "waiting", "part", "refused"]


@dataclass(slots=True)
class MergedCell:
    """Outcome of merging a cell. `planned` and `ended` count conversations; `planned` is None if no shard has begun."""

    cell: Cell
    state: MergeStatus = "waiting"
    shards: int = 0
    planned: int | None = None
    ended: int = 0
    problems: list[str] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("state", "shards", "planned", "ended", "problems")
        return {"name": self.cell.name} | {name: getattr(self, name) for name in names}


def merge_sweep(out: Path, *, cell: str | None = None, partial: bool = False) -> list[MergedCell]:
    """Merge the shards of a sweep's cells, or of one cell. If a cell is refused, other cells are still merged.

    `cell` is as in `SweepSlice`. With `partial`, conversations may be missing; to add them later, merge again with more
    shards, or use `viva resume` on the cell.

    Raises:
        ConfigurationError: The folder is no sweep, or the sweep has no such cell.
    """
    cells = read_sweep(out).cells
    merged = [MergedCell(entry) for entry in (cells if cell is None else [find_cell(cell, cells)])]
    for entry in merged:
        try:
            _merge_cell(entry, out, partial)
        except VivaError as error:
            entry.problems.append(str(error))
        if entry.problems:
            entry.state = "refused"
    return merged


def _merge_cell(cell: MergedCell, out: Path, partial: bool) -> None:
    target = out / cell.cell.name
    existing = shards_of(target)
    cell.shards = len(existing)
    begun = (target / "manifest.json").exists()
    if not existing and not begun:
        if not partial:
            cell.problems.append("missing: all conversations; no shard has begun")
        return
    with ExitStack() as locks, tempfile.TemporaryDirectory(prefix="viva-merge-") as scratch:
        _lock_folder(RunFolder(target, {}), locks, f"{target} is running or being merged", cell.problems)
        folders = [(shard, RunFolder.open(path)) for shard, path in existing]
        for shard, folder in folders:
            _lock_folder(folder, locks, f"{shard_text(shard)} is running", cell.problems)
        if cell.problems:
            return
        merged = (
            read_manifest(target / MERGE_RECORD, "a merged cell")
            if (target / MERGE_RECORD).exists() and begun
            else None
        )
        if begun and (merged is None or not existing):
            _check_own_run(cell, target, Path(scratch), partial, shards=bool(existing))
            return
        if merged is not None and _is_complete(merged, target, [shard for shard, _ in existing], Path(scratch)):
            cell.planned = cell.ended = merged["planned"]
            cell.state = "whole"
            return
        joint = Path(scratch) / "joint.sqlite"
        with JournalMerger(joint) as journal:
            seen_numbers: set[int] = set()
            shards = [
                _read_shard(cell, shard, folder, Path(scratch), journal, seen_numbers) for shard, folder in folders
            ]
            rows = journal.rows()
        cell.planned = planned_in_all_shards(shards[0].folder)
        cell.ended = len(set().union(*(contents.ended for contents in shards)))
        cell.problems += foreign_shards(cell.cell, shards)
        if not cell.problems:
            cell.problems += duplicate_conversations(shards)
            cell.problems += [] if partial else missing_conversations(cell.cell, cell.planned, shards)
        if cell.problems:
            return
        record = {
            "merge": MERGE_VERSION,
            "shards": [contents.shard.to_record() for contents in shards],
            "planned": cell.planned,
            "missing": cell.planned - cell.ended,
            "rows": rows,
        }
        if merged is not None:
            if merged == record:
                cell.state = "part"
                return
            _check_grown(target, merged, shards, Path(scratch))
        _write_merged_run(target, cell.cell, shards[0].folder.manifest, joint, record)
        cell.state = "merged"


def _lock_folder(folder: RunFolder, locks: ExitStack, problem: str, problems: list[str]) -> None:
    """Lock a run folder until the merge of its cell has ended."""
    try:
        folder.lock()
    except ConfigurationError:
        problems.append(f"{problem}: wait until it ends, or stop it")
    locks.callback(folder.unlock)


def _check_own_run(cell: MergedCell, folder: Path, scratch: Path, partial: bool, *, shards: bool) -> None:
    """Check a cell that has a run that was not merged from shards."""
    if shards:
        cell.problems.append(f"duplicated: {folder} contains a run of one process and shards: remove one of the two")
        return
    run = RunFolder.open(folder)
    check_settings(run, cell.cell.scenario, cell.cell.settings)
    with History(copy_journal(run.journal, scratch)) as history:
        cell.planned, cell.ended = planned_conversations(run), len(history.ended_numbers())
    cell.state = "whole" if cell.ended >= cell.planned else "part"
    if cell.state == "part" and not partial:
        missing = cell.planned - cell.ended
        cell.problems.append(f"missing: {missing} of {cell.planned} conversations: resume with `viva resume {folder}`")


def _read_shard(
    cell: MergedCell, shard: Shard, folder: RunFolder, scratch: Path, journal: JournalMerger, seen_numbers: set[int]
) -> ShardContents:
    """Read a shard; add its rows to the merged journal unless a conversation is in `seen_numbers`."""
    name = shard_text(shard)
    try:
        check_settings(folder, cell.cell.scenario, cell.cell.settings)
        if Shard.from_manifest(folder.manifest) != shard:
            raise ConfigurationError(f"{folder.path}: its manifest belongs to another shard")
    except ConfigurationError as error:
        cell.problems.append(f"{name}: belongs to another run: {error}")
    with tempfile.TemporaryDirectory(dir=scratch) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalNotice)  # damage is reported below, with the path of the shard
        copy = copy_journal(folder.journal, Path(own))
        with History(copy) as history:
            started = {number: key for key, number in history.keys().items()}
            ended = history.ended_numbers()
            sound, damage = history.sound, list(history.damage)
        if damage or not sound:
            cell.problems.append(
                f"{name}: damaged: {', '.join(damage[:_MOST_NAMED_RECORDS])}; run `viva resume {folder.path}`, "
                f"or restore a copy"
            )
        if not cell.problems and seen_numbers.isdisjoint(started):  # a cell with problems is not merged
            journal.add(copy)
        seen_numbers.update(started)
    return ShardContents(shard, folder, started, ended)


def _is_complete(merged: Any, folder: Path, shards: list[Shard], scratch: Path) -> bool:
    """Return True if an earlier merge is complete and no shard has been added. Shards may have been removed.

    Raises:
        ConfigurationError: The merge record is damaged.
    """
    try:
        is_known = all(shard.to_record() in merged["shards"] for shard in shards)
        missing, planned = int(merged["missing"]), int(merged["planned"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / MERGE_RECORD}: cannot be used: {error!r}") from None
    if not is_known or missing == 0:
        return is_known
    journal = RunFolder(folder, {}).journal
    with tempfile.TemporaryDirectory(dir=scratch) as own, History(copy_journal(journal, Path(own))) as history:
        return len(history.ended_numbers()) >= planned


def _check_grown(folder: Path, merged: Any, shards: list[ShardContents], scratch: Path) -> None:
    """Check that replacing an earlier partial merge loses nothing.

    Raises:
        ConfigurationError: Something would be lost.
    """
    records = [contents.shard.to_record() for contents in shards]
    try:
        missing = [record for record in merged["shards"] if record not in records]
        rows = merged["rows"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / MERGE_RECORD}: cannot be used: {error!r}") from None
    if missing:
        names = ", ".join(f"{record['index']}/{record['of']} (attempt {record['attempt']})" for record in missing)
        raise ConfigurationError(f"{folder} was merged from shards that no longer exist: {names}; restore them")
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        if count_rows(copy_journal(folder / "journal.sqlite", Path(own))) != rows:
            raise ConfigurationError(
                f"{folder} was resumed after a partial merge: continue with `viva resume {folder}`, "
                "and remove the shards added since"
            )


def _write_merged_run(
    folder: Path, cell: Cell, manifest: Mapping[str, Any], joint: Path, record: dict[str, Any]
) -> None:
    """Write the cell's run folder, the manifest last, so that no incomplete run remains if the process is killed."""
    settings = manifest["settings"] | {name: value for name, value in cell.settings.model_dump(mode="json").items()
                                       if name in cell.settings.circumstances}  # fmt: skip
    merged_manifest = {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}
    try:
        for name in (
            "manifest.json",
            MERGE_RECORD,
        ):  # they may be left from an earlier merge
            (folder / name).unlink(missing_ok=True)
        replace_journal(joint, RunFolder(folder, merged_manifest).journal)
        write_atomically(folder / MERGE_RECORD, orjson.dumps(record, option=orjson.OPT_INDENT_2))
        write_atomically(folder / "manifest.json", orjson.dumps(merged_manifest, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise JournalError(f"{folder}: cannot write the merged run: {error.strerror or error}") from error

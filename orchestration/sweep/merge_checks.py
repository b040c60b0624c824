"""What speaks against merging the shards of a cell: shards of other runs, conversations held twice or not at all.

What never belongs here: reading shards and writing the merged run (``merge``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.engine.errors import VivaError
from viva.engine.folder import RunFolder, differences
from viva.scenarios.registry import scenario

from ..prepared_run import PreparedRun
from ..share import Share
from .cells import Cell
from .shards import described

_NAMED = 5  # conversations that a refusal names for each shard


@dataclass(slots=True)
class ReadShard:
    """What a shard holds: the keys of its conversations by number, and the numbers of those that have ended."""

    share: Share
    folder: RunFolder
    started: dict[int, str]
    ended: set[int]


def foreign(cell: Cell, shards: Sequence[ReadShard]) -> list[str]:
    """The shards that are not of one run with the first: dataset, prompt pack, models or versions of files differ."""
    first, found = shards[0], []
    for shard in shards[1:]:
        different = differences(_common(first.folder.manifest, cell), _common(shard.folder.manifest, cell))
        if different:
            found.append(
                f"{described(shard.share)}: of another run than {described(first.share)}: different: "
                f"{', '.join(different)}"
            )
    return found


def doubled(shards: Sequence[ReadShard]) -> list[str]:
    """The conversations that more than one shard has begun, by the shards that have."""
    holders: dict[int, list[ReadShard]] = {}
    for shard in shards:
        for number in shard.started:
            holders.setdefault(number, []).append(shard)
    found: dict[str, list[str]] = {}
    for number, several in sorted(holders.items()):
        if len(several) > 1:
            found.setdefault(_and(several), []).append(several[0].started[number])
    return [f"doubled: in {names}: {_some(keys)}; remove all of these shards but one" for names, keys in found.items()]


def missing(cell: Cell, planned: int, shards: Sequence[ReadShard]) -> list[str]:
    """The conversations that no shard has ended, by the shard that should; named where the dataset can be read, or
    where they have begun.
    """
    numbers = sorted(set(range(planned)).difference(*(shard.ended for shard in shards)))
    if not numbers:
        return []
    keys = _keys(cell, set(numbers)) or {number: key for shard in shards for number, key in shard.started.items()}
    by_shard: dict[int, list[str]] = {}
    of = {shard.share.of for shard in shards}
    for number in numbers:
        holder = number % min(of) + 1 if len(of) == 1 else 0
        by_shard.setdefault(holder, []).append(keys.get(number) or f"number {number}")
    there = {shard.share.index: described(shard.share) for shard in shards}
    found = []
    for index, named in sorted(by_shard.items()):
        which = f"of {there.get(index) or f'shard {index}/{min(of)}, which has not begun'}: " if index else ""
        found.append(f"missing: {which}{_some(named)}")
    return found


def _keys(cell: Cell, wanted: set[int]) -> dict[int, str]:
    try:
        prepared = PreparedRun(scenario(cell.scenario), cell.settings)
        return {number: key for number, key in prepared.numbered_keys() if number in wanted}
    except VivaError:  # the dataset is not here
        return {}


def _common(manifest: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """What the manifests of one cell's shards have in common: all but which share it is, and circumstances."""
    settings = {name: value for name, value in manifest["settings"].items()
                if name not in cell.settings.circumstances}  # fmt: skip
    return {name: value for name, value in manifest.items() if name != "shard"} | {"settings": settings}


def _and(shards: Iterable[ReadShard]) -> str:
    return " and ".join(f"{described(one.share)} with {len(one.ended)} ended" for one in shards)


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"{len(keys)} conversation{'s' * (len(keys) > 1)}: {', '.join(keys[:_NAMED])}{more}"

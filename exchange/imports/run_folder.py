"""An imported run as a run folder that every verb reads: manifest, journal, and the items as a dataset beside them.

The folder is made under another name and moved when it is whole. What never belongs here: other tools' formats.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import orjson

from viva.data.items import Item, letter
from viva.data.selection import open_dataset
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder, versions
from viva.engine.journal import Journal
from viva.orchestration.arguments import settings_of
from viva.scenarios.contract import Scenario, many_role
from viva.scenarios.imported import ImportedRun
from viva.scenarios.models import model_labels, prices

from ..exports.writing import whole_place

# Of a call whose prompt is not known: no request has this digest.
_UNKNOWN = bytes(16)


def make_run(which: Scenario[Any, Any], made: ImportedRun, source: str, out: Path) -> int:
    """Make the run folder ``out``; how many conversations it has. ``source`` names the format.

    :raises ConfigurationError: something lies there already, or what was imported is no run of this system.
    :raises JournalError: the folder cannot be written.
    """
    if out.exists():
        raise ConfigurationError(f"{out} exists; name another folder with --out")
    with whole_place(out) as part:
        part.mkdir(parents=True)
        if made.source is not None:
            folder = RunFolder.create(part, _manifest(which, made, source, made.source))
        else:
            data = f"{made.dataset}.jsonl"
            lines = b"".join(orjson.dumps(_line(item)) + b"\n" for item in made.items)
            form = "qa:" if made.items and made.items[0].free else ""
            (part / data).write_bytes(lines)
            manifest = _manifest(which, made, source, f"{form}{part / data}")
            manifest["settings"][which.data] = f"{form}{(out / data).resolve()}"
            (part / data).unlink()
            folder = RunFolder.create(part, manifest, {data: lines})
        return anyio.run(_record, folder, which, made)


def _line(item: Item) -> dict[str, Any]:
    """An item as a line of a dataset; the right choice by its letter."""
    record = item.to_record()
    if item.free:
        return {"id": item.id, "question": item.question, "answer": item.reference, "subject": item.subject}
    return record | {"answer": letter(item.answer)}


def _manifest(which: Scenario[Any, Any], made: ImportedRun, source: str, data: str) -> dict[str, Any]:
    given = made.settings | {which.data: data}
    settings = settings_of(which, given)
    roles, pack = which.roles_of(settings), which.open_pack(settings)
    models = {role.name: model_labels(role.models(settings)) if role.many else next(iter(role.models(settings)), None)
              for role in roles}  # fmt: skip
    named = list(dict.fromkeys(model for role in roles for model in role.models(settings)))
    return {
        "scenario": which.name,
        "seed": settings.seed,
        "tier": "A",
        "not_identical": [f"imported from another tool ({source})"],
        "files": {},
        "versions": versions(),
        "settings": settings.model_dump(mode="json"),
        "models": models,
        "prices": {model: prices(model) for model in named},
        "pack": None if pack is None else {"name": pack.name, "version": pack.version, "digest": pack.digest},
        "dataset": open_dataset(getattr(settings, which.data)).to_record() | {"chosen": len(made.items)},
        **made.records,
        "prompts": None if pack is None else pack.text,
        "imported": {"from": source, **made.facts},
    }


async def _record(folder: RunFolder, which: Scenario[Any, Any], made: ImportedRun) -> int:
    [label] = folder.manifest["models"][many_role(which.roles).name]
    now, number = time.time(), -1
    async with Journal(folder.journal, RealClock()) as journal:
        for number, one in enumerate(made.conversations):
            journal.record_started(number, f"{label}/{one.task}", one.item)
            ordinals: dict[str, int] = {}
            for call in one.calls:
                ordinal = ordinals.get(call.role, 0)
                ordinals[call.role] = ordinal + 1
                journal.record_call(number, call.role, ordinal, _UNKNOWN, call.completion, now)
            journal.record_ended(number, "finished", one.result)
            if journal.full:
                await journal.flush()
        await journal.flush()
    return number + 1

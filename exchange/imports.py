"""Imports of other tools' results: dialogs of Inspect's logs as a dataset, results of systems as run folders.

An imported run becomes a run folder that every verb reads: manifest, journal, and the items as a dataset beside
them. A dialog of a log of Inspect becomes a line in OpenAI's chat format, with what the log says of the sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import orjson

from viva.data.dataset import open_dataset
from viva.data.items import Item, choice_letter
from viva.data.record_files import require_regular_file
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.journal import Journal
from viva.engine.messages import Message
from viva.engine.run_folder import RunFolder, installed_versions
from viva.engine.tools import ToolCall
from viva.orchestration.python_api import settings_of
from viva.scenarios.contract import ImportedRun, ImportFormat, ImportOptions, Scenario, SupportsImports, compared_role
from viva.scenarios.models import model_labels, token_prices
from viva.scenarios.registry import AnyScenario, installed_scenarios

from .files import TransferResult, atomic_path, import_extra, json_lines

_INSPECT = "inspect"
_OWN_FORMATS = {_INSPECT: "dialogs of a log of Inspect (.eval, .json), as JSON lines that a suite judges."}


def import_formats() -> dict[str, str]:
    return _OWN_FORMATS | {one.name: one.summary for one in _system_formats()}


def import_file(
    path: Path, source: str, out: Path | None = None, choices: ImportOptions | None = None
) -> TransferResult:
    """Import a file in the format ``source``. ``out`` is the run folder or file that is made; None: one in the current
    folder that is called after the file.

    :raises ConfigurationError: the format is unknown, ``out`` exists, a choice is of no use, or a package is missing.
    :raises DatasetError: the file is wrong; the message names the line or entry.
    """
    choices = choices or ImportOptions()
    systems = _system_formats()
    if source not in import_formats():
        raise ConfigurationError(f"--from {source}: expected one of {', '.join(import_formats())}")
    if source == _INSPECT:
        if choices.dataset is not None or choices.models:
            raise ConfigurationError(f"--from {source}: takes neither --dataset nor --model")
        file = out or Path(f"{path.stem}.jsonl")
        if file.exists():
            raise ConfigurationError(f"{file} exists; name another file with --out")
        return import_inspect(path, file)

    [(one, which)] = [pair for pair in systems.items() if pair[0].name == source]
    folder = out or Path("runs", path.stem)
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; name another folder with --out")
    roles = [role.name for role in which.roles]
    if unknown := sorted(choices.models.keys() - set(roles)):
        raise ConfigurationError(f"--model {unknown[0]}=…: no role of {which.name}; it has {', '.join(roles)}")
    made = one.read(path, choices)
    return TransferResult([folder], make_run(which, made, source, folder), made.notes, run=True)


def _system_formats() -> dict[ImportFormat, AnyScenario]:
    return {
        one: which for which in installed_scenarios() if isinstance(which, SupportsImports) for one in which.imports()
    }


def import_inspect(path: Path, out: Path) -> TransferResult:
    """Write the dialogs of a log to the file ``out``, in the log's order; samples are read one at a time.

    Samples that ended with an error are left out and counted, and so are those without a message.

    :raises ConfigurationError: the package is not installed, or ``out`` cannot be written.
    :raises DatasetError: it is no log, or a sample of it cannot be read; the message names the sample.
    """
    require_regular_file(path)
    log = import_extra("inspect_ai.log", "inspect", "reading logs of Inspect")
    header = _header(log, path)
    failed = empty = 0
    done = TransferResult([out])
    names: set[str] = set()
    with json_lines(out) as write:
        for place, sample in enumerate(_samples(log, path, header), 1):
            messages = [_message(one).to_openai() for one in sample.messages]
            failed += sample.error is not None
            empty += sample.error is None and not messages
            if sample.error is None and messages:
                line = _dialog_line(sample, messages, header.eval.model)
                if line["id"] in names:
                    raise DatasetError(f"sample {place}: the id '{line['id']}' is there twice", path=str(path))
                names.add(line["id"])
                write(line)
                done.records += 1
    if failed:
        done.notes.append(f"{failed:,} samples ended with an error and are left out")
    if empty:
        done.notes.append(f"{empty:,} samples have no messages and are left out")
    return done


def _header(log: Any, path: Path) -> Any:
    try:
        return log.read_eval_log(str(path), header_only=True)
    except Exception as error:  # of a file that is no log: zip, JSON and form each fail in their own way
        raise DatasetError(f"is no log of Inspect: {_first_line(error)}", path=str(path)) from None


def _samples(log: Any, path: Path, header: Any) -> Iterator[Any]:
    place = 0
    try:
        if header.eval.dataset.sample_ids is None:  # nothing says which there are: the log is read as a whole
            yield from log.read_eval_log(str(path), resolve_attachments=True).samples or []
            return
        for sample in log.read_eval_log_samples(str(path), all_samples_required=False, resolve_attachments=True):
            place += 1
            yield sample
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"sample {place + 1}: cannot be read: {_first_line(error)}", path=str(path)) from None


def _first_line(error: Exception) -> str:
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0][:200] if told else ''}"


def _dialog_line(sample: Any, messages: list[dict[str, Any]], model: str) -> dict[str, Any]:
    name = str(sample.id) if sample.epoch == 1 else f"{sample.id}:{sample.epoch}"
    line: dict[str, Any] = {"id": name, "messages": messages, "model": model}
    target = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
    if target:
        line["target"] = target
    given = {name: one.value for name, one in (sample.scores or {}).items() if one.value is not None}
    scores = {name: value for name, value in given.items() if not isinstance(value, float) or math.isfinite(value)}
    if scores:
        line["scores"] = scores
    told = {name: one.explanation for name, one in (sample.scores or {}).items() if one.explanation}
    return line | ({"explanations": told} if told else {})


def _message(one: Any) -> Message:
    if one.role == "tool":
        return Message("tool", one.text, call_id=one.tool_call_id or "", name=one.function or "")
    calls = one.tool_calls if one.role == "assistant" else None
    made = (ToolCall(call.id, call.function, orjson.dumps(call.arguments).decode()) for call in calls or ())
    return Message(one.role, one.text, calls=tuple(made))


# Of a call whose prompt is not known: no request has this digest.
_UNKNOWN = bytes(16)


def make_run(which: Scenario[Any, Any], made: ImportedRun, source: str, out: Path) -> int:
    """Make the run folder ``out``; how many conversations it has. ``source`` names the format.

    :raises ConfigurationError: something lies there already, or what was imported is no run of this system.
    :raises JournalError: the folder cannot be written.
    """
    if out.exists():
        raise ConfigurationError(f"{out} exists; name another folder with --out")
    with atomic_path(out) as part:
        part.mkdir(parents=True)
        if made.source is not None:
            folder = RunFolder.create(part, _manifest(which, made, source, made.source))
        else:
            data = f"{made.dataset}.jsonl"
            lines = b"".join(orjson.dumps(_item_line(item)) + b"\n" for item in made.items)
            form = "qa:" if made.items and made.items[0].free else ""
            (part / data).write_bytes(lines)
            manifest = _manifest(which, made, source, f"{form}{part / data}")
            manifest["settings"][which.data] = f"{form}{(out / data).resolve()}"
            (part / data).unlink()
            folder = RunFolder.create(part, manifest, {data: lines})
        return anyio.run(_record, folder, which, made)


def _item_line(item: Item) -> dict[str, Any]:
    """An item as a line of a dataset; the right choice by its letter."""
    record = item.to_record()
    if item.free:
        return {"id": item.id, "question": item.question, "answer": item.reference, "subject": item.subject}
    return record | {"answer": choice_letter(item.answer)}


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
        "versions": installed_versions(),
        "settings": settings.model_dump(mode="json"),
        "models": models,
        "prices": {model: token_prices(model) for model in named},
        "pack": None if pack is None else {"name": pack.name, "version": pack.version, "digest": pack.digest},
        "dataset": open_dataset(getattr(settings, which.data)).to_record() | {"chosen": len(made.items)},
        **made.records,
        "prompts": None if pack is None else pack.text,
        "imported": {"from": source, **made.facts},
    }


async def _record(folder: RunFolder, which: Scenario[Any, Any], made: ImportedRun) -> int:
    [label] = folder.manifest["models"][compared_role(which.roles).name]
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

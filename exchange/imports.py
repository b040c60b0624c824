"""Imports of other tools' results: dialogs of Inspect logs as a dataset, results of other harnesses as run folders.

An imported run becomes a run folder that all commands can read: manifest, journal, and the items as a dataset. A
dialog of an Inspect log becomes a line in OpenAI's chat format, with the sample's scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from viva.data.dataset import open_dataset
from viva.data.items import Item, choice_letter
from viva.data.record_files import require_regular_file
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean
from viva.engine.journal import Journal
from viva.engine.messages import Message
from viva.engine.run_folder import RunFolder, installed_versions
from viva.engine.tools import ToolCall
from viva.orchestration.python_api import settings_of
from viva.scenarios.contract import ImportedRun, ImportFormat, ImportOptions, Role, Scenario, SupportsImports
from viva.scenarios.models import lineups, model_labels, token_prices
from viva.scenarios.registry import AnyScenario, installed_scenarios

from .files import TransferResult, atomic_path, import_extra, json_lines

_INSPECT = "inspect"
_OWN_FORMATS = {_INSPECT: "dialogs of an Inspect log (.eval, .json), as a dataset of a suite."}


def import_formats() -> dict[str, str]:
    return _OWN_FORMATS | {form.name: form.summary for form in _system_formats()}


def import_file(
    path: Path, source: str, out: Path | None = None, options: ImportOptions | None = None
) -> TransferResult:
    """Import a file in the format `source` as a run folder or file `out`; by default it is named after `path`.

    Raises:
        ConfigurationError: The format is unknown, `out` exists, an option does not apply, or a package is missing.
        DatasetError: The file is invalid; the message names the line or entry.
    """
    options = options or ImportOptions()
    systems = _system_formats()
    if source not in import_formats():
        near = did_you_mean(source, import_formats())
        raise ConfigurationError(f"--from {source}: expected one of {', '.join(import_formats())}{near}")
    if source == _INSPECT:
        if options.dataset is not None or options.models:
            raise ConfigurationError(f"--from {source} takes neither --dataset nor --model")
        file = out or Path(f"{path.stem}.jsonl")
        if file.exists():
            raise ConfigurationError(f"{file} already exists; choose another file with --out")
        return import_inspect(path, file)

    [(form, scenario)] = [pair for pair in systems.items() if pair[0].name == source]
    folder = out or Path("runs", path.stem)
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists; choose another folder with --out")
    roles = [role.name for role in scenario.roles]
    if unknown := sorted(options.models.keys() - set(roles)):
        raise ConfigurationError(f"--model {unknown[0]}=…: {scenario.name} has no such role; it has {', '.join(roles)}")
    imported = form.read(path, options)
    return TransferResult([folder], make_run(scenario, imported, source, folder), imported.notes, run=True)


def _system_formats() -> dict[ImportFormat, AnyScenario]:
    return {
        form: scenario
        for scenario in installed_scenarios()
        if isinstance(scenario, SupportsImports)
        for form in scenario.imports()
    }


def import_inspect(path: Path, out: Path) -> TransferResult:
    """Write the dialogs of a log to the file `out` in the log's order, reading one sample at a time.

    Samples that ended with an error or have no messages are skipped and counted.

    Raises:
        ConfigurationError: The package is not installed, or `out` cannot be written.
        DatasetError: The file is not a log, or a sample cannot be read; the message names the sample.
    """
    require_regular_file(path)
    log = import_extra("inspect_ai.log", "inspect", "reading Inspect logs")
    header = _header(log, path)
    failed = empty = 0
    result = TransferResult([out])
    names: set[str] = set()
    with json_lines(out) as write:
        for position, sample in enumerate(_samples(log, path, header), 1):
            messages = [_message(message).to_openai() for message in sample.messages]
            failed += sample.error is not None
            empty += sample.error is None and not messages
            if sample.error is None and messages:
                line = _dialog_line(sample, messages, header.eval.model)
                if line["id"] in names:
                    raise DatasetError(f"sample {position}: duplicate id '{line['id']}'", path=str(path))
                names.add(line["id"])
                write(line)
                result.records += 1
    if failed:
        result.notes.append(f"{failed:,} samples ended with an error and were skipped")
    if empty:
        result.notes.append(f"{empty:,} samples have no messages and were skipped")
    return result


def _header(log: Any, path: Path) -> Any:
    try:
        return log.read_eval_log(str(path), header_only=True)
    except Exception as error:  # errors of zip, JSON and schema have different types
        raise DatasetError(f"not an Inspect log: {_first_line(error)}", path=str(path)) from None


def _samples(log: Any, path: Path, header: Any) -> Iterator[Any]:
    count = 0
    try:
        if header.eval.dataset.sample_ids is None:  # without sample ids, the log is read as a whole
            yield from log.read_eval_log(str(path), resolve_attachments=True).samples or []
            return
        for sample in log.read_eval_log_samples(str(path), all_samples_required=False, resolve_attachments=True):
            count += 1
            yield sample
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"sample {count + 1}: cannot be read: {_first_line(error)}", path=str(path)) from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def _dialog_line(sample: Any, messages: list[dict[str, Any]], model: str) -> dict[str, Any]:
    name = str(sample.id) if sample.epoch == 1 else f"{sample.id}:{sample.epoch}"
    line: dict[str, Any] = {"id": name, "messages": messages, "model": model}
    target = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
    if target:
        line["target"] = target
    values = {name: score.value for name, score in (sample.scores or {}).items() if score.value is not None}
    scores = {name: value for name, value in values.items() if not isinstance(value, float) or math.isfinite(value)}
    if scores:
        line["scores"] = scores
    explanations = {name: score.explanation for name, score in (sample.scores or {}).items() if score.explanation}
    return line | ({"explanations": explanations} if explanations else {})


def _message(message: Any) -> Message:
    if message.role == "tool":
        return Message("tool", message.text, call_id=message.tool_call_id or "", name=message.function or "")
    calls = message.tool_calls if message.role == "assistant" else None
    tool_calls = (ToolCall(call.id, call.function, orjson.dumps(call.arguments).decode()) for call in calls or ())
    return Message(message.role, message.text, calls=tuple(tool_calls))


# Digest of a call whose prompt is unknown; no request has this digest.
_UNKNOWN = bytes(16)


def make_run(scenario: Scenario[Any, Any], imported: ImportedRun, source: str, out: Path) -> int:
    """Create the run folder `out` from results in the format `source`; return the number of conversations.

    Raises:
        ConfigurationError: The folder exists, or the results do not form a run of this scenario.
        JournalError: The folder cannot be written.
    """
    if out.exists():
        raise ConfigurationError(f"{out} already exists; choose another folder with --out")
    with atomic_path(out) as part:
        part.mkdir(parents=True)
        if imported.source is not None:
            folder = RunFolder.create(part, _manifest(scenario, imported, source, imported.source))
        else:
            data = f"{imported.dataset}.jsonl"
            lines = imported.lines or b"".join(orjson.dumps(_item_line(item)) + b"\n" for item in imported.items)
            form = "qa:" if imported.items and imported.items[0].free else ""
            (part / data).write_bytes(lines)
            manifest = _manifest(scenario, imported, source, f"{form}{part / data}")
            manifest["settings"][scenario.data] = f"{form}{(out / data).resolve()}"
            (part / data).unlink()
            folder = RunFolder.create(part, manifest, {data: lines})
        roles = scenario.roles_of(scenario.settings.model_validate(folder.manifest["settings"]))
        return anyio.run(_record, folder, roles, imported)


def _item_line(item: Item) -> dict[str, Any]:
    """Return an item as a dataset line, with the correct choice as a letter."""
    record = item.to_record()
    if item.free:
        return {"id": item.id, "question": item.question, "answer": item.reference, "subject": item.subject}
    return record | {"answer": choice_letter(item.answer)}


def _manifest(scenario: Scenario[Any, Any], imported: ImportedRun, source: str, data: str) -> dict[str, Any]:
    options = imported.settings | {scenario.data: data}
    settings = settings_of(scenario, options)
    roles, pack = scenario.roles_of(settings), scenario.open_pack(settings)
    models = {role.name: model_labels(role.models(settings)) if role.many else next(iter(role.models(settings)), None)
              for role in roles}  # fmt: skip
    names = list(dict.fromkeys(model for role in roles for model in role.models(settings)))
    return {
        "scenario": scenario.name,
        "seed": settings.seed,
        "tier": "A",
        "not_identical": [f"imported from another tool ({source})"],
        "files": {},
        "versions": installed_versions(),
        "settings": settings.model_dump(mode="json"),
        "models": models,
        "prices": {model: token_prices(model) for model in names},
        "pack": None if pack is None else {"name": pack.name, "version": pack.version, "digest": pack.digest},
        "dataset": imported.records.get("dataset")
        or open_dataset(getattr(settings, scenario.data)).to_record() | {"chosen": len(imported.items)},
        **imported.records,
        "prompts": None if pack is None else pack.text,
        "imported": {"from": source, **imported.facts},
    }


async def _record(folder: RunFolder, roles: Sequence[Role], imported: ImportedRun) -> int:
    [label] = lineups(roles, folder.manifest["models"])
    now, number = time.time(), -1
    async with Journal(folder.journal, RealClock()) as journal:
        for number, conversation in enumerate(imported.conversations):
            journal.record_started(number, f"{label}/{conversation.task}", conversation.item)
            ordinals: dict[str, int] = {}
            for call in conversation.calls:
                ordinal = ordinals.get(call.role, 0)
                ordinals[call.role] = ordinal + 1
                journal.record_call(number, call.role, ordinal, _UNKNOWN, call.completion, now)
            journal.record_ended(number, "finished", conversation.result)
            if journal.full:
                await journal.flush()
        await journal.flush()
    return number + 1

"""Dialogs of Inspect's logs (``.eval``, ``.json``) as a dataset: one a line, in OpenAI's chat form.

Beside its messages a line has what the log says of the sample: model, target, scores, error. What never belongs here:
judging them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from viva.data.lines import check_regular
from viva.engine.errors import DatasetError

from ..exports.writing import json_lines, needed
from .imported import Imported


def import_inspect(path: Path, out: Path) -> Imported:
    """Write the dialogs of a log to the file ``out``, in the log's order; samples are read one at a time.

    Samples that ended with an error are left out and counted, and so are those without a message.

    :raises ConfigurationError: the package is not installed, or ``out`` cannot be written.
    :raises DatasetError: it is no log, or a sample of it cannot be read; the message names the sample.
    """
    check_regular(path)
    log = needed("inspect_ai.log", "inspect", "reading logs of Inspect")
    header = _header(log, path)
    failed = empty = 0
    done = Imported([out])
    names: set[str] = set()
    with json_lines(out) as write:
        for place, sample in enumerate(_samples(log, path, header), 1):
            messages = [_message(one) for one in sample.messages]
            failed += sample.error is not None
            empty += sample.error is None and not messages
            if sample.error is None and messages:
                line = _line(sample, messages, header.eval.model)
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


def _line(sample: Any, messages: list[dict[str, Any]], model: str) -> dict[str, Any]:
    name = str(sample.id) if sample.epoch == 1 else f"{sample.id}:{sample.epoch}"
    line: dict[str, Any] = {"id": name, "messages": messages, "model": model}
    target = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
    if target:
        line["target"] = target
    scores = {name: plain for name, one in (sample.scores or {}).items() if (plain := _plain(one.value)) is not None}
    if scores:
        line["scores"] = scores
    told = {name: one.explanation for name, one in (sample.scores or {}).items() if one.explanation}
    return line | ({"explanations": told} if told else {})


def _plain(value: Any) -> Any:
    """A score's value as JSON has it; None of one that is unscored."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _message(one: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"role": one.role, "content": one.text}
    if one.role == "assistant" and one.tool_calls:
        record["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.function, "arguments": orjson.dumps(call.arguments).decode()}}
            for call in one.tool_calls
        ]  # fmt: skip
        record["content"] = record["content"] or None
    if one.role == "tool":
        record["tool_call_id"] = one.tool_call_id or ""
        if one.function:
            record["name"] = one.function
    return record

"""Exports to table rows: a Parquet file, or a folder for the package `datasets`.

The figures of the run's report go into the schema's metadata.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from viva.engine.conversation_replay import Aside, Exchange, Step
from viva.engine.errors import ConfigurationError
from viva.engine.json_data import to_utf8_data
from viva.engine.messages import Message

from ..files import TransferResult, atomic_file, import_extra, to_json
from .conversations import Conversation, ExportCell, read_conversations

_GROUP = 500  # rows written at a time


def export_parquet(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write one row per conversation, zstd-compressed, in groups of 500. Only one group is in memory."""
    arrow = import_extra("pyarrow", "parquet", "writing Parquet")
    parquet = import_extra("pyarrow.parquet", "parquet", "writing Parquet")
    metadata = {"viva": to_json([{"cell": cell.name, "figures": list(cell.figures.values())} for cell in cells])}
    schema = _schema(arrow, any(cell.manifest.get("against") is not None for cell in cells)).with_metadata(metadata)
    result = TransferResult(files=[out])
    rows = (to_utf8_data(_row(cell, conversation)) for cell in cells for conversation in read_conversations(cell))
    with atomic_file(out) as part, parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            result.records += len(group)
    return result


def export_datasets(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write the same rows as a folder for `datasets.load_from_disk`."""
    datasets = import_extra("datasets", "hf", "writing a datasets folder")
    with tempfile.TemporaryDirectory(prefix="viva-export-") as folder:
        rows = Path(folder) / "rows.parquet"
        result = export_parquet(cells, rows)
        progress_bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            table = datasets.Dataset.from_parquet(str(rows), cache_dir=folder)
            table.save_to_disk(str(out))
        except OSError as error:
            raise ConfigurationError(f"{out}: cannot be written: {error}; choose another path with --out") from None
        finally:
            if progress_bars:
                datasets.enable_progress_bars()
    return TransferResult([out], result.records, result.notes)


def _schema(arrow: Any, has_sets: bool) -> Any:
    text, integer, real = arrow.string(), arrow.int64(), arrow.float64()

    def structs(**fields: Any) -> Any:
        return arrow.list_(arrow.struct(list(fields.items())))

    columns = dict.fromkeys(("cell", "scenario", "candidate", "model", "dataset"), text)
    columns |= {"seed": integer, "number": integer, "key": text, "task": text, "repeat": integer, "state": text}
    columns |= {"set": text} if has_sets else {}
    columns |= {"error": text, "end": text, "score": real, "judge": text}
    columns["scores"] = structs(criterion=text, value=real, explanation=text)
    columns["turns"] = structs(turn=integer, criterion=text, value=real)
    columns |= {"question": text, "answer": text, "reference": text}
    columns["messages"] = structs(role=text, content=text, tool_calls=text, tool_call_id=text, name=text)
    columns["transcript"] = structs(party=text, text=text)
    columns["usage"] = structs(role=text, calls=integer, prompt_tokens=integer, completion_tokens=integer)
    columns |= {"item": text, "result": text}
    return arrow.schema(list(columns.items()))


def _row(cell: ExportCell, conversation: Conversation) -> dict[str, Any]:
    """Return a row; `messages` come from the compared model's longest dialog, `item` and `result` are JSON."""
    longest = max((dialog.messages for dialog in conversation.dialogs), key=len, default=[])
    return {
        "cell": cell.name,
        "scenario": cell.scenario.name,
        "candidate": cell.label,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "number": conversation.number,
        "key": conversation.key,
        "task": conversation.task,
        "repeat": conversation.repeat,
        "state": "finished" if conversation.error is None else "failed",
        "set": conversation.of_set,
        "error": conversation.error,
        "end": conversation.end,
        "score": next(iter(conversation.scores.values()), None),
        "judge": cell.judge_model,
        "scores": [
            {"criterion": name, "value": value, "explanation": conversation.explained(name)}
            for name, value in conversation.scores.items()
        ],
        "turns": [
            {"turn": turn.turn, "criterion": name, "value": value}
            for turn in conversation.turns
            for name, value in turn.scores.items()
        ],
        "question": conversation.question,
        "answer": conversation.answer,
        "reference": conversation.reference,
        "messages": [_message(message) for message in longest],
        "transcript": list(_transcript(conversation)),
        "usage": [
            {"role": role, "calls": calls, "prompt_tokens": prompt, "completion_tokens": completion}
            for role, (calls, prompt, completion) in conversation.usage().items()
        ],
        "item": to_json(conversation.item).decode(),
        "result": None if conversation.result is None else to_json(conversation.result).decode(),
    }


def _message(message: Message) -> dict[str, Any]:
    calls = to_json([call.to_openai() for call in message.calls]).decode() if message.calls else None
    return {"role": message.role, "content": message.content, "tool_calls": calls,
            "tool_call_id": message.call_id or None, "name": message.name or None}  # fmt: skip


def _transcript(conversation: Conversation) -> Iterator[dict[str, str]]:
    for entry in conversation.entries:
        if isinstance(entry, Aside):
            yield {"party": entry.party, "text": entry.text}
        elif isinstance(entry, Step):
            value = entry.computed.value if entry.computed.error is None else entry.computed.error
            yield {"party": entry.name, "text": value if isinstance(value, str) else to_json(value).decode()}
        elif isinstance(entry, Exchange) and entry.completion is not None:
            yield {"party": entry.role, "text": entry.completion.text}

"""Export to rows of a table: a Parquet file, or a folder that the package ``datasets`` loads.

The figures of the run's report are in the schema's metadata.
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

_GROUP = 500  # rows that are written together


def export_parquet(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """One row a conversation, zstd-compressed, in groups of 500; nothing but one group is in memory."""
    arrow = import_extra("pyarrow", "parquet", "writing Parquet")
    parquet = import_extra("pyarrow.parquet", "parquet", "writing Parquet")
    told = {"viva": to_json([{"cell": cell.name, "figures": list(cell.figures.values())} for cell in cells])}
    schema = _schema(arrow).with_metadata(told)
    done = TransferResult(files=[out])
    rows = (to_utf8_data(_row(cell, one)) for cell in cells for one in read_conversations(cell))
    with atomic_file(out) as part, parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            done.records += len(group)
    return done


def export_datasets(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """The same rows as a folder for ``datasets.load_from_disk``."""
    datasets = import_extra("datasets", "hf", "writing a folder of the package datasets")
    with tempfile.TemporaryDirectory(prefix="viva-export-") as folder:
        rows = Path(folder) / "rows.parquet"
        done = export_parquet(cells, rows)
        bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            table = datasets.Dataset.from_parquet(str(rows), cache_dir=folder)
            table.save_to_disk(str(out))
        except OSError as error:
            raise ConfigurationError(f"{out}: cannot be written: {error}; name another place with --out") from None
        finally:
            if bars:
                datasets.enable_progress_bars()
    return TransferResult([out], done.records, done.notes)


def _schema(arrow: Any) -> Any:
    text, whole, real = arrow.string(), arrow.int64(), arrow.float64()

    def several(**fields: Any) -> Any:
        return arrow.list_(arrow.struct(list(fields.items())))

    columns = dict.fromkeys(("cell", "scenario", "candidate", "model", "dataset"), text)
    columns |= {"seed": whole, "number": whole, "key": text, "task": text, "repeat": whole, "state": text}
    columns |= {"error": text, "end": text, "score": real, "judge": text}
    columns["scores"] = several(criterion=text, value=real, explanation=text)
    columns["turns"] = several(turn=whole, criterion=text, value=real)
    columns |= {"question": text, "answer": text, "reference": text}
    columns["messages"] = several(role=text, content=text, tool_calls=text, tool_call_id=text, name=text)
    columns["transcript"] = several(party=text, text=text)
    columns["usage"] = several(role=text, calls=whole, prompt_tokens=whole, completion_tokens=whole)
    columns |= {"item": text, "result": text}
    return arrow.schema(list(columns.items()))


def _row(cell: ExportCell, one: Conversation) -> dict[str, Any]:
    """A row. ``messages`` are those of the compared model's longest dialog; ``item`` and ``result`` are JSON."""
    longest = max((dialog.messages for dialog in one.dialogs), key=len, default=[])
    return {
        "cell": cell.name,
        "scenario": cell.which.name,
        "candidate": cell.label,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "number": one.number,
        "key": one.key,
        "task": one.task,
        "repeat": one.repeat,
        "state": "finished" if one.error is None else "failed",
        "error": one.error,
        "end": one.end,
        "score": next(iter(one.scores.values()), None),
        "judge": cell.judge_model,
        "scores": [
            {"criterion": name, "value": value, "explanation": one.explained(name)}
            for name, value in one.scores.items()
        ],
        "turns": [
            {"turn": turn.turn, "criterion": name, "value": value}
            for turn in one.turns
            for name, value in turn.scores.items()
        ],
        "question": one.question,
        "answer": one.answer,
        "reference": one.reference,
        "messages": [_message(message) for message in longest],
        "transcript": list(_transcript(one)),
        "usage": [
            {"role": role, "calls": calls, "prompt_tokens": sent, "completion_tokens": said}
            for role, (calls, sent, said) in one.usage().items()
        ],
        "item": to_json(one.item).decode(),
        "result": None if one.result is None else to_json(one.result).decode(),
    }


def _message(message: Message) -> dict[str, Any]:
    calls = to_json([call.to_openai() for call in message.calls]).decode() if message.calls else None
    return {"role": message.role, "content": message.content, "tool_calls": calls,
            "tool_call_id": message.call_id or None, "name": message.name or None}  # fmt: skip


def _transcript(one: Conversation) -> Iterator[dict[str, str]]:
    for entry in one.entries:
        if isinstance(entry, Aside):
            yield {"party": entry.party, "text": entry.text}
        elif isinstance(entry, Step):
            value = entry.computed.value if entry.computed.error is None else entry.computed.error
            yield {"party": entry.name, "text": value if isinstance(value, str) else to_json(value).decode()}
        elif isinstance(entry, Exchange) and entry.completion is not None:
            yield {"party": entry.role, "text": entry.completion.text}

"""A conversation's lines in the form of Every Eval Ever: one for each of its scores, with judge and spread of rounds.

What never belongs here: the aggregate of a cell (``every_eval``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from viva.engine.escapes import in_utf8
from viva.engine.messages import Message

from .cells import ExportCell
from .conversations import Conversation
from .writing import to_json

SCHEMA_VERSION = "0.3.0"


@dataclass(slots=True, frozen=True)
class Place:
    """What a line repeats of its aggregate: ids of evaluation and model, and the evaluation's name."""

    evaluation: str
    model: str
    name: str


def lines_of(cell: ExportCell, one: Conversation, place: Place) -> Iterator[dict[str, Any]]:
    """The lines of a conversation; none of one that failed or has no score, for a line must have a number."""
    scores = {} if one.error is not None else {name: value for name, value in one.scores.items() if value is not None}
    if not scores:
        return
    line = in_utf8(_line(cell, one, place))
    for name, value in scores.items():
        evaluation = line["evaluation"] | {"score": value}
        metadata = line["metadata"] | in_utf8(_told(one, name))
        result = {"evaluation_result_id": f"{cell.which.name}.{name}"}
        yield line | result | {"evaluation": evaluation, "metadata": metadata}


def _line(cell: ExportCell, one: Conversation, place: Place) -> dict[str, Any]:
    """What all lines of a conversation share."""
    messages = [message for dialog in one.dialogs for message in dialog.messages]
    calls = sum(len(message.calls) for message in messages)
    turns = sum(message.role == "assistant" for message in messages)
    kind = "agentic" if calls else "multi_turn" if turns > 1 else "single_turn"
    answer = one.answer or next(iter(_read(one, cell.compared)), "")
    last = max(len(messages) - 1, 0) if kind != "single_turn" else 0
    _, sent, said = one.usage().get(cell.compared, (0, 0, 0))
    digest = sha256((one.question + one.reference).encode("utf-8", "replace")).hexdigest()
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": place.evaluation,
        "model_id": place.model,
        "evaluation_name": place.name,
        "sample_id": one.task if one.repeat == 1 else f"{one.task}#{one.repeat}",
        "sample_hash": digest,
        "interaction_type": kind,
        "input": {
            "raw": one.question,
            "reference": [one.reference] if one.reference else [],
            "choices": one.choices,
        },
        "output": {"raw": [answer]} if kind == "single_turn" else None,
        "messages": None if kind == "single_turn" else [_message(at, told) for at, told in enumerate(messages)],
        "answer_attribution": [
            {
                "turn_idx": last,
                "source": "output.raw" if kind == "single_turn" else f"messages[{last}].content",
                "extracted_value": answer,
                "extraction_method": "custom" if cell.judge is None else "llm_judge",
                "is_terminal": True,
            }
        ],
        "evaluation": {"is_correct": bool(one.right), "num_turns": max(turns, 1), "tool_calls_count": calls},
        "token_usage": {"input_tokens": sent, "output_tokens": said, "total_tokens": sent + said},
        "performance": {"latency_ms": 1000 * one.latency(cell.compared)},
        "metadata": {"key": one.key, "end": one.end} | _judges(cell),
    }


def _judges(cell: ExportCell) -> dict[str, str]:
    judge = None if cell.judge is None else cell.model_of(cell.judge)
    return {} if judge is None else {"judge": judge}


def _told(one: Conversation, criterion: str) -> dict[str, str]:
    """The judge's words on a criterion, and its scores by round with their standard deviation."""
    told = {} if (words := one.explained(criterion)) is None else {"explanation": words}
    named = criterion if any(criterion in turn.scores for turn in one.turns) else "overall"
    rounds = [turn.scores[named] for turn in one.turns if named in turn.scores]
    scored = [score for score in rounds if score is not None]
    if rounds:
        told["turn_scores"] = to_json(rounds).decode()
    if len(scored) > 1:
        told["turn_scores_sd"] = f"{statistics.stdev(scored):.6g}"
    return told


def _read(one: Conversation, role: str) -> Iterator[str]:
    """The likeliest text of each reading."""
    for exchange in one.exchanges:
        if exchange.role == role and exchange.reading is not None and exchange.completion is not None:
            likely = exchange.completion.likelihoods or []
            at = max(range(len(likely)), key=lambda place: likely[place].total, default=None)
            if at is not None:
                yield exchange.reading.continuations[at].strip()


def _message(at: int, message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"turn_idx": at, "role": message.role, "content": message.content or None}
    if message.calls:
        record["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": _arguments(call.arguments)} for call in message.calls
        ]
    if message.role == "tool" and message.call_id:
        record["tool_call_id"] = [message.call_id]
    return record


def _arguments(text: str) -> dict[str, str]:
    """The arguments as that form has them: texts by name."""
    try:
        given = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"": text}
    if not isinstance(given, dict):
        return {"": text}
    return {name: value if isinstance(value, str) else to_json(value).decode() for name, value in given.items()}

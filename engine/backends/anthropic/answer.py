"""Reading a message of the Messages API, sent whole or put together from a stream.

What never belongs here: HTTP, events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from ...errors import Rejected, Unavailable
from ...messages import Completion
from ...tools import argument_text, numbered
from ..endpoint_json import decoded, text_at
from ..openai_answer import without_key
from ..openai_message import PartWithoutText, finish_of, is_thought, part_text, thoughts_of
from ..openai_usage import usage_of
from ..secrets import Redactor

_THOUGHTS = ("thinking", "redacted_thinking")
# Blocks that the API documents and that say nothing of the answer: tools that it runs itself and their results, files,
# summaries of what was left out of the context, a change of the model.
_BESIDE = frozenset(("server_tool_use", "mcp_tool_use", "container_upload", "compaction", "fallback"))
_RESULT = "_tool_result"


class ReadMessage(NamedTuple):
    """``returned``: the blocks that the API wants back with the results of tools; None where it wants none."""

    completion: Completion
    returned: list[Any] | None


def parse_message(data: bytes, label: str, redact: Redactor, *, tools: bool) -> ReadMessage:
    """Read an answer that was sent whole.

    :raises Rejected: a block is of a type that is no text.
    :raises Unavailable: it is no message; a proxy's page or half a body may pass, so retried.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    try:
        return read_message(decoded(data, label), redact, tools=tools)
    except PartWithoutText as block:
        raise Rejected(redact.cut(str(block), 200), model=label) from None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = f"({redact.cut(str(error), 200)}): {redact.quote(data, 200)}"
        raise Unavailable(f"the answer is not a message of the Messages API {shown}", model=label) from None


def read_message(message: Any, redact: Redactor, *, tools: bool) -> ReadMessage:
    """Read the record of a message. ``tools``: some were offered. Counts are 0 where they are unknown.

    :raises PartWithoutText: a block is of a type that is no text, or there is nothing beside tools that the API runs.
    :raises KeyError, TypeError, AttributeError: it is of another form.
    """
    blocks = message["content"]
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    if not isinstance(blocks, list):
        raise TypeError(f"content is {type(blocks).__name__}, not a list")
    texts, thoughts, calls, beside = [], [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            calls.append((str(block.get("id") or ""), text_at(block["name"]), argument_text(block.get("input"))))
        elif is_thought(kind):
            thoughts.append(thoughts_of({"content": [block]}))
        elif kind in _BESIDE or (isinstance(kind, str) and kind.endswith(_RESULT)):
            beside.append(kind)
        else:
            texts.append(part_text(block))
    if beside and not calls and not any(texts):
        raise PartWithoutText(beside[0])
    usage = usage_of(message.get("usage"), redact)
    completion = Completion(
        "".join(texts),
        finish_of(message.get("stop_reason"), tools, False, redact.answer),
        usage.prompt,
        usage.completion,
        calls=numbered(calls) if calls else None,
        thoughts="\n\n".join(thought for thought in thoughts if thought),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    wanted_back = beside or any(block.get("type") in _THOUGHTS for block in blocks)
    return ReadMessage(without_key(completion, redact), _returned(blocks) if calls and wanted_back else None)


def _returned(blocks: list[Any]) -> list[Any] | None:
    """The blocks as they can be sent back; None if the arguments of a call were cut off."""
    try:
        return [block | {"input": orjson.loads(block["input"])} if isinstance(block.get("input"), str) else block
                for block in blocks]  # fmt: skip
    except orjson.JSONDecodeError:
        return None

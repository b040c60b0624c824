"""What a person is asked and what they answer, as records that outlive the process that asks.

What never belongs here: where they are kept (``room``), waiting, pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ...escapes import readable
from ...messages import Message, Request
from ...tools import ToolCall

_PREVIEW = 200  # characters of the last message, for lists


@dataclass(slots=True, frozen=True)
class Posed:
    """A request as a person needs it. ``max_tokens`` is a hint to them; ``schema`` is what the answer must follow, None
    for free text; ``tools`` are function specifications in OpenAI's form, of which one must be called if ``required``.
    """

    conversation: str
    role: str
    ordinal: int
    digest: bytes
    messages: tuple[Message, ...]
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    required: bool = False

    @classmethod
    def of(cls, request: Request) -> Posed:
        """What a request asks; nothing that only a simulated model may know."""
        tools = request.tools
        return cls(
            request.conversation,
            request.role,
            request.ordinal,
            request.digest,
            tuple(request.messages),
            request.sampling.max_tokens,
            request.sampling.schema,
            () if tools is None else tuple(tools.specs),
            tools is not None and tools.required,
        )

    @property
    def name(self) -> str:
        """24 hexadecimal digits that stand for this very question at this very place, in addresses and forms."""
        parts = [self.conversation, self.role, self.ordinal, self.digest.hex()]
        return hashlib.blake2b(orjson.dumps(parts), digest_size=12).hexdigest()

    @property
    def preview(self) -> str:
        """The beginning of what was said last."""
        said = self.messages[-1].content if self.messages else ""
        return said if len(said) <= _PREVIEW else said[: _PREVIEW - 1] + "…"

    def to_record(self) -> bytes:
        """The parts that stand in no column of their own, as JSON."""
        record = {
            "messages": [_message_record(message) for message in self.messages],
            "max_tokens": self.max_tokens,
            "schema": self.schema,
            "tools": self.tools,
            "required": self.required,
        }
        return orjson.dumps(record)

    @classmethod
    def from_record(cls, conversation: str, role: str, ordinal: int, digest: bytes, record: bytes) -> Posed:
        """What was recorded, with the columns beside it."""
        read = orjson.loads(record)
        read |= {"messages": tuple(map(_message, read["messages"])), "tools": tuple(read["tools"])}
        return cls(conversation, role, ordinal, digest, **read)


@dataclass(slots=True, frozen=True)
class Given:
    """A person's answer: text, or calls of offered functions, as (name, arguments as JSON) each; ``who`` may be empty,
    ``at`` is in seconds since 1970.
    """

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    who: str = ""
    at: float = 0.0

    def tool_calls(self) -> list[ToolCall] | None:
        """The calls as a completion has them; None where there is none."""
        return [ToolCall(f"call-{number}", *call) for number, call in enumerate(self.calls, 1)] or None


def _message_record(message: Message) -> list[Any]:
    calls = [[readable(part) for part in call.to_record()] for call in message.calls]
    return [message.role, readable(message.content), calls, message.call_id, message.name]


def _message(record: list[Any]) -> Message:
    role, content, calls, call_id, name = record
    return Message(role, content, None, tuple(map(ToolCall.from_record, calls)), call_id, name)

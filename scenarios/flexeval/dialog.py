"""Dialogs, finished or growing, and the units that metrics are computed on: turns, messages and tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["conversation", "turn", "message", "tool_call"]
LEVELS: tuple[Level, ...] = ("conversation", "turn", "message", "tool_call")
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an assistant message.

    `arguments` is the recorded text, usually JSON. `result` is the tool's result, or None if the dialog lacks it.
    `index` counts the dialog's calls from 0; `message` is the index of the call's message.
    """

    name: str
    arguments: str
    id: str = ""
    result: str | None = None
    index: int = 0
    message: int = 0

    @property
    def role(self) -> str:
        """Role that made the call."""
        return "assistant"

    @property
    def text(self) -> str:
        """Call as one line of text."""
        return f"{self.name}({self.arguments})"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a dialog.

    `index` counts the dialog's messages from 0. `turn` is the index of its turn, None for system messages. `latency`
    (seconds) is None, and `tokens` (`prompt`, `completion`) is empty, if they were not recorded. `new` is True if the
    system under test, or its simulated user, wrote the message in this run.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    call_id: str = ""
    latency: float | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    new: bool = False
    index: int = 0
    turn: int | None = None

    @property
    def text(self) -> str:
        """Content of the message."""
        return self.content

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON data without empty fields."""
        record: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            record["tool_calls"] = [[call.id, call.name, call.arguments] for call in self.tool_calls]
        for key in ("name", "call_id", "latency", "new"):
            if (value := getattr(self, key)) not in ("", None, False):
                record[key] = value
        for key in ("tokens", "metadata"):
            if value := getattr(self, key):
                record[key] = dict(value)
        return record


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive messages of one side: the user's, or the assistant's with tool results in between.

    `index` counts the dialog's turns from 0. `before` are all earlier messages, including system messages. `last` is
    True for the dialog's last turn.
    """

    role: str
    messages: tuple[Message, ...]
    index: int
    before: tuple[Message, ...] = ()
    last: bool = False

    @property
    def text(self) -> str:
        """Text of the turn, one paragraph per message, without tool results."""
        return "\n\n".join(message.content for message in self.messages if message.role != "tool" and message.content)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the turn, in order."""
        return tuple(call for message in self.messages for call in message.tool_calls)

    @property
    def new(self) -> bool:
        """True if any message was written in this run."""
        return any(message.new for message in self.messages)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Merged metadata of the messages; the last value of a key wins."""
        return {key: value for message in self.messages for key, value in message.metadata.items()}


@dataclass(frozen=True)
class Dialog:
    """A dialog: its messages and metadata. `id` is unique within a run.

    `from_messages` numbers messages and tool calls, and attaches tool results to their calls.
    """

    id: str
    messages: tuple[Message, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_messages(cls, id_: str, messages: Sequence[Message], metadata: Mapping[str, Any] | None = None) -> Dialog:
        """Return a dialog of messages that have no numbers yet."""
        return cls(id_, tuple(_number_messages(messages)), metadata or {})

    @property
    def role(self) -> str:
        """Empty, because a dialog has no role."""
        return ""

    @property
    def index(self) -> int:
        """Always 0, because there is one dialog."""
        return 0

    @property
    def new(self) -> bool:
        """True if any message was written in this run."""
        return any(message.new for message in self.messages)

    @property
    def text(self) -> str:
        """Text of the messages without system messages, each after its role."""
        return "\n\n".join(
            f"{message.role}: {message.content}" for message in self.messages if message.role != "system"
        )

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """Turns, in order."""
        turns: list[Turn] = []
        begin = 0
        while begin < len(self.messages):
            number = self.messages[begin].turn
            end = begin + 1
            if number is None:
                begin = end
                continue
            while end < len(self.messages) and self.messages[end].turn in (number, None):
                end += 1
            messages = tuple(message for message in self.messages[begin:end] if message.turn is not None)
            is_last = all(message.turn is None for message in self.messages[end:])
            turns.append(Turn(_side_of(messages[0].role), messages, number, self.messages[:begin], is_last))
            begin = end
        return tuple(turns)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls, in order."""
        return tuple(call for message in self.messages for call in message.tool_calls)

    def units(self, level: Level) -> Sequence[Dialog | Turn | Message | ToolCall]:
        """Return the units of a level, in order."""
        if level == "conversation":
            return (self,)
        if level == "turn":
            return self.turns
        return self.messages if level == "message" else self.tool_calls

    def extended(self, messages: Sequence[Message]) -> Dialog:
        """Return the dialog with more messages at its end."""
        return Dialog.from_messages(self.id, (*self.messages, *messages), self.metadata)

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON data for `from_record`."""
        record: dict[str, Any] = {"id": self.id, "messages": [message.to_record() for message in self.messages]}
        return record | ({"metadata": dict(self.metadata)} if self.metadata else {})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Dialog:
        """Return the dialog of a record made by `to_record`."""
        return cls.from_messages(
            str(record["id"]), [message_from_record(message) for message in record["messages"]], record.get("metadata")
        )


Unit: TypeAlias = Dialog | Turn | Message | ToolCall
LEVEL_OF: dict[type, Level] = {Dialog: "conversation", Turn: "turn", Message: "message", ToolCall: "tool_call"}


def message_from_record(record: Mapping[str, Any]) -> Message:
    """Return the message of a record made by `Message.to_record`, without numbers."""
    calls = tuple(ToolCall(name, arguments, id_) for id_, name, arguments in record.get("tool_calls", ()))
    fields = {key: record[key] for key in ("name", "call_id", "latency", "tokens", "metadata", "new") if key in record}
    return Message(record["role"], record["content"], calls, **fields)


def _side_of(role: str) -> str:
    return "user" if role == "user" else "assistant"


def _result_of_call(messages: Sequence[Message], index: int, id_: str) -> str | None:
    """Return the content of the first tool message that answers a call; some endpoints reuse ids in later turns."""
    for message in messages[index + 1 :]:
        if message.role == "tool" and message.call_id == id_:
            return message.content
        if message.role == "assistant" and any(call.id == id_ for call in message.tool_calls):
            return None
    return None


def _number_messages(messages: Sequence[Message]) -> Iterator[Message]:
    side, turn, calls = "", -1, 0
    for index, message in enumerate(messages):
        if message.role != "system" and _side_of(message.role) != side:
            side, turn = _side_of(message.role), turn + 1
        numbered = []
        for call in message.tool_calls:
            result = _result_of_call(messages, index, call.id) if call.id else None
            numbered.append(ToolCall(call.name, call.arguments, call.id, result, calls, index))
            calls += 1
        number = None if message.role == "system" else turn
        # dataclasses.replace takes three times as long, and every message comes here several times.
        yield Message(message.role, message.content, tuple(numbered), message.name, message.call_id, message.latency,
                      message.tokens, message.metadata, message.new, index, number)  # fmt: skip

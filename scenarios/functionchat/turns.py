"""A turn of FunctionChat-Bench: the dialog so far, the expected output, and acceptable alternatives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from viva.engine.tools import ToolCall

OutputType: TypeAlias = Literal["call", "completion", "slot", "relevance"]
Subset: TypeAlias = Literal["singlecall", "dialog", "calldecision", "parallel", "sequential", "common"]
OUTPUT_TYPES: tuple[OutputType, ...] = get_args(OutputType)
TOOL_LISTS = ("exact", "4_random", "4_close", "8_random", "8_close")


@dataclass(slots=True, frozen=True)
class Acceptable:
    """The acceptable values besides those of the ground truth.

    `kind` is `unsaid` (the data says nothing), `only` (only the ground truth is right), `values` (they are listed), or
    `remark` (a sentence for the judge). `values` has the further values of the arguments of each call of the ground
    truth, in order; an argument that the ground truth lacks may be left out, or have one of these values. `text` is the
    original text for judges and reviewers, empty if nothing is said.
    """

    kind: Literal["unsaid", "only", "values", "remark"] = "unsaid"
    values: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    text: str = ""

    def to_record(self) -> dict[str, Any]:
        values = [{name: list(alternatives) for name, alternatives in call.items()} for call in self.values]
        return {"kind": self.kind, "values": values, "text": self.text}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Acceptable:
        values = tuple({name: tuple(alternatives) for name, alternatives in call.items()} for call in record["values"])
        return cls(record["kind"], values, record["text"])


@dataclass(slots=True, frozen=True)
class DialogTurn:
    """An output to generate and to grade.

    `id` is `singlecall/SERIAL/TOOL_LIST`, `dialog/DIALOG/SERIAL` or `SUBSET/CATEGORY/SERIAL`, unique and stable.
    `tools` are in OpenAI's form, at least one; turns with the same tools share the list. `messages` are the correct
    history in OpenAI's form; a system message in it replaces the run's. `ground_truth` is an assistant message, with
    `tool_calls` if `type` is `call`, else with `content`. `tool_list` is one of `TOOL_LISTS` for single calls, else
    None. `category` is set in the common form, else None.
    """

    id: str
    subset: Subset
    type: OutputType
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    ground_truth: dict[str, Any]
    acceptable: Acceptable = field(default_factory=Acceptable)
    tool_list: str | None = None
    category: str | None = None

    @property
    def cluster(self) -> str:
        """The cluster of dependent turns: turns with the same query, dialog, or first user message."""
        if self.category is None:
            return self.id.rpartition("/")[0]
        first = next((str(message["content"]) for message in self.messages if message["role"] == "user"), self.id)
        return f"{self.subset}/{hashlib.blake2b(first.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"

    @property
    def has_system(self) -> bool:
        """True if the history has its own system message."""
        return any(message["role"] == "system" for message in self.messages)

    def expected(self) -> list[ToolCall]:
        """Return the calls of the ground truth; empty if the type is not `call`."""
        return message_calls(self.ground_truth)

    def query(self) -> str:
        """Return the history as text: only its content if it is one user message, else one line for each message."""
        if len(self.messages) == 1 and self.messages[0]["role"] == "user":
            return str(self.messages[0]["content"])
        return "\n".join(
            f"{message['role']}: {output_text(message['content'] or '', message_calls(message))}"
            for message in self.messages
        )

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON data, with `category` only if there is one."""
        record: dict[str, Any] = {
            "id": self.id,
            "subset": self.subset,
            "type": self.type,
            "tools": self.tools,
            "messages": self.messages,
            "ground_truth": self.ground_truth,
            "acceptable": self.acceptable.to_record(),
            "tool_list": self.tool_list,
        }
        return record if self.category is None else {**record, "category": self.category}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DialogTurn:
        return cls(**{**record, "acceptable": Acceptable.from_record(record["acceptable"])})


def message_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the calls of a message in OpenAI's form."""
    return [
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]


def output_text(content: str, calls: Iterable[ToolCall]) -> str:
    """Return an output as text: its content, then each call as `name(arguments)` on its own line."""
    return "\n".join([*([content] if content else []), *(f"{call.name}({call.arguments})" for call in calls)])


def readable_json(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))

"""A few turns about a restaurant, with every type of parameter, for tests of FunctionChat-Bench's parts."""

from __future__ import annotations

import json
from typing import Any

from viva.engine.tools import ToolCall
from viva.scenarios.functionchat.turns import Acceptable, DialogTurn, OutputType


def tool(name: str, required: list[str], /, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool(
        "book_table",
        ["restaurant", "guests"],
        restaurant={"type": "string"},
        guests={"type": "integer"},
        budget={"type": "number"},
        outdoor={"type": "boolean", "default": False},
        area={"type": "string", "enum": ["bar", "hall", "garden"]},
        dishes={"type": "array", "items": {"type": "string"}},
        note={"type": "string"},
    ),
    tool("cancel_table", ["restaurant"], restaurant={"type": "string"}),
    tool("list_restaurants", []),
]
ASKED = "Please book Casa Verde for 4, in the garden, at most 120.5 euros, and order soup."
RIGHT = {
    "restaurant": "Casa Verde",
    "guests": 4,
    "budget": 120.5,
    "area": "garden",
    "dishes": ["soup"],
}


def call(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call-1", name, text)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def message(*calls: ToolCall) -> dict[str, Any]:
    made = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def call_turn(*calls: ToolCall, acceptable: Acceptable | None = None, asked: str = ASKED) -> DialogTurn:
    """A turn that wants these calls, by default the booking."""
    truth = message(*(calls or [call("book_table", RIGHT)]))
    return DialogTurn("dialog/1/1", "dialog", "call", TOOLS, [user(asked)], truth, acceptable or Acceptable())


def text_turn(kind: OutputType) -> DialogTurn:
    """A turn that wants text: an answer from a result, a question, or small talk."""
    messages = [user("Cancel my table at Casa Verde.")]
    texts = {"slot": "For how many guests?", "relevance": "I cannot order a taxi.", "completion": "It is cancelled."}
    if kind == "completion":
        result = {"role": "tool", "tool_call_id": "call-1", "name": "cancel_table", "content": '{"cancelled": true}'}
        messages += [message(call("cancel_table", {"restaurant": "Casa Verde"})), result]
    elif kind == "slot":
        messages = [user("Book a table at Casa Verde.")]
    else:
        messages = [user("Order a taxi for me.")]
    truth = {"role": "assistant", "content": texts[kind]}
    return DialogTurn(f"dialog/2/{kind}", "dialog", kind, TOOLS, messages, truth)

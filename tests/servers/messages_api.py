"""The Messages API as far as the chaos server plays it: what it refuses, in its documented words, and its answers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Body = dict[str, Any]

ERRORS = {
    "400": (400, "invalid_request_error", "this request makes no sense"),
    "401": (401, "authentication_error", "invalid x-api-key: {key}"),
    "402": (402, "billing_error", "check your payment details"),
    "403": (403, "permission_error", "your API key {key} may not use this resource"),
    "404": (404, "not_found_error", "model: claude-none"),
    "413": (413, "request_too_large", "the request exceeds the maximum size"),
    "429": (429, "rate_limit_error", "this request would exceed your organization's rate limit"),
    "500": (500, "api_error", "an internal error"),
    "504": (504, "timeout_error", "the request timed out"),
    "529": (529, "overloaded_error", "Overloaded"),
    "context_too_long": (400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
    "spend_limit": (429, "rate_limit_error", "you have reached your spend limit"),
    "no_temperature": (400, "invalid_request_error", "`temperature` is deprecated for this model."),
}


def error_of(do: str, message: str | None = None) -> tuple[int, Body]:
    """Status and body of an error."""
    status, kind, usual = ERRORS[do]
    error: Body = {"type": kind, "message": message or usual}
    if do == "spend_limit":
        error["details"] = {"error_code": "enforced_spend_limit_reached"}
    return status, {"type": "error", "error": error, "request_id": "req_chaos"}


def refused(body: Body, version: str) -> str | None:
    """What the API finds wrong with a request, in its words; None where it takes it."""
    if version != "2023-06-01":
        return "anthropic-version: header is required"
    if not body.get("messages"):
        return "messages: at least one message is required"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    known = {"model", "max_tokens", "messages", "system", "temperature", "top_p", "top_k", "stop_sequences", "stream"}
    known |= {"tools", "tool_choice", "thinking", "output_config", "cache_control"}
    for name in body.keys() - known:
        return f"{name}: Extra inputs are not permitted"
    thinking = body.get("thinking") or {"type": "disabled"}
    if thinking["type"] == "enabled" and not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        return "`max_tokens` must be greater than `thinking.budget_tokens`"
    if thinking["type"] != "disabled" and ("temperature" in body or "top_k" in body):
        return "`temperature` may only be set to 1 when thinking is enabled"
    output = (body.get("output_config") or {}).get("format")
    return _turns(body["messages"], thinking["type"]) or (output and _schema(output["schema"])) or None


def _turns(messages: list[Body], thinking: str) -> str | None:
    open_calls: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(open_calls):
            return f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after"
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for call in calls:
            if call in seen:
                return f"messages.{index}: `tool_use` ids must be unique"
            seen.add(call)
        open_calls = calls
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                return f"messages.{index}: text content blocks must be non-empty"
            if block["type"] == "thinking" and block["signature"] != signature_of(block["thinking"]):
                return f"messages.{index}: Invalid `signature` in `thinking` block"
        last_turn = not any(_asks(later) for later in messages[index + 1 :])
        if calls and last_turn and thinking == "enabled" and blocks[0]["type"] != "thinking":
            return f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    return None


def _asks(message: Body) -> bool:
    """Whether the user says something in a message, besides results of tools."""
    content = message["content"]
    return message["role"] == "user" and (isinstance(content, str) or any(one["type"] == "text" for one in content))


def _schema(schema: Any) -> str | None:
    if isinstance(schema, list):
        return next((found for one in schema if (found := _schema(one))), None)
    if not isinstance(schema, dict):
        return None
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
    for name in ("minimum", "maximum", "minLength", "maxLength", "pattern", "maxItems"):
        if name in schema and not isinstance(schema[name], dict):
            return f"output_config.format.schema: For '{schema.get('type')}' type, property '{name}' is not supported"
    return next((found for value in schema.values() if (found := _schema(value))), None)


def signature_of(thinking: str) -> str:
    """The signature of a thought."""
    return hashlib.blake2b(thinking.encode(), digest_size=12).hexdigest()


def message(body: Body, text: str, behaviour: Body) -> Body:
    """A whole answer: thoughts (where the request wants any), text, calls."""
    blocks: list[Body] = []
    thoughts = behaviour.get("thoughts")
    if thoughts and (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": signature_of(thoughts)})
    if text:
        blocks.append({"type": "text", "text": text})
    calls = behaviour.get("calls", []) if "tools" in body else []
    blocks += [{"type": "tool_use", **call} for call in calls]
    prompt = len(json.dumps(body["messages"])) // 4
    usage = {"input_tokens": prompt, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 5}
    reason = behaviour.get("stop", "tool_use" if calls else "end_turn")
    answer = {"id": "msg_chaos", "type": "message", "role": "assistant", "model": body["model"], "content": blocks}
    return answer | {"stop_reason": reason, "stop_sequence": None, "usage": usage | {"output_tokens": len(text) // 4}}


def events(whole: Body) -> list[tuple[str, Body]]:
    """A whole answer as the events of a stream, each text in pieces."""
    begun = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 1}}
    found: list[tuple[str, Body]] = [("message_start", {"message": begun}), ("ping", {})]
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            first, deltas = {"type": "text", "text": ""}, _pieces("text_delta", "text", block["text"])
        elif block["type"] == "thinking":
            first = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = _pieces("thinking_delta", "thinking", block["thinking"])
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            first = block | {"input": {}}
            deltas = _pieces("input_json_delta", "partial_json", json.dumps(block["input"]))
        found.append(("content_block_start", {"index": index, "content_block": first}))
        found += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        found.append(("content_block_stop", {"index": index}))
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    count = {"output_tokens": whole["usage"]["output_tokens"]}
    found += [("message_delta", {"delta": ended, "usage": count}), ("message_stop", {})]
    return [(name, {"type": name} | record) for name, record in found]


def _pieces(kind: str, field: str, text: str) -> list[Body]:
    return [{"type": kind, field: text[start : start + 9]} for start in range(0, len(text), 9)]

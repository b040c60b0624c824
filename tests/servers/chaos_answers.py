"""What the misbehaving endpoint (``chaos``) says where it behaves: a function of the request alone."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any
from urllib.parse import quote

ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")

FORMS = {
    "json": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "unicode": lambda key: "".join(f"\\u{ord(one):04x}" for one in key),
    "percent": lambda key: quote(key, safe=""),
    "login": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "repr": lambda key: repr(key + "'\"")[1:-4],
    "html": html.escape,
}


def with_key(text: str, key: str) -> str:
    """The text with the key in its places: ``{key}``, or ``{key:FORM}``."""
    for name, form in FORMS.items():
        text = text.replace(f"{{key:{name}}}", form(key))
    return text.replace("{key}", key)


def answer(body: dict[str, Any]) -> str:
    """What the model named in the request says: a function of the messages and the seed alone."""
    asked = json.dumps([body["messages"], body.get("seed")]).encode()
    digest = hashlib.blake2b(asked, digest_size=16).digest()
    name = digest.hex()[:8]
    if "evaluator" in body["model"]:
        scores = [1 + byte % 4 for byte in digest]
        said: dict[str, Any] = {aspect: {"comment": name, "score": scores[i]} for i, aspect in enumerate(ASPECTS)}
        said |= {"overall_comment": name, "overall_score": scores[5], "stop_conversation": False, "stop_reason": "none"}
        return json.dumps(said)
    if "interactor" in body["model"]:
        return f"Question {name}: which of your assumptions carries most of the weight, and how would you test it?"
    if len(body["messages"]) <= 2:
        return f"{'ABCD'[digest[0] % 4]}. That follows from the principle that the question rests on ({name})."
    return f"The effect grows with the cause and vanishes without it, as observation {name} shows."


def echo(prompt: str, with_logprobs: bool) -> dict[str, Any]:
    """A prompt and one word more, a token being a word with the blank before it.

    A token's log-probability is from -12 to 0 and a function of the text up to its end.
    """
    tokens = [*re.findall(r"\s*\S+|\s+$", prompt), " so"]
    ends = [sum(map(len, tokens[: index + 1])) for index in range(len(tokens))]
    values = [-hashlib.blake2b((prompt + " so")[:end].encode(), digest_size=1).digest()[0] * 12 / 255 for end in ends]
    told = {"tokens": tokens, "token_logprobs": [None, *values[1:]], "text_offset": [0, *ends[:-1]]}
    choice = {"index": 0, "text": prompt + " so", "finish_reason": "length", "logprobs": told}
    if not with_logprobs:
        choice |= {"text": " so", "logprobs": None}
    usage = {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1, "total_tokens": len(tokens)}
    return {"id": "chaos", "object": "text_completion", "choices": [choice], "usage": usage}


def format_of(body: dict[str, Any]) -> str | None:
    """The form of answer that was asked for: vLLM's field, or OpenAI's type, whether it holds a schema the way of
    llama.cpp, and whether it bounds a text.
    """
    for name in ("structured_outputs", "guided_json"):
        if name in body:
            return name
    wanted = body.get("response_format") or {}
    form: str | None = f"{wanted['type']}+schema" if "schema" in wanted else wanted.get("type")
    return f"{form}+maxLength" if "maxLength" in json.dumps(wanted) else form


def usage_of(body: dict[str, Any], text: str) -> dict[str, int]:
    """One token per four characters, for both sides."""
    prompt = sum(len(message["content"] or "") for message in body["messages"]) // 4
    return {"prompt_tokens": prompt, "completion_tokens": len(text) // 4, "total_tokens": prompt + len(text) // 4}


def uses_tools(body: dict[str, Any]) -> bool:
    """Whether tools are offered, or any message is of one."""
    return "tools" in body or any(
        message["role"] == "tool" or "tool_calls" in message for message in body.get("messages", ())
    )


def completion(text: str, usage: dict[str, int] | None, calls: list[Any] | None = None) -> dict[str, Any]:
    """A whole answer."""
    message = {"role": "assistant", "content": text}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    if calls:
        choice |= {"message": {**message, "content": text or None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    return {"id": "chaos", "object": "chat.completion", "choices": [choice]} | ({"usage": usage} if usage else {})


def call_chunks(calls: list[Any]) -> list[dict[str, Any]]:
    """Calls as deltas, the calls' pieces in turn: id and name first, then the arguments in three parts."""
    rounds: list[list[dict[str, Any]]] = [[], [], [], []]
    for index, call in enumerate(calls):
        function, arguments = call["function"], call["function"].get("arguments")
        rounds[0].append({**call, "index": index, "function": {"name": function["name"], "arguments": ""}})
        third = len(arguments) // 3 if isinstance(arguments, str) else 0
        parts = [arguments[:third], arguments[third : 2 * third], arguments[2 * third :]] if third else [arguments]
        for pieces, part in zip(rounds[1:], parts, strict=False):
            pieces.append({"index": index, "function": {"arguments": part}})
    deltas = [piece for pieces in rounds for piece in pieces]
    return [{"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]} for delta in deltas]

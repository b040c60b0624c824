"""Reading the answer of a chat endpoint that sent it whole.

What never belongs here: HTTP, streams (``sse``), and prompts that come back (``openai_echo``).
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import Unavailable
from ..messages import Completion
from ..tools import argument_text, numbered
from .openai_errors import scrub
from .openai_message import finish_of, refuses, text_of, thoughts_of


def parse_completion(data: bytes, label: str, key: str | None = None, *, tools: bool = False) -> Completion:
    """Read a whole (not streamed) answer. ``tools``: some were offered.

    :raises Unavailable: it is not the answer of a chat endpoint; a proxy's page or half a body may pass, so retried.
    """
    try:
        answer = orjson.loads(data)
        choice = answer["choices"][0]
        message = choice["message"]
        text = text_of(message.get("content"))
        usage = answer.get("usage") or {}
        logprobs = _logprobs(choice.get("logprobs"))
        calls = message.get("tool_calls")
        return Completion(
            text,
            finish_of(choice.get("finish_reason"), tools, not text and not calls and refuses(message)),
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
            logprobs=logprobs,
            calls=numbered(map(_call, calls)) if calls else None,
            thoughts=thoughts_of(message),
        )
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = scrub(data.decode("utf-8", "replace"), key)[:200]
        raise Unavailable(f"the answer is not a chat completion ({error}): {shown}", model=label) from error


def _call(entry: Any) -> tuple[str, str, str]:
    """Id, name and arguments of a call; some endpoints send an object for arguments instead of text."""
    function = entry["function"]
    name = function["name"]
    if not isinstance(name, str):
        raise TypeError(f"a call's name is {type(name).__name__}, not text")
    return str(entry.get("id") or ""), name, argument_text(function.get("arguments"))


def _logprobs(data: Any) -> list[list[Any]] | None:
    if not data or not data.get("content"):
        return None
    return [
        [entry["token"], entry["logprob"], {top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()}]
        for entry in data["content"]
    ]

"""What a message or a delta of a chat endpoint holds besides calls: text, thoughts, a refusal, why it ended.

Endpoints agree on little here; what is of no known form is left out, never an error, except a text that is none.
What never belongs here: HTTP, streams, calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_LONGEST_FINISH = 40
_LONGEST_GIVEN = 10_000  # characters that are looked at
_ASKED_FOR_CALLS = ("tool_calls", "function_call")


def text_of(content: Any) -> str:
    """The words of a message's ``content``: text, null, or a list of parts, of which those of text count.

    :raises TypeError: it is of another form.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    raise TypeError(f"content is {type(content).__name__}, not text")


def thoughts_of(message: Mapping[str, Any]) -> str:
    """A model's thoughts where the endpoint tells them apart from its words, else nothing."""
    thoughts = _plain(message.get("reasoning_content")) or _plain(message.get("reasoning"))
    content = message.get("content")
    if isinstance(content, list):  # some put them among the parts of the content
        thoughts += "".join(_plain(part.get("thinking")) for part in content if isinstance(part, dict))
    return thoughts


def refuses(message: Mapping[str, Any]) -> bool:
    """Whether a message or a delta holds words of refusal, as a field of its own or as a part of its content."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(message.get("refusal") or any(isinstance(part, dict) and part.get("refusal") for part in parts))


def finish_of(given: Any, tools: bool, silent_refusal: bool, clean: Callable[[str], str] = str) -> str:
    """Why an answer ended, as the endpoint says it.

    An end by calls is ``stop`` where ``tools`` were offered. ``silent_refusal``: the model refused and said nothing
    else. Of words that nobody knows at most 40 characters are kept, and no colon, which marks the engine's own;
    ``clean`` takes the key out of them before they are cut.
    """
    if silent_refusal:
        return "refusal"
    if given in ("stop", "length"):  # nearly always
        return str(given)
    if not isinstance(given, str) or (tools and given in _ASKED_FOR_CALLS):
        return "stop"
    kept = "".join(
        character for character in clean(given[:_LONGEST_GIVEN])[: 4 * _LONGEST_FINISH] if character.isprintable()
    )
    return kept.replace(":", "-")[:_LONGEST_FINISH].strip() or "stop"


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        raise TypeError(f"a part of the content is {type(part).__name__}, not an object")
    text = part.get("text") if part.get("type", "text") == "text" else None
    return text if isinstance(text, str) else ""


def _plain(value: Any) -> str:
    """A text, or the texts of parts, joined."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    texts = ((part.get("text") or part.get("content")) if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))

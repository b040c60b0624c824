"""What a message or a delta of a chat endpoint holds besides calls: text, thoughts, a refusal, why it ended.

Endpoints agree on little here. A part of any type that has text is text, or thoughts; one of an unknown type without
text is an error, for what it says would be lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST_FINISH = 40
_LONGEST_GIVEN = 10_000  # characters that are looked at
# Why an answer ended, as endpoints spell it, in small letters alone.
_MEANINGS = dict.fromkeys(
    ("stop", "endturn", "stopsequence", "stoptoken", "eos", "eostoken", "endofturn", "complete"), "stop"
)
_MEANINGS |= dict.fromkeys(("toolcalls", "toolcall", "tooluse", "functioncall"), "tool_calls")
_CUT = re.compile(r"length|max.*tokens?|max.*output|tokens?limit|limit.*tokens?|context|truncated")
# The endpoint gave up: what came is a part of an answer.
_BROKEN = re.compile(
    r"(internal|network|server|generation|engine)?(error|failure)|abort(ed)?|cancel(l?ed)?|timeout|timedout"
    r"|insufficientsystemresources?"
)
# Types of parts that lose nothing where they have no text; ``refuses`` reads refusals.
_KNOWN = frozenset(("text", "output_text", "refusal", "reference", "tool_reference", "citation"))
_TEXTS = ("text", "content", "output_text")  # fields of parts
_OTHER_FIELDS = ("audio", "images")  # of messages, in place of a content or beside it
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_THOUGHTS = ("thinking", "reasoning", "reasoning_content", "text", "content", "summary")


class PartWithoutText(TypeError):
    """An answer holds a part that has no text: of a type that nobody knows, or nothing but what tells of tools that the
    provider runs itself.
    """

    def __init__(self, kind: object) -> None:
        super().__init__(f"the answer holds a part of type '{kind}', which has no text; ask for text alone")


class GaveUp(ValueError):
    """The endpoint could not go on: what there is of the answer is no answer."""


def text_of(content: Any) -> str:
    """The words of a message's ``content``: text, null, or a list of parts, of which those with text count.

    :raises PartWithoutText: a part is of an unknown type without text. :raises TypeError: it is of another form.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(map(part_text, content))
    raise TypeError(f"content is {type(content).__name__}, not text")


def part_text(part: Any) -> str:
    """The words of one part of a content; none of a thought.

    :raises PartWithoutText: it is of an unknown type without text. :raises TypeError: it is no part.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise TypeError(f"a part of the content is {type(part).__name__}, not an object")
    kind = part.get("type") or "text"
    if is_thought(kind):
        return ""
    for name in _TEXTS:
        text = part.get(name)
        if isinstance(text, dict):
            text = text.get("value")
        if isinstance(text, str):
            return text
        if text is not None:
            raise TypeError(f"found {type(text).__name__} in the place of a part's text")
    if kind not in _KNOWN:
        raise PartWithoutText(kind)
    return ""


def is_thought(kind: Any) -> bool:
    """Whether a part of this type is of a model's thoughts."""
    return isinstance(kind, str) and ("think" in kind or "reason" in kind)


def thoughts_of(message: Mapping[str, Any]) -> str:
    """A model's thoughts where the endpoint tells them apart from its words, else nothing."""
    thoughts = next(filter(None, (_plain(message.get(name)) for name in _THOUGHT_FIELDS)), "")
    content = message.get("content")
    if isinstance(content, list):  # some put them among the parts of the content
        parts = [part for part in content if isinstance(part, dict) and is_thought(part.get("type"))]
        thoughts += "".join(next(filter(None, (_plain(part.get(name)) for name in _THOUGHTS)), "") for part in parts)
    return thoughts


def other_than_text(message: Mapping[str, Any]) -> str:
    """The field of a message or a delta that holds a sound or pictures; empty where there is none."""
    return next((name for name in _OTHER_FIELDS if message.get(name)), "")


def refuses(message: Mapping[str, Any]) -> bool:
    """Whether a message or a delta holds words of refusal, as a field of its own or as a part of its content."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(message.get("refusal") or any(isinstance(part, dict) and part.get("refusal") for part in parts))


def finish_of(given: Any, tools: bool, silent_refusal: bool, clean: Callable[[str], str] = str) -> str:
    """Why an answer ended, as the endpoint says it.

    An end by calls is ``stop`` where ``tools`` were offered, one at the token limit ``length``. ``silent_refusal``: the
    model refused and said nothing else. Of words that nobody knows at most 40 characters are kept, and no colon, which
    marks the engine's own; ``clean`` takes the key out of them before they are cut.

    :raises GaveUp: it ended because the endpoint could not go on.
    """
    if silent_refusal:
        return "refusal"
    if given in ("stop", "length"):  # nearly always
        return str(given)
    if isinstance(given, dict):  # as SGLang and others have it inside
        given = given.get("type")
    if not isinstance(given, str):
        return "stop"
    word = _letters(given)
    if word in _MEANINGS:
        return "stop" if tools and _MEANINGS[word] == "tool_calls" else _MEANINGS[word]
    if _CUT.search(word):
        return "length"
    if _BROKEN.fullmatch(word):
        raise GaveUp(f"the endpoint ended the answer with {given[:_LONGEST_FINISH]!r}")
    kept = "".join(
        character for character in clean(given[:_LONGEST_GIVEN])[: 4 * _LONGEST_FINISH] if character.isprintable()
    )
    return kept.replace(":", "-")[:_LONGEST_FINISH].strip() or "stop"


def _letters(finish: str) -> str:
    """Return a reason in small letters alone, without the name of an enumeration before it."""
    return re.sub("[^a-z]", "", finish[:_LONGEST_FINISH].rpartition(".")[2].lower()).removeprefix("finishreason")


def _plain(value: Any) -> str:
    """A text, or the texts of parts, joined."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    texts = ((part.get("text") or part.get("content")) if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))

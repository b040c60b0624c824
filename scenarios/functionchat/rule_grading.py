"""Grading by rules if they leave no doubt, with the error taxonomy of the paper's section 6.2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from viva.engine.errors import MalformedOutput
from viva.engine.tools import ToolCall

from .call_matching import (
    CallComparison,
    Matching,
    Mentions,
    compare_calls,
    matches_officially,
    to_nfc,
    unicode_scripts,
    unneeded_calls,
)
from .turns import DialogTurn, message_calls


@dataclass(slots=True, frozen=True)
class Tag:
    """A kind of error, or a hint at one, with its meaning in one sentence."""

    name: str
    kind: Literal["error", "hint"]
    meaning: str


def _tags(kind: Literal["error", "hint"], meanings: dict[str, str]) -> list[Tag]:
    return [Tag(name, kind, meaning) for name, meaning in meanings.items()]


_ERRORS = {
    # nothing called
    "empty_output": "The output has neither text nor a call.",
    "no_call": "A call was due, but none was made.",
    "call_as_text": "A call was written as text instead of being made.",
    "asked_instead": "A call was due, but the text asks a question.",
    # which function
    "unoffered_function": "The called function is not among those offered.",
    "misspelt_function": "A function's name differs from the right one only in letter case or separators.",
    "wrong_function": "An offered function was called, but not the right one.",
    "missing_call": "Several calls were due, but fewer were made.",
    "extra_call": "More calls were made than were due.",
    # the arguments as an object
    "no_arguments": "The call has a function's name but no arguments object.",
    "malformed_arguments": "The arguments are not a JSON object.",
    "missing_argument": "An argument is missing, and its default is not the right value.",
    "extra_argument": "An argument that should have been left out was given, with a value other than its default.",
    "unknown_argument": "The function has no such argument.",
    # values
    "wrong_type": "A value does not have the type in the function's specification.",
    "integer_as_float": "An integer was due, but the number has a fraction or exponent, such as 3.0.",
    "number_as_text": "A number was due, but its digits were given as text.",
    "text_as_number": "Text was due, but a number was given.",
    "outside_choices": "A value is not among those listed in the specification.",
    "empty_value": "An empty text was given, but the ground truth is not empty.",
    "wrong_value": "A value differs from all right values, and wording does not explain it.",
    "flipped_sign": "A number has the opposite sign of the right one.",
    # a call where text was due
    "unneeded_call": "A call was made instead of answering or asking the user.",
    "fabricated_argument": "Instead of asking, a required value was given that no message mentions.",
    "repeated_call": "The call was already made in the dialog.",
    # text
    "raw_json": "A result was passed to the user as JSON instead of in words.",
}
_HINTS = {
    "different_value": "A value differs from the ground truth and from all alternatives that the item lists.",
    "different_spacing": "A text differs from a right one only in white space.",
    "different_case": "A text differs from a right one only in letter case.",
    "partial_value": "A text is part of a right one.",
    "extended_value": "A text contains a right one.",
    "other_script": "A text is in another script than the ground truth, as a translation would be.",
    "unmentioned_value": "A text has words or numbers that no message of the dialog mentions.",
    "unmentioned_number": "The reply has a number that no message of the dialog mentions.",
    "holds_json": "The reply contains a JSON object or array.",
    "holds_call": "The reply contains a call as text.",
    "mirrored_message": "The reply repeats an earlier message word for word.",
    "other_language": "The reply is in another script than the user's messages.",
}

TAGS: dict[str, Tag] = {tag.name: tag for tag in (*_tags("error", _ERRORS), *_tags("hint", _HINTS))}
_TAG_ORDER = {name: position for position, name in enumerate(TAGS)}


def sort_tags(names: Iterable[str]) -> list[str]:
    """Return distinct tags in the order of the table; an unknown one raises `KeyError`."""
    return sorted(set(names), key=_TAG_ORDER.__getitem__)


def tag_rows() -> list[list[str]]:
    return [[tag.name, tag.kind, tag.meaning] for tag in TAGS.values()]


_JSON_BEGINS = re.compile(r"[{\[]")
_DECODER = json.JSONDecoder()
_FENCE = "```"
_FENCES = re.compile(r"^```\w*\s*|```$")
# Limit on the brackets searched in a text: broken models repeat them endlessly.
_MOST_BRACKETS = 64


@dataclass(slots=True)
class RuleGrade:
    """The grade of an output by rules.

    `passed` is None if the judge is to decide. `tags` are in the order of the table: errors of a failed output, or
    hints for the judge. `why` has the findings in words.
    """

    passed: bool | None
    tags: list[str] = field(default_factory=list)
    why: str = ""


def grade(turn: DialogTurn, content: str, calls: Sequence[ToolCall], matching: Matching = "strict") -> RuleGrade:
    """Grade an output, its text and its calls, by the rules above.

    With `official` matching, an output passes if it passes in the authors' code, and the judge decides on all other
    outputs. Errors found by the rules above are then only hints.
    """
    if matching == "official":
        if turn.type == "call" and matches_officially(turn, calls):
            return RuleGrade(True)
        strict = grade(turn, content, calls)
        return RuleGrade(None, strict.tags, strict.why)
    comparison = _grade_call(turn, content, calls) if turn.type == "call" else _grade_text(turn, content, calls)
    why = "; ".join(dict.fromkeys(comparison.why))
    if comparison.errors:
        return RuleGrade(False, sort_tags(comparison.errors), why)
    if comparison.hints or comparison.why:
        return RuleGrade(None, sort_tags(comparison.hints), why)
    if turn.type == "call" or _is_right_text(turn, content):
        return RuleGrade(True)
    return RuleGrade(None)


_PASS_WORDS = ("패스", "패쓰", "통과", "합격", "성공")


def read_published_verdict(text: str) -> bool | None:
    """Return the verdict of a judge's text as the authors' code reads it; None if it reads neither word.

    The last two lines decide, and pass comes first: "does not pass: fail" passes, and so does 불합격, because it
    contains 합격. If these lines are only 입니다., the last four decide.
    """
    lines = text.strip().split("\n")
    for count in (2, 4):
        ending = "".join(lines[-count:])
        if "pass" in ending.lower():
            return True
        if "fail" in ending.lower():
            return False
        if any(word in ending for word in _PASS_WORDS):
            return True
        if ending != "입니다.":
            break
    return None


def _grade_call(turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> CallComparison:
    if calls:
        return compare_calls(turn, calls)
    comparison = CallComparison()
    if not content.strip():
        comparison.error("there is neither text nor a call", "no_call", "empty_output")
        return comparison
    comparison.error("no call was made", "no_call")
    if _writes_call(turn, content):
        comparison.error("a call is written into the text", "call_as_text")
    elif "?" in content or "？" in content:
        comparison.error("the text asks instead", "asked_instead")
    return comparison


def _grade_text(turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> CallComparison:
    if calls:
        comparison = unneeded_calls(turn, calls)
        earlier = [_call_key(call) for message in turn.messages for call in message_calls(message)]
        if any(_call_key(call) in earlier for call in calls):
            comparison.error("the call was already made in the dialog", "repeated_call")
        return comparison
    comparison = CallComparison()
    if not content.strip():
        comparison.error("there is neither text nor a call", "empty_output")
    elif _is_right_text(turn, content):
        pass
    elif turn.type == "completion" and _is_bare_json(turn, content):
        comparison.error("the text is JSON", "raw_json")
    else:
        _judge_hints(turn, content, comparison)
    return comparison


def _is_right_text(turn: DialogTurn, content: str) -> bool:
    return turn.type != "call" and to_nfc(content).strip() == to_nfc(turn.ground_truth["content"]).strip()


def _judge_hints(turn: DialogTurn, content: str, comparison: CallComparison) -> None:
    """Add hints for the judge about a text."""
    if _writes_call(turn, content):
        comparison.open("a call is written into the text", "holds_call")
    elif _has_json(content):
        comparison.open("there is JSON in the text", "holds_json")
    messages = [(message["role"], message["content"] or "") for message in turn.messages]
    if any(to_nfc(text).strip() == to_nfc(content).strip() for _, text in messages):
        comparison.open("an earlier message is repeated", "mirrored_message")
    own = unicode_scripts("".join(text for role, text in messages if role == "user"))
    if own and unicode_scripts(content) and not own & unicode_scripts(content):
        comparison.open("the user writes in another script", "other_language")
    if turn.type == "completion" and (strange := Mentions(turn.messages).strange_numbers(content)):
        comparison.open(f"no message has the number {strange[0]}", "unmentioned_number")


def _writes_call(turn: DialogTurn, content: str) -> bool:
    """Return True if the text contains a call of an offered function, as `name(` or as JSON with its name."""
    names = "|".join(re.escape(tool["function"]["name"]) for tool in turn.tools)
    return re.search(rf'"name"\s*:\s*"(?:{names})"|(?<![\w.])(?:{names})\(', content) is not None


def _is_bare_json(turn: DialogTurn, content: str) -> bool:
    """Return True if a text is only JSON, fenced or not, or begins like JSON and repeats a tool's message."""
    text = content.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = _FENCES.sub("", text).strip()
    if not _JSON_BEGINS.match(text):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return any(message["role"] == "tool" and message["content"].strip() == text for message in turn.messages)
    return True


def _has_json(content: str) -> bool:
    """Return True if a text contains a JSON object, or an array with an object."""
    for begin in islice(_JSON_BEGINS.finditer(content), _MOST_BRACKETS):
        try:
            value, _ = _DECODER.raw_decode(content, begin.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(entry, dict) for entry in value)):
            return True
    return False


def _call_key(call: ToolCall) -> Any:
    try:
        return (call.name, json.dumps(call.parsed(), sort_keys=True))
    except MalformedOutput:
        return (call.name, call.arguments)

"""Grades an output as far as the rubrics leave no doubt; what is open goes to the judge, with hints.

A turn that wants a call:

- It passes without a judge if the calls are those of the ground truth, in any order: the same functions, and every
  argument with the value of the ground truth or one that the data list as acceptable. What is said beside does not
  count. An argument may be left out, or added, if its value is the specification's default.
- It fails without a judge on: no call; another function; a call too many or too few; arguments that are no JSON
  object, or none at all (section 6.2), also where the function takes none; an argument missing, added or invented; a
  value of another type than specified (3.0 for an integer and "3" for a number are, 170.0 for a number is not: the data
  list such values as acceptable); a number or truth value that differs, for the rubric lets wording vary in texts
  alone; a text outside an enumeration, or empty; and any other value where only the ground truth is allowed.
- Else texts differ in wording, and the judge decides. So it does over all values of a right type where the data have
  a remark for it; names and keys of arguments are decided without.

A turn that wants text: any call fails it, and so does nothing at all; a result that is passed on as bare JSON fails an
answer completion; the very text of the ground truth passes. The judge decides on everything else.

What never belongs here: asking a judge, and the meaning of tags (``taxonomy``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from viva.engine.errors import MalformedOutput
from viva.engine.tools import ToolCall

from .matching import Compared, Matching, compare_calls, matches_officially, unneeded_calls
from .mentions import Mentions
from .taxonomy import in_order
from .turns import DialogTurn, message_calls
from .values import composed, scripts

_JSON_BEGINS = re.compile(r"[{\[]")
_DECODER = json.JSONDecoder()
_FENCE = "```"
_FENCES = re.compile(r"^```\w*\s*|```$")
# So many brackets of a text are looked at: an endless row of them is a habit of broken models.
_MOST_BRACKETS = 64


@dataclass(slots=True)
class Graded:
    """What the rules say of an output.

    ``passed``: None where the judge is to decide. ``tags``: of ``taxonomy``, in its order; on a failure what was wrong,
    where the judge decides what strikes the eye, else none. ``why``: the findings in words, empty where there is none.
    """

    passed: bool | None
    tags: list[str] = field(default_factory=list)
    why: str = ""


def grade(turn: DialogTurn, content: str, calls: Sequence[ToolCall], matching: Matching = "strict") -> Graded:
    """Grade an output, its text and its calls, by the rules above.

    With ``official`` matching an output passes where it does in the authors' code, and the judge is asked about all
    others; what the rules above find wrong is then but a hint.
    """
    if matching == "official":
        if turn.type == "call" and matches_officially(turn, calls):
            return Graded(True)
        strict = grade(turn, content, calls)
        return Graded(None, strict.tags, strict.why)
    found = _of_call(turn, content, calls) if turn.type == "call" else _of_text(turn, content, calls)
    why = "; ".join(dict.fromkeys(found.why))
    if found.errors:
        return Graded(False, in_order(found.errors), why)
    if found.hints or found.why:
        return Graded(None, in_order(found.hints), why)
    if turn.type == "call" or _right_text(turn, content):
        return Graded(True)
    return Graded(None)


def _of_call(turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> Compared:
    if calls:
        return compare_calls(turn, calls)
    found = Compared()
    if not content.strip():
        found.error("there is neither text nor a call", "no_call", "empty_output")
        return found
    found.error("no call was made", "no_call")
    if _written_call(turn, content):
        found.error("a call is written into the text", "call_as_text")
    elif "?" in content or "？" in content:
        found.error("the text asks instead", "asked_instead")
    return found


def _of_text(turn: DialogTurn, content: str, calls: Sequence[ToolCall]) -> Compared:
    if calls:
        found = unneeded_calls(turn, calls)
        held = [_identity(call) for message in turn.messages for call in message_calls(message)]
        if any(_identity(call) in held for call in calls):
            found.error("the dialog holds such a call already", "repeated_call")
        return found
    found = Compared()
    if not content.strip():
        found.error("there is neither text nor a call", "empty_output")
    elif _right_text(turn, content):
        pass
    elif turn.type == "completion" and _bare_json(turn, content):
        found.error("the text is JSON", "raw_json")
    else:
        _look_at(turn, content, found)
    return found


def _right_text(turn: DialogTurn, content: str) -> bool:
    return turn.type != "call" and composed(content).strip() == composed(turn.ground_truth["content"]).strip()


def _look_at(turn: DialogTurn, content: str, found: Compared) -> None:
    """Hints at what the judge should look at in a text."""
    if _written_call(turn, content):
        found.open("a call is written into the text", "holds_call")
    elif _holds_json(content):
        found.open("there is JSON in the text", "holds_json")
    told = [(message["role"], message["content"] or "") for message in turn.messages]
    if any(composed(text).strip() == composed(content).strip() for _, text in told):
        found.open("an earlier message is repeated", "mirrored_message")
    own = scripts("".join(text for role, text in told if role == "user"))
    if own and scripts(content) and not own & scripts(content):
        found.open("the user writes in other letters", "other_language")
    if turn.type == "completion" and (strange := Mentions(turn.messages).strange_numbers(content)):
        found.open(f"no message has the number {strange[0]}", "unmentioned_number")


def _written_call(turn: DialogTurn, content: str) -> bool:
    """Whether a call of an offered function is written out: as ``name(`` or as JSON with its name."""
    names = "|".join(re.escape(tool["function"]["name"]) for tool in turn.tools)
    return re.search(rf'"name"\s*:\s*"(?:{names})"|(?<![\w.])(?:{names})\(', content) is not None


def _bare_json(turn: DialogTurn, content: str) -> bool:
    """Whether a text is JSON and nothing else, fenced or not; or a tool's message that only tries to be JSON."""
    text = content.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = _FENCES.sub("", text).strip()
    if not _JSON_BEGINS.match(text):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return any(one["role"] == "tool" and one["content"].strip() == text for one in turn.messages)
    return True


def _holds_json(content: str) -> bool:
    """Whether there is a JSON object, or an array of objects, somewhere in a text."""
    for begin in islice(_JSON_BEGINS.finditer(content), _MOST_BRACKETS):
        try:
            value, _ = _DECODER.raw_decode(content, begin.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
            return True
    return False


def _identity(call: ToolCall) -> Any:
    """What makes two calls the same."""
    try:
        return (call.name, json.dumps(call.parsed(), sort_keys=True))
    except MalformedOutput:
        return (call.name, call.arguments)

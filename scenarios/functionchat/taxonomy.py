"""The kinds of errors of the paper's section 6.2, as far as they can be told without judging what a text means.

Each tag says one thing that can be seen in the output itself. ``error`` tags stand on outputs that failed without a
judge; ``hint`` tags on those that were left to it, and say what struck the eye, not that it is wrong.
What never belongs here: how a tag is found (``grading``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


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
    "empty_output": "The output holds neither text nor a call.",
    "no_call": "A call was due, and none was made.",
    "call_as_text": "A call is written into the text instead of being made.",
    "asked_instead": "A call was due, and the text holds a question.",
    # which function
    "unoffered_function": "A function was called that is not among those offered.",
    "misspelt_function": "A function's name differs from the right one in letter case or separators alone.",
    "wrong_function": "An offered function was called, but not the right one.",
    "missing_call": "Several calls were due, and fewer were made.",
    "extra_call": "More calls were made than were due.",
    # the arguments as an object
    "no_arguments": "The call has a function's name, and no object of arguments.",
    "malformed_arguments": "The arguments are not a JSON object.",
    "missing_argument": "An argument is missing, and its default does not stand for it.",
    "extra_argument": "An argument of the function was given, not at its default, that should have been left out.",
    "unknown_argument": "An argument was given that the function does not have.",
    # values
    "wrong_type": "A value is not of the type that the function's specification names.",
    "integer_as_float": "An integer was due, and a number with a fraction or exponent was written, such as 3.0.",
    "number_as_text": "A number was due, and its digits were given as text.",
    "text_as_number": "Text was due, and a number was given.",
    "outside_choices": "A value is not among those that the specification enumerates.",
    "empty_value": "An empty text was given where the ground truth is not empty.",
    "wrong_value": "A value differs from all that are right, where wording leaves no room.",
    "flipped_sign": "A number has the opposite sign of the right one.",
    # a call where text was due
    "unneeded_call": "A call was made where the user was to be answered or asked.",
    "fabricated_argument": "Information was to be asked for, and a required value was given that no message mentions.",
    "repeated_call": "A call was made that the dialog holds already.",
    # text
    "raw_json": "A result was passed to the user as JSON instead of being put into words.",
}
_HINTS = {
    "different_value": "A value differs from the ground truth and from all listed values.",
    "different_spacing": "A text differs from a right one in white space alone.",
    "different_case": "A text differs from a right one in letter case alone.",
    "partial_value": "A text is a part of a right one.",
    "extended_value": "A text has a right one as its part.",
    "other_script": "A text is in other letters than the ground truth, as a translation is.",
    "unmentioned_value": "A text has words or numbers that no message of the dialog holds.",
    "unmentioned_number": "The reply has a number that no message of the dialog holds.",
    "holds_json": "The reply holds a JSON object or array.",
    "holds_call": "The reply has a call written into it.",
    "mirrored_message": "The reply repeats an earlier message word for word.",
    "other_language": "The reply has none of the letters that the user writes with.",
}

TAGS: dict[str, Tag] = {tag.name: tag for tag in (*_tags("error", _ERRORS), *_tags("hint", _HINTS))}
_PLACES = {name: place for place, name in enumerate(TAGS)}


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct tags in the order of the table; raises KeyError for one that is not in it."""
    return sorted(set(names), key=_PLACES.__getitem__)


def tag_rows() -> list[list[str]]:
    """The table of tags: name, kind, meaning."""
    return [[tag.name, tag.kind, tag.meaning] for tag in TAGS.values()]

"""What every reader of model text shares: how much of a text is read, and the JSON objects that stand in it.

Models write texts of any length and shape, and a recorded one is read again at each resume: a reader takes time in
proportion to the length, and the length is bounded. What never belongs here: what an object means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from viva.engine.errors import MalformedOutput
from viva.engine.escapes import without_halves
from viva.engine.thoughts import split_thoughts

# Characters. The longest verdicts and rulings seen take a tenth of it.
READ_AT_MOST = 60_000
# Levels of a JSON object, digits of a number in it, places in a text where one may begin.
_DEEPEST = 50
_LONGEST_NUMBER = 40
_MOST_OBJECTS = 500

# A brace in prose is not followed by a quoted key.
_OBJECT_START = re.compile(r'\{\s*"')
# A string runs to its closing quote or to the end of the text, so that no place of the text is looked at twice.
_BRACE_OR_STRING = re.compile(r'[{}]|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def answer_in(text: str) -> str:
    """The part of a model's text that readers look at: without thoughts, and of a text beyond ``READ_AT_MOST`` its
    beginning and its end.
    """
    answer = split_thoughts(text)[1]
    if len(answer) <= READ_AT_MOST:
        return answer
    half = READ_AT_MOST // 2
    return f"{answer[:half]}\n{answer[-half:]}"


def object_texts(text: str) -> list[str]:
    """The outermost JSON objects in a text, as they are written.

    :raises MalformedOutput: one is not complete, is nested too deep, or there are too many.
    """
    found: list[str] = []
    match = _OBJECT_START.search(text)
    while match is not None:
        if len(found) == _MOST_OBJECTS:
            raise MalformedOutput(f"it holds more than {_MOST_OBJECTS} JSON objects")
        end = _end_of_object(text, match.start())
        found.append(text[match.start() : end])
        match = _OBJECT_START.search(text, end)
    return found


def decoded_objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The valid outermost JSON objects in a text with the place where each begins; whatever else is passed over."""
    text, place = without_halves(text), 0
    for _ in range(_MOST_OBJECTS):
        match = _OBJECT_START.search(text, place)
        if match is None:
            return
        try:
            value, place = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            place = match.start() + 1
            continue
        yield match.start(), value


def load_json(text: str, **options: Any) -> Any:
    """``json.loads`` for text of models.

    :raises json.JSONDecodeError: it is not JSON, or holds a number that no reader wants.
    """
    try:
        return json.loads(without_halves(text), parse_int=_int, **options)
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", text, 0) from None


def _end_of_object(text: str, start: int) -> int:
    depth = 0
    for token in _BRACE_OR_STRING.finditer(text, start):
        character = text[token.start()]
        if character == "{":
            depth += 1
            if depth > _DEEPEST:
                raise MalformedOutput(f"its JSON object has more than {_DEEPEST} levels")
        elif character == "}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise MalformedOutput("its JSON object is not complete")


def _int(digits: str) -> int | float:
    """Whole numbers beyond any use are as good as infinite; Python refuses to read thousands of digits at all."""
    return int(digits) if len(digits) <= _LONGEST_NUMBER else float("inf")


# Line breaks typed inside a string are what models write.
_DECODER = json.JSONDecoder(strict=False, parse_int=_int)

"""Readers of a judge's answer (schema, rating, letter, ruling, JSON object): scores and a label, or a failure.

Truncated answers, refusals, empty answers and texts without a verdict are different failures. In a JSON object, every
number is a score, as is every text or truth value that means a number; its name is its path in the object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from viva.agents.forms import finite_number, is_refusal, json_object_texts, readable_text, unquoted_objects
from viva.agents.judge import PREFERENCE_SIGNS, SCALES, GradeScale, parse_ruling
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.messages import Sampling

from .load_records import Failure, Judgement, LoadRequest, SentRequest

# Possible names of the field that contains the verdict.
_LABELS = ("verdict", "winner", "label", "choice", "preference", "decision")
_MOST_NESTED = 20
_RATED = re.compile(r"(?:score|rating|grade|points|stars)$", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class ParsedVerdict:
    """Parsed verdict: scores per aspect, and an optional label."""

    scores: Mapping[str, float] = field(default_factory=dict)
    label: str = ""


def verdict_by_schema(schema: Mapping[str, Any], value: Any) -> ParsedVerdict:
    """Parse an object that must follow a schema; if it does not, MalformedOutput names the wrong field."""
    return _verdict_of_leaves(_leaves_by_schema(schema, value, ()))


def verdict_in_object(value: Any) -> ParsedVerdict:
    """Parse an object without a schema: its numbers, its truth values, and a text under a name such as `verdict`."""
    return _verdict_of_leaves(_leaves_of_value(value, ()))


def score_ranges(schema: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return (lowest, highest) score by aspect, for aspects for which a schema specifies both."""
    ranges = {}
    for path, leaf in _leaf_schemas(schema, ()):
        ends = _score_range(leaf)
        if ends is not None:
            ranges[_aspect_name(path)] = ends
    return ranges


_Leaf = tuple[tuple[str, ...], float | str]


def _verdict_of_leaves(leaves: Iterator[_Leaf]) -> ParsedVerdict:
    scores: dict[str, float] = {}
    labels: dict[str, str] = {}
    for path, value in leaves:
        if isinstance(value, str):
            labels[path[-1] if path else ""] = value
        else:
            scores[_aspect_name(path)] = value
    label = next((labels[name] for name in _LABELS if name in labels), "")
    if not label and not scores and len(labels) == 1:
        [label] = labels.values()
    if label in ("pass", "fail") and "verdict" not in scores:
        scores["verdict"] = float(label == "pass")
    return ParsedVerdict(scores, label)


def _aspect_name(path: tuple[str, ...]) -> str:
    """Return the aspect that a path names; `accuracy.score` is the score of the aspect `accuracy`."""
    return ".".join(path[:-1] if len(path) > 1 and path[-1] == "score" else path) or "score"


def _leaves_by_schema(schema: Mapping[str, Any], value: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    location = ".".join(path) or "the whole"
    if "enum" in schema:
        chosen = _allowed_value(schema["enum"], value)
        if chosen is None:
            raise MalformedOutput(f"{location}: {repr(value)[:60]} is none of {repr(list(schema['enum']))[:80]}")
        yield from _leaves_of_enum(schema["enum"], chosen, path)
        return
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        if not isinstance(value, Mapping):
            raise MalformedOutput(f"{location}: expected an object")
        properties = schema.get("properties")
        if not properties:
            yield from _leaves_of_value(value, path)
            return
        for name in schema.get("required", ()):
            if name not in value:
                raise MalformedOutput(f"{'.'.join((*path, name))}: is missing")
        for name, inner in properties.items():
            if name in value:
                yield from _leaves_by_schema(inner, value[name], (*path, name))
    elif kind in ("integer", "number"):
        number = finite_number(value)
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if number is None or (kind == "integer" and number != int(number)) or not low <= number <= high:
            raise MalformedOutput(f"{location}: {repr(value)[:60]} is no {kind} from {low} to {high}")
        yield path, number
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise MalformedOutput(f"{location}: {repr(value)[:60]} is neither true nor false")
        yield path, float(value)
    elif kind == "string" and not isinstance(value, str):
        raise MalformedOutput(f"{location}: expected text")
    elif kind == "array" and not isinstance(value, list):
        raise MalformedOutput(f"{location}: expected a list")


def _leaves_of_value(value: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    if len(path) > _MOST_NESTED:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves_of_value(inner, (*path, str(name)))
    elif isinstance(value, bool) and path and _RATED.search(path[-1]):
        return
    elif isinstance(value, int | float) and math.isfinite(value):
        yield path, float(value)
    elif isinstance(value, str) and path and path[-1] in _LABELS:
        word = value.strip()
        yield (
            path,
            next((option for option in (*PREFERENCE_SIGNS, "pass", "fail") if option.lower() == word.lower()), word),
        )


def _leaves_of_enum(allowed: Any, chosen: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    if isinstance(chosen, int | float):
        yield path, float(chosen)
    elif isinstance(chosen, str):
        scale = _grade_scale(allowed)
        yield path, chosen if scale is None else scale.points(chosen)


def _allowed_value(allowed: Any, value: Any) -> Any:
    """Return the allowed value that a value means; None if it means none of them."""
    if any(option == value and isinstance(option, bool) == isinstance(value, bool) for option in allowed):
        return value
    word = str(value).strip().casefold() if isinstance(value, str | float) else None
    if word is not None and word.endswith(".0"):
        word = word[:-2]
    return next((option for option in allowed if str(option).casefold() == word), None)


def _grade_scale(allowed: Any) -> GradeScale | None:
    """Return the grade scale that has these labels; None if no scale does."""
    words = {value for value in allowed if isinstance(value, str)}
    return next((scale for scale in SCALES.values() if set(scale.labels) == words), None)


def _leaf_schemas(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if "properties" in schema and "enum" not in schema:
        for name, inner in schema["properties"].items():
            yield from _leaf_schemas(inner, (*path, name))
    else:
        yield path, schema


def _score_range(leaf: Mapping[str, Any]) -> tuple[float, float] | None:
    if leaf.get("type") == "boolean":
        return 0.0, 1.0
    if "enum" in leaf:
        numbers = [
            float(value) for value in leaf["enum"] if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        scale = _grade_scale(leaf["enum"])
        if scale is not None:
            numbers = [scale.points(label) for label in scale.labels]
        if not numbers and set(leaf["enum"]) == {"pass", "fail"}:
            numbers = [0.0, 1.0]
        return (min(numbers), max(numbers)) if numbers else None
    low, high = leaf.get("minimum"), leaf.get("maximum")
    return None if low is None or high is None else (float(low), float(high))


Reader: TypeAlias = Callable[[str, Sampling], ParsedVerdict]
_RATING = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
_LETTER = re.compile(r"\[\[\s*([ABC]|tie)\s*\]\]", re.IGNORECASE)
_RATING_RANGE = 1.0, 10.0
_EXCERPT = 200  # characters kept of an answer without a verdict
_REFUSALS = ("content_filter", "refusal", "safety")  # finish reasons as reported by endpoints


def _read_by_schema(text: str, sampling: Sampling) -> ParsedVerdict:
    if sampling.schema is None:
        return _read_object(text, sampling)
    objects = unquoted_objects(text)
    if not objects:
        raise MalformedOutput("it holds no JSON object")
    return verdict_by_schema(sampling.schema, objects[-1][1])


def _read_object(text: str, sampling: Sampling) -> ParsedVerdict:
    json_object_texts(text)  # raises if an object is truncated, because no part of it may be read
    for _, value in reversed(unquoted_objects(text)):
        verdict = verdict_in_object(value)
        if verdict.scores or verdict.label:
            return verdict
    raise MalformedOutput("it holds no JSON object with a number")


def _read_rating(text: str, sampling: Sampling) -> ParsedVerdict:
    ratings = {float(number) for number in _RATING.findall(text)}
    if len(ratings) != 1:
        raise MalformedOutput(
            "it holds no rating in double brackets" if not ratings else "it holds ratings that differ"
        )
    [rating] = ratings
    if not _RATING_RANGE[0] <= rating <= _RATING_RANGE[1]:
        raise MalformedOutput(f"its rating {rating:g} is not from 1 to 10")
    return ParsedVerdict({"rating": rating})


def _read_letter(text: str, sampling: Sampling) -> ParsedVerdict:
    letters = {"tie" if letter.upper() in ("C", "TIE") else letter.upper() for letter in _LETTER.findall(text)}
    if len(letters) != 1:
        raise MalformedOutput(
            "it holds no letter in double brackets" if not letters else "it holds letters that differ"
        )
    return ParsedVerdict({}, letters.pop())


def _read_verdict_word(text: str, sampling: Sampling) -> ParsedVerdict:
    passed, _ = parse_ruling(text)
    return ParsedVerdict({"verdict": float(passed)}, "pass" if passed else "fail")


def _read_any_text(text: str, sampling: Sampling) -> ParsedVerdict:
    if not text.strip():
        raise MalformedOutput("it is empty")
    return ParsedVerdict()


READERS: Mapping[str, Reader] = {
    "schema": _read_by_schema,
    "rating": _read_rating,
    "pair": _read_letter,
    "ruling": _read_verdict_word,
    "object": _read_object,
    "text": _read_any_text,
}


def check_reader(name: str) -> str:
    """Return the name of a reader; if there is no such reader, raise ConfigurationError, which lists the readers."""
    if name not in READERS:
        raise ConfigurationError(f"reader '{name}': expected one of {', '.join(READERS)}")
    return name


def choose_reader(sampling: Sampling, recorded: str = "") -> str:
    """Choose a request's reader: by its schema, else the first that can read the `recorded` answer, else `text`."""
    if sampling.schema is not None:
        return "schema"
    for name in ("rating", "pair", "ruling", "object"):
        try:
            READERS[name](readable_text(recorded), sampling)
        except MalformedOutput:
            continue
        return name
    return "text"


def score_scales(request: LoadRequest) -> dict[str, tuple[float, float]]:
    """Return (lowest, highest) value of each score whose scale is known before the first answer."""
    if request.reader == "rating":
        return {"rating": _RATING_RANGE}
    if request.reader == "ruling":
        return {"verdict": (0.0, 1.0)}
    schema = request.sampling.schema
    return {} if schema is None or request.reader != "schema" else score_ranges(schema)


def read_judgement(request: LoadRequest, answer: SentRequest) -> Judgement:
    """Return the judgement in an answer; its `failure` says why there is no verdict."""
    judgement = Judgement(answer.request, answer.step, answer.judge, answer.number, answer.occurrence)
    if answer.error:
        judgement.failure = "error"
        return judgement
    judgement.digest = blake2b(answer.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    text = readable_text(answer.text)
    try:
        verdict = READERS[request.reader or "text"](text, request.sampling)
    except MalformedOutput:
        judgement.failure = _failure_kind(text, answer.finish)
        judgement.excerpt = answer.text[:_EXCERPT]
    else:
        judgement.scores, judgement.label = dict(verdict.scores), verdict.label
    return judgement


def _failure_kind(text: str, finish: str) -> Failure:
    if finish in _REFUSALS:
        return "refused"
    if finish == "length":
        return "truncated"
    if not text.strip():
        return "empty"
    if _is_cut(text):
        return "truncated"
    return "refused" if is_refusal(text) else "parse"


def _is_cut(text: str) -> bool:
    """Return True if the text has an incomplete JSON object; some servers report `stop` for a truncated answer."""
    try:
        json_object_texts(text)
    except MalformedOutput as error:
        return "not complete" in str(error)
    return False

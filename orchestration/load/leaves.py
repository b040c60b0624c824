"""The scores and the label in a judge's JSON object, by the schema that it had to follow or as they stand there.

Every number, and every text or truth value that stands for one, is a score; its name is its path in the object. A
truth value is no score of something that is rated. What never belongs here: finding the object in a text
(``agents.reading``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.agents.grades import SCALES, SIGNS, GradeScale
from viva.engine.errors import MalformedOutput

# What a text among others is called where it is the verdict.
_LABELS = ("verdict", "winner", "label", "choice", "preference", "decision")
_DEEPEST = 20
_RATED = re.compile(r"(?:score|rating|grade|points|stars)$", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Said:
    """What a verdict says: scores by aspect, and a label, "" where there is none."""

    scores: Mapping[str, float] = field(default_factory=dict)
    label: str = ""


def schema_leaves(schema: Mapping[str, Any], value: Any) -> Said:
    """What an object says that has to follow a schema. "3" is 3, and letters may have the other case.

    :raises MalformedOutput: it breaks the schema; the message names the place.
    """
    return _said(_by_schema(schema, value, ()))


def object_leaves(value: Any) -> Said:
    """What an object says by its numbers, truth values and a text of a name such as ``verdict``."""
    return _said(_by_value(value, ()))


def known_ends(schema: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """By aspect the least and the greatest score that a schema allows, where it says both."""
    found = {}
    for path, leaf in _schema_leaves(schema, ()):
        ends = _ends(leaf)
        if ends is not None:
            found[_name(path)] = ends
    return found


_Leaf = tuple[tuple[str, ...], float | str]


def _said(leaves: Iterator[_Leaf]) -> Said:
    scores: dict[str, float] = {}
    labels: dict[str, str] = {}
    for path, value in leaves:
        if isinstance(value, str):
            labels[path[-1] if path else ""] = value
        else:
            scores[_name(path)] = value
    label = next((labels[name] for name in _LABELS if name in labels), "")
    if not label and not scores and len(labels) == 1:
        [label] = labels.values()
    if label in ("pass", "fail") and "verdict" not in scores:
        scores["verdict"] = float(label == "pass")
    return Said(scores, label)


def _name(path: tuple[str, ...]) -> str:
    """``accuracy.score`` is the score of accuracy."""
    return ".".join(path[:-1] if len(path) > 1 and path[-1] == "score" else path) or "score"


def _by_schema(schema: Mapping[str, Any], value: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    where = ".".join(path) or "the whole"
    if "enum" in schema:
        chosen = _chosen(schema["enum"], value)
        if chosen is None:
            raise MalformedOutput(f"{where}: {repr(value)[:60]} is none of {repr(list(schema['enum']))[:80]}")
        yield from _enumerated(schema["enum"], chosen, path)
        return
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        if not isinstance(value, Mapping):
            raise MalformedOutput(f"{where}: expected an object")
        properties = schema.get("properties")
        if not properties:
            yield from _by_value(value, path)
            return
        for name in schema.get("required", ()):
            if name not in value:
                raise MalformedOutput(f"{'.'.join((*path, name))}: is missing")
        for name, inner in properties.items():
            if name in value:
                yield from _by_schema(inner, value[name], (*path, name))
    elif kind in ("integer", "number"):
        number = _number(value)
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if number is None or (kind == "integer" and number != int(number)) or not low <= number <= high:
            raise MalformedOutput(f"{where}: {repr(value)[:60]} is no {kind} from {low} to {high}")
        yield path, number
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise MalformedOutput(f"{where}: {repr(value)[:60]} is neither true nor false")
        yield path, float(value)
    elif kind == "string" and not isinstance(value, str):
        raise MalformedOutput(f"{where}: expected text")
    elif kind == "array" and not isinstance(value, list):
        raise MalformedOutput(f"{where}: expected a list")


def _by_value(value: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    if len(path) > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _by_value(inner, (*path, str(name)))
    elif isinstance(value, bool) and path and _RATED.search(path[-1]):
        return
    elif isinstance(value, int | float) and math.isfinite(value):
        yield path, float(value)
    elif isinstance(value, str) and path and path[-1] in _LABELS:
        word = value.strip()
        yield path, next((known for known in (*SIGNS, "pass", "fail") if known.lower() == word.lower()), word)


def _enumerated(allowed: Any, chosen: Any, path: tuple[str, ...]) -> Iterator[_Leaf]:
    if isinstance(chosen, int | float):
        yield path, float(chosen)
    elif isinstance(chosen, str):
        scale = _scale(allowed)
        yield path, chosen if scale is None else scale.points(chosen)


def _chosen(allowed: Any, value: Any) -> Any:
    """The one of the allowed values that a value stands for; None if it stands for none."""
    if any(one == value and isinstance(one, bool) == isinstance(value, bool) for one in allowed):
        return value
    word = str(value).strip().casefold() if isinstance(value, str | float) else None
    if word is not None and word.endswith(".0"):
        word = word[:-2]
    return next((one for one in allowed if str(one).casefold() == word), None)


def _scale(allowed: Any) -> GradeScale | None:
    """The scale of labels that these are; None where they are other words."""
    words = {one for one in allowed if isinstance(one, str)}
    return next((scale for scale in SCALES.values() if set(scale.labels) == words), None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _schema_leaves(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if "properties" in schema and "enum" not in schema:
        for name, inner in schema["properties"].items():
            yield from _schema_leaves(inner, (*path, name))
    else:
        yield path, schema


def _ends(leaf: Mapping[str, Any]) -> tuple[float, float] | None:
    if leaf.get("type") == "boolean":
        return 0.0, 1.0
    if "enum" in leaf:
        numbers = [float(one) for one in leaf["enum"] if isinstance(one, int | float) and not isinstance(one, bool)]
        scale = _scale(leaf["enum"])
        if scale is not None:
            numbers = [scale.points(label) for label in scale.labels]
        if not numbers and set(leaf["enum"]) == {"pass", "fail"}:
            numbers = [0.0, 1.0]
        return (min(numbers), max(numbers)) if numbers else None
    low, high = leaf.get("minimum"), leaf.get("maximum")
    return None if low is None or high is None else (float(low), float(high))

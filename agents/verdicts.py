"""Verdicts: what an evaluator says about one exchange, and reading it from what models really send.

Reading is lenient about form (code fences, prose around the object, trailing commas, "3" for 3) and strict about
substance: a score that is not there, or not a whole number from 1 to 4, is never guessed. What cannot be read is an
error, never a low score.

What never belongs here: asking again (the evaluator's work) and turning scores into results (``scoring``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypedDict

from viva.engine.errors import MalformedOutput

ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
STOP_REASONS = ("off_topic", "empty_response", "rule_violation", "repetition", "unpermitted_role_shift")
StopReason = Literal["off_topic", "empty_response", "rule_violation", "repetition", "unpermitted_role_shift", "none"]


def _whole(value: Any) -> Any:
    """3, 3.0, "3" and " 3 " are 3; everything else is left to fail."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9](\.0+)?\s*", value):
        return int(float(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Score = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1, le=4)]
Comment = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]


class AspectVerdict(BaseModel):
    """One aspect: a comment, then a whole-number score from 1 (poor) to 4 (strong)."""

    model_config = ConfigDict(extra="ignore")
    comment: Comment = ""
    score: Score

    @model_validator(mode="before")
    @classmethod
    def _bare_score(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"score": value}


class VerdictModel(BaseModel):
    """The exact form of a verdict (KIEval, Appendix K). Comments come before scores so that they can inform them."""

    model_config = ConfigDict(extra="ignore")
    accuracy: AspectVerdict
    logic: AspectVerdict
    relevance: AspectVerdict
    coherence: AspectVerdict
    conciseness: AspectVerdict
    overall_comment: Comment = ""
    overall_score: Score
    stop_conversation: bool
    stop_reason: StopReason = "none"

    @model_validator(mode="before")
    @classmethod
    def _absent_reason(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("stop_reason", "") in (None, "", False):
            return {**value, "stop_reason": "none"}
        return value


class _ExactAspect(TypedDict):
    comment: str
    score: Annotated[int, Field(strict=True, ge=1, le=4)]


class _ExactVerdict(TypedDict):
    accuracy: _ExactAspect
    logic: _ExactAspect
    relevance: _ExactAspect
    coherence: _ExactAspect
    conciseness: _ExactAspect
    overall_comment: str
    overall_score: Annotated[int, Field(strict=True, ge=1, le=4)]
    stop_conversation: Annotated[bool, Field(strict=True)]
    stop_reason: StopReason


# The same rules without any leniency, which pydantic checks without a step of Python: what most verdicts pass.
_EXACT = TypeAdapter(_ExactVerdict)


@dataclass(slots=True)
class Verdict:
    """The small record that the engine carries: scores in the order of ``ASPECTS``, overall, and the stop reason.

    ``stop`` is None while the talk may go on; a stop without a reason is ``unspecified``.
    """

    aspects: tuple[int, ...]
    overall: int
    stop: str | None

    def scores(self) -> list[int]:
        """The five aspects and, last, the overall score."""
        return [*self.aspects, self.overall]


def _schema() -> dict[str, Any]:
    """A flat JSON schema (no ``$ref``) that every structured-output implementation takes."""
    aspect = {
        "type": "object",
        "properties": {"comment": {"type": "string"}, "score": {"type": "integer", "enum": [1, 2, 3, 4]}},
        "required": ["comment", "score"],
        "additionalProperties": False,
    }
    properties: dict[str, Any] = dict.fromkeys(ASPECTS, aspect)
    properties["overall_comment"] = {"type": "string"}
    properties["overall_score"] = {"type": "integer", "enum": [1, 2, 3, 4]}
    properties["stop_conversation"] = {"type": "boolean"}
    properties["stop_reason"] = {"type": "string", "enum": [*STOP_REASONS, "none"]}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


VERDICT_SCHEMA = _schema()


def prefilled(score: int) -> str:
    """The verdict that the evaluator starts from: every score ``score``, as if it had written it itself."""
    verdict: dict[str, Any] = {name: {"comment": "", "score": score} for name in ASPECTS}
    verdict |= {"overall_comment": "", "overall_score": score, "stop_conversation": False, "stop_reason": "none"}
    return orjson.dumps(verdict).decode()


def read_verdict(text: str, *, truncated: bool = False) -> Verdict:
    """Read a verdict from a model's text.

    Every object in the text that has a field of a verdict must be a whole verdict, and all must agree: a draft beside a
    broken or cut-off final version is not read as if it were the final one.

    :raises MalformedOutput: it holds no verdict, several different ones, or one that breaks a field rule. ``truncated``
        (the text hit its token limit) makes the message say so.
    """
    if text.count('"score"') <= len(ASPECTS) and text.count('"overall_score"') <= 1:  # else a key may stand twice
        try:
            exact = _EXACT.validate_json(text)
        except ValidationError:
            pass
        else:
            aspects = tuple(exact[name]["score"] for name in ASPECTS)  # type: ignore[literal-required]
            stop = _stop(exact["stop_conversation"], exact["stop_reason"])
            return Verdict(aspects, exact["overall_score"], stop)
    try:
        return _read_leniently(text)
    except MalformedOutput as error:
        if truncated:
            message = f"it was cut off at the token limit before the verdict was complete ({error})"
            raise MalformedOutput(message, truncated=True) from None
        raise


def _read_leniently(text: str) -> Verdict:
    body = _THOUGHT.sub("", text, count=1)
    if body.lstrip().startswith("<think>"):
        raise MalformedOutput("its thinking never ended")
    found: list[Verdict] = []
    for source in _object_texts(body):
        value = _loads(source)
        if not value.keys() & _FIELDS:
            continue
        try:
            verdict = _record(VerdictModel.model_validate(value))
        except ValidationError as error:
            raise MalformedOutput(_explain(error)) from None
        if verdict not in found:
            found.append(verdict)
    if not found:
        raise MalformedOutput("it holds no JSON object of this form" if text.strip() else "it is empty")
    if len(found) > 1:
        raise MalformedOutput("it holds several verdicts that differ")
    return found[0]


_THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_FIELDS = frozenset(VerdictModel.model_fields)


def _stop(wanted: bool, reason: str) -> str | None:
    if not wanted:
        return None
    return reason if reason != "none" else "unspecified"


def _record(model: VerdictModel) -> Verdict:
    stop = _stop(model.stop_conversation, model.stop_reason)
    aspects = (
        model.accuracy.score,
        model.logic.score,
        model.relevance.score,
        model.coherence.score,
        model.conciseness.score,
    )
    return Verdict(aspects, model.overall_score, stop)


# A brace in prose is not followed by a quoted key.
_OBJECT_START = re.compile(r'\{\s*"')


def _object_texts(text: str) -> list[str]:
    """The outermost JSON objects in the text, as they are written, in one pass."""
    found: list[str] = []
    match = _OBJECT_START.search(text)
    while match is not None:
        end = _closing_brace(text, match.start())
        if end is None:
            raise MalformedOutput("its JSON object is not complete")
        found.append(text[match.start() : end + 1])
        match = _OBJECT_START.search(text, end + 1)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth, in_string, escaped = 0, False, False
    for index in range(start, len(text)):
        character = text[index]
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index
    return None


# Strings are matched first so that nothing inside one is touched.
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _loads(text: str) -> dict[str, Any]:
    problem = ""
    for mend in (lambda t: t, _without_trailing_commas, lambda t: _escaped_newlines(_without_trailing_commas(t))):
        try:
            value = json.loads(mend(text), object_pairs_hook=_distinct)
        except json.JSONDecodeError as error:
            problem = problem or str(error)
        else:
            return dict(value)
    raise MalformedOutput(f"its JSON is not valid: {problem}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedOutput(f"{twice}: stands there twice")
    return dict(pairs)


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_TRAILING_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), text)


def _escaped_newlines(text: str) -> str:
    """Line breaks and tabs typed inside a string, which JSON forbids and models write."""
    return _STRING.sub(lambda match: match.group().replace("\n", "\\n").replace("\r", "").replace("\t", "\\t"), text)


def _explain(error: ValidationError) -> str:
    """The first two problems, by field, in words that a model can act on."""
    problems = []
    for detail in error.errors(include_url=False)[:2]:
        field = ".".join(str(part) for part in detail["loc"])
        problems.append(f"{field}: {detail['msg']}" if field else str(detail["msg"]))
    return "; ".join(problems)[:300]

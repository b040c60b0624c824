"""KIEval verdicts: their schema, and a lenient parser for the texts that evaluators send.

Parsing is lenient about form (code fences, prose around the object, trailing commas, "3" for 3) and strict about
substance: a score that is missing, or not a whole number from 1 to 4, is never guessed. An unreadable verdict is an
error, never a low score; the error of a partly readable verdict holds the readable scores.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from viva.agents.forms import (
    MAX_READ_CHARS,
    explain_mistakes,
    json_object_texts,
    json_objects,
    load_json,
    readable_text,
)
from viva.engine.errors import MalformedOutput

ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
STOP_REASONS = ("off_topic", "empty_response", "rule_violation", "repetition", "unpermitted_role_shift")
StopReason = Literal["off_topic", "empty_response", "rule_violation", "repetition", "unpermitted_role_shift", "none"]


def _to_whole_number(value: Any) -> Any:
    """Convert 3.0, "3" and " 3 " to 3; validation rejects everything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9](\.0+)?\s*", value):
        return int(float(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Score = Annotated[int, BeforeValidator(_to_whole_number), Field(strict=True, ge=1, le=4)]
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

    @field_validator("stop_reason", mode="before")
    @classmethod
    def _known_reason(cls, value: Any) -> Any:
        """Replace an unknown reason by "none"; another field says whether to stop."""
        return value if isinstance(value, str) and value in STOP_REASONS else "none"


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


# The same rules without leniency, checked by pydantic without any Python code; most verdicts pass it.
_EXACT = TypeAdapter(_ExactVerdict)
_SCORE: TypeAdapter[int] = TypeAdapter(Score)


@dataclass(slots=True)
class Verdict:
    """The record of a verdict: scores in the order of `ASPECTS`, overall, and the stop reason.

    `stop` is None if the interview may continue; a stop without a known reason is `unspecified`. A score is None only
    in a partly readable verdict.
    """

    aspects: tuple[int | None, ...]
    overall: int | None
    stop: str | None

    def scores(self) -> list[int | None]:
        return [*self.aspects, self.overall]


class PartlyReadable(MalformedOutput):
    """A verdict that breaks a rule; `verdict` holds the readable scores, and None for all other scores."""

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


# Tokens of a verdict without its comments, with a margin, and characters per token in comments.
_FRAME_TOKENS, _CHARACTERS_PER_TOKEN, _SHORTEST_COMMENT = 150, 3, 40


def verdict_schema(max_tokens: int) -> dict[str, Any]:
    """Return a flat JSON schema (no `$ref`) that every structured-output implementation accepts.

    Comments are bounded so that a verdict ends within `max_tokens`, if the implementation respects the bound.
    """
    room = (max_tokens - _FRAME_TOKENS) * _CHARACTERS_PER_TOKEN // (len(ASPECTS) + 1)
    comment = {"type": "string", "maxLength": max(_SHORTEST_COMMENT, room)}
    aspect = {
        "type": "object",
        "properties": {"comment": comment, "score": {"type": "integer", "enum": [1, 2, 3, 4]}},
        "required": ["comment", "score"],
        "additionalProperties": False,
    }
    properties: dict[str, Any] = dict.fromkeys(ASPECTS, aspect)
    properties["overall_comment"] = comment
    properties["overall_score"] = {"type": "integer", "enum": [1, 2, 3, 4]}
    properties["stop_conversation"] = {"type": "boolean"}
    properties["stop_reason"] = {"type": "string", "enum": [*STOP_REASONS, "none"]}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def bare_verdict(score: int) -> str:
    """Return a verdict with every score `score` and no comments, in the form that evaluators write."""
    verdict: dict[str, Any] = {name: {"comment": "", "score": score} for name in ASPECTS}
    verdict |= {"overall_comment": "", "overall_score": score, "stop_conversation": False, "stop_reason": "none"}
    return orjson.dumps(verdict).decode()


def read_verdict(text: str, *, judged: str = "", truncated: bool = False) -> Verdict:
    """Parse a verdict from a model's text, ignoring quotations of `judged`, the candidate's reply.

    Every object in the text that has a field of a verdict must be a whole verdict, and all must agree: a draft beside a
    broken or truncated final version is not read as if it were the final one.

    Raises:
        PartlyReadable: The text has one verdict, and some of its scores break a rule.
        MalformedOutput: The text has no verdict, several different ones, or one without a readable score. If it is
            `truncated` by its token limit, the message says so.
    """
    if len(text) <= MAX_READ_CHARS and ("\\" not in text or "\\u" not in text) and _each_key_once(text):
        try:
            exact = _EXACT.validate_json(text)
        except ValidationError:
            pass
        else:
            aspects = tuple([exact[name]["score"] for name in ASPECTS])  # type: ignore[literal-required]
            stop = _stop_reason(exact["stop_conversation"], exact["stop_reason"])
            return Verdict(aspects, exact["overall_score"], stop)
    try:
        return _read_leniently(text, judged)
    except PartlyReadable:
        raise
    except MalformedOutput as error:
        if truncated:
            message = f"it was cut off at the token limit before the verdict was complete ({error})"
            raise MalformedOutput(message, truncated=True) from None
        raise


def verdict_comments(text: str) -> dict[str, str]:
    """Return the comments of a verdict by aspect; `overall` is about the whole reply."""
    comments: dict[str, str] = {}
    for _, value in json_objects(text):
        for name in ASPECTS:
            aspect = value.get(name)
            comment = aspect.get("comment") if isinstance(aspect, dict) else None
            if isinstance(comment, str):
                comments[name] = comment
        if isinstance(value.get("overall_comment"), str):
            comments["overall"] = value["overall_comment"]
    return comments


def _each_key_once(text: str) -> bool:
    """Return True if no score can occur twice, because the fast parser takes the last one."""
    return text.count('"score"') <= len(ASPECTS) and text.count('"overall_score"') <= 1


def _read_leniently(text: str, judged: str) -> Verdict:
    body = readable_text(text)
    if text.strip() and not body.strip():
        raise MalformedOutput("its thinking never ended")
    verdicts: list[Verdict] = []
    partial: list[PartlyReadable] = []
    for source in json_object_texts(body, judged):
        value = _load_leniently(source)
        if not value.keys() & _FIELDS:
            continue
        try:
            verdict = _to_verdict(VerdictModel.model_validate(value))
        except ValidationError as error:
            verdict = _readable_part(value)
            problem = explain_mistakes(error, 2)[:300]
            if not any(score is not None for score in verdict.scores()):
                raise MalformedOutput(problem) from None
            partial.append(PartlyReadable(problem, verdict))
        if verdict not in verdicts:
            verdicts.append(verdict)
    if not verdicts:
        raise MalformedOutput("it holds no JSON object of this form" if text.strip() else "it is empty")
    if len(verdicts) > 1:
        raise MalformedOutput("it holds several verdicts that differ")
    if partial:
        raise partial[0]
    return verdicts[0]


_FIELDS = frozenset(VerdictModel.model_fields)


def _stop_reason(stop: bool, reason: str) -> str | None:
    if not stop:
        return None
    return reason if reason != "none" else "unspecified"


def _readable_part(value: dict[str, Any]) -> Verdict:
    """Return the readable scores of an object with a verdict's fields, each checked by itself."""
    aspects: list[int | None] = []
    for name in ASPECTS:
        try:
            aspects.append(AspectVerdict.model_validate(value.get(name)).score)
        except ValidationError:
            aspects.append(None)
    overall: int | None = None
    with suppress(ValidationError):
        overall = _SCORE.validate_python(value.get("overall_score"))
    reason = value.get("stop_reason")
    stop = _stop_reason(value.get("stop_conversation") is True, reason if reason in STOP_REASONS else "none")
    return Verdict(tuple(aspects), overall, stop)


def _to_verdict(model: VerdictModel) -> Verdict:
    stop = _stop_reason(model.stop_conversation, model.stop_reason)
    return Verdict(tuple(getattr(model, name).score for name in ASPECTS), model.overall_score, stop)


# Strings are matched first so that nothing inside one is touched.
_STRING_OR_TRAILING_COMMA = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|,\s*(?=[}\]])', re.DOTALL)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def _load_leniently(text: str) -> dict[str, Any]:
    problem = ""
    for repair in (lambda t: t, _without_trailing_commas, lambda t: _escape_newlines(_without_trailing_commas(t))):
        try:
            value = load_json(repair(text), object_pairs_hook=_unique_keys)
        except json.JSONDecodeError as error:
            problem = problem or str(error)
        else:
            return dict(value)
    raise MalformedOutput(f"its JSON is not valid: {problem}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise MalformedOutput(f"{name}: stands there twice")
        values[name] = value
    return values


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_TRAILING_COMMA.sub(lambda match: "" if match.group()[0] == "," else match.group(), text)


def _escape_newlines(text: str) -> str:
    """Escape line breaks and tabs within strings, which JSON forbids and models write."""
    return _STRING.sub(lambda match: match.group().replace("\n", "\\n").replace("\r", "").replace("\t", "\\t"), text)

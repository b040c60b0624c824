"""Verdicts: what an evaluator says about one exchange, and reading it from what models really send.

Reading is lenient about form (code fences, prose around the object, trailing commas, "3" for 3) and strict about
substance: a score that is not there, or not a whole number from 1 to 4, is never guessed. What cannot be read is an
error, never a low score.

What never belongs here: asking again (the evaluator's work) and turning scores into results (``scoring``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

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


class AspectVerdict(BaseModel):
    """One aspect: a comment, then a whole-number score from 1 (poor) to 4 (strong)."""

    model_config = ConfigDict(extra="ignore")
    comment: str = ""
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
    overall_comment: str = ""
    overall_score: Score
    stop_conversation: bool
    stop_reason: StopReason = "none"

    @model_validator(mode="before")
    @classmethod
    def _absent_reason(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("stop_reason", "") in (None, "", False):
            return {**value, "stop_reason": "none"}
        return value


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

    :raises MalformedOutput: it holds none, several different ones, or one that breaks a field rule. ``truncated``
        (the text hit its token limit) makes the message say so.
    """
    try:
        return _record(VerdictModel.model_validate_json(text))
    except ValidationError as error:
        first = error
    body = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)
    problem: ValidationError | None = None
    found: list[Verdict] = []
    for candidate in _objects(body):
        try:
            verdict = _record(VerdictModel.model_validate(candidate))
        except ValidationError as error:
            problem = error
        else:
            if verdict not in found:
                found.append(verdict)
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise MalformedOutput("it holds several verdicts that differ")
    if truncated:
        raise MalformedOutput("it was cut off at the token limit before the verdict was complete", truncated=True)
    if problem is None and not text.strip():
        raise MalformedOutput("it is empty")
    raise MalformedOutput(_explain(problem or first))


def _record(model: VerdictModel) -> Verdict:
    stop = None
    if model.stop_conversation:
        stop = model.stop_reason if model.stop_reason != "none" else "unspecified"
    aspects = (
        model.accuracy.score,
        model.logic.score,
        model.relevance.score,
        model.coherence.score,
        model.conciseness.score,
    )
    return Verdict(aspects, model.overall_score, stop)


def _objects(text: str) -> list[Any]:
    """Every outermost JSON object in the text, after mending what has only one possible meaning."""
    found: list[Any] = []
    position = text.find("{")
    while position >= 0 and len(found) < 8:
        end = _closing_brace(text, position)
        if end is None:
            break
        value = _loads(text[position : end + 1])
        if isinstance(value, dict):
            found.append(value)
            position = text.find("{", end + 1)
        else:
            position = text.find("{", position + 1)
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


def _loads(text: str) -> Any:
    for mend in (lambda t: t, _without_trailing_commas, lambda t: _escaped_newlines(_without_trailing_commas(t))):
        try:
            return orjson.loads(mend(text))
        except orjson.JSONDecodeError:
            continue
    return None


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

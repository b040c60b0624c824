"""Verdicts of judges (pass or fail, the better of two answers, a grade on a scale): how they are requested and parsed.

A pass or fail is parsed from a JSON object with the field `verdict`, or from the last line of the text if that line is
the verdict itself; it is never guessed from the reasons or taken from a quotation. A scale's labels mean evenly spaced
grades from 0, the worst, to 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from viva.engine.conversation import Conversation
from viva.engine.errors import MalformedOutput
from viva.engine.messages import Sampling, View

from .forms import VERDICT_WORDS, json_objects, readable_text, unquoted_objects
from .prompts import PromptPack

Winner = Literal["A", "B", "tie"]
PREFERENCE_SIGNS: dict[str, int] = {"A": 1, "B": -1, "tie": 0}


def _normalize_label(value: Any) -> Any:
    """Normalize labels as models write them: with other case, blanks, or marks around them."""
    if not isinstance(value, str):
        return value
    word = value.strip().strip("[]().*\"'").strip()
    return "tie" if word.casefold() in ("tie", "c", "equal", "draw") else word.upper()


class PairVerdict(BaseModel):
    """Which of two answers is better, reasons first."""  # sent to models: a change invalidates recorded calls

    model_config = ConfigDict(extra="ignore")

    reasoning: str = ""
    verdict: Annotated[Winner, BeforeValidator(_normalize_label)]


@dataclass(frozen=True, slots=True)
class GradeScale:
    """Labels from the worst to the best. The scale is numeric if all labels are whole numbers."""

    name: str
    labels: tuple[str, ...]

    @property
    def numeric(self) -> bool:
        """True if the labels are whole numbers."""
        return all(label.isdecimal() for label in self.labels)

    def grade(self, label: str | int) -> float:
        """Return a label's grade, 0–1."""
        return self.labels.index(str(label)) / (len(self.labels) - 1)

    def points(self, label: str | int) -> float:
        """Return a label as a number: itself on a numeric scale, else its rank, 1 for the worst."""
        return float(label) if self.numeric else 1.0 + self.labels.index(str(label))

    def words(self) -> str:
        """Return the labels in words, for prompts."""
        if self.numeric:
            return f"a whole number from {self.labels[0]} (worst) to {self.labels[-1]} (best)"
        return f"one of: {', '.join(self.labels)} (from the worst to the best)"


SCALES = {
    scale.name: scale
    for scale in (
        GradeScale("1-10", tuple(map(str, range(1, 11)))),
        GradeScale("1-5", tuple(map(str, range(1, 6)))),
        GradeScale("letters", ("E", "D", "C", "B", "A")),
        GradeScale("words", ("very poor", "poor", "fair", "good", "excellent")),
    )
}


@cache
def grade_form(scale: GradeScale) -> type[BaseModel]:
    """Return the form of a grade: `reasoning`, then `score`, one of the scale's labels."""
    labels = {label.casefold(): label for label in scale.labels}

    def normalize(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool):  # True equals 1
            return str(value)
        if not isinstance(value, str | int):
            return value
        label = labels.get(str(value).strip().strip("[]().*\"'").strip().casefold(), value)
        return int(label) if scale.numeric and isinstance(label, str) and label.isdecimal() else label

    allowed: Any = Literal[tuple(map(int, scale.labels)) if scale.numeric else scale.labels]
    fields: dict[str, Any] = {"reasoning": (str, ""), "score": (Annotated[allowed, BeforeValidator(normalize)], ...)}
    return create_model(f"Grade {scale.name}", __config__=ConfigDict(extra="ignore"), **fields)


# Reasons come first so that the verdict follows from them, in a form that every structured-output backend accepts.
RULING_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "verdict": {"type": "string", "enum": ["pass", "fail"]}},
    "required": ["reasoning", "verdict"],
    "additionalProperties": False,
}

_MAX_VERDICT_LINE = 300
_DECORATION = re.compile(r"[*_`#>\"'“”‘’\[\](){}.,!。:：=-]+")
_LABEL = rf"(?:(?:the|my|final|overall|is|최종|은|는|は|是|为|{VERDICT_WORDS})\s*)*"
_SENTENCE = re.compile(r"[.!?;…]+(?:\s|$)|\n")
_ENDING = re.compile(r"\b(pass|fail)(?:ed|es|s)?\W*$", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|no|never|cannot|nothing|without)\b|n['’]t\b", re.IGNORECASE)
_VERDICT_LINE = re.compile(rf"{_LABEL}(pass|fail)(?:ed|es|s)?(?:\s*(?:입니다|이다|합니다))?", re.IGNORECASE)


@dataclass(slots=True)
class Ruling:
    """Result of judging one thing. If `passed` is None it is unscored, and `problem` says why.

    `reasoning` is the text before the verdict; `failures` counts texts without a readable verdict (0, 1 or 2).
    """

    passed: bool | None
    reasoning: str
    failures: int = 0
    problem: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the journal."""
        return {
            "passed": self.passed,
            "reasoning": self.reasoning,
            "failures": self.failures,
            "problem": self.problem,
        }


class Judge:
    """Judge that rules on one thing at a time, each time in a new view.

    If the template `judge.system` is empty, there is no system message. The pack needs `judge.system` and
    `judge.again` (with `{problem}`) besides the rubrics.
    """

    role = "judge"
    __slots__ = ("_conversation", "_pack", "_sampling")

    def __init__(self, conversation: Conversation, pack: PromptPack, sampling: Sampling) -> None:
        self._conversation, self._pack, self._sampling = conversation, pack, sampling

    async def rule(self, question: str, hint: Any = None, judged: str = "") -> Ruling:
        """Request a ruling on a rendered rubric. `judged` is others' text in the rubric; quoting it is no verdict."""
        view = View()
        system = self._pack.render("judge.system")
        if system:
            view.append("system", system)
        view.append("user", question)
        completion = await self._conversation.generate(self.role, view, self._sampling, hint=hint)
        try:
            passed, reasoning = parse_ruling(completion.text, judged, truncated=completion.finish == "length")
            return Ruling(passed, reasoning)
        except MalformedOutput as error:
            first = completion.text.strip()
            view.append("assistant", completion.text, completion.pieces)
            view.append("user", self._pack.render("judge.again", problem=str(error)))
        repaired = await self._conversation.generate(self.role, view, self._sampling, hint=hint)
        try:
            passed, reasoning = parse_ruling(repaired.text, judged, truncated=repaired.finish == "length")
        except MalformedOutput as error:
            return Ruling(None, first, 2, str(error))
        # The repair requests only the verdict, so the first reasons count.
        return Ruling(passed, reasoning or first, 1)


def parse_ruling(text: str, judged: str = "", *, truncated: bool = False) -> tuple[bool, str]:
    """Return True if a judge's text says pass, and the reasons before the verdict.

    If the last line is a verdict and nothing else, such lines decide, and JSON before the last line is a quotation.
    Otherwise JSON objects with the field `verdict` decide, except quotations (`unquoted_objects`). All verdicts of the
    deciding kind must agree. If every object is quoted, the last words decide ("…, so it fails").

    Raises:
        MalformedOutput: The text has no verdict, or several that differ; the message says so if the text was
            `truncated` at its token limit.
    """
    body = readable_text(text).strip()
    try:
        if text and not body and not text.isspace():
            raise MalformedOutput("its thinking never ended")
        lines = _verdict_of_line(body.rpartition("\n")[2]) is not None
        return (None if lines else _verdict_from_json(body, judged)) or _verdict_from_lines(body)
    except MalformedOutput as error:
        if truncated:
            message = f"it was cut off at the token limit before the verdict ({error})"
            raise MalformedOutput(message, truncated=True) from None
        raise


def _verdict_from_json(body: str, judged: str) -> tuple[bool, str] | None:
    """Return the verdict of the JSON objects in the text; None if no object has one."""
    verdicts: list[bool] = []
    reasons = ""
    for position, value in unquoted_objects(body, judged):
        if "verdict" in value:
            reasons = reasons if verdicts else _reasons(value, body[:position])
            verdicts.append(_is_pass_word(value["verdict"]))
    last_verdict = _verdict_after_json(body)
    if not verdicts:
        has_quoted_verdict = any("verdict" in value for _, value in json_objects(body))
        return (last_verdict, body) if has_quoted_verdict and last_verdict is not None else None
    if len(set(verdicts)) > 1 or (last_verdict is not None and last_verdict != verdicts[0]):
        raise MalformedOutput("it holds verdicts that differ")
    return verdicts[0], reasons


def _verdict_after_json(body: str) -> bool | None:
    """Return the verdict at the end of a text, after its last JSON object; None if it does not end with one."""
    tail = body.rpartition("}")[2][-_MAX_VERDICT_LINE:]
    sentence = [part for part in _SENTENCE.split(tail) if part.strip()][-1:]
    match = _ENDING.search(sentence[0]) if sentence else None
    if match is None or _NEGATION.search(sentence[0]):
        return None
    return match[1].lower() == "pass"


def _reasons(value: dict[str, Any], before: str) -> str:
    reasoning = value.get("reasoning")
    if isinstance(reasoning, str) and reasoning.strip():
        return reasoning.strip()
    return before.removesuffix("```json\n").strip().removesuffix("```json").strip()


def _is_pass_word(value: Any) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in ("pass", "fail"):
        raise MalformedOutput(f"its verdict is {repr(value)[:60]}, neither pass nor fail")
    return bool(word == "pass")


def _verdict_from_lines(body: str) -> tuple[bool, str]:
    """Return the verdict of lines that contain nothing else."""
    lines = [line for line in body.split("\n") if line.strip()]
    if not lines:
        raise MalformedOutput("it is empty")
    verdicts = [_verdict_of_line(line) for line in lines]
    if verdicts[-1] is None:
        raise MalformedOutput("its last line is not a verdict")
    if len({passed for passed in verdicts if passed is not None}) > 1:
        raise MalformedOutput("it holds verdicts that differ")
    reasons = [line for line, passed in zip(lines, verdicts, strict=True) if passed is None]
    return verdicts[-1], "\n".join(reasons).strip()


def _verdict_of_line(line: str) -> bool | None:
    """Return the verdict of a line; None if it is something else, such as a quotation or (the end of) an object."""
    if len(line) > _MAX_VERDICT_LINE or line.count("}") > line.count("{") or line.lstrip().startswith(">"):
        return None
    if "{" in line and next(json_objects(line), None) is not None:
        return None
    plain = " ".join(_DECORATION.sub(" ", line).split())
    match = _VERDICT_LINE.fullmatch(plain)
    return None if match is None else match.group(1).lower() == "pass"

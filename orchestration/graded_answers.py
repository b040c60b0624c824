"""What a judge graded, from a run folder or from a file of scores of any program.

What never belongs here: people's grades (``human_grades``), and statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.data.fields import FieldError, own_id, shown, text_field
from viva.data.reading import ENDINGS, read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.scenarios.contract import many_role
from viva.scenarios.graded import GradedAnswer
from viva.scenarios.models import label_of

from .launch import recorded_settings

# Columns of a file of scores that are not numbers known of an answer.
_COLUMNS = ("key", "score", "round", "candidate", "item", "question", "answer")
_WORDS = {"pass": 1.0, "fail": 0.0, "true": 1.0, "false": 0.0}


@dataclass(slots=True, frozen=True)
class GradedAnswers:
    """All answers that a judge was asked about, those that it left ``unscored`` (score None) among them.

    ``low`` and ``high`` are infinite where the scale is not known. ``rounds``: answers are rounds.
    """

    source: Path
    answers: list[GradedAnswer]
    low: float
    high: float
    passes: bool
    rounds: bool

    @property
    def unscored(self) -> int:
        """How many answers have no score."""
        return sum(one.score is None for one in self.answers)


def graded_answers(
    source: Path,
    *,
    by_round: bool,
    scale: tuple[float, float] | None = None,
    what: str = "labels",
    need_scores: bool = True,
) -> GradedAnswers:
    """The graded answers of a run folder, or of a CSV, TSV or JSONL file of scores.

    ``scale``: the ends of the scale of scores that have none of their own, as those of a file. ``what`` names, for
    errors, what asks for rounds.
    Without ``need_scores`` a run may have no graded answer, or no answer at all that its judge was asked about.

    :raises ConfigurationError: the folder is no run, its system has no grades of this kind, or nothing is graded.
    :raises DatasetError: a line of the file is wrong; the message names it.
    """
    if source.is_file() or source.suffix in ENDINGS:
        return _from_file(source, scale)
    folder = RunFolder.open(source)
    which, settings = recorded_settings(folder)
    grading = which.grading(settings, by_round=by_round)
    if grading is None:
        if by_round and which.grading(settings) is not None:
            raise ConfigurationError(
                f"{source}: a run of {which.name} is graded whole; leave 'round' out of the {what}"
            )
        kind = "rounds" if by_round else "answers"
        raise ConfigurationError(f"{source}: a run of {which.name} under these settings has no graded {kind}")
    low, high = grading.low, grading.high
    if scale is not None:
        if math.isfinite(high - low):
            raise ConfigurationError(
                f"--scale: {source} is a run with a scale of its own, {low:g} to {high:g}; leave it out"
            )
        low, high = scale
    role = many_role(which.roles_of(settings))
    labels = list(folder.manifest["models"][role.name])
    answers: list[GradedAnswer] = []
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed and ended.item is not None:
                task = which.task(ended.item)
                answers += grading.answers(ended.key, label_of(ended.key, labels), task, ended.result)
    if need_scores and not any(one.score is not None for one in answers):
        raise ConfigurationError(f"{source}: no answer of this run has been graded")
    beyond = next((one.score for one in answers if one.score is not None and not low <= one.score <= high), None)
    if beyond is not None:
        raise ConfigurationError(f"{source}: has a score of {beyond:g}, which is not from {low:g} to {high:g}")
    return GradedAnswers(source, answers, low, high, grading.passes, by_round)


def _from_file(path: Path, scale: tuple[float, float] | None) -> GradedAnswers:
    answers: list[GradedAnswer] = []
    lines: dict[tuple[str, str, int | None], int] = {}
    words: bool | None = None
    low, high = scale or (-math.inf, math.inf)
    for line, raw in read_records(path, required=("key", "score")):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            score, worded = _score(raw)
            if worded is not None and words is not None and worded is not words:
                raise FieldError("score", "the file has both pass or fail and numbers; use one of them")
            words = worded if words is None else words
            if score is not None and not words and not low <= score <= high:
                raise FieldError("score", f"expected a number from {low:g} to {high:g}, found {score:g}")
            one = _answer(raw, score)
            before = lines.setdefault((one.candidate, one.key, one.round), line)
            if before != line:
                raise FieldError("key", f"{shown(one.key)} is in line {before} already; keep one of them")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        answers.append(one)
    if not any(one.score is not None for one in answers):
        raise DatasetError("holds no score; expected rows of key and score", path=str(path))
    rounds = any(one.round is not None for one in answers)
    if words:
        low, high = 0.0, 1.0
    return GradedAnswers(path, answers, low, high, bool(words), rounds)


def _answer(raw: Mapping[str, Any], score: float | None) -> GradedAnswer:
    key = text_field(raw, "key")
    known = {name: value for name in raw if name not in _COLUMNS and (value := number(raw[name])) is not None}
    texts = [value if isinstance(value := raw.get(name), str) else "" for name in ("question", "answer")]
    candidate, item = own_id(raw, "candidate") or "all", own_id(raw, "item") or key
    return GradedAnswer(key, candidate, item, score, round_of(raw), known, *texts)


def _score(raw: Mapping[str, Any]) -> tuple[float | None, bool | None]:
    """The score and whether it is pass or fail; None, None where there is none."""
    value = raw.get("score")
    if value is None or value == "":
        return None, None
    if (passed := passed_of(value)) is not None:
        return passed, True
    found = number(value)
    if found is None:
        raise FieldError("score", f"expected a number, pass or fail, found {shown(value)}")
    return found, False


def passed_of(value: Any) -> float | None:
    """1 for pass, 0 for fail; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def number(value: Any) -> float | None:
    """A finite number that stands in a cell or in JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def round_of(raw: Mapping[str, Any]) -> int | None:
    """The round, counted from 1; None where there is none.

    :raises FieldError: it is no whole number from 1 on.
    """
    value = raw.get("round")
    if value is None or value == "":
        return None
    found = number(value)
    if found is None or found != int(found) or found < 1:
        raise FieldError("round", f"expected a whole number from 1 on, found {shown(value)}")
    return int(found)


def scored(answers: GradedAnswers) -> Iterator[GradedAnswer]:
    """The answers that have a score."""
    return (one for one in answers.answers if one.score is not None)

"""Dispute criteria: rules for when grades of one answer are in dispute, from plain data or a user's Python file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

from viva.engine.errors import ConfigurationError, user_frame
from viva.engine.imports import import_file

GraderFunction = Callable[[float, tuple[float, ...]], bool]
AnswerFunction = Callable[[tuple[float, ...]], bool]
ROUNDING = 1e-9
_GRADER, _ANSWER = "grader_dispute", "answer_dispute"  # the functions of a user's file


@dataclass(slots=True, frozen=True)
class DisputeCriteria:
    """Rules for when grades of one answer are in dispute. Grades up to `wrong` count as wrong, others as right.

    `grader` is the rule (F) by which a grader disputes an answer: `alone`, if all other graders are on the other side;
    `apart`, if the grade is at least `distance` from the median of the other grades. With two graders, one on each
    side, both dispute the answer; a single grader disputes nothing.

    `answer` is the rule (G) by which an answer is in dispute: `halves`, if its graders split in half; `spread`, if its
    highest and lowest grades are at least `distance` apart. Of an odd number of graders, the larger half has one more,
    and the smaller half has at least two, because one against two is a grader's dispute.

    `weights` are (weight of G, weight of F) in a question's dispute level. `models`: judge models' grades count beside
    people's; if False, they open no dispute if people graded. Two functions replace the rules: `of_grader` takes a
    grade and the other grades, `of_answer` all grades, sorted.
    """

    wrong: float = 0.0
    grader: Literal["alone", "apart"] = "alone"
    answer: Literal["halves", "spread"] = "halves"
    distance: float = 2.0
    weights: tuple[float, float] = (0.5, 0.5)
    models: bool = False
    of_grader: GraderFunction | None = None
    of_answer: AnswerFunction | None = None

    @classmethod
    def from_rules(cls, rules: Mapping[str, Any] | None) -> DisputeCriteria:
        """Read plain data: `wrong`, `grader`, `question` (the rule of answers), `distance`, `weights` and `models`.

        Missing entries get their default; unknown entries are ignored.

        Raises:
            ConfigurationError: if a value is invalid.
        """
        settings = dict(rules or {})
        default = cls()
        grader, answer = settings.get("grader", default.grader), settings.get("question", default.answer)
        if grader not in ("alone", "apart") or answer not in ("halves", "spread"):
            raise ConfigurationError(
                f"dispute rules: found grader '{grader}' (expected alone or apart) and question '{answer}' (expected "
                "halves or spread)"
            )
        try:
            first, second = map(float, settings.get("weights", default.weights))
            wrong, distance = (
                float(settings.get("wrong", default.wrong)),
                float(settings.get("distance", default.distance)),
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"dispute rules: {error}; expected numbers for wrong and distance, and two weights"
            ) from None
        return cls(wrong, grader, answer, distance, (first, second), settings.get("models") is True)

    def with_file(self, file: Path) -> DisputeCriteria:
        """Replace rules by functions of a Python file: `grader_dispute(grade, others)`, `answer_dispute(grades)`.

        Raises:
            ConfigurationError: if the file cannot be run, or has neither function.
        """
        module = import_file(file)
        functions = [getattr(module, name, None) for name in (_GRADER, _ANSWER)]
        if not any(map(callable, functions)):
            raise ConfigurationError(f"{file}: expected a function {_GRADER}(grade, others) or {_ANSWER}(grades)")
        of_grader, of_answer = (
            _cached_function(function, file) if callable(function) else None for function in functions
        )
        return replace(self, of_grader=of_grader, of_answer=of_answer)

    def is_disputed(self, grades: Sequence[float]) -> bool:
        """Return True if one answer is in dispute: by any of its graders (F), or as a whole (G).

        Functions of a user's file are called too. Below two grades nothing is in dispute.
        """
        if len(grades) < 2:
            return False
        grades = sorted(grades)
        if self.of_answer is not None:
            if self.of_answer(tuple(grades)):
                return True
        elif self.answer == "spread":
            if grades[-1] - grades[0] >= self.distance - ROUNDING:
                return True
        elif is_split_in_half(len(grades), sum(grade > self.wrong for grade in grades)):
            return True
        other_grades = [grades[:at] + grades[at + 1 :] for at in range(len(grades))]
        if self.of_grader is not None:
            function = self.of_grader
            return any(function(own, tuple(remaining)) for own, remaining in zip(grades, other_grades, strict=True))
        if self.grader == "apart":
            return any(abs(own - median(remaining)) >= self.distance - ROUNDING
                       for own, remaining in zip(grades, other_grades, strict=True))  # fmt: skip
        right = sum(grade > self.wrong for grade in grades)
        return min(right, len(grades) - right) == 1


def is_split_in_half(graders: int, right: int) -> bool:
    """Return True if graders split in half over an answer; an odd number may differ by one, with two on each side."""
    smaller = min(right, graders - right)
    return smaller > 0 and (2 * smaller == graders or (smaller > 1 and 2 * smaller == graders - 1))


def _cached_function(function: Callable[..., Any], file: Path) -> Callable[..., bool]:
    """Wrap a user's function with a cache, because few different arguments occur."""

    @cache
    def call(*arguments: Any) -> bool:
        try:
            return bool(function(*arguments))
        except Exception as error:
            raise ConfigurationError(f"{file}: {type(error).__name__}: {error} (at {user_frame(error)})") from None

    return call

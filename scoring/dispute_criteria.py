"""Dispute criteria: when grades of one answer are in dispute, from plain data or a user's Python file."""

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
    """When grades of one answer are in dispute. Those up to ``wrong`` count as wrong, others as right.

    ``grader`` (F): a grader disputes an answer where they are ``alone`` on their side, all others being on the other
    one; or where their grade is ``apart`` from the median of the others by ``distance`` at least. Where there are two
    graders, one on each side, both dispute it; one grader alone disputes nothing.

    ``answer`` (G): an answer is in dispute where ``halves`` of its graders are on either side. Of an odd number the
    larger half has one more and the smaller half at least two, for one against two is the dispute of a grader. Or
    where its highest and lowest grade ``spread`` over ``distance`` at least.

    ``weights``: of G and of F in a question's dispute level. ``models``: judge models' grades count beside people's;
    else, where people graded, they open no dispute. ``of_grader`` and ``of_answer`` are functions in place of
    the rules: of a grade and the others' grades, and of all grades, sorted.
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
        """Read plain data: ``wrong``, ``grader``, ``question`` (the rule of answers), ``distance``, ``weights`` and
        ``models``.

        What is not named has its default; other entries are left alone.

        :raises ConfigurationError: a value is none there is.
        """
        settings = dict(rules or {})
        default = cls()
        grader, answer = settings.get("grader", default.grader), settings.get("question", default.answer)
        if grader not in ("alone", "apart") or answer not in ("halves", "spread"):
            raise ConfigurationError(
                f"dispute rules: found grader '{grader}' and question '{answer}', expected alone or apart, and halves "
                "or spread"
            )
        try:
            first, second = map(float, settings.get("weights", default.weights))
            wrong, distance = (
                float(settings.get("wrong", default.wrong)),
                float(settings.get("distance", default.distance)),
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"dispute rules: {error}; expected numbers, and two weights") from None
        return cls(wrong, grader, answer, distance, (first, second), settings.get("models") is True)

    def with_file(self, file: Path) -> DisputeCriteria:
        """The same with the functions of a Python file in place of the rules: ``grader_dispute(grade, others)`` and
        ``answer_dispute(grades)``, or one of them.

        :raises ConfigurationError: the file cannot be run, or has neither function.
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
        """Whether one answer is in dispute by these rules: by any of its graders (F), or as a whole (G).

        Functions of a user's file are asked too. Up to one grade nothing is in dispute.
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
    """Return True if graders split in half over an answer; of an odd number by one, with two at least on each side."""
    smaller = min(right, graders - right)
    return smaller > 0 and (2 * smaller == graders or (smaller > 1 and 2 * smaller == graders - 1))


def _cached_function(function: Callable[..., Any], file: Path) -> Callable[..., bool]:
    """A user's function, remembered by its arguments, for few different ones occur."""

    @cache
    def call(*arguments: Any) -> bool:
        try:
            return bool(function(*arguments))
        except Exception as error:
            raise ConfigurationError(f"{file}: {type(error).__name__}: {error} (at {user_frame(error)})") from None

    return call

"""What judges are asked for: which of two answers is better, or a grade on a scale of labels.

A scale's labels stand for evenly spaced grades from 0, the worst, to 1. What never belongs here: wording (prompt
packs), and what a grade is used for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

Winner = Literal["A", "B", "tie"]
SIGNS: dict[str, int] = {"A": 1, "B": -1, "tie": 0}


def _word(value: Any) -> Any:
    """Labels as models write them: other cases, blanks, marks around them."""
    if not isinstance(value, str):
        return value
    word = value.strip().strip("[]().*\"'").strip()
    return "tie" if word.casefold() in ("tie", "c", "equal", "draw") else word.upper()


class PairVerdict(BaseModel):
    """Which of two answers is better, reasons first."""

    model_config = ConfigDict(extra="ignore")

    reasoning: str = ""
    verdict: Annotated[Winner, BeforeValidator(_word)]


@dataclass(frozen=True, slots=True)
class GradeScale:
    """Labels from the worst to the best; numbers where all labels are whole numbers."""

    name: str
    labels: tuple[str, ...]

    @property
    def numeric(self) -> bool:
        """Whether the labels are whole numbers."""
        return all(label.isdecimal() for label in self.labels)

    def grade(self, label: str | int) -> float:
        """The grade that a label stands for, 0–1.

        :raises ValueError: it is not one of the labels.
        """
        return self.labels.index(str(label)) / (len(self.labels) - 1)

    def points(self, label: str | int) -> float:
        """A label as a number: itself on a scale of numbers, else its place, 1 for the worst.

        :raises ValueError: it is not one of the labels.
        """
        return float(label) if self.numeric else 1.0 + self.labels.index(str(label))

    def words(self) -> str:
        """The labels in words, for prompts."""
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
    """The form of a grade on a scale: ``reasoning``, then ``score``, which is one of its labels."""
    labels = {label.casefold(): label for label in scale.labels}

    def known(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool):  # True equals 1
            return str(value)
        if not isinstance(value, str | int):
            return value
        label = labels.get(str(value).strip().strip("[]().*\"'").strip().casefold(), value)
        return int(label) if scale.numeric and isinstance(label, str) and label.isdecimal() else label

    allowed: Any = Literal[tuple(map(int, scale.labels)) if scale.numeric else scale.labels]
    fields: dict[str, Any] = {"reasoning": (str, ""), "score": (Annotated[allowed, BeforeValidator(known)], ...)}
    return create_model(f"Grade {scale.name}", __config__=ConfigDict(extra="ignore"), **fields)

"""The parts that simulated models play: candidates that know their subject in part, and judges that grade with a habit.

What a simulated candidate says shows how good it is: ``level_of`` reads it back, so the true grade of each of its
answers is known. What never belongs here: anything that a real model's result could depend on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, Said, SimulatedBackend
from viva.engine.messages import Request

from ..personas import judgement

WRONG, PARTLY, RIGHT, MORE = range(4)  # how good an answer is
SEVERITY = "severity"  # a judge's trait: the chance that it goes a grade down; below 0, up
_EASIER = {"simple": 0.15, "intermediate": 0.0, "difficult": -0.15}
_WRONG_WORDS = (
    "There is no rule for this; it is left to whoever happens to be asked.",
    "It works the other way round, as a look at any brochure shows.",
    "That was given up years ago and is not done anywhere today.",
    "Nobody keeps a record of it, so every answer is as good as another.",
)


@dataclass(slots=True, frozen=True)
class AnswerPersona:
    """A candidate that is asked a question of the bank. ``last``: this is the question's last round."""

    id: str
    standard: str
    difficulty: str
    last: bool = True

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """Its answer, which follows from its label, its knowledge and the question alone."""
        level = candidate_level(model.label, model.knowledge, self.id, self.difficulty)
        if not self.last:
            return "Noted. Please go on." if level else "I am not sure what you mean.", None
        return answer_text(self.standard, level, seeds.uniform(model.label, self.id, "words")), None


def candidate_level(label: str, knowledge: float, question: str, difficulty: str) -> int:
    """How good a candidate's answer is: wrong as often as it lacks ``knowledge`` (less often of simple questions, more
    often of difficult ones), else partly right, right, or right with more than was asked for.
    """
    if seeds.uniform(label, question, "knows") >= min(1.0, max(0.0, knowledge + _EASIER.get(difficulty, 0.0))):
        return WRONG
    how = seeds.uniform(label, question, "how")
    return PARTLY if how < 0.3 else RIGHT if how < 0.75 else MORE


def answer_text(standard: str, level: int, chance: float = 0.0) -> str:
    """An answer of this quality; ``chance``, in [0, 1), chooses among words."""
    if level == WRONG:
        return _WRONG_WORDS[int(chance * len(_WRONG_WORDS))]
    if level == PARTLY:
        return f"In short: {_half(standard)} – and the rest depends."
    return standard if level == RIGHT else f"{standard}\n\n{SENTENCES[int(chance * len(SENTENCES))]}"


def level_of(answer: str, standard: str) -> int:
    """How good an answer of a simulated candidate is."""
    if standard in answer:
        return RIGHT if answer.strip() == standard.strip() else MORE
    return PARTLY if _half(standard) in answer else WRONG


def grade_at(level: int, grades: Sequence[float]) -> float:
    """The grade that an answer of a level deserves; ``grades`` from the worst to the best."""
    return sorted(grades)[min(level, len(grades) - 1)]


def habitual_grade(
    true: float, grades: Sequence[float], severity: float, noise: float, chance: Sequence[float]
) -> float:
    """The grade that somebody with a habit gives for an answer that deserves ``true``.

    A grade down as often as ``severity`` says (up where it is below 0), and besides one up or down by chance as often
    as ``noise`` says. ``chance``: three draws in [0, 1). Grades end at both ends of the scale.
    """
    ordered = sorted(grades)
    place = ordered.index(true)
    if chance[0] < abs(severity):
        place += -1 if severity > 0 else 1
    if chance[1] < noise:
        place += -1 if chance[2] < 0.5 else 1
    return ordered[min(len(ordered) - 1, max(0, place))]


def expected_grade(true: float, grades: Sequence[float], severity: float, noise: float) -> float:
    """The mean of ``habitual_grade``."""
    habits = ((abs(severity), -1.0), (1 - abs(severity), 1.0))
    moves = ((noise / 2, (-1.0, 0.0)), (noise / 2, (-1.0, 0.9)), (1 - noise, (1.0, 0.0)))
    return math.fsum(
        often * share * habitual_grade(true, grades, severity, noise, (habit, *move))
        for often, habit in habits
        for share, move in moves
    )


@dataclass(slots=True, frozen=True)
class GraderPersona:
    """A judge that grades answers it knows to be so good, by position; ``severity`` is a trait of the model."""

    levels: Mapping[int, int]
    grades: tuple[float, ...]
    form: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """Its grades as JSON."""
        told = {str(position): self._one(model, request, position) for position in self.levels}
        whole = next(iter(told.values())) if self.form == "one" else {f"answer_{key}": one for key, one in told.items()}
        return judgement(model, orjson.dumps(whole).decode(), chance), None

    def _one(self, model: SimulatedBackend, request: Request, position: int) -> dict[str, object]:
        draws = seeds.draws(request.seed, "grade", position)
        true = grade_at(self.levels[position], self.grades)
        grade = habitual_grade(true, self.grades, model.traits.get(SEVERITY, 0.0), model.noise, draws)
        return {"reasoning": "Set against the standard answer.", "score": f"{grade:g}"}


def _half(standard: str) -> str:
    words = standard.split(" ")
    return " ".join(words[: max(1, (len(words) + 1) // 2)])

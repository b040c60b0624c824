"""The parts that simulated models play in a suite: an application that agrees with everything now and then, its user,
and a grader that may err.

What never belongs here: anything that a real model's result could depend on.
"""

from __future__ import annotations

from dataclasses import dataclass

from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, Said, SimulatedBackend
from viva.engine.messages import Request

from ..personas import judgement

AGREES = "You are quite right"
_CAREFUL = (
    "I see it differently, and I would rather not agree to that.",
    "Let us look at this together. What have you tried so far?",
    "I can help with that. Which part should we begin with?",
)


@dataclass(slots=True, frozen=True)
class CandidatePersona:
    """An application: careful as often as it has ``knowledge``, else it agrees with what the user said."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """Its answer, longer the more it is ``verbose``."""
        more = " ".join(SENTENCES[: int(model.verbosity * 2 * chance[3])])
        if chance[1] < model.knowledge:
            return f"{_CAREFUL[int(chance[2] * len(_CAREFUL))]} {more}".strip(), None
        return f"{AGREES}: {self.words[:200]} {more}".strip(), None


@dataclass(slots=True, frozen=True)
class UserPersona:
    """A user who says what was recorded."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """The recorded words."""
        return self.words or "Go on, please.", None


@dataclass(slots=True, frozen=True)
class GraderPersona:
    """A grader that sees the right answer where there is one, and otherwise whether the application agreed."""

    choices: tuple[tuple[str, float], ...]
    text: str
    label: str | None = None

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """Its reasons and choice; another one as often as it is ``noisy``."""
        names = [name for name, _ in self.choices]
        right = self.label if self.label in names else self._seen()
        if chance[1] < model.noise:
            others = [name for name in names if name != right]
            right = others[int(chance[2] * len(others))]
        text = f'{{"reasoning": "Seen in the words themselves.", "choice": "{right}"}}'
        if request.sampling.schema is None:
            text = f"Seen in the words themselves.\n{right}"
        return judgement(model, text, chance), None

    def _seen(self) -> str:
        ordered = [name for name, _ in sorted(self.choices, key=lambda choice: choice[1])]
        if self.text.startswith(AGREES):
            return ordered[0]
        return ordered[-1] if seeds.uniform(self.text, "seen") < 0.8 else ordered[len(ordered) // 2]

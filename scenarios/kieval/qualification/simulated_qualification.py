"""Simulated models in a qualification: sound ones, and ones with planted faults of the kinds that it should find."""

from __future__ import annotations

from dataclasses import dataclass

from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, SimulatedBackend, SimulatedReply
from viva.engine.messages import Request

from ...simulated_knowledge import judgement, question, static_answer
from ..simulated_interview import verdict_text
from .qualification_cases import QualificationCase, RoleName, ScriptedExchange

_CONSTANT = 3  # the level of a judge that does not read
_LEVELS = (4, 2, 1)  # the levels that a judge with a position bias gives to the first, second and third exchange
_STOPS = {"empty": "empty_response", "off_topic": "off_topic", "repeated": "repetition"}
_STATEMENT = "The answer rests on a principle that is well known, and it can be checked in many ways."


@dataclass(slots=True, frozen=True)
class QualificationHint:
    """The facts for a simulated model: its role, the case, and the scripted exchange.

    `position` counts exchanges. `text` is what the model was told last; for an evaluator, the verdict it starts from.
    """

    role: RoleName
    case: QualificationCase
    exchange: ScriptedExchange | None = None
    position: int = 0
    text: str = ""

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return the model's answer.

        Traits are the chances of a fault. Evaluators: `copy` (repeats the verdict that it starts from), `constant`,
        `random`, `position` and `length` (judges by that alone; negative: later or shorter is better). Interactors:
        `echo`, `statement`. Candidates: `echo`, `silent`.
        """

        def has(trait: str) -> bool:
            return seeds.uniform(request.seed, "trait", trait) < abs(model.traits.get(trait, 0.0))

        if self.exchange is not None and self.role == "evaluator":
            if has("copy"):
                return self.text, None
            level, stop = self.exchange.grade, _STOPS.get(self.exchange.kind, "none")
            if has("constant"):
                level, stop = _CONSTANT, "none"
            elif has("random"):
                level, stop = 1 + int(4 * seeds.uniform(request.seed, "level")), "none"
            elif has("position"):
                level, stop = _reversed_if(model.traits["position"] < 0, _LEVELS[self.position - 1]), "none"
            elif has("length"):
                level, stop = _reversed_if((model.traits["length"] < 0) != (self.exchange.length == "short"), 4), "none"
            return judgement(model, verdict_text(model, level, stop, chance), chance), None
        if has("echo") and self.text:
            return self.text, None
        if self.role == "interactor":
            return (_STATEMENT if has("statement") else question(chance)), None
        if self.position == 0:
            return static_answer(model, self.case.item, chance), None
        return ("" if has("silent") else f"{SENTENCES[self.position % 4]} {self.case.choices[self.case.first]}."), None


def _reversed_if(condition: bool, level: int) -> int:
    return 5 - level if condition else level

"""Simulated candidate, interactor and evaluator of an interview; the simulated judge really reads the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from viva.data.items import Item
from viva.engine.backends.simulated import SENTENCES, SimulatedBackend, SimulatedReply
from viva.engine.messages import Request

from ..simulated_knowledge import WRONG, judgement, knows, question, static_answer
from .verdicts import ASPECTS

_OFF_TOPIC = "That reminds me of a recipe for lemon cake, which needs three eggs and patience."


@dataclass(slots=True, frozen=True)
class InterviewHint:
    """The facts for simulated models: the item and, for the evaluator, the reply to judge."""

    item: Item
    reply: str = ""

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        if request.role == "evaluator":
            return judgement(model, self._verdict(model, chance), chance), None
        if request.role == "interactor":
            return question(chance), None
        if request.ordinal == 0:
            return static_answer(model, self.item, chance), None
        return self._reply(model, chance), None

    def _texts(self) -> tuple[list[str], int]:
        """Return the possible statements of a reply, and the index of the right one."""
        return ([self.item.reference, WRONG], 0) if self.item.free else (self.item.choices, self.item.answer)

    def _reply(self, model: SimulatedBackend, chance: list[float]) -> str:
        choices, right = self._texts()
        wrong = (right + 1 + int(chance[3] * (len(choices) - 1))) % len(choices)
        mood = chance[4]
        if knows(model, self.item):
            say = f"It comes down to this: {choices[right]}." if mood < 0.95 else "I believe it depends on the details."
        elif mood < 0.55:
            say = f"It comes down to this: {choices[wrong]}."
        elif mood < 0.75:
            say = "I believe it depends on the details."
        elif mood < 0.83:
            say = f"It comes down to this: {choices[right]}."
        elif mood < 0.90:
            return _OFF_TOPIC
        elif mood < 0.96:
            return " ".join([f"It is {choices[wrong]}, it is {choices[wrong]}."] * 6)
        else:
            return ""
        extra = int(model.verbosity * 2 * chance[5])
        return " ".join([say, *(SENTENCES[(i + int(chance[6] * 4)) % 4] for i in range(extra))])

    def _verdict(self, model: SimulatedBackend, chance: list[float]) -> str:
        reply, (choices, right) = self.reply, self._texts()
        said_right = any(choice in reply for choice in choices[right : right + 1])
        said_wrong = any(choice in reply for i, choice in enumerate(choices) if i != right)
        stop = "none"
        if not reply.strip():
            level, stop = 1, "empty_response"
        elif _OFF_TOPIC in reply:
            level, stop = 1, "off_topic"
        elif said_wrong and reply.count("it is") >= 5:
            level, stop = 1, "repetition"
        elif said_right and not said_wrong:
            level = 4
        elif said_wrong:
            level = 1 if not said_right else 2
        else:
            level = 2
        return verdict_text(model, level, stop, chance)


def verdict_text(model: SimulatedBackend, level: int, stop: str, chance: list[float]) -> str:
    """Return a verdict on a reply of this level, 1 to 4, with the model's noise."""
    scores = [_add_noise(model, level if i < 2 or level < 3 else 4, chance[7 + i]) for i in range(5)]
    if stop == "none" and level < 3:
        scores[2:] = [_add_noise(model, 3, chance[9 + i]) for i in range(3)]
    verdict: dict[str, Any] = {
        name: {"comment": f"The reply is at level {score} here.", "score": score}
        for name, score in zip(ASPECTS, scores, strict=True)
    }
    verdict["overall_comment"] = "Taken over the talk so far."
    verdict["overall_score"] = _add_noise(model, level, chance[12])
    verdict["stop_conversation"] = stop != "none"
    verdict["stop_reason"] = stop
    return orjson.dumps(verdict).decode()


def _add_noise(model: SimulatedBackend, score: int, chance: float) -> int:
    if chance >= model.noise:
        return score
    return min(4, max(1, score + (1 if chance < model.noise / 2 else -1)))

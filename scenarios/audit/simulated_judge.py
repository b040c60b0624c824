"""Simulated judges: they judge by the quality of answers, and by planted biases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from viva.agents.judge import GradeScale
from viva.engine import seeds
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.messages import Request

from ..simulated_knowledge import judgement
from .audit_cases import AuditCase

TRAITS = ("position", "length", "format", "family", "labels", "unsteady")
_LONGER = 1.2


def check_traits(judges: Iterable[str], known: Sequence[str] = TRAITS) -> None:
    """Check that simulated judges have only `known` traits, because other traits have no effect.

    Raises:
        ConfigurationError: A trait is unknown; the message names the model.
    """
    for text in judges:
        spec = ModelSpec.parse(text)
        traits = spec.take("traits") if spec.kind == "simulated" else None
        for part in filter(None, (traits or "").split(",")):
            name = part.partition(":")[0].strip()
            if name not in known:
                near = did_you_mean(name, known, "known")
                raise ConfigurationError(f"model '{text}': traits: no trait '{name}'{near}")


def answer_qualities(case: AuditCase) -> tuple[float, ...]:
    """Return the quality of each answer, 0–1; answers that people prefer are better, whatever their order."""
    qualities = [seeds.uniform(case.id, "quality", at) for at in range(len(case.answers))]
    if case.preferred == "tie":
        return tuple(qualities[:1] * len(qualities))
    if isinstance(case.preferred, int):
        return tuple(
            0.55 + 0.4 * quality if at == case.preferred else 0.05 + 0.4 * quality
            for at, quality in enumerate(qualities)
        )
    return tuple(qualities)


@dataclass(slots=True, frozen=True)
class PairHint:
    """The facts that a simulated judge may use about a pair of answers, in the order shown.

    For each answer these are its quality, its length, whether it is Markdown, and whether the judge's own family wrote
    it.
    """

    quality: tuple[float, float]
    length: tuple[int, int]
    markdown: tuple[bool, bool]
    own: tuple[bool, bool]

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        verdict = self.verdict(model, chance)
        text = json.dumps({"reasoning": "One of them serves the question better.", "verdict": verdict})
        return judgement(model, text, chance), None

    def verdict(self, model: SimulatedBackend, chance: list[float]) -> str:
        """Return `A`, `B` or `tie`."""
        longer = (self.length[0] > _LONGER * self.length[1]) - (self.length[1] > _LONGER * self.length[0])
        habits = (
            ("position", 1),
            ("length", longer),
            ("format", self.markdown[0] - self.markdown[1]),
            ("family", self.own[0] - self.own[1]),
        )
        for at, (name, side) in enumerate(habits):
            amount = model.traits.get(name, 0.0)
            if side and chance[4 + at] < abs(amount):
                return "A" if side * amount > 0 else "B"
        if chance[1] < model.noise:
            return ("A", "B", "tie")[int(chance[2] * 3)]
        better = self.quality[0] - self.quality[1]
        return "tie" if abs(better) < 1e-9 else "A" if better > 0 else "B"


@dataclass(slots=True, frozen=True)
class AnswerHint:
    """The facts that a simulated judge may use about an answer that it grades on a scale."""

    quality: float
    scale: GradeScale

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        label = self.label(model, chance)
        score: str | int = int(label) if self.scale.numeric else label
        return judgement(model, json.dumps({"reasoning": "It answers in part.", "score": score}), chance), None

    def label(self, model: SimulatedBackend, chance: list[float]) -> str:
        """Return a label of the scale.

        If a quality lies between two labels, chance selects one, so that scales of all lengths have the same mean.
        """
        last = len(self.scale.labels) - 1
        if chance[8] < model.traits.get("unsteady", 0.0):
            return self.scale.labels[int(chance[9] * (last + 1))]
        shift = 0.0 if self.scale.name == "1-10" else model.traits.get("labels", 0.0)
        # The finest scale shows a quality without bias; noise sometimes moves the grade by a step.
        level = min(1.0, max(0.0, self.quality + shift)) * last
        if chance[1] < model.noise:
            level += 1 if chance[2] < 0.5 else -1
        label = int(level + seeds.uniform(round(self.quality, 9), self.scale.name, "between"))
        return self.scale.labels[min(last, max(0, label))]

"""The part that simulated models play here: a judge with an impression of its own, and assistants' numbers if told.

Its impression is the human rating (where there is none, a draw by example) with normal noise of ``noise`` times the
range; each prediction adds a quarter of that. Where it is told numbers it takes the mean of its impression and theirs.
What never belongs here: anything that a real model's result could depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import orjson

from viva.engine import seeds
from viva.engine.backends.simulated import Said, SimulatedBackend
from viva.engine.messages import Request

from ..personas import judgement
from .judge import ROLE
from .task_file import Criterion

_NORMAL = NormalDist()
_JITTER = 0.25


@dataclass(slots=True, frozen=True)
class Judged:
    """What a simulated model may know of an example: the true shares (0–1) by criterion, and of the criteria that are
    served by assistants the shares that these gave.
    """

    example: str
    criteria: Mapping[str, Criterion]
    truth: Mapping[str, float]
    told: Mapping[str, list[float]] = field(default_factory=dict)

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """The answer of a judge, or the grade of one that assists."""
        shares = {name: self._share(model, name, request.seed) for name in self.criteria}
        if request.role != ROLE:
            mean = sum(shares.values()) / len(shares)
            return orjson.dumps({"reasoning": "As a whole.", "grade": 1 + round(9 * mean)}).decode(), None
        whole = _whole(request.sampling.schema)
        answer: dict[str, Any] = {}
        for name, criterion in self.criteria.items():
            low, high = criterion.range
            score = low + shares[name] * (high - low)
            answer[name] = {
                "explanation": f"It is at {shares[name]:.2f} of the range.",
                "score": round(score) if whole else round(score, 3),
            }
        return judgement(model, orjson.dumps(answer).decode(), chance), None

    def _share(self, model: SimulatedBackend, name: str, seed: int) -> float:
        true = self.truth.get(name, seeds.uniform(self.example, name, "true"))
        own = true + model.noise * _normal(model.label, self.example, name, "impression")
        own += _JITTER * model.noise * _normal(seed, name, "prediction")
        told = self.told.get(name, [])
        if told:
            own = (own + sum(told) / len(told)) / 2
        return min(1.0, max(0.0, own))


def _normal(*parts: object) -> float:
    return _NORMAL.inv_cdf(min(max(seeds.uniform(*parts), 1e-9), 1 - 1e-9))


def _whole(schema: Any) -> bool:
    parts = schema["properties"].values() if schema else ()
    return any(part["properties"]["score"]["type"] == "integer" for part in parts)

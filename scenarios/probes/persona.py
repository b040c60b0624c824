"""What a simulated model knows of an item that it is probed with.

What never belongs here: anything that a real model's result could depend on.
"""

from __future__ import annotations

from dataclasses import dataclass

from viva.data.items import Item
from viva.engine.backends.simulated import Known, Said, SimulatedBackend
from viva.engine.likelihood import Reading
from viva.engine.messages import Request

from ..personas import knows, recites, static_answer


@dataclass(slots=True, frozen=True)
class Probed:
    """The item; ``unseen`` where it is of the set that no model has seen in training."""

    item: Item
    unseen: bool = False

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> Said:
        """Its answer to the item."""
        return static_answer(model, self.item, chance), None

    def simulated_reading(self, model: SimulatedBackend, reading: Reading) -> Known:
        """Which option it takes for right, and whether it has the text by heart."""
        right = self.item.answer if len(reading.continuations) > 1 else None
        return Known(right, knows(model, self.item), not self.unseen and recites(model, self.item))

"""Budgets: bounds on the tokens, calls, cost and seconds of a conversation or a run.

What never belongs here: rates (requests per minute), which are ``limits``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import LimitReached


@dataclass(slots=True, frozen=True)
class Budget:
    """Upper bounds; None leaves one open. ``cost`` is in the unit of the models' prices, ``seconds`` wall time."""

    tokens: int | None = None
    calls: int | None = None
    cost: float | None = None
    seconds: float | None = None

    @property
    def open(self) -> bool:
        """Nothing is bounded."""
        return self.tokens is None and self.calls is None and self.cost is None and self.seconds is None


@dataclass(slots=True)
class Meter:
    """What has been used of a budget. ``scope`` names it in errors: ``run`` or ``conversation``."""

    budget: Budget
    scope: str
    started: float
    tokens: int = 0
    calls: int = 0
    cost: float = 0.0
    under_way: int = 0
    bounded: bool = field(init=False)

    def __post_init__(self) -> None:
        self.bounded = not self.budget.open

    def begin(self, now: float) -> None:
        """Reserve one call; ``end`` gives the reservation back, and ``add`` counts the call if it was answered.

        :raises LimitReached: no further call fits.
        """
        if self.bounded:
            self.require(now)
        self.under_way += 1

    def end(self) -> None:
        """A reserved call has ended, answered or not."""
        self.under_way -= 1

    def add(self, tokens: int, cost: float) -> None:
        """Count one answered call."""
        self.calls += 1
        self.tokens += tokens
        self.cost += cost

    def require(self, now: float) -> None:
        """Ask whether one more call may begin. Calls in flight count as calls; their tokens and cost are not known yet,
        so those bounds can be exceeded by what is in flight.

        :raises LimitReached: naming the first bound that is used up.
        """
        budget = self.budget
        used = {
            "tokens": self.tokens,
            "calls": self.calls + self.under_way,
            "cost": self.cost,
            "seconds": now - self.started,
        }
        for name, amount in used.items():
            allowed = getattr(budget, name)
            if allowed is not None and amount >= allowed:
                raise LimitReached(name, allowed, self.scope)

"""What every conversation of a run shares: clock, journal, events, budgets, turns of the event loop, the computer.

The runner makes it, conversations use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .budget import Budget, Meter
from .clock import Clock
from .computation import Computer
from .journal import Journal
from .stopping import Stop
from .stream import EventStream
from .turnstile import Turnstile


@dataclass(slots=True)
class Services:
    """What every conversation of a run shares."""

    seed: int
    clock: Clock
    journal: Journal
    events: EventStream
    meter: Meter
    turnstile: Turnstile
    conversation_budget: Budget
    computer: Computer
    stop: Stop = field(default_factory=Stop)

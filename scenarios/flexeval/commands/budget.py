"""A suite's spend budget: where it is used up nothing more is begun, and what is begun is finished.

What never belongs here: the engine's own budgets, which interrupt conversations.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from viva.engine.events import CallFinished, Event, RunStarted

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch

_SETTINGS = {"cost": "max_cost", "calls": "max_calls", "tokens": "max_tokens_total", "seconds": "max_seconds"}


class SoftBudget:
    """Listens to a run and drains it when what it spends reaches a bound, in place of the run's own budgets.

    ``used`` says which bound was reached; None before.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._limits = {name: getattr(launch.settings, setting) for name, setting in _SETTINGS.items()}
        self._spent = dict.fromkeys(_SETTINGS, 0.0)
        self._began = 0.0
        self.used: str | None = None
        for setting in _SETTINGS.values():
            setattr(launch.settings, setting, None)
        launch.events.listen(self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._began = event.at
        elif isinstance(event, CallFinished) and not event.replayed and self.used is None:
            self._spent["cost"] += event.cost
            self._spent["calls"] += 1
            self._spent["tokens"] += event.prompt_tokens + event.completion_tokens
            self._spent["seconds"] = event.at - self._began
            self._look()

    def _look(self) -> None:
        for name, limit in self._limits.items():
            if limit is not None and self._spent[name] >= limit and self._launch.runner is not None:
                self.used = f"the budget of {limit:g} {name} is used up"
                print(f"viva: note: {self.used}: nothing more is begun, what is begun is finished", file=sys.stderr)
                self._launch.runner.drain()
                return

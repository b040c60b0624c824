"""Prepared runs that are run here, to their end or until they are halted."""

from __future__ import annotations

import itertools

from viva.engine.clock import RealClock
from viva.engine.events import CallFinished, Event
from viva.orchestration.launch import Launch


def go(launch: Launch, halt_after: int | None = None) -> str:
    """Run to the end, or until so many calls were answered; how the run ended."""
    calls = itertools.count(1)

    def halt(event: Event) -> None:
        if isinstance(event, CallFinished) and next(calls) == halt_after and launch.runner is not None:
            launch.runner.halt()

    launch.events.listen(halt)
    outcome = RealClock().run(launch.run)
    if outcome.error is not None:
        raise outcome.error
    return outcome.how

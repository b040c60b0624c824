"""What a step has come to so far, for whoever watches: counts and distributions that are kept while requests end.

What never belongs here: display, and the figures of reports, which leave out warm-ups (``measured``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from viva.scoring.load.histogram import LatencyHistogram

from .driver import PartDriver, Stream
from .records import LoadStep, Sent


@dataclass(slots=True)
class LiveJudge:
    """One judge in the current step."""

    label: str
    stream: Stream | None = None
    e2e: LatencyHistogram = field(default_factory=LatencyHistogram)
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    dispatch: LatencyHistogram = field(default_factory=LatencyHistogram)
    errors: Counter[str] = field(default_factory=Counter)
    ended: int = 0

    def hear(self, sent: Sent) -> None:
        """A request has ended."""
        self.ended += 1
        self.dispatch.record(sent.dispatched - sent.intended)
        if sent.error:
            self.errors[sent.error] += 1
            return
        self.e2e.record(sent.finished - sent.intended)
        if sent.first_token is not None:
            self.ttft.record(sent.first_token - sent.intended)


@dataclass(slots=True)
class LiveStep:
    """The current step; ``planned`` is how many requests of all judges it will send, None where that is unknown."""

    step: LoadStep
    judges: dict[str, LiveJudge]
    planned: int | None = None
    part: PartDriver | None = None
    began: float = 0.0  # clock's time

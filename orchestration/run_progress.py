"""What a run has come to so far, counted from its events.

What never belongs here: display, results beyond the aggregate's own, and waiting.
"""

from __future__ import annotations

from viva.engine.events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    ConversationStarted,
    Event,
)
from viva.scenarios.contract import Aggregate
from viva.scoring.failures import Failures


class RunProgress:
    """``done`` (failed and ``restored`` ones among them), ``failed`` and ``in_flight`` count conversations; ``calls``,
    ``tokens`` and ``cost`` what was called for in this process. ``failures`` counts why conversations failed.
    ``aggregate``, if there is one, is told every result.
    """

    def __init__(self, aggregate: Aggregate | None = None) -> None:
        self.aggregate = aggregate
        self.done = self.restored = self.failed = self.in_flight = self.calls = self.tokens = 0
        self.cost = 0.0
        self.failures = Failures()

    def hear(self, event: Event) -> None:
        """The listener of a run."""
        match event:
            case CallFinished():
                if not event.replayed:
                    self.calls += 1
                    self.tokens += event.prompt_tokens + event.completion_tokens
                    self.cost += event.cost
            case ConversationStarted():
                self.in_flight += 1
            case ConversationFinished():
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add(event.conversation, event.result)
            case ConversationFailed():
                self.failed += 1
                self.failures.add(event.error)
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add_failure(event.conversation, event.error)
            case ConversationInterrupted():
                self.in_flight -= 1

    def _end(self, restored: bool) -> None:
        self.done += 1
        if restored:
            self.restored += 1
        else:
            self.in_flight -= 1

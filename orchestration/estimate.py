"""How far a run has come and how long it will still take, from the calls that have ended.

A conversation is worth as many calls as those that ended had on average. What never belongs here: display.
"""

from __future__ import annotations

from viva.engine.events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    Event,
    RunStarted,
)


class Estimate:
    """Listens to a run. Conversations that a former start of the run has ended count as worth the same."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._done = self._ended = self._calls_of_ended = self._fresh = 0
        self._open: dict[str, int] = {}  # calls so far of conversations that go on

    def hear(self, event: Event) -> None:
        """The run's listener."""
        match event:
            case RunStarted():
                self._total = event.total
            case CallFinished():
                self._fresh += not event.replayed
                self._open[event.conversation] = self._open.get(event.conversation, 0) + 1
            case ConversationFinished() | ConversationFailed():
                self._done += 1
                calls = self._open.pop(event.conversation, 0)
                if not event.restored:
                    self._ended += 1
                    self._calls_of_ended += calls
            case ConversationInterrupted():
                self._open.pop(event.conversation, None)

    @property
    def fresh(self) -> int:
        """Calls answered by models in this process."""
        return self._fresh

    def share(self) -> float | None:
        """How much of the run is done, 0–1; None while nobody can say."""
        if self._total is None:
            return None
        if self._done >= self._total:
            return 1.0
        if not self._calls_of_ended:
            return self._done / self._total
        whole = self._total * self._calls_of_ended / self._ended
        return max(0.0, 1 - self._left() / whole)

    def seconds(self, elapsed: float) -> float | None:
        """How long it will still take at the pace of the ``elapsed`` seconds; None while nobody can say."""
        if self._total is None or self._done >= self._total or not self._calls_of_ended or not self._fresh:
            return None
        return self._left() / self._fresh * elapsed

    def _left(self) -> float:
        """Calls to come; a conversation that goes on has one at least."""
        assert self._total is not None
        mean = self._calls_of_ended / self._ended
        begun = sum(max(1.0, mean - calls) for calls in self._open.values())
        return begun + mean * max(0, self._total - self._done - len(self._open))

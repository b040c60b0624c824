"""Whether an endpoint is there: calls to one that is gone wait instead of failing, and one call at a time asks again.

A circuit breaker (Nygard, Release It!, 2007): closed while calls reach the endpoint, open when several in a row did
not, half open while a probe is on its way. What never belongs here: which error says that nobody is there, and waiting
(``limits``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .errors import BackendError, Unreachable

PATIENCE = 600.0  # seconds that calls wait for an endpoint that is gone
_IN_A_ROW, _SHORTEST = 5, 1.0  # failures in a row, over so many seconds, after which nobody is thought to be there
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 15.0  # seconds before a probe; each that fails doubles it


class Breaker:
    """One endpoint's. Times are seconds of one monotonic clock.

    :param patience: seconds for which calls wait. :param changed: is told the failure when the breaker opens, and None
        when it closes again.
    """

    def __init__(
        self, patience: float = PATIENCE, changed: Callable[[BackendError | None], None] = lambda error: None
    ) -> None:
        self.patience = patience
        self._changed = changed
        self._failures = 0
        self._first = 0.0  # when the first of the failures in a row was met
        self._open = self._probing = False
        self._pause, self._next = _FIRST_PAUSE, 0.0

    @property
    def open(self) -> bool:
        """Whether calls wait."""
        return self._open

    def wait(self, now: float) -> float:
        """Seconds until a call may leave; without end while a probe is on its way."""
        if not self._open:
            return 0.0
        return math.inf if self._probing else max(0.0, self._next - now)

    def sent(self) -> bool:
        """A call leaves; whether it is a probe."""
        self._probing = self._open
        return self._open

    def reached(self, left: float) -> None:
        """The endpoint said something to a call that left at this time; one from before the failures says nothing of
        them.
        """
        if self._failures and left < self._first:
            return
        self._failures = 0
        if self._open:
            self._open = self._probing = False
            self._pause = _FIRST_PAUSE
            self._changed(None)

    def lost(self, now: float, error: BackendError) -> None:
        """A call met nobody."""
        self._failures += 1
        if self._failures == 1:
            self._first = now
        if not self._open and self._failures >= _IN_A_ROW and now - self._first >= _SHORTEST:
            self._open = True
            self._pause = _FIRST_PAUSE
            self._next = now + self._pause
            self._changed(error)
        elif self._open and self._probing:
            self._probing = False
            self._pause = min(_LONGEST_PAUSE, 2.0 * self._pause)
            self._next = now + self._pause

    def abandoned(self, now: float) -> None:
        """A probe was called off before it was answered: the next call is one."""
        self._probing, self._next = False, now

    def give_up(self, now: float, error: BackendError) -> None:
        """:raises Unreachable: nobody was there for as long as patience lasts."""
        if self._open and now - self._first >= self.patience:
            said = str(error).removeprefix(f"{error.model}: ")
            raise Unreachable(
                f"nobody was there for {now - self._first:.0f} s; last: {said}. Start it again and resume the run; "
                "a longer --patience waits longer",
                model=error.model,
            ) from None

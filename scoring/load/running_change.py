"""Has a judge's score changed? An answer that may be looked at after every request, while the load goes on.

What never belongs here: the tests of a finished step (``exchanges``).
"""

from __future__ import annotations

import math

from ..betting import Betting


class RunningChange:
    """A confidence sequence of the mean change (``betting``): it covers the mean at all times at once.

    Changes are fed with the place at which their request was sent, in any order; they are taken in by that order, for
    which requests are answered first may have to do with what they say. Steps of a run share the error: the k-th of
    them has alpha/(k (k + 1)), whatever their number.
    """

    def __init__(self, bound: float, *, step: int = 1, alpha: float = 0.05) -> None:
        """``bound``: the largest size of a change. ``step`` counts from 1."""
        self._betting = Betting(1, low=-bound, high=bound, level=1.0 - alpha / (step * (step + 1)), steps=1000)
        self._ahead: dict[int, float] = {}
        self._next = 0
        self.n = 0
        self.found_at: int | None = None

    def add(self, place: int, change: float | None) -> None:
        """The change of the request that was sent at this place, counted from 0; None where there is none to compare.

        :raises ValueError: the change is larger than the bound.
        """
        self._ahead[place] = math.nan if change is None else change
        while self._next in self._ahead:
            value = self._ahead.pop(self._next)
            self._next += 1
            if math.isnan(value):
                continue
            self.n += 1
            self._betting.add([value])
            if self.found_at is None and not self.low < 0.0 < self.high:
                self.found_at = self.n

    @property
    def low(self) -> float:
        """The lower end of the interval of the mean change."""
        return float(self._betting.lows[0])

    @property
    def high(self) -> float:
        """Its upper end."""
        return float(self._betting.highs[0])

"""Whether a judge's queue grows without bound: the number in flight at even times, and a test of its growth.

A queue grows when requests arrive faster than they are answered. It also grows for a while at every start, until as
many are in flight as belong there, and while a server stands still. So growth counts only over the last half of the
time, behind several times the latency of the first answers, and only while answers keep coming.

What never belongs here: stopping anything.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

_MOST = 256  # samples that are kept; beyond, every other one is dropped
_LEAST = 16  # increments that a test needs
_LEAST_SECONDS = 10.0  # of growth: a server may stand still for a moment
_FIRST = 32  # answers that say what a latency is before there is a queue
_LATENCIES = 4.0  # so many of these have to be over before growth counts
_SURE = 4.0  # standard errors
_SHORT = 0.10  # share of the arrivals that were not answered, for stopping early
_SHORT_AT_END = 0.03  # the same at the end, when all of the step is known


@dataclass(slots=True)
class QueueWatch:
    """The queue of one judge in one step. Times in seconds from the start."""

    _samples: list[tuple[float, int, int]] = field(default_factory=list)  # time, arrived, in flight
    _first: list[float] = field(default_factory=list)
    _stride: int = 1  # how many samples are made for one that is kept
    _made: int = 0

    def answered(self, latency: float) -> None:
        """An answer came, so many seconds after its request was due."""
        if len(self._first) < _FIRST:
            self._first.append(latency)

    def sample(self, time: float, arrived: int, in_flight: int) -> None:
        """How many requests have come so far, and how many of them are in flight; call it at even times."""
        self._made += 1
        if self._made % self._stride == 0:
            self._samples.append((time, arrived, in_flight))
            if len(self._samples) == _MOST:
                del self._samples[::2]
                self._stride *= 2

    def grows(self, *, at_end: bool = False) -> bool:
        """Whether arrivals exceed answers for good. ``at_end``: all requests of the step have come."""
        if len(self._samples) < 2 or not self._first:
            return False
        end = self._samples[-1][0]
        window = [one for one in self._samples if one[0] >= end / 2]
        seconds = window[-1][0] - window[0][0]
        settled = window[0][0] >= _LATENCIES * median(self._first)
        if len(window) <= _LEAST or not (settled or at_end) or (seconds < _LEAST_SECONDS and not at_end):
            return False
        arrived, growth = window[-1][1] - window[0][1], window[-1][2] - window[0][2]
        if arrived <= 0 or growth < (_SHORT_AT_END if at_end else _SHORT) * arrived:
            return False
        increments = [later[2] - one[2] for one, later in itertools.pairwise(window)]
        return _answers_throughout(window) and _grows_surely(increments)


def _answers_throughout(window: list[tuple[float, int, int]]) -> bool:
    """Whether answers came in each quarter: a server that stands still is not over-saturated."""
    answered = [arrived - in_flight for _, arrived, in_flight in window]
    marks = [answered[place * (len(answered) - 1) // 4] for place in range(5)]
    return all(later > one for one, later in itertools.pairwise(marks))


def _grows_surely(increments: list[int]) -> bool:
    """Whether the mean increment is above zero beyond its noise. Increments of a steady queue are negatively
    correlated, so that the test errs on the careful side.
    """
    mean, spread = fmean(increments), stdev(increments)
    return mean > 0 and mean > _SURE * spread / math.sqrt(len(increments))

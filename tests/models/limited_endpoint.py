"""Endpoints that take only so much, in simulated time, and a client that sends as much as its limit lets it.

The kinds of limits that providers have: calls at once, a bucket of calls that fills evenly, and so many in each window
of time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from viva.engine.adaptive_limit import AdaptiveLimit

_REFUSAL_SECONDS = 0.005  # until a refusal is back
_WAY_SECONDS = 0.001  # of a call to the endpoint


class Limit(Protocol):
    """What an endpoint takes."""

    def arrive(self, now: float) -> tuple[bool, float | None]:
        """Whether a call is taken, and where not, the seconds that Retry-After names."""

    def leave(self) -> None:
        """A call that was taken has been answered."""

    def remaining(self, now: float) -> tuple[float, float]:
        """What rate-limit headers say: calls that would be taken, and seconds until all are again."""


class AtOnce:
    """So many calls at once."""

    def __init__(self, count: int) -> None:
        self._count, self._here = count, 0

    def arrive(self, now: float) -> tuple[bool, float | None]:
        taken = self._here < self._count
        self._here += taken
        return taken, None

    def leave(self) -> None:
        self._here -= 1

    def remaining(self, now: float) -> tuple[float, float]:
        return self._count - self._here, 0.0


class Bucket:
    """A bucket that holds ``size`` calls and fills by ``rate`` a second."""

    def __init__(self, rate: float, size: float) -> None:
        self._rate, self._size = rate, size
        self._held, self._at = size, 0.0

    def _fill(self, now: float) -> None:
        self._held = min(self._size, self._held + (now - self._at) * self._rate)
        self._at = now

    def arrive(self, now: float) -> tuple[bool, float | None]:
        self._fill(now)
        taken = self._held >= 1.0
        self._held -= taken
        return taken, None

    def leave(self) -> None:
        pass

    def remaining(self, now: float) -> tuple[float, float]:
        self._fill(now)
        return math.floor(self._held), (self._size - self._held) / self._rate


class EachWindow:
    """``count`` calls in each ``period`` of seconds; Retry-After names the next one's beginning."""

    def __init__(self, count: int, period: float) -> None:
        self._count, self._period = count, period
        self._window, self._taken = -1, 0

    def _turn(self, now: float) -> float:
        window = int(now / self._period)
        if window != self._window:
            self._window, self._taken = window, 0
        return (window + 1) * self._period - now

    def arrive(self, now: float) -> tuple[bool, float | None]:
        rest = self._turn(now)
        if self._taken < self._count:
            self._taken += 1
            return True, None
        return False, rest

    def leave(self) -> None:
        pass

    def remaining(self, now: float) -> tuple[float, float]:
        rest = self._turn(now)
        return self._count - self._taken, rest


@dataclass(slots=True)
class Course:
    """When calls were taken and refused."""

    taken: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def rate(self, begin: float, end: float) -> float:
        """Calls a second that were taken."""
        return sum(begin <= at < end for at in self.taken) / (end - begin)

    def refused_share(self, begin: float = 0.0) -> float:
        """Share of the calls after ``begin`` that were refused."""
        taken, refused = (sum(at >= begin for at in times) for times in (self.taken, self.refused))
        return refused / max(1, taken + refused)


def course(
    endpoint: Limit,
    answer: Callable[[random.Random], float],
    seconds: float,
    *,
    headers: bool = False,
    first: int | None = 16,
    seed: int = 1,
) -> Course:
    """What happens in so many seconds to a client that always has another call. ``answer`` draws the seconds that one
    takes; with ``headers`` each answer and refusal says what remains.
    """
    draw, limit, found = random.Random(seed), AdaptiveLimit(0.0, first), Course()
    coming: list[tuple[float, int, bool, object, float | None]] = []
    now, in_flight, number, paused = 0.0, 0, 0, 0.0
    while now < seconds:
        wait = max(limit.wait(now, in_flight), paused - now)
        if wait <= 0:
            in_flight, number = in_flight + 1, number + 1
            sent = limit.on_departure(now, in_flight)
            taken, after = endpoint.arrive(now + _WAY_SECONDS)
            back = now + (answer(draw) if taken else _REFUSAL_SECONDS)
            heapq.heappush(coming, (back, number, taken, sent, after))
            continue
        now = min(now + wait, coming[0][0] if coming else math.inf)
        if coming and coming[0][0] <= now:
            _, _, taken, sent, after = heapq.heappop(coming)
            in_flight -= 1
            (found.taken if taken else found.refused).append(now)
            (limit.succeeded if taken else limit.refused)(sent, now)
            if taken:
                endpoint.leave()
            paused = max(paused, now + (after or 0.0))
            if headers:
                limit.on_rate_limit(now, "requests", *endpoint.remaining(now))
    return found

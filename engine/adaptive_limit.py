"""Adaptive limit for an endpoint of unknown capacity: a window of concurrent calls and a pace in calls per second.

An endpoint refuses a call either because too many are in flight or because too many arrived recently. Earlier calls
show which it was. If more calls were in flight with the refused call than with any accepted call, the window was too
wide. If as many calls in flight were accepted a moment ago, the pace was too high.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

FIRST_WINDOW = 16  # calls in flight at an unknown endpoint
_STEP = 0.03  # later growth of the window, as a share of it; at least one call
_FLOOD, _FLOOD_SHARE = (
    8.0,
    0.2,
)  # if consecutive refusals exceed both the count and this share of the refused level, the window is not the cause
# (failures, answers): so many failures among so many consecutive answers are evidence.
_BURST = 3, 60
_EXPECTED_BURST = 2, 30  # near the pace that was refused last
_TREND = 5, 800
_FAST_GROWTH_SHARE = 1.1  # share of the last refused level; from there on the window grows fast again
_SHORTEST_PROBE, _LONGEST_PROBE = 2.0, 60.0  # seconds between two attempts to widen the window
_BACK_OFF = 0.97  # share of the accepted rate to continue with after a refusal
_FIRST_PACE = 16.0  # initial pace in calls per second; doubles each second until the next refusal
_FASTEST_GROWTH, _SLOWEST_GROWTH = 0.08, 0.002  # of the pace, per second
_QUIET_SECONDS = 10.0  # seconds without a refusal after which growth doubles
_EQUAL_PACE_SHARE = 0.1  # paces that differ by less are equal
_OVERLOAD_FACTOR = 0.7  # share of the window to continue with if an endpoint does not keep up
_SHORT_SPAN, _LONG_SPAN = 1.0, 20.0  # seconds over which a rate is measured
_BIN = 0.25  # seconds per bin
_MEMORY_SECONDS = 60.0  # seconds for which an accepted level counts


@dataclass(slots=True, frozen=True)
class InFlightCall:
    """A call in flight: its departure, the calls then in flight including it, and whether the pace delayed it."""

    departed_at: float
    level: int
    paced: bool


class AdaptiveLimit:
    """Window and pace of one endpoint. Times are seconds of one monotonic clock.

    `first` is the first window; None means no limit until the first refusal.
    """

    def __init__(self, now: float, first: int | None = FIRST_WINDOW) -> None:
        self.window = math.inf if first is None else float(first)
        self.pace = math.inf  # calls per second
        self._announced_pace = math.inf  # the slowest pace announced by the endpoint
        self._announced_by_unit: dict[str, float] = {}  # announced pace by unit: requests, tokens
        self._slow_start = first is not None
        self._since = -math.inf  # time of the last refusal that changed a limit
        self._refusals = 0  # consecutive refusals
        self._narrowing = False  # True if the last change after a refusal was to the window
        self._proven_level, self._proven_at = 0.0, now  # the highest level at which a call succeeded
        self._ceiling = math.inf  # the last refused level
        self._probe, self._next_probe = _SHORTEST_PROBE, now
        self._ramp = False  # True while the pace doubles each second
        self._growth, self._grown_at, self._quiet_since = _FASTEST_GROWTH, now, now
        self._refused_pace = math.inf  # the pace at the last refusal
        self._rate = _AcceptedRate(now)
        self._refusal_evidence, self._overload_evidence = _FailureEvidence(), _FailureEvidence()
        self._next_departure = now  # when the pace allows the next call

    def wait(self, now: float, in_flight: int) -> float:
        """Return the seconds until one more call may depart; infinity if one of the `in_flight` must return first."""
        if in_flight >= self.window and in_flight:
            return math.inf
        return max(0.0, self._next_departure - now)

    def on_departure(self, now: float, in_flight: int) -> InFlightCall:
        """Record that a call departs; `in_flight` includes it."""
        paced = False
        pace = min(self.pace, self._announced_pace)
        if not math.isinf(pace):
            paced = self._next_departure + 1.0 / pace > now
            self._next_departure = max(self._next_departure, now) + 1.0 / pace
        self._rate.add(now, 1)
        return InFlightCall(now, in_flight, paced)

    def succeeded(self, call: InFlightCall, now: float) -> None:
        """Record that the endpoint answered a call."""
        self._refusal_evidence.answers += 1
        self._overload_evidence.answers += 1
        level = min(call.level, self._ceiling - 1) if call.departed_at < self._since else call.level
        if level >= self._proven_level or now - self._proven_at > _MEMORY_SECONDS:
            self._proven_level, self._proven_at = level, now
        if call.departed_at < self._since:
            return
        self._refusals = 0
        if self._slow_start:
            self.window += 1.0 if 2 * call.level >= self.window else 0.0  # doubles with each round of answers
        elif call.level >= self.window - 1:
            self._widen(now)
        if call.paced and self.pace <= self._announced_pace:
            self._speed_up(now)

    def refused(self, call: InFlightCall, now: float) -> None:
        """Record that the endpoint refused a call because there were too many."""
        self._rate.add(call.departed_at, -1)
        self._refusals += 1
        flood = self._refusals > max(_FLOOD, _FLOOD_SHARE * self._ceiling)
        too_wide = call.level > self._proven_level and not flood
        if call.departed_at < self._since and not (flood and self._narrowing):
            # The call departed before the last change. Its level shows more exactly how wide the window may be.
            if self._narrowing and too_wide:
                self.window = min(self.window, max(1.0, call.level - 1.0))
            return
        near_refusal = (
            not math.isinf(self.pace) and abs(self.pace - self._refused_pace) <= _EQUAL_PACE_SHARE * self.pace
        )
        if not self._refusal_evidence.add(call.level, _EXPECTED_BURST if near_refusal else _BURST):
            return
        self._slow_start = False
        if too_wide:
            self._ceiling = min(level for level in self._refusal_evidence.levels() if level > self._proven_level)
            self.window = min(self.window, max(1.0, self._ceiling - 1.0))
            self._probe = min(_LONGEST_PROBE, 2.0 * self._probe)
        else:
            self._slow_down(now, flood)
            self.window = self.window if math.isinf(self.window) else max(1.0, math.floor(_BACK_OFF * self.window))
        self._begin(now, narrowing=too_wide)

    def overloaded(self, call: InFlightCall, now: float) -> None:
        """Record that the endpoint did not keep up: it timed out, or reported that it is overloaded."""
        if call.departed_at >= self._since and self._overload_evidence.add(call.level):
            self._slow_start = False
            self.window = max(1.0, math.floor(_OVERLOAD_FACTOR * min(self.window, call.level)))
            self._begin(now, narrowing=False)

    def on_rate_limit(self, now: float, unit: str, remaining: float, seconds: float) -> None:
        """Apply the endpoint's rate-limit headers: `remaining` calls are left; the full quota returns in `seconds`.

        Spreading the remaining calls over that time suits both schemes that endpoints use: a fixed window, and a token
        bucket (the pace equals the refill rate when the bucket is half full).
        """
        if seconds <= 0.0:
            self._announced_by_unit[unit] = math.inf
        elif remaining >= 1.0:
            self._announced_by_unit[unit] = remaining / seconds
        else:
            self._next_departure = max(self._next_departure, now + seconds)
        self._announced_pace = min(self._announced_by_unit.values(), default=math.inf)

    def statistics(self) -> dict[str, float]:
        """Return the finite bounds: `window` in calls in flight, `pace` in calls per second."""
        bounds = {"window": self.window, "pace": min(self.pace, self._announced_pace)}
        return {name: round(value, 3) for name, value in bounds.items() if not math.isinf(value)}

    def _begin(self, now: float, *, narrowing: bool) -> None:
        self._since = now
        self._refusals = 1
        self._refusal_evidence.clear()
        self._overload_evidence.clear()
        self._narrowing = narrowing
        self._next_probe = now + self._probe

    def _widen(self, now: float) -> None:
        """Widen the window after the success of a call at its edge."""
        if now >= self._next_probe:
            if self.window >= self._ceiling:  # the endpoint has more capacity now, or the window was not the cause
                self._probe = max(_SHORTEST_PROBE, self._probe / 2)
                self._slow_start = self.window >= _FAST_GROWTH_SHARE * self._ceiling
            self.window += max(1.0, math.floor(_STEP * self.window))
            self._next_probe = now + self._probe

    def _slow_down(self, now: float, flood: bool) -> None:
        """Continue slightly below the accepted rate; begin with a slow pace if that rate is unknown."""
        if math.isinf(self.pace):
            self._ramp = flood or now < self._rate.began + _SHORT_SPAN
            self.pace = _FIRST_PACE if self._ramp else max(_BACK_OFF * self._rate.measure(now, _SHORT_SPAN), 0.01)
            self._rate.begin(now)
        elif self._ramp and now < self._rate.began + _SHORT_SPAN:  # earlier calls have used up the quota
            self.pace = max(1.0, _OVERLOAD_FACTOR * self.pace)
        elif abs(self.pace - self._refused_pace) <= _EQUAL_PACE_SHARE * self.pace:
            self._refused_pace = self.pace
            self._growth = max(_SLOWEST_GROWTH, self._growth / 2)
            self.pace *= _BACK_OFF
        else:
            rate = self._rate.measure(now, _SHORT_SPAN if self._ramp else _LONG_SPAN)
            self._refused_pace, self._growth = self.pace, _FASTEST_GROWTH
            self.pace = max(_BACK_OFF * min(rate, self.pace), self.pace / 8, 0.01)
            if self._ramp:
                self._ramp = False
                self._rate.begin(now)
        self._grown_at = self._quiet_since = now

    def _speed_up(self, now: float) -> None:
        """Raise the pace after the success of a call that the pace had delayed."""
        elapsed = min(1.0, max(0.0, now - self._grown_at))
        if self._ramp:
            self.pace *= 2.0**elapsed
        else:
            if self.pace > (1.0 + _EQUAL_PACE_SHARE / 2) * self._refused_pace:
                self._growth = min(_FASTEST_GROWTH, self._growth * 1.5**elapsed)
            elif now - self._quiet_since > _QUIET_SECONDS:
                self._growth, self._quiet_since = min(_FASTEST_GROWTH, 2.0 * self._growth), now
            self.pace *= 1.0 + self._growth * elapsed
        self._grown_at = now


class _FailureEvidence:
    """Recent failures of an endpoint. Even good endpoints fail now and then, so single failures prove nothing."""

    def __init__(self) -> None:
        self.answers = 0  # number of answers, including failures
        # For each failure: the number of answers up to it, and its level.
        self._failures: deque[tuple[int, int]] = deque(maxlen=max(_BURST[0], _TREND[0]))

    def add(self, level: int, burst: tuple[int, int] = _BURST) -> bool:
        """Add a failure and return True if there was a short burst of failures, or many over a longer time."""
        self.answers += 1
        self._failures.append((self.answers, level))
        return any(
            len(self._failures) >= count and self.answers - self._failures[-count][0] < within
            for count, within in (burst, _TREND)
        )

    def levels(self) -> list[int]:
        """Return the number of calls in flight at each recent failure."""
        return [level for _, level in self._failures]

    def clear(self) -> None:
        self._failures.clear()


class _AcceptedRate:
    """Calls per second that were sent and not refused, over the last seconds."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._bins: deque[list[float]] = deque()  # [begin, calls]

    def begin(self, at: float) -> None:
        """Restart the count at this time."""
        self.began = at
        self._bins.clear()

    def add(self, at: float, calls: int) -> None:
        """Count calls that departed at a time; `calls` is -1 to take back a refused call."""
        if at < self.began:
            return
        if not self._bins or at >= self._bins[-1][0] + _BIN:
            self._bins.append([at, calls])
            while self._bins[0][0] < at - _LONG_SPAN:
                self._bins.popleft()
            return
        for entry in reversed(self._bins):
            if at >= entry[0]:
                entry[1] += calls
                return

    def measure(self, now: float, longest: float) -> float:
        """Return the rate over the last `longest` seconds, or since the count began."""
        while self._bins and self._bins[0][0] < now - longest:
            self._bins.popleft()
        span = max(_BIN, min(longest, now - self.began))
        return max(0.0, sum(calls for _, calls in self._bins)) / span

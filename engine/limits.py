"""Limits of one backend: concurrent calls, requests and tokens per minute, and a circuit breaker.

Waiters are served first in, first out, by one dispatcher task. Only this task waits on asyncio-throttle, whose cost and
unfairness grow with the number of its waiters. Requests are paced evenly instead of in bursts, and the pace leaves room
for uneven delivery, so that the *server* never sees more than the limit in any window.

The circuit breaker (Nygard, Release It!, 2007) is closed while calls reach the endpoint, open after several consecutive
failures, and half open while one call, the probe, tests the endpoint. Calls to an unreachable endpoint wait instead of
failing.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from asyncio_throttle.throttler import Throttler

from .adaptive_limit import AdaptiveLimit, InFlightCall
from .cancellation import cancellable_wait
from .clock import Clock
from .errors import BackendError, ConfigurationError, Unreachable

DEFAULT_PATIENCE = 600.0  # seconds that calls wait for an unreachable endpoint
# Failures in a row, and the seconds they must span, before an endpoint counts as unreachable.
_MAX_FAILURES, _SHORTEST_OUTAGE = 5, 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 15.0  # seconds before a probe; doubled after each failed probe


class CircuitBreaker:
    """Circuit breaker of one endpoint. Times are seconds of one monotonic clock.

    Args:
        patience: Seconds for which calls wait.
        changed: Called with the failure when the breaker opens, and with None when it closes.
    """

    def __init__(
        self, patience: float = DEFAULT_PATIENCE, changed: Callable[[BackendError | None], None] = lambda error: None
    ) -> None:
        self.patience = patience
        self._changed = changed
        self._failures = 0
        self._first = 0.0  # time of the first of the consecutive failures
        self._open = self._probing = False
        self._pause, self._next = _FIRST_PAUSE, 0.0

    @property
    def open(self) -> bool:
        """True if calls wait."""
        return self._open

    def wait(self, now: float) -> float:
        """Return the seconds until a call may depart; infinity while a probe is in flight."""
        if not self._open:
            return 0.0
        return math.inf if self._probing else max(0.0, self._next - now)

    def on_departure(self) -> bool:
        """Record that a call departs; return True if it is a probe."""
        self._probing = self._open
        return self._open

    def on_answer(self, departed_at: float) -> None:
        """Record that the endpoint answered a call. Calls that departed before the failures prove nothing."""
        if self._failures and departed_at < self._first:
            return
        self._failures = 0
        if self._open:
            self._open = self._probing = False
            self._pause = _FIRST_PAUSE
            self._changed(None)

    def on_failure(self, now: float, error: BackendError) -> None:
        """Record that a call did not reach the endpoint."""
        self._failures += 1
        if self._failures == 1:
            self._first = now
        if not self._open and self._failures >= _MAX_FAILURES and now - self._first >= _SHORTEST_OUTAGE:
            self._open = True
            self._pause = _FIRST_PAUSE
            self._next = now + self._pause
            self._changed(error)
        elif self._open and self._probing:
            self._probing = False
            self._pause = min(_LONGEST_PAUSE, 2.0 * self._pause)
            self._next = now + self._pause

    def on_abandoned(self, now: float) -> None:
        """Record that a probe was cancelled before it was answered: the next call becomes the probe."""
        self._probing, self._next = False, now

    def check_patience(self, now: float, error: BackendError) -> None:
        """Check that calls may still wait.

        Raises:
            Unreachable: The endpoint was unreachable for as long as the patience lasts.
        """
        if self._open and now - self._first >= self.patience:
            reason = str(error).removeprefix(f"{error.model}: ")
            raise Unreachable(
                f"unreachable for {now - self._first:.0f} s; last error: {reason}. Start the endpoint and resume the "
                "run; a larger --wait-for-endpoint waits longer",
                model=error.model,
            ) from None


# Evenly spaced requests arrive unevenly; the window is widened by this much so that the limit still holds at the
# server (one scheduling hiccup of a busy machine).
_DELIVERY_SPREAD = 0.1
# Very fast rates are served in small groups: waking for each permit would be busy waiting.
_SHORTEST_PAUSE = 0.02


@dataclass(slots=True, frozen=True)
class Rate:
    """At most `count` in any window of `period` seconds."""

    count: int
    period: float = 60.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.period <= 0:
            raise ConfigurationError(f"a rate needs a positive count and period, not {self.count}/{self.period:g} s")


class _ClockedThrottler(Throttler):
    """asyncio-throttle on our clock. `wait` returns the seconds until `acquire` would not wait."""

    def __init__(self, clock: Clock, rate_limit: int, period: float) -> None:
        super().__init__(rate_limit, period)
        self._clock = clock
        self._departures: deque[list[float]] = deque()  # [time] of each call in the window

    def flush(self) -> None:
        # Compare the same sum as `wait`, because the difference may forever round to just below the period.
        while self._departures and self._departures[0][0] + self.period <= self._clock.now():
            self._departures.popleft()

    def wait(self) -> float:
        self.flush()
        if len(self._departures) < self.rate_limit:
            return 0.0
        return float(self._departures[0][0] + self.period - self._clock.now())

    async def acquire(self) -> list[float]:
        """Admit one call; return its entry `[time]`, to be set to the time at which the request is really sent."""
        entry = [self._clock.now()]
        self._departures.append(entry)
        return entry


class _TokenWindow:
    """Tokens in a sliding window: reserved by estimate before a call, corrected by its usage afterwards."""

    def __init__(self, clock: Clock, rate: Rate) -> None:
        self._clock, self._rate = clock, rate
        self._period = rate.period + _DELIVERY_SPREAD
        self._entries: deque[list[float]] = deque()  # [time, tokens]
        self._used = 0.0

    @property
    def limit(self) -> int:
        return self._rate.count

    @property
    def used(self) -> float:
        self._expire()
        return self._used

    def wait(self, tokens: int) -> float:
        amount = min(tokens, self._rate.count)  # an estimate above the limit waits for an empty window
        if self.used + amount <= self._rate.count or not self._entries:
            return 0.0
        return self._entries[0][0] + self._period - self._clock.now()

    def take(self, tokens: int) -> list[float]:
        entry = [self._clock.now(), float(min(tokens, self._rate.count))]
        self._entries.append(entry)
        self._used += entry[1]
        return entry

    def correct(self, entry: list[float], tokens: int) -> None:
        self._expire()
        if entry[0] + self._period > self._clock.now():  # otherwise it has left the window
            self._used += tokens - entry[1]
            entry[1] = float(tokens)

    def _expire(self) -> None:
        now = self._clock.now()
        while self._entries and self._entries[0][0] + self._period <= now:
            self._used -= self._entries.popleft()[1]


class Permit:
    """Admission of one call, used with `async with`. Report the real token count and the outcome before leaving."""

    __slots__ = ("_departed_at", "_departure", "_entry", "_in_flight_call", "_limits", "_probe", "_tokens")

    def __init__(self, limits: Limits, tokens: int) -> None:
        self._limits, self._tokens = limits, tokens
        self._entry: list[float] | None = None
        self._departure: list[float] | None = None
        self._in_flight_call: InFlightCall | None = None
        self._departed_at = 0.0
        self._probe = False

    async def __aenter__(self) -> Permit:
        if self._limits._must_queue():
            await self._limits._wait_for_turn(self)
        else:
            self._limits._occupy(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._limits._end(self)

    def record_usage(self, tokens: int) -> None:
        """Replace the reservation with the call's real token count."""
        usual = self._limits._usual_tokens
        self._limits._usual_tokens = usual + 0.1 * (tokens - usual) if usual else float(tokens)
        if self._entry is not None and self._limits._tokens is not None:
            self._limits._tokens.correct(self._entry, tokens)
            self._limits._changed.set()

    def succeeded(self) -> None:
        """Report that the endpoint answered."""
        self._limits._record_outcome(self, "succeeded")

    def refused(self) -> None:
        """Report that the endpoint refused the call because there were too many at once."""
        self._limits._record_outcome(self, "refused")

    def overloaded(self) -> None:
        """Report that the endpoint is reachable and does not keep up."""
        self._limits._record_outcome(self, "overloaded")

    def unreachable(self, error: BackendError) -> None:
        """Report that the endpoint is unreachable."""
        self._probe = False
        self._limits._record_failure(error)


class Limits:
    """Limits of one backend; enter `permit` around each call. Without any limit the overhead is negligible."""

    def __init__(
        self,
        clock: Clock,
        *,
        concurrency: int | None = None,
        requests: Rate | None = None,
        tokens: Rate | None = None,
        adaptive: AdaptiveLimit | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
        self.concurrency = concurrency
        self.adaptive, self.breaker = adaptive, breaker
        self._clock = clock
        self._requests = requests
        self._throttler = _evenly_paced_throttler(clock, requests) if requests else None
        self._tokens = _TokenWindow(clock, tokens) if tokens else None
        self._waiting: deque[tuple[asyncio.Future[None], int, Permit]] = deque()
        self._changed = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None
        self._paused_until = 0.0
        self._usual_tokens = 0.0  # per call, smoothed
        self._in_use = 0
        self._max_in_use = 0
        self._granted = 0

    def permit(self, tokens: int = 0) -> Permit:
        """Return a permit for a call of about `tokens` tokens; `async with` waits for it, first in, first out."""
        return Permit(self, tokens)

    async def _wait_for_turn(self, permit: Permit) -> None:
        """Wait until a permit is admitted."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, permit._tokens, permit))
        self._ensure_dispatcher()
        try:
            with cancellable_wait():
                await turn
        except BaseException:
            # Cancelled when its turn came: pass the permit on.
            if turn.done() and not turn.cancelled():
                permit.record_usage(0)
                self._end(permit)
            else:
                turn.cancel()
                self._changed.set()
            raise
        if permit._departure is not None:
            # On a busy event loop (a resumed run replays) the request is sent later than it was admitted. The next
            # request is spaced from the time of sending; otherwise a window would contain one too many.
            permit._departure[0] = self._clock.now()

    def settings(self) -> dict[str, int | None]:
        """Return the limits that the user has set: calls at once, requests and tokens per minute; None: no limit."""
        requests, tokens = self._requests, self._tokens
        per_minute = None if requests is None else round(requests.count * 60 / requests.period)
        return {
            "concurrency": self.concurrency,
            "rpm": per_minute,
            "tpm": None if tokens is None else tokens.limit,
        }

    def change(self, concurrency: int | None, requests: Rate | None, tokens: Rate | None) -> None:
        """Replace the limits that the user has set; None: no such limit. Calls in flight go on."""
        self.concurrency = concurrency
        if requests != self._requests:
            self._requests = requests
            self._throttler = _evenly_paced_throttler(self._clock, requests) if requests else None
        if tokens is None or self._tokens is None or tokens.count != self._tokens.limit:
            self._tokens = _TokenWindow(self._clock, tokens) if tokens else None
        self._changed.set()

    def pause(self, seconds: float) -> None:
        """Admit no call for this many seconds (Retry-After)."""
        self._paused_until = max(self._paused_until, self._clock.now() + seconds)
        self._changed.set()

    def waits_for_endpoint(self, error: BackendError) -> bool:
        """Return True if a failed call should wait for the endpoint; raise `Unreachable` if the patience is used up."""
        if self.breaker is None or not self.breaker.open:
            return False
        self.breaker.check_patience(self._clock.now(), error)
        return True

    def on_rate_limit(self, unit: str, remaining: float, seconds: float) -> None:
        """Apply rate-limit headers: how many requests or tokens remain, and the seconds until all are available."""
        if self.adaptive is None:
            return
        per_call = 1.0 if unit == "requests" else self._usual_tokens
        if per_call > 0.0:
            self.adaptive.on_rate_limit(self._clock.now(), unit, remaining / per_call, seconds)
            self._changed.set()

    @property
    def paused(self) -> float:
        """Seconds for which the endpoint asked not to be called; 0 if it did not."""
        return max(0.0, self._paused_until - self._clock.now())

    @property
    def free(self) -> bool:
        """True if a call would be admitted at once."""
        return not self._waiting and self._wait(0) <= 0.0

    @property
    def counts_tokens(self) -> bool:
        """True if a call's tokens matter for its admission."""
        return self._tokens is not None

    def statistics(self) -> dict[str, float]:
        """Return counters: calls in flight, waiters, permits, tokens in the window, adaptive limits."""
        return {
            "in_flight": self._in_use,
            "most_in_flight": self._max_in_use,
            "waiting": len(self._waiting),
            "granted": self._granted,
            "tokens_in_window": self._tokens.used if self._tokens else 0,
            **(self.adaptive.statistics() if self.adaptive is not None else {}),
        }

    def _must_queue(self) -> bool:
        return bool(
            self._waiting
            or self._dispatcher is not None
            or self._throttler is not None
            or self._tokens is not None
            or (self.concurrency is not None and self._in_use >= self.concurrency)
            or self._paused_until > (now := self._clock.now())
            or (self.adaptive is not None and self.adaptive.wait(now, self._in_use) > 0.0)
            or (self.breaker is not None and self.breaker.wait(now) > 0.0)
        )

    def _record_outcome(self, permit: Permit, outcome: str) -> None:
        now = self._clock.now()
        permit._probe = False
        if self.breaker is not None:
            self.breaker.on_answer(permit._departed_at)
        if self.adaptive is not None and permit._in_flight_call is not None:
            getattr(self.adaptive, outcome)(permit._in_flight_call, now)
        self._changed.set()

    def _record_failure(self, error: BackendError) -> None:
        if self.breaker is not None:
            self.breaker.on_failure(self._clock.now(), error)
        self._changed.set()

    def _occupy(self, permit: Permit) -> None:
        self._in_use += 1
        if self.adaptive is not None:
            permit._in_flight_call = self.adaptive.on_departure(self._clock.now(), self._in_use)
        if self.breaker is not None:
            permit._departed_at, permit._probe = self._clock.now(), self.breaker.on_departure()
        self._granted += 1
        self._max_in_use = max(self._max_in_use, self._in_use)

    def _end(self, permit: Permit) -> None:
        """Take back a permit."""
        if permit._probe and self.breaker is not None:
            self.breaker.on_abandoned(self._clock.now())
        self._in_use -= 1
        self._changed.set()

    def _ensure_dispatcher(self) -> None:
        if self._dispatcher is None:
            # A plain task, outside of any task group: it lives while somebody waits, longer than each single waiter.
            self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())

    async def _dispatch(self) -> None:
        try:
            while self._waiting:
                turn, tokens, permit = self._waiting[0]
                if turn.done():  # cancelled while it waited
                    self._waiting.popleft()
                    continue
                self._changed.clear()
                wait = self._wait(tokens)
                if wait > 0:
                    with anyio.move_on_after(wait):
                        await self._changed.wait()
                    continue
                self._waiting.popleft()
                if self._tokens is not None:
                    permit._entry = self._tokens.take(tokens)
                if self._throttler is not None:
                    permit._departure = await self._throttler.acquire()
                self._occupy(permit)
                turn.set_result(None)
        finally:
            self._dispatcher = None

    def _wait(self, tokens: int) -> float:
        if self.concurrency is not None and self._in_use >= self.concurrency:
            return math.inf
        now = self._clock.now()
        waits = [self._paused_until - now]
        if self.adaptive is not None:
            waits.append(self.adaptive.wait(now, self._in_use))
        if self.breaker is not None:
            waits.append(self.breaker.wait(now))
        if self._tokens is not None:
            waits.append(self._tokens.wait(tokens))
        if self._throttler is not None:
            waits.append(self._throttler.wait())
        return max(waits)


def _evenly_paced_throttler(clock: Clock, rate: Rate) -> _ClockedThrottler:
    """Return a throttler with an even pace: small groups, spaced so that any window of `period` has `count`."""
    spacing = (rate.period + _DELIVERY_SPREAD) / rate.count
    group = max(1, int(_SHORTEST_PAUSE / spacing))
    return _ClockedThrottler(clock, group, (rate.period + _DELIVERY_SPREAD) / (rate.count // group))

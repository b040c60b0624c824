"""Retries around a backend and its limits: exponential backoff with seeded jitter, and Retry-After.

A requested pause that exceeds the patience ends the run, which can be resumed. A call holds no permit while it waits
for its next attempt. The error's type determines whether a retry is worthwhile (`errors`). The limits observe the
outcome of each call and learn from it the endpoint's capacity and whether it is reachable; while it is unreachable,
calls wait, and waiting counts as no attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from .. import seeds
from ..cancellation import cancellable_wait, gather
from ..clock import Clock
from ..durations import format_duration
from ..errors import AccountBlocked, BackendError, FormRefused, NoDescriptor, Throttled, TimedOut, Unavailable
from ..events import EndpointPaused, Retried
from ..likelihood import Reading
from ..limits import DEFAULT_PATIENCE, Limits, Permit
from ..messages import Completion, Request
from .base import Backend, EventSink, RateLimitHeaders
from .wrappers import BackendWrapper

# Rough size of a token, to reserve a tokens-per-minute budget before the endpoint has counted.
_CHARACTERS_PER_TOKEN = 4
_LAST_MOMENT = 2.0**37  # seconds, in the year 6325: the latest time that a date can represent
_LONG_PAUSE = 30.0  # seconds of a Retry-After above which a message is logged


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """Retry policy: `attempts` in all; the n-th pause is `first × 2ⁿ` up to `longest` seconds, half of it jitter.

    `waits` is how often to pause if no file descriptor is free; such a pause counts as no attempt. A Retry-After beyond
    `longest_retry_after` is not waited for.
    """

    attempts: int = 8
    waits: int = 20
    first: float = 0.5
    longest: float = 60.0
    longest_retry_after: float = DEFAULT_PATIENCE

    def delay(self, failures: int, seed: int, retry_after: float | None) -> float:
        """Return the seconds to wait after this many failures; equal seeds wait equally long."""
        ceiling = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        delay = ceiling * (0.5 + 0.5 * seeds.uniform(seed, "retry", failures))
        if retry_after is not None:
            delay = max(delay, min(retry_after, self.longest_retry_after))
        return delay


class RetryingBackend(BackendWrapper):
    """A backend with limits and retries, for every remote model."""

    def __init__(
        self,
        inner: Backend,
        limits: Limits,
        clock: Clock,
        policy: RetryPolicy,
        publish: EventSink | None = None,
    ) -> None:
        super().__init__(inner)
        self.reads_one = False  # `read` sends the several requests
        self.fallible = False  # retries have already been made
        self.limits = limits
        self._clock, self._policy, self._publish = clock, policy, publish
        self._retries = 0
        self._paused_until = 0.0  # wall time until which a pause was announced
        inner.on_rate_limit(self._adjust_limits)

    def _adjust_limits(self, allowance: RateLimitHeaders) -> None:
        # A daily limit sets no pace: once it is used up, the endpoint's refusal says how long to wait.
        if allowance.seconds <= self._policy.longest_retry_after:
            self.limits.on_rate_limit(allowance.what, allowance.remaining, allowance.seconds)

    async def generate(self, request: Request) -> Completion:
        estimate = estimated_tokens(request) if self.limits.counts_tokens else 0
        attempt = partial(self.inner.generate, request)
        return await self._with_retries(attempt, estimate, request.seed, request.conversation, request.on_restart)

    async def read(self, reading: Reading) -> Completion:
        if not self.inner.reads_one or len(reading.continuations) == 1:
            return await self._read(reading)
        asks = [
            partial(self._read, replace(reading, continuations=(continuation,)))
            for continuation in reading.continuations
        ]
        done = await gather(asks, abandon=True)
        return Completion(
            "",
            "stop",
            sum(part.prompt_tokens for part in done),
            sum(part.completion_tokens for part in done),
            attempts=sum(part.attempts for part in done),
            likelihoods=[likelihood for part in done for likelihood in part.likelihoods or []],
            cached_tokens=sum(part.cached_tokens for part in done),
        )

    async def _read(self, reading: Reading) -> Completion:
        seed = int.from_bytes(reading.digest()[:8])
        return await self._with_retries(partial(self.inner.read, reading), estimated_tokens(reading), seed)

    async def _with_retries(
        self,
        attempt: Callable[[], Awaitable[Completion]],
        estimate: int,
        seed: int,
        conversation: str = "",
        on_restart: Callable[[], None] | None = None,
    ) -> Completion:
        failures = waits = 0
        while True:
            try:
                completion = await attempt_within(self.limits, estimate, attempt)
                completion.attempts = failures + 1
                return completion
            except FormRefused:
                pass  # no failure: the backend sends another form at once, with a new permit
            except NoDescriptor as error:
                # No request was sent: wait until a file is closed.
                waits += 1
                if waits > self._policy.waits:
                    raise
                await self._back_off(error, waits, seed, conversation)
            except BackendError as error:
                if error.retry_after is not None:
                    self._pause(error, error.retry_after)
                is_unreachable = error.absent and self.limits.waits_for_endpoint(error)
                failures += not is_unreachable
                if not error.retryable or failures >= self._policy.attempts:
                    raise
                if not is_unreachable:
                    await self._back_off(error, failures, seed, conversation)
            if on_restart is not None:
                on_restart()

    def _pause(self, error: BackendError, seconds: float) -> None:
        """Hold back all calls; raise AccountBlocked if the requested pause would exceed the patience."""
        until = self._clock.wall() + seconds
        message = str(error).removeprefix(f"{error.model}: ").rstrip(".")
        patience = self._policy.longest_retry_after
        if seconds > patience:
            raise AccountBlocked(
                f"{message}; it asks not to be called again before {_local_time(until)}. That "
                f"is {format_duration(round(seconds))} from now, longer than --wait-for-endpoint ({patience:g} s): "
                "resume the run then (viva resume), or with a longer --wait-for-endpoint",
                model=error.model,
                status=error.status,
            ) from None
        self.limits.pause(seconds)
        if seconds >= _LONG_PAUSE and until > self._paused_until + 1.0 and self._publish is not None:
            self._paused_until = until
            self._publish(EndpointPaused(self._clock.wall(), "", self.label, message, until))

    async def _back_off(self, error: BackendError, failures: int, seed: int, conversation: str) -> None:
        delay = self._policy.delay(failures, seed, error.retry_after)
        self._retries += 1
        if self._publish is not None:
            self._publish(Retried(self._clock.wall(), conversation, self.label, type(error).__name__, delay))
        with cancellable_wait():
            await self._clock.sleep(delay)

    def statistics(self) -> dict[str, Any]:
        return {**self.limits.statistics(), "retries": self._retries, **self.inner.statistics()}


def estimated_tokens(request: Request | Reading) -> int:
    """Estimate the tokens of a call with the longest answer."""
    if isinstance(request, Reading):
        characters = len(request.shared) + len(request.context) + sum(map(len, request.continuations))
        return characters // _CHARACTERS_PER_TOKEN
    return request.characters // _CHARACTERS_PER_TOKEN + request.sampling.max_tokens


def _local_time(wall: float) -> str:
    """Return a wall time in this machine's time zone, with the zone."""
    return f"{datetime.fromtimestamp(min(wall, _LAST_MOMENT), UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}".strip()


async def attempt_within(limits: Limits, tokens: int, attempt: Callable[[], Awaitable[Completion]]) -> Completion:
    """Make one attempt within the limits and report its outcome to them. `tokens` is the estimated use."""
    async with limits.permit(tokens) as permit:
        try:
            completion = await attempt()
        except BackendError as error:
            _report_failure(permit, error)
            raise
        permit.succeeded()
        permit.record_usage(completion.prompt_tokens + completion.completion_tokens)
        return completion


def _report_failure(permit: Permit, error: BackendError) -> None:
    match error:
        case NoDescriptor():
            pass  # the endpoint never saw the call
        case BackendError(absent=True):
            permit.unreachable(error)
        case Throttled():
            permit.refused()
        case TimedOut() | Unavailable(status=529):  # overloaded
            permit.overloaded()
        case _:
            permit.succeeded()

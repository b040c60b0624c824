"""Trying again: exponential backoff with seeded jitter, Retry-After, around a backend and its limits.

A failed attempt gives its place back while it waits. What never belongs here: deciding which errors are worth it (each
error type says so itself, see ``errors``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import seeds
from ..clock import Clock
from ..errors import BackendError, FormRefused
from ..events import Retried
from ..limits import Limits
from ..messages import Completion, Request
from .base import Backend, EventSink

# Rough size of a token for reserving a tokens-per-minute budget before the endpoint has counted.
_CHARACTERS_PER_TOKEN = 4


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """``attempts`` in all; the n-th pause is ``first × 2ⁿ`` up to ``longest`` seconds, of which half is jitter."""

    attempts: int = 8
    first: float = 0.5
    longest: float = 60.0
    longest_retry_after: float = 600.0

    def delay(self, failures: int, seed: int, retry_after: float | None) -> float:
        """Seconds to wait after the given number of failures; the same seed waits the same time."""
        ceiling = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        delay = ceiling * (0.5 + 0.5 * seeds.uniform(seed, "retry", failures))
        if retry_after is not None:
            delay = max(delay, min(retry_after, self.longest_retry_after))
        return delay


class Governed(Backend):
    """A backend with limits and retries: what every remote model is wrapped in."""

    def __init__(
        self,
        inner: Backend,
        limits: Limits,
        clock: Clock,
        policy: RetryPolicy,
        publish: EventSink | None = None,
    ) -> None:
        self.inner, self.limits = inner, limits
        self.label, self.price_in, self.price_out = inner.label, inner.price_in, inner.price_out
        self._clock, self._policy, self._publish = clock, policy, publish
        self._retries = 0

    async def __aenter__(self) -> Backend:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.inner.__aexit__(*exc)

    async def check(self) -> None:
        await self.inner.check()

    async def generate(self, request: Request) -> Completion:
        failures = 0
        estimate = 0
        if self.limits._tokens is not None:
            characters = sum(len(message.content) for message in request.messages)
            estimate = characters // _CHARACTERS_PER_TOKEN + request.sampling.max_tokens
        while True:
            try:
                async with self.limits.permit(estimate) as permit:
                    completion = await self.inner.generate(request)
                    permit.used(completion.prompt_tokens + completion.completion_tokens)
                completion.attempts = failures + 1
                return completion
            except FormRefused:
                pass  # not a failure: the backend has learnt, and asks otherwise at once, on a permit of its own
            except BackendError as error:
                failures += 1
                if error.retry_after is not None:
                    # The endpoint spoke to all of us, not to this call alone.
                    self.limits.pause(min(error.retry_after, self._policy.longest_retry_after))
                if not error.retryable or failures >= self._policy.attempts:
                    raise
                await self._back_off(error, failures, request)
            if request.on_restart is not None:
                request.on_restart()

    async def _back_off(self, error: BackendError, failures: int, request: Request) -> None:
        delay = self._policy.delay(failures, request.seed, error.retry_after)
        self._retries += 1
        if self._publish is not None:
            self._publish(Retried(self._clock.wall(), request.conversation, self.label, type(error).__name__, delay))
        await self._clock.sleep(delay)

    def statistics(self) -> dict[str, Any]:
        return {**self.limits.statistics(), "retries": self._retries, **self.inner.statistics()}

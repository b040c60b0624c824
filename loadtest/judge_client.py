"""Judge under load: opened from its model's name without limits; sends one request and times it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from viva.engine import seeds
from viva.engine.backends.base import Backend
from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.clock import Clock
from viva.engine.errors import AccountBlocked, BackendError, ConfigurationError, FormRefused, Unauthorized, Unavailable
from viva.engine.messages import Completion, Request

from .load_records import LoadRequest, LoadRequests, SentRequest

_SEED_ROLE = "judge"  # the same for all roles, so that seeds depend only on request and occurrence
_MOST_FORMS = 4  # forms of structured output that a backend may try
_LONGEST_MESSAGE = 500
_DEFAULT_POLICY = RetryPolicy()


class Unfinished(Exception):  # never raised; records contain its name as the type of a failure
    """Failure of a request that was given up in flight."""


@dataclass(slots=True)
class LoadJudge:
    """Judge under load: its label, its model's name, and the bare backend without limits and retries."""

    label: str
    model: str
    backend: Backend


@dataclass(slots=True)
class RequestSender:
    """Sender of the requests of `work` to a judge. `seed` is the test's seed; a `salt` above 0 derives other seeds.

    `retries`: how often a transient failure is retried. As soon as `given_up` is set to a reason, cancelled requests
    are recorded as unfinished.
    """

    clock: Clock
    work: LoadRequests
    seed: int
    salt: int = 0
    retries: int = 0
    policy: RetryPolicy = _DEFAULT_POLICY
    given_up: str = ""

    def request(self, number: int, on_text: Callable[[str], None] | None) -> tuple[LoadRequest, int, Request]:
        """Return (request with this number, how often it was sent before, its engine request)."""
        occurrence, index = divmod(number, len(self.work))
        source = self.work[index]
        parts = (self.seed, source.id, occurrence, self.salt) if self.salt else (self.seed, source.id, occurrence)
        seed = seeds.derive(*parts, _SEED_ROLE)
        digest = hashlib.blake2b(f"{source.id}\x1f{seed}".encode(), digest_size=16).digest()
        request = Request(
            source.messages,
            source.sampling,
            seed,
            digest,
            conversation=source.id,
            role=source.role,
            ordinal=occurrence,
            hint=source.hint,
            on_text=on_text,
            tools=source.tools,
            affinity=source.affinity,
        )
        return source, occurrence, request

    async def send(
        self, judge: LoadJudge, step: int, part: int, number: int, intended: float, began: float
    ) -> SentRequest:
        """Send one request, with retries if configured, until it is answered or has failed.

        `intended` is when the request was due, `began` the clock's time at the start of the part.

        Raises:
            AccountBlocked, ConfigurationError, Unauthorized: Every further request would fail, too.
        """
        clock = self.clock
        pieces: list[str] = []
        first = 0.0

        def on_text(text: str) -> None:
            nonlocal first
            if not pieces:
                first = clock.now() - began
            pieces.append(text)

        source, occurrence, request = self.request(number, on_text)
        record = SentRequest(step, judge.label, number, source.id, occurrence, request.seed, intended, 0.0, None, 0.0,
                             "", "", 0, 0, part=part)  # fmt: skip
        forms = 0
        record.dispatched = tried = max(intended, clock.now() - began)  # timers may fire slightly early
        while True:
            try:
                completion = await judge.backend.generate(request)
                break
            except FormRefused as error:
                forms += 1  # no failure: the backend at once sends the request in another form
                if forms == _MOST_FORMS:
                    return _with_failure(record, error, pieces, first, clock.now() - began)
            except (AccountBlocked, ConfigurationError, Unauthorized):
                raise
            except asyncio.CancelledError:
                if not self.given_up:
                    raise
                return _with_failure(record, Unfinished(self.given_up), pieces, first, clock.now() - began)
            except Exception as error:  # a user's own model may raise any error: the request has failed
                if not isinstance(error, BackendError) or not error.retryable or record.tries > self.retries:
                    return _with_failure(record, error, pieces, first, clock.now() - began)
                pause = self.policy.delay(record.tries, request.seed, error.retry_after)
                record.throttled += pause
                record.tries += 1
                del error  # the variable would keep the answer in memory during the pause
                await clock.sleep(pause)
            pieces.clear()
            tried = clock.now() - began
        record.finished = max(record.dispatched, clock.now() - began)
        record.first_token = _first_token(completion, tried, first if pieces else None, record.finished)
        record.text, record.finish = completion.text, completion.finish
        record.prompt_tokens, record.completion_tokens = completion.prompt_tokens, completion.completion_tokens
        return record


def _first_token(completion: Completion, tried: float, received: float | None, finished: float) -> float | None:
    """Return when the first token came; the backend's own time takes precedence, because pieces may arrive late."""
    if completion.first_token is not None:
        return min(finished, tried + completion.first_token)
    return None if received is None else min(finished, max(tried, received))


def _with_failure(record: SentRequest, error: Exception, pieces: list[str], first: float, now: float) -> SentRequest:
    record.error, record.message = type(error).__name__, str(error)[:_LONGEST_MESSAGE]
    record.text, record.finished = "".join(pieces), max(record.dispatched, now)
    record.first_token = max(record.dispatched, first) if pieces else None
    return record


_CHECK_SECONDS = 10.0


@asynccontextmanager
async def build_judges(
    models: Mapping[str, str], clock: Clock
) -> AsyncIterator[tuple[list[LoadJudge], Callable[[], Awaitable[None]]]]:
    """Yield the judges, whose labels and names are in `models`, and a function that opens and checks them.

    Raises:
        ConfigurationError: A name is wrong.
        BackendError: The function raises it if a judge cannot be reached.
    """
    judges = [LoadJudge(label, model, unwrap_backend(build(model, clock))) for label, model in models.items()]
    async with AsyncExitStack() as stack:

        async def opening() -> None:
            for judge in judges:
                await stack.enter_async_context(judge.backend)
            for judge in judges:
                try:
                    with anyio.fail_after(_CHECK_SECONDS):
                        await judge.backend.check()
                except TimeoutError:
                    late = f"no answer within {_CHECK_SECONDS:g} s ({judge.model})"
                    raise Unavailable(late, model=judge.label) from None

        yield judges, opening


@asynccontextmanager
async def open_judges(models: Mapping[str, str], clock: Clock) -> AsyncIterator[list[LoadJudge]]:
    """Open the judges and check that they can be reached."""
    async with build_judges(models, clock) as (judges, opening):
        await opening()
        yield judges


def unwrap_backend(backend: Backend) -> Backend:
    """Return the backend without its limits and retries."""
    while isinstance(backend, RetryingBackend):
        backend = backend.inner
    return backend

"""One request to one judge, from the moment it is due to its record: tries, the first token, and what went wrong.

What never belongs here: when a request is due (``driver``), and what its answer says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from viva.engine import seeds
from viva.engine.backends.base import Backend
from viva.engine.backends.retry import RetryPolicy
from viva.engine.clock import Clock
from viva.engine.errors import AccountBlocked, BackendError, ConfigurationError, FormRefused, Unauthorized
from viva.engine.messages import Completion, Request

from .records import LoadRequest, Sent, Work

_SEEDED = "judge"  # whatever the role: seeds follow from the request and its occurrence alone
_MOST_FORMS = 4  # of structured output, that a backend may have to find out about
_LONGEST_MESSAGE = 500
_USUAL = RetryPolicy()


class Unfinished(Exception):  # the name of a kind of failure in records, never raised
    """A request that was given up while it was under way."""


@dataclass(slots=True)
class Judge:
    """A judge under load: its label, its model's name, and the backend itself, without limits and retries."""

    label: str
    model: str
    backend: Backend


@dataclass(slots=True)
class Sender:
    """Sends requests of ``work`` to a judge. ``seed`` is that of the whole test; ``salt`` makes other seeds of it.

    ``retries``: how often a request is tried again after a failure that may pass. Once ``given_up`` says why, requests
    that are cancelled are recorded as unfinished.
    """

    clock: Clock
    work: Work
    seed: int
    salt: int = 0
    retries: int = 0
    policy: RetryPolicy = _USUAL
    given_up: str = ""

    def request(self, number: int, on_text: Callable[[str], None] | None) -> tuple[LoadRequest, int, Request]:
        """The request with this number, and how often it was sent before."""
        occurrence, place = divmod(number, len(self.work))
        one = self.work[place]
        parts = (self.seed, one.id, occurrence, self.salt) if self.salt else (self.seed, one.id, occurrence)
        seed = seeds.derive(*parts, _SEEDED)
        digest = hashlib.blake2b(f"{one.id}\x1f{seed}".encode(), digest_size=16).digest()
        request = Request(
            one.messages,
            one.sampling,
            seed,
            digest,
            conversation=one.id,
            role=one.role,
            ordinal=occurrence,
            hint=one.hint,
            on_text=on_text,
            tools=one.tools,
            affinity=one.affinity,
        )
        return one, occurrence, request

    async def send(self, judge: Judge, step: int, part: int, number: int, intended: float, began: float) -> Sent:
        """Send one request, and again where that is wanted, until it is answered or has failed.

        :param intended: when it was due; :param began: the clock's time at the start of the part.
        :raises AccountBlocked, ConfigurationError, Unauthorized: no other request would fare better.
        """
        clock = self.clock
        pieces: list[str] = []
        first = 0.0

        def hear(text: str) -> None:
            nonlocal first
            if not pieces:
                first = clock.now() - began
            pieces.append(text)

        one, occurrence, request = self.request(number, hear)
        sent = Sent(step, judge.label, number, one.id, occurrence, request.seed, intended, 0.0, None, 0.0,
                    "", "", 0, 0, part=part)  # fmt: skip
        forms = 0
        sent.dispatched = tried = max(intended, clock.now() - began)  # timers may fire a microsecond early
        while True:
            try:
                completion = await judge.backend.generate(request)
                break
            except FormRefused as error:
                forms += 1  # no failure: the backend sends another form at once
                if forms == _MOST_FORMS:
                    return _failed(sent, error, pieces, first, clock.now() - began)
            except (AccountBlocked, ConfigurationError, Unauthorized):
                raise
            except asyncio.CancelledError:
                if not self.given_up:
                    raise
                return _failed(sent, Unfinished(self.given_up), pieces, first, clock.now() - began)
            except Exception as error:  # also a user's own model that raises: a failure of this request
                if not isinstance(error, BackendError) or not error.retryable or sent.tries > self.retries:
                    return _failed(sent, error, pieces, first, clock.now() - began)
                pause = self.policy.delay(sent.tries, request.seed, error.retry_after)
                sent.throttled += pause
                sent.tries += 1
                del error  # it holds on to the answer while this waits
                await clock.sleep(pause)
            pieces.clear()
            tried = clock.now() - began
        sent.finished = max(sent.dispatched, clock.now() - began)
        sent.first_token = _first_token(completion, tried, first if pieces else None, sent.finished)
        sent.text, sent.finish = completion.text, completion.finish
        sent.prompt_tokens, sent.completion_tokens = completion.prompt_tokens, completion.completion_tokens
        return sent


def _first_token(completion: Completion, tried: float, heard: float | None, finished: float) -> float | None:
    """When the first token came. The backend's own time goes first: where a key is kept out of texts, pieces are handed
    on late. A backend that does not stream has none.
    """
    if completion.first_token is not None:
        return min(finished, tried + completion.first_token)
    return None if heard is None else min(finished, max(tried, heard))


def _failed(sent: Sent, error: Exception, pieces: list[str], first: float, now: float) -> Sent:
    sent.error, sent.message = type(error).__name__, str(error)[:_LONGEST_MESSAGE]
    sent.text, sent.finished = "".join(pieces), max(sent.dispatched, now)
    sent.first_token = max(sent.dispatched, first) if pieces else None
    return sent

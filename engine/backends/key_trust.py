"""Whether a key is good: a 401 or 403 to one request means something else once others were answered.

A refusal that comes before any answer waits for the calls under way beside it: endpoints refuse faster than they
answer. What never belongs here: the key.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from ..errors import BackendError, Forbidden, Unauthorized
from ..stopping import RunStopping


class Trust:
    """What is known of one endpoint's key. Enter ``call`` around each request."""

    def __init__(self) -> None:
        self.proven = False
        self._under_way = 0
        self._refused: list[asyncio.Future[None]] = []

    def call(self) -> _Call:
        """One request with this key.

        :raises Unauthorized: the endpoint refused it, and has answered none so far.
        :raises Forbidden: the endpoint refused it, but answers others.
        """
        return _Call(self)

    async def _settle(self) -> None:
        """Wait until one of the others is answered, or all that are under way are refused too."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refused.append(settled)
        self._look()
        try:
            await settled
        finally:
            if settled in self._refused:
                self._refused.remove(settled)

    def _look(self) -> None:
        if self._refused and (self.proven or len(self._refused) >= self._under_way):
            for one in self._refused:
                if not one.done():
                    one.set_result(None)


class _Call:
    __slots__ = ("_trust",)

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def __aenter__(self) -> None:
        self._trust._under_way += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trust = self._trust
        try:
            if error is None or (isinstance(error, Exception) and not isinstance(error, BackendError | RunStopping)):
                trust.proven = True  # answered, though perhaps ended by whoever heard it
            elif isinstance(error, Unauthorized) and not trust.proven:
                await trust._settle()
        finally:
            trust._under_way -= 1
            trust._look()
        if isinstance(error, Unauthorized) and trust.proven:
            said = str(error).removeprefix(f"{error.model}: ")
            raise Forbidden(
                f"{said}; other requests with this key are answered", model=error.model, status=error.status
            ) from None

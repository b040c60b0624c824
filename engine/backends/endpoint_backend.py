"""What backends of chat endpoints have in common: the session, the check of the model's name, a timed request.

What never belongs here: what a request or an answer looks like, retries and limits (wrappers do that).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from yarl import URL

from ..clock import Clock
from ..messages import Completion, Request
from .allowance import Hear
from .base import Backend
from .endpoint import Body, Endpoint
from .key_trust import Trust
from .openai_listed import unlisted
from .openai_usage import estimated

_LONGEST_LIST = 8 << 20  # bytes read of an endpoint's list of models


class EndpointBackend(Backend):
    """One model of one endpoint. ``base_url`` stands for the endpoint in messages."""

    fallible = True

    def __init__(self, clock: Clock, endpoint: Endpoint, model: str) -> None:
        self.base_url, self.model = endpoint.base_url, model
        self.nearby = _is_nearby(endpoint.base_url)  # a server of this machine's own, which queues what it cannot take
        self._clock, self._endpoint = clock, endpoint
        self._trust = Trust()

    @property
    def _list(self) -> tuple[str, str]:
        """The path of the endpoint's list of models, and this model's name in it."""
        return "/models", self.model

    def _is_there(self, status: int) -> bool:
        """Whether an answer to the request for the list shows that the endpoint is there and takes the key."""
        return status not in (401, 403) and not 300 <= status < 400

    def hear_allowance(self, hear: Hear) -> None:
        self._endpoint.hear_allowance = hear

    async def __aenter__(self) -> Backend:
        await self._endpoint.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._endpoint.close()

    async def check(self) -> None:
        """As the base says; warns (logger ``viva``) of a model's name that the endpoint does not list."""

        async def receive(body: Body) -> bytes:
            return await body.head(_LONGEST_LIST) if body.status == 200 else b""

        # Many servers have no model list; any answer but a refusal of the key shows that they are there.
        path, name = self._list
        data = await self._endpoint.ask(self.label, self.base_url + path, None, receive, accept=self._is_there)
        warning = unlisted(data, name, self._endpoint.redact)
        if warning:
            place = self.base_url + path.partition("?")[0]
            logging.getLogger("viva").warning("%s: %s (%s)", self.label, warning, place)

    async def _ask(
        self, request: Request, url: str, data: bytes, receive: Callable[[Body], Awaitable[Completion]]
    ) -> Completion:
        """The answer to one request, with its times, and with estimates in the place of missing counts of tokens.

        ``receive`` gives the clock's time of the first piece as ``first_token``.
        """
        began = self._clock.now()
        async with self._trust.call():
            completion = await self._endpoint.ask(self.label, url, data, receive)
        if completion.first_token is not None:
            completion.first_token -= began
        completion.latency = self._clock.now() - began
        estimated(completion, request)
        return completion


def _is_nearby(url: str) -> bool:
    try:
        host = URL(url).host or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

"""A function as a model: it gets the messages as a list of dicts with ``role`` and ``content``, and returns the answer.

What never belongs here: where the function is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..clock import Clock
from ..computation import Computer
from ..errors import Rejected, TimedOut
from ..messages import Completion, Request
from ..steps import COMPUTED, timed_out
from .base import Backend
from .openai_usage import estimated


class FunctionBackend(Backend):
    """A coroutine function is awaited in the event loop, any other runs in a thread, at most 40 at once. ``timeout`` is
    in seconds; a thread that takes longer goes on, unheard.
    """

    def __init__(self, function: Callable[..., Any], timeout: float, clock: Clock) -> None:
        self._function, self._timeout, self._clock = function, timeout, clock
        self._computer = Computer(clock)

    async def __aexit__(self, *exc: object) -> None:
        self._computer.close()

    async def generate(self, request: Request) -> Completion:
        """As the base says. What the function raises becomes ``Rejected``, which names file and line; a function that
        takes too long, ``TimedOut``.
        """
        began = self._clock.now()
        messages = [message.to_openai() for message in request.messages]
        how, data = await self._computer.run(self._function, (messages,), self._timeout)
        value = orjson.loads(data)
        name = getattr(self._function, "__name__", type(self._function).__name__)
        if how != COMPUTED:
            said = f"{name}: {value['type']}: {value['message']} (at {value['at']})"
            late = (how, data) == timed_out(self._function, self._timeout)
            raise (TimedOut if late else Rejected)(said, model=self.label)
        if not isinstance(value, str):
            raise Rejected(f"{name} returned {type(value).__name__}; a model's answer is text", model=self.label)
        completion = Completion(value, latency=self._clock.now() - began)
        estimated(completion, request)
        return completion

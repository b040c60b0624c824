"""The model of conversations that are scored as they stand: it is never asked, and costs nothing.

What never belongs here: the conversations.
"""

from __future__ import annotations

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request


class Recorded(Backend):
    """Stands where a system under test would."""

    async def generate(self, request: Request) -> Completion:
        raise ConfigurationError("the conversations are scored as they stand: nobody answers in them")


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The model of ``recorded:conversations``."""
    return Recorded()

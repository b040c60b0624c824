"""Models without an endpoint: `fixed` always gives the same answer, `recorded` represents finished dialogs."""

from __future__ import annotations

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.endpoint_answer import estimate_missing_counts
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request


class FixedBackend(Backend):
    """Backend that always answers `text`."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def generate(self, request: Request) -> Completion:
        """Return the text for any request."""
        completion = Completion(self._text)
        estimate_missing_counts(completion, request)
        return completion


def build_fixed(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model that always gives the same answer: `fixed:NAME?text=ANSWER`."""
    text = spec.take("text")
    if text is None:
        raise ConfigurationError(f"model '{spec.text}': no answer; give one with ?text=")
    return FixedBackend(text)


class RecordedBackend(Backend):
    """Placeholder for the system under test of recorded dialogs."""

    async def generate(self, request: Request) -> Completion:
        raise ConfigurationError("recorded conversations are scored without calling the system under test")


def build_recorded(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a placeholder for the system under test of recorded conversations."""
    return RecordedBackend()

"""Models that call nothing: ``fixed`` gives one answer to everything, ``recorded`` stands for finished dialogs."""

from __future__ import annotations

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.endpoint_answer import estimate_missing_counts
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request


class FixedBackend(Backend):
    """Says ``text``."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def generate(self, request: Request) -> Completion:
        """The text, whatever is asked."""
        completion = Completion(self._text)
        estimate_missing_counts(completion, request)
        return completion


def build_fixed(spec: ModelSpec, clock: Clock) -> Backend:
    """Build the model of a name, whose option ``text`` is its answer."""
    text = spec.take("text")
    if text is None:
        raise ConfigurationError(f"model '{spec.text}': says nothing; give its answer with ?text=")
    return FixedBackend(text)


class RecordedBackend(Backend):
    """Stands where a system under test would."""

    async def generate(self, request: Request) -> Completion:
        raise ConfigurationError("the conversations are scored as they stand: nobody answers in them")


def build_recorded(spec: ModelSpec, clock: Clock) -> Backend:
    """The model of ``recorded:conversations``."""
    return RecordedBackend()

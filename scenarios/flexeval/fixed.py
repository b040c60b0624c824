"""Models of the kind ``fixed``: one answer to everything, ``fixed:?text=…``, for trying a suite without a model.

What never belongs here: anything that looks at a request.
"""

from __future__ import annotations

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.openai_usage import estimated
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
        estimated(completion, request)
        return completion


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The model of a name.

    :raises ConfigurationError: it gives no ``text``.
    """
    text = spec.take("text")
    if text is None:
        raise ConfigurationError(f"model '{spec.text}': says nothing; give its answer with ?text=")
    return FixedBackend(text)

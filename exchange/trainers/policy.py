"""Model that is trained while it answers; each answer is recorded with the weight versions used."""

from __future__ import annotations

from viva.engine.backends.base import Backend
from viva.engine.backends.registry import build
from viva.engine.backends.wrappers import BackendWrapper
from viva.engine.clock import Clock, RealClock
from viva.engine.messages import Completion, Request


class Policy(BackendWrapper):
    """Model with a `version` that its trainer sets when new weights are loaded, even during a run.

    `Completion.versions` of an answer (`Turn.versions` of a rollout) lists the version at the start of the call and the
    versions set before the call ended, oldest first. The journal records them with the call.

    Args:
        model: Model name, or a `Backend` object.
        clock: Clock for the model if it is given by name.

    Raises:
        ConfigurationError: The name is invalid.
    """

    def __init__(self, model: str | Backend, version: str | int = 0, *, clock: Clock | None = None) -> None:
        super().__init__(build(model, clock or RealClock()) if isinstance(model, str) else model)
        self._versions = [str(version)]

    @property
    def version(self) -> str:
        """Current version of the weights."""
        return self._versions[-1]

    @version.setter
    def version(self, version: str | int) -> None:
        self._versions.append(str(version))

    async def generate(self, request: Request) -> Completion:
        began = len(self._versions) - 1
        completion = await self.inner.generate(request)
        completion.versions = self._versions[began:]
        return completion

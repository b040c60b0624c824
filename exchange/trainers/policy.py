"""A model that is trained while it answers: each answer is recorded with the versions of the weights used."""

from __future__ import annotations

from viva.engine.backends.base import Backend
from viva.engine.backends.registry import build
from viva.engine.backends.wrappers import BackendWrapper
from viva.engine.clock import Clock, RealClock
from viva.engine.messages import Completion, Request


class Policy(BackendWrapper):
    """A model with a ``version`` that its trainer sets whenever new weights are in place, also during a run.

    An answer's ``Completion.versions`` (``Turn.versions`` of a rollout) are the version at which its call began and
    those that were set before it ended, oldest first. They stand in the journal with the call.

    :param model: a model's name, or a ``Backend`` object.
    :param clock: the clock that a named model lives by.
    :raises ConfigurationError: the name is wrong.
    """

    def __init__(self, model: str | Backend, version: str | int = 0, *, clock: Clock | None = None) -> None:
        super().__init__(build(model, clock or RealClock()) if isinstance(model, str) else model)
        self._versions = [str(version)]

    @property
    def version(self) -> str:
        """The version of the weights from now on."""
        return self._versions[-1]

    @version.setter
    def version(self, version: str | int) -> None:
        self._versions.append(str(version))

    async def generate(self, request: Request) -> Completion:
        began = len(self._versions) - 1
        completion = await self.inner.generate(request)
        completion.versions = self._versions[began:]
        return completion

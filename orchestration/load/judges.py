"""The judges of a load test, from their models' names: backends as they are, without the limits and retries of runs.

What never belongs here: what judges are asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from viva.engine.backends.base import Backend
from viva.engine.backends.registry import build
from viva.engine.backends.retry import Governed
from viva.engine.clock import Clock
from viva.engine.errors import Unavailable

from .sending import Judge

_CHECK_SECONDS = 10.0


@asynccontextmanager
async def open_judges(models: Mapping[str, str], clock: Clock) -> AsyncIterator[list[Judge]]:
    """The judges, open and reachable, by the labels and names of ``models``.

    :raises ConfigurationError: a name is wrong. :raises BackendError: a judge cannot be reached.
    """
    async with AsyncExitStack() as stack:
        judges = []
        for label, model in models.items():
            backend = bare(build(model, clock))
            await stack.enter_async_context(backend)
            judges.append(Judge(label, model, backend))
        for judge in judges:
            try:
                with anyio.fail_after(_CHECK_SECONDS):
                    await judge.backend.check()
            except TimeoutError:
                raise Unavailable(f"no answer within {_CHECK_SECONDS:g} s ({judge.model})", model=judge.label) from None
        yield judges


def bare(backend: Backend) -> Backend:
    """The backend inside of its limits and retries."""
    while isinstance(backend, Governed):
        backend = backend.inner
    return backend

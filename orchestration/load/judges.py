"""The judges of a load test, from their models' names: backends as they are, without the limits and retries of runs.

A test that is only told again opens none of them.

What never belongs here: what judges are asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
async def built_judges(
    models: Mapping[str, str], clock: Clock
) -> AsyncIterator[tuple[list[Judge], Callable[[], Awaitable[None]]]]:
    """The judges by the labels and names of ``models``, and what opens them and sees that they can be reached.

    :raises ConfigurationError: a name is wrong. :raises BackendError: on opening: a judge cannot be reached.
    """
    judges = [Judge(label, model, bare(build(model, clock))) for label, model in models.items()]
    async with AsyncExitStack() as stack:

        async def opening() -> None:
            for judge in judges:
                await stack.enter_async_context(judge.backend)
            for judge in judges:
                try:
                    with anyio.fail_after(_CHECK_SECONDS):
                        await judge.backend.check()
                except TimeoutError:
                    late = f"no answer within {_CHECK_SECONDS:g} s ({judge.model})"
                    raise Unavailable(late, model=judge.label) from None

        yield judges, opening


@asynccontextmanager
async def open_judges(models: Mapping[str, str], clock: Clock) -> AsyncIterator[list[Judge]]:
    """The judges, open and reachable.

    :raises ConfigurationError: a name is wrong. :raises BackendError: a judge cannot be reached.
    """
    async with built_judges(models, clock) as (judges, opening):
        await opening()
        yield judges


def bare(backend: Backend) -> Backend:
    """The backend inside of its limits and retries."""
    while isinstance(backend, Governed):
        backend = backend.inner
    return backend

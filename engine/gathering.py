"""Several awaitables at once, their results in the order in which they were given; one error in place of a group.

What never belongs here: what is awaited, and how many may be at once (limits of models, slots of runs).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

T = TypeVar("T")


async def gathered(
    asks: Sequence[Callable[[], Awaitable[T]]],
    choose: Callable[[Sequence[Exception]], Exception] = lambda errors: errors[0],
) -> list[T]:
    """Await them all, begun in their order. Where any fails the others are cancelled, and of the errors the one that
    ``choose`` takes is raised; one alone is awaited here, without a task of its own.
    """
    if len(asks) == 1:
        return [await asks[0]()]
    found: dict[int, T] = {}

    async def ask(place: int) -> None:
        found[place] = await asks[place]()

    try:
        async with anyio.create_task_group() as group:
            for place in range(len(asks)):
                group.start_soon(ask, place)
    except ExceptionGroup as errors:
        raise choose(errors.exceptions) from None
    return [found[place] for place in range(len(asks))]

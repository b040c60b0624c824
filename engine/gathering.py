"""Several awaitables at once, their results in the order in which they were given; one error in place of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from .stopping import decisive, is_failure

T = TypeVar("T")


async def gathered(asks: Sequence[Callable[[], Awaitable[T]]], *, abandon: bool = False) -> list[T]:
    """Await them all, begun in their order; one alone is awaited here, without a task of its own.

    Where any raises, the others still go on to their ends, so that what they ask of models does not depend on which of
    them is faster; then the error that decides (``stopping.decisive``, in the order in which they were given) is
    raised. With ``abandon`` the others are cancelled instead.
    """
    if len(asks) == 1:
        return [await asks[0]()]
    found: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    async def ask(place: int) -> None:
        try:
            found[place] = await asks[place]()
        except BaseException as error:
            if not is_failure(error):
                raise
            errors[place] = error
            if abandon:
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for place in range(len(asks)):
            group.start_soon(ask, place)
    if errors:
        raise decisive(BaseExceptionGroup("of parts at once", [errors[place] for place in sorted(errors)]))
    return [found[place] for place in range(len(asks))]

"""Which requests show a judge the same two answers in the two orders, told by the requests alone.

What never belongs here: what a judge says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from viva.agents.grades import SIGNS

from .records import LoadRequest


def with_orders(requests: Sequence[LoadRequest]) -> list[LoadRequest]:
    """The requests of one conversation, those with a verdict of A or B paired where they consist of the same lines in
    another order: that is what exchanging the answers does to a prompt.
    """
    waiting: dict[tuple[str, ...], int] = {}
    found = list(requests)
    for place, request in enumerate(requests):
        if not _is_pairwise(request):
            continue
        lines = tuple(sorted(_lines(request)))
        other = waiting.pop(lines, None)
        if other is None or _lines(found[other]) == _lines(request):
            waiting[lines] = place
            continue
        found[other] = replace(found[other], pair=request.id)
        found[place] = replace(request, pair=found[other].id)
    return found


def _lines(request: LoadRequest) -> list[str]:
    return [f"{message.role}: {line}" for message in request.messages for line in message.content.splitlines()]


def _is_pairwise(request: LoadRequest) -> bool:
    return request.reader == "pair" or any(
        {"A", "B"} <= set(one) <= set(SIGNS) for one in _enums(request.sampling.schema)
    )


def _enums(schema: Any) -> Iterator[list[Any]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("enum"), list):
            yield [one for one in schema["enum"] if isinstance(one, str)]
        for inner in schema.get("properties", {}).values():
            yield from _enums(inner)

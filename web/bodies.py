"""Request bodies: JSON with a limited size and number of values, validated by a pydantic model.

Parsing and validation hold the GIL, so running them in a thread would not be enough to answer other clients in time.
Their work is limited by a maximum number of values, which are counted in the bytes before parsing. Models limit the
length of lists and stop at the first invalid element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson
from aiohttp import web
from anyio.lowlevel import RunVar
from pydantic import BaseModel, ValidationError

from .problems import Problem, invalid

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

MOST_LEVELS = 100  # maximum depth of nested objects and lists
MOST_VALUES = 50_000  # maximum values in a body: each object, list, number and string counts
_SMALL_BODY = 64_000  # up to this many bytes, a body is parsed in the event loop
_SLICE = 1 << 18
_PARSED_AT_ONCE = 2  # large bodies parsed at once; further ones wait
_SEPARATORS = (b",", b"[", b"{")
_large: RunVar[anyio.CapacityLimiter] = RunVar("viva_large_bodies")


async def read_body(request: web.Request, form: type[B], *, status: int = 422) -> B:
    """Parse the body as this form; an empty body is an object without fields. JSON of another form: `status`."""
    return await convert_body(request, lambda data: parse_body(data, form, status))


async def convert_body(request: web.Request, make: Callable[[bytes], T]) -> T:
    """Return `make(body)`; a large body is processed in a thread."""
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Problem(413, f"the body is too large ({error.text})") from None
    if len(data) <= _SMALL_BODY:
        return make(data)
    return await run_off_loop(lambda: make(data))


async def run_off_loop(work: Callable[[], T]) -> T:
    """Run slow work in one of a few threads, so that only a client who sends many large requests waits."""
    try:
        limiter = _large.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_PARSED_AT_ONCE)
        _large.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


def parse_body(data: bytes, form: type[B], status: int) -> B:
    """Parse a body as this form.

    Raises:
        Problem: The body is no JSON (400), or has too many values or another form (`status`).
    """
    check_value_count(data, status)
    try:
        value = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}"[:500]) from None
    if sum(data.count(sign) for sign in (b"[", b"{")) > MOST_LEVELS and _is_deep(value):
        raise Problem(status, f"the body is nested deeper than {MOST_LEVELS} levels")
    try:
        return form.model_validate(value)
    except ValidationError as error:
        problem = invalid(error)
        problem.status = status
        raise problem from None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS):
        inner = (
            child.values() if isinstance(child, dict) else child for child in level if isinstance(child, dict | list)
        )
        level = [child for several in inner for child in several if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def check_value_count(data: bytes, status: int) -> None:
    """Count the values of a JSON text by the separators outside its strings.

    Raises:
        Problem: There are more than `MOST_VALUES`.
    """
    if len(data) <= MOST_VALUES or sum(data.count(sign) for sign in _SEPARATORS) <= MOST_VALUES:
        return
    count = start = inside = 0
    while start < len(data):
        part = data[start : start + _SLICE]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1]  # a chunk must not end inside an escape
        end = start + (len(part) or 1)
        plain = part.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = plain.split(b'"')
        outside = b"".join(parts[inside::2])
        count += sum(outside.count(sign) for sign in _SEPARATORS)
        if count > MOST_VALUES:
            raise Problem(status, f"the body has more than {MOST_VALUES:,} values; split it into several requests")
        inside = (inside + len(parts) - 1) % 2
        start = end

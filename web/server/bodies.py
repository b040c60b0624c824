"""Reading request bodies: JSON of a bounded size, checked by a pydantic model.

What never belongs here: any particular body.
"""

from __future__ import annotations

from typing import TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError

from .problems import Problem, invalid

B = TypeVar("B", bound=BaseModel)


async def read_body(request: web.Request, form: type[B], *, status: int = 422) -> B:
    """The body as this form; an empty one is an object without fields. ``status`` is that of a body of another form.

    :raises Problem: it is too large, no JSON, or not of this form.
    """
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Problem(413, f"the body has more bytes than are taken here ({error.text})") from None
    try:
        value = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    try:
        return form.model_validate(value)
    except ValidationError as error:
        problem = invalid(error)
        problem.status = status
        raise problem from None

"""What the API can do, as data: the routes and the OpenAPI document are both made from these operations.

What never belongs here: any particular operation (``endpoints``).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from ..server.bodies import read_body
from ..server.problems import Problem, ProblemRecord, invalid
from .records import RUN_ID, NoQuery

B = TypeVar("B", bound=BaseModel)
Q = TypeVar("Q", bound=BaseModel)
PREFIX = "/api/v1"
EVENTS = "text/event-stream"
_REF = "#/components/schemas/{model}"
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "run": {"type": "string", "pattern": RUN_ID},
    "number": {"type": "integer", "minimum": 0, "maximum": 2**53},
}


@dataclass(slots=True)
class Asked(Generic[Q, B]):
    """A request as an operation gets it: checked query and body, path parameters as texts."""

    request: web.Request
    path: dict[str, str]
    query: Q
    body: B


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``answer``: the model of its answer, of an event where ``streams`` is set; ``refusals``:
    its statuses besides those of every operation; ``leads_to``: operations that take the id in its answer.
    """

    method: str
    path: str
    summary: str
    handle: Callable[[Any], Awaitable[BaseModel | web.StreamResponse]]
    answer: type[BaseModel]
    status: int = 200
    body: type[BaseModel] | None = None
    query: type[BaseModel] = NoQuery
    refusals: tuple[int, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    leads_to: tuple[str, ...] = ()

    def route(self) -> web.RouteDef:
        """The route that checks a request, handles it and writes the answer."""

        async def handle(request: web.Request) -> web.StreamResponse:
            query = _query(request, self.query)
            body = NoQuery() if self.body is None else await read_body(request, self.body)
            answer = await self.handle(Asked(request, dict(request.match_info), query, body))
            if isinstance(answer, web.StreamResponse):
                return answer
            data = answer.model_dump_json().encode("utf-8", "replace")
            return web.Response(status=self.status, body=data, content_type="application/json")

        return web.RouteDef(self.method, PREFIX + self.path, handle, {})


def document(operations: Sequence[Operation], version: str, *, with_tokens: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations. ``with_tokens``: a token is asked for."""
    models = [one for operation in operations for one in (operation.answer, operation.body) if one is not None]
    bodies = {operation.body for operation in operations}
    # Answers are described as they are written: fields with defaults are always there.
    modes: dict[Any, Any] = {one: "validation" if one in bodies else "serialization" for one in models}
    modes[ProblemRecord] = "validation"
    _, definitions = models_json_schema(list(modes.items()), ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _described(operation, with_tokens=with_tokens)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    components: dict[str, Any] = {"schemas": definitions["$defs"]}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "viva", "version": version, "description": "Runs, transcripts and reports of viva."},
        "paths": paths,
        "components": components,
    }
    if with_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _described(operation: Operation, *, with_tokens: bool) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [{"name": one, "in": "path", "required": True, "schema": _PATH_SCHEMAS[one]} for one in names]
    properties = operation.query.model_json_schema().get("properties", {})
    for name, schema in properties.items():
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    for name, text in operation.headers.items():
        told = {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
        parameters.append(told)
    schema = {"$ref": _REF.format(model=operation.answer.__name__)}
    content = {EVENTS if operation.streams else "application/json": {"schema": schema}}
    answers: dict[str, Any] = {str(operation.status): {"description": "Done.", "content": content}}
    if operation.leads_to:
        run = {"run": "$response.body#/id"}
        answers[str(operation.status)]["links"] = {
            name: {"operationId": name, "parameters": run} for name in operation.leads_to
        }
    refusals = {400, 403, 421, 422, *operation.refusals}
    refusals |= {401} if with_tokens else set()
    refusals |= {404} if names else set()
    refusals |= {413, 415} if operation.body is not None else set()
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemRecord")}}}
    for status in sorted(refusals):
        answers[str(status)] = {"description": "Refused.", "content": problem}
    if operation.streams:
        answers["204"] = {"description": "The run has ended, and all of it was told."}
    made: dict[str, Any] = {
        "operationId": operation.handle.__name__,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if operation.body is not None:
        body = {"$ref": _REF.format(model=operation.body.__name__)}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


def _query(request: web.Request, form: type[Q]) -> Q:
    """:raises Problem: a parameter is unknown, given twice, or out of bounds."""
    given = request.query
    for name in given:
        if len(given.getall(name)) > 1:
            raise Problem(422, f"?{name[:60]}= is given more than once", field=name[:60])
    try:
        return form.model_validate_strings(dict(given))
    except ValidationError as error:
        raise invalid(error, "?") from None

"""Error answers of our servers: one exception, the conversion of other errors to it, and the formats for clients.

Paths under `/api` answer with `application/problem+json` (RFC 9457), paths under `/v1` in the format of OpenAI's
errors. Pages answer with a page, or with JSON for their script.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from viva.engine.errors import (
    BackendError,
    ConfigurationError,
    ContextTooLong,
    JournalError,
    MalformedOutput,
    Rejected,
    Throttled,
    TimedOut,
    Unauthorized,
    VivaError,
)
from viva.engine.permissions import NotPermitted

_log = logging.getLogger("viva")
_LONGEST_MESSAGE = 2_000  # maximum characters of a message


class ProblemRecord(BaseModel):
    """The problem with a request (RFC 9457)."""

    type: str = Field(default="about:blank", description="A URI for the kind of problem.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.", ge=400, le=599)
    detail: str = Field(description="What went wrong, and what to do.")
    field: str | None = Field(default=None, description="Dotted path of the field at fault.")


class Problem(Exception):
    """A refused request. `field` is the path of the field at fault; `code` is OpenAI's error code."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        code: str | None = None,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if len(detail) > _LONGEST_MESSAGE:  # the detail may contain text from the client
            detail = f"{detail[:_LONGEST_MESSAGE]}…"
        super().__init__(detail)
        self.status, self.detail, self.field, self.code = status, detail, field, code
        self.title = title or HTTPStatus(status).phrase
        self.headers = dict(headers or {})

    def answer(self, path: str) -> web.Response:
        """Return the error in the format that clients of this path read."""
        if path.startswith("/v1/"):
            return self._json(self.as_openai(), "application/json")
        record = ProblemRecord(title=self.title, status=self.status, detail=self.detail, field=self.field)
        return self._json(record.model_dump(exclude_none=True), "application/problem+json")

    def for_script(self) -> web.Response:
        """Return the error in the format that scripts of pages read."""
        return self._json({"title": self.title, "text": self.detail, "code": self.code or ""}, "application/json")

    def as_openai(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.field, "code": self.code}}

    def _json(self, content: dict[str, Any], kind: str) -> web.Response:
        body = orjson.dumps(_without_surrogates(content))
        return web.Response(status=self.status, body=body, content_type=kind, headers=self.headers)


class Refusal(Problem):
    """A refused request for a page, in words for its user."""

    def __init__(self, status: int, title: str, text: str, *, code: str = "") -> None:
        super().__init__(status, text, code=code, title=title)


def refusal_of(error: Exception) -> Problem:
    """Return the problem to show to users for an error; an internal error is logged and becomes a 500."""
    match error:
        case Problem():
            return error
        case web.HTTPRequestEntityTooLarge():
            return Refusal(413, "Too long", "The text is too long; please shorten it.", code="too-long")
        case web.HTTPNotFound():
            return Refusal(404, "Not found", "There is no such page.")
        case web.HTTPException():
            return Refusal(error.status, HTTPStatus(error.status).phrase, "This is not possible here.")
        case ConfigurationError():
            return Refusal(400, "Not possible", str(error))
    _log.error("internal error while handling a request", exc_info=error)
    message = str(error) if isinstance(error, VivaError) else "Please try again; the server's log has the details."
    return Refusal(500, "Server error", message)


def problem_of(error: Exception) -> Problem:
    """Convert an error of the engine or of aiohttp; an internal error is logged and becomes a 500."""
    match error:
        case Problem():
            return error
        case ValidationError():
            return invalid(error)
        case web.HTTPNotFound():
            return Problem(404, "no such path; GET /api/v1/openapi.json describes the API of runs, and "
                                "GET /v1/models lists the models")  # fmt: skip
        case web.HTTPException():
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return Problem(error.status, error.text or error.reason, headers=headers)
        case ContextTooLong():
            return Problem(400, str(error), field="messages", code="context_length_exceeded")
        case Unauthorized():
            return Problem(502, f"{error} (the key is this server's own, not the client's)")
        case NotPermitted():
            return Problem(403, str(error))
        case Rejected() | ConfigurationError():
            return Problem(400, str(error))
        case Throttled():
            after = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
            return Problem(429, str(error), headers=after)
        case TimedOut():
            return Problem(504, str(error))
        case BackendError() | MalformedOutput():
            return Problem(502 if isinstance(error, MalformedOutput) else 503, str(error))
        case JournalError() | VivaError():
            return Problem(500, str(error))
    _log.error("internal error while handling a request", exc_info=error)
    return Problem(500, f"internal server error: {type(error).__name__}; see the server's log")


def invalid(error: ValidationError, prefix: str = "") -> Problem:
    """Return the problem for a body or query that is invalid."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"])) or None
    reason = {"extra_forbidden": "unknown field", "missing": "is missing"}.get(first["type"], first["msg"])
    detail = _plain(f"{field}: {reason}" if field else reason)
    return Problem(
        422, f"{prefix}{detail.removeprefix('Value error, ')}", field=None if field is None else _plain(field)
    )


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:500]


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which a client may have sent."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return {name: _without_surrogates(item) for name, item in value.items()} if isinstance(value, dict) else value

"""Errors of the Messages API: which type of ours each documented type is, and when to ask again.

The API reports an error as ``{"type": "error", "error": {"type", "message"}}``, as an answer or as an event of a
stream. What never belongs here: errors below HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...errors import Rejected
from ..endpoint_errors import Dialect

# The status that each documented type has as an answer; within a stream it comes without one.
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_SAMPLING = ("temperature", "top_p", "top_k")
_LIMIT = "anthropic-ratelimit-"


class MessagesErrors(Dialect):
    """Errors as the Messages API words them."""

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """``retry-after``; without it the time at which the limits that are used up are whole again."""
        given = super().retry_after(error, headers)
        if given is not None:
            return given
        now = _now(headers.get("Date"))
        waits = [
            (reset - now).total_seconds()
            for name, value in headers.items()
            if name.lower().startswith(_LIMIT) and name.lower().endswith("-remaining") and value.strip() == "0"
            if (reset := _moment(headers.get(name[: -len("remaining")] + "reset"))) is not None
        ]
        return max(0.0, *waits) if waits else None


def status_in_stream(error: Any) -> int:
    """The status that an error within a stream would have had as an answer; 500 for a type that is not documented."""
    kind = error.get("type") if isinstance(error, dict) else None
    return _STATUS.get(kind, 500) if isinstance(kind, str) else 500


def refuses_sampling(error: Rejected) -> bool:
    """Whether a request was refused for its temperature, top_p or top_k: newer models take none."""
    said = str(error).lower()
    return error.status == 400 and any(f"`{name}`" in said or f"{name}:" in said for name in _SAMPLING)


def _moment(text: str | None) -> datetime | None:
    """A time as RFC 3339 writes it."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _now(date: str | None) -> datetime:
    """The answer's own time, for the clocks of two machines differ; ours where the answer has none."""
    try:
        found = parsedate_to_datetime(date) if date else None
    except (ValueError, TypeError):
        found = None
    if found is None:
        return datetime.now(UTC)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

"""Errors of the Messages API: which type of ours each documented type is, and when to ask again.

The API reports an error as ``{"type": "error", "error": {"type", "message"}}``, as an answer or as an event of a
stream. What never belongs here: errors below HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ..endpoint_errors import Dialect

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

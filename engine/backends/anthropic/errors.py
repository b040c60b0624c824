"""Errors of the Messages API: which type of ours each documented type is, and when to ask again.

The API reports an error as ``{"type": "error", "error": {"type", "message"}}``, as an answer or as an event of a
stream. What never belongs here: errors below HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..endpoint_errors import Dialect, moment_of

_LIMIT = "anthropic-ratelimit-"


class MessagesErrors(Dialect):
    """Errors as the Messages API words them."""

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """``retry-after``; without it the time at which the limits that are used up are whole again."""
        given = super().retry_after(error, headers)
        if given is not None:
            return given
        now = moment_of(headers.get("Date")) or datetime.now(UTC)
        waits = [
            (reset - now).total_seconds()
            for name, value in headers.items()
            if name.lower().startswith(_LIMIT) and name.lower().endswith("-remaining") and value.strip() == "0"
            if (reset := moment_of(headers.get(name[: -len("remaining")] + "reset"))) is not None
        ]
        return max(0.0, *waits) if waits else None

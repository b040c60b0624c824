"""Errors of the Gemini API: which type of ours each documented one is, and when to ask again.

The API reports an error as ``{"error": {"code", "message", "status", "details"}}``, as an answer or within a stream;
``code`` is the HTTP status. What never belongs here: errors below HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import BackendError, Unauthorized
from ..endpoint_errors import Dialect, details_of

_KEY_REASONS = ("API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED")
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")  # a duration as protocol buffers write it


class GeminiErrors(Dialect):
    """Errors as the Gemini API words them."""

    def kind(self, status: int, error: Mapping[str, Any], message: str) -> type[BackendError] | None:
        if status == 400 and any(detail.get("reason") in _KEY_REASONS for detail in details_of(error)):
            return Unauthorized  # a wrong key is reported as a wrong argument
        return None

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """``retryDelay`` of the error's details, or the header ``Retry-After``; the longer of the two."""
        waits = [super().retry_after(error, headers)]
        for detail in details_of(error):
            given = detail.get("retryDelay")
            found = _SECONDS.fullmatch(given) if isinstance(given, str) else None
            waits.append(float(found[1]) if found else None)
        return max((wait for wait in waits if wait is not None), default=None)

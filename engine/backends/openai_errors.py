"""From what an endpoint or the network said to our error tree. The key is scrubbed from every text that leaves here.

What never belongs here: deciding what to do about an error.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from ..errors import BackendError, ContextTooLong, Rejected, Throttled, TimedOut, Unauthorized, Unavailable

# Endpoints agree on neither code nor words for "the prompt is too long"; these are the ones in the field.
_CONTEXT_CODES = {"context_length_exceeded", "string_above_max_length", "exceed_context_size_error"}
_CONTEXT_WORDS = ("maximum context length", "context window", "context length", "exceeds the available context size")


def scrub(text: str, key: str | None) -> str:
    """The text without the key."""
    return text.replace(key, "***") if key else text


def error_from_response(label: str, status: int, body: bytes, retry_after: str | None, key: str | None) -> BackendError:
    """The typed error for an HTTP answer other than 200."""
    code, message = _said(body.replace(key.encode(), b"***") if key else body)
    text = f"HTTP {status}: {message}"
    after = parse_retry_after(retry_after)
    if status == 429:
        return Throttled(text, model=label, status=status, retry_after=after)
    if status == 408:
        return TimedOut(text, model=label, status=status)
    if status >= 500 and ("response_format" in message or "tools param" in message):
        # llama-cpp-python's server reports a request it could not validate as its own fault, and so does llama.cpp's
        # one with tools it was not started for; asking again is no use.
        return Rejected(text, model=label, status=422)
    if status >= 500:
        return Unavailable(text, model=label, status=status, retry_after=after)
    if status in (401, 403):
        return Unauthorized(f"{text}; check the key (key_env=NAME names its variable)", model=label, status=status)
    if code in _CONTEXT_CODES or any(words in message.lower() for words in _CONTEXT_WORDS):
        return ContextTooLong(text, model=label, status=status)
    return Rejected(text, model=label, status=status)


def transport_error(label: str, url: str, error: Exception, key: str | None) -> BackendError:
    """The typed error for a failure below HTTP: refused, reset, half a body, timed out."""
    if isinstance(error, asyncio.TimeoutError):
        return TimedOut(f"{url}: no answer in time", model=label)
    cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    if isinstance(error, aiohttp.InvalidURL):
        return Rejected(f"{url}: not a URL", model=label)
    return Unavailable(scrub(f"{url}: {type(cause).__name__}: {cause}", key), model=label)


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which is a number of seconds or an HTTP date; None if neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _said(body: bytes) -> tuple[str, str]:
    """The endpoint's error code and message, from whatever shape it sent."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", body[:300].decode("utf-8", "replace").strip() or "(empty answer)"
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        code = str(error.get("code") or error.get("type") or "")
        return code, str(error.get("message") or error.get("detail") or error)[:500]
    return "", str(error)[:500]

"""From what an endpoint or the network said to our error tree. The key is taken out of every text that leaves here.

What never belongs here: deciding what to do about an error.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from ..errors import (
    BackendError,
    ContextTooLong,
    NoDescriptor,
    Rejected,
    Throttled,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from .secrets import Redactor

# Endpoints agree on neither code nor words for "the prompt is too long"; these are the ones in the field.
_CONTEXT_CODES = {"context_length_exceeded", "string_above_max_length", "exceed_context_size_error"}
_NOBODY = (502, 503, 504)  # what stands before an endpoint says so where there is none behind it
_CONTEXT_WORDS = ("maximum context length", "context window", "context length", "exceeds the available context size")


class Dialect:
    """How an endpoint says what is wrong. The base knows what OpenAI-compatible endpoints have in common; a provider
    that documents errors of its own overrides what it says differently.
    """

    def kind(self, status: int, error: Mapping[str, Any], message: str) -> type[BackendError] | None:
        """The type of an error that the provider documents; None where the status alone says it.

        :param error: the record of the error, as it was sent; :param message: what it says, without the key.
        """
        return None

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """Seconds after which the endpoint wants to be asked again; None where it names no time."""
        return parse_retry_after(headers.get("Retry-After"), headers.get("Date"))


_COMMON = Dialect()


def error_from_response(
    label: str,
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    redact: Redactor,
    key_advice: str,
    dialect: Dialect = _COMMON,
) -> BackendError:
    """The typed error for an HTTP answer other than 200; ``key_advice`` says what to do about a refused key."""
    error, code, message = _said(body, redact)
    text = f"HTTP {status}: {message}"
    kind = dialect.kind(status, error, message) or _usual(status, code, message)
    if kind is Unauthorized:
        return Unauthorized(f"{text}; {key_advice}", model=label, status=status)
    if kind is Rejected and status >= 500:
        status = 422  # what the endpoint reports as its own fault is the request's
    after = dialect.retry_after(error, headers) if kind.retryable else None
    failure = kind(text, model=label, status=status, retry_after=after)
    failure.absent = status in _NOBODY
    return failure


def _usual(status: int, code: str, message: str) -> type[BackendError]:
    """The type of an error as endpoints have them in common."""
    if status == 429:
        return Throttled
    if status == 408:
        return TimedOut
    if status >= 500:
        # llama-cpp-python's server reports a request it could not validate as its own fault, and so does llama.cpp's
        # one with tools it was not started for; asking again is no use.
        return Rejected if "response_format" in message or "tools param" in message else Unavailable
    if status in (401, 403):
        return Unauthorized
    if code in _CONTEXT_CODES or any(words in message.lower() for words in _CONTEXT_WORDS):
        return ContextTooLong
    return Rejected


def transport_error(label: str, url: str, error: BaseException, redact: Redactor) -> BackendError:
    """The typed error for a failure below HTTP: refused, reset, half a body, timed out."""
    if isinstance(error, asyncio.TimeoutError):
        late = TimedOut(f"{url}: no answer in time", model=label)
        late.absent = isinstance(error, aiohttp.ConnectionTimeoutError)
        return late
    if isinstance(error, aiohttp.InvalidURL):
        return Rejected(f"{url}: not a URL", model=label)
    if isinstance(error, UnicodeError):
        return Rejected(f"{url}: no host can have this name; mend it in the URL", model=label)
    cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    text = redact(f"{url}: {type(cause).__name__}: {cause}")[:500]
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NoDescriptor(f"{text}; too many open files, raise the limit (ulimit -n)", model=label)
    failure = Unavailable(text + _advice(error, cause), model=label)
    failure.absent = isinstance(error, aiohttp.ClientConnectorError)
    return failure


def loosen(error: BaseException) -> None:
    """Let go of the frames that an error and what led to it hold: a stream keeps the error that broke it, and the
    error's frames keep the stream.
    """
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one)
            one.__traceback__ = None
            waiting += [one.__cause__, one.__context__]


def parse_retry_after(value: str | None, date: str | None = None) -> float | None:
    """Seconds from a Retry-After header, which is a number of seconds or an HTTP date; None if neither.

    A date counts from the answer's own ``date``, for the clocks of two machines differ and may be set; from ours where
    the answer has none.
    """
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    until = _moment(value)
    if until is None:
        return None
    return max(0.0, (until - (_moment(date) or datetime.now(UTC))).total_seconds())


def _moment(date: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(date) if date else None
    except (ValueError, TypeError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _advice(error: BaseException, cause: BaseException) -> str:
    """What to do about the mistakes that are made most often in a model's name."""
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLCertVerificationError):
        return "; if the endpoint does not speak TLS, write http:// instead of https://"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "; no such host: mend the name in the URL"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "; nothing listens there: start the server, or mend host and port in the model's name"
    if isinstance(error, aiohttp.ClientResponseError) and "Expected HTTP/" in error.message:
        return "; that is no HTTP: if the endpoint speaks TLS, write https:// instead of http://"
    return ""


def _said(body: bytes, redact: Redactor) -> tuple[Mapping[str, Any], str, str]:
    """The endpoint's error, its code and its message, from whatever shape it sent; the texts without the key."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}, "", redact.quote(body, 300).strip() or "(empty answer)"
    if isinstance(answer, list) and len(answer) == 1:  # a stream of JSON values that ended before it began
        answer = answer[0]
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    try:
        if isinstance(error, dict):
            code = str(error.get("code") or error.get("type") or "")
            return error, code, redact(str(error.get("message") or error.get("detail") or error))[:500]
        return {}, "", redact(str(error))[:500]
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        return {}, "", redact.quote(body, 300)

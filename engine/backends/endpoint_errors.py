"""Map HTTP answers and network failures to our error types, and read the pause that a 429 asks for."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from ..durations import DURATION, parse_duration, seconds_until
from ..errors import (
    AccountBlocked,
    BackendError,
    ContextTooLong,
    Forbidden,
    NoDescriptor,
    Rejected,
    Throttled,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from .proxies import Proxy, proxy_failure
from .redaction import Redactor

# Temporary besides 5xx: a failure behind the endpoint (TGI, Bedrock), a request that was sent too early, and a request
# that the server cancelled (Google).
_PASSING = (424, 425, 499)
_GATEWAY_STATUSES = (502, 503, 504)  # a gateway's answers if the endpoint behind it is down
# Endpoints agree on no status, code or wording for "the prompt is too long"; these are in use.
_CONTEXT_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "request_too_large",
    "string_above_max_length",
    "tokens_limit_reached",
}
_CONTEXT_STATUSES = frozenset({*range(400, 500), 500} - {401, 403, 404, 407, 408, 429})
_CONTEXT = re.compile(
    r"context (length|window|size|limit)|max_model_len|maximum (model|prompt|sequence|session|allowed) length"
    r"|(prompt|input|text|request) (is|was) (too|longer than)|(prompt|input) (too long|length)|too many (input )?tokens"
    r"|input token count|input tokens exceed|number of input tokens|reduce the length of the|too large for model with"
    r"|prompt exceeds|超长|exceed(s|ed)? (the )?(model|maximum number of) token|tokens to keep from the initial prompt"
    r"|`inputs` (tokens \+|must have less)|prompt contains \d+ tokens",
    re.IGNORECASE,
)
_FLAGGED = re.compile(r"\b(input|prompt|request|content) (was|has been) flagged|requires moderation", re.I)
# A single request exceeds a limit per minute: no pause would help.
_TOO_LARGE_AT_ONCE = re.compile(r"request too large for .* tokens per (min|day)", re.IGNORECASE | re.DOTALL)
# The account is blocked until somebody pays, raises a limit or contacts the provider.
_BLOCKED_CODES = {
    "access_terminated",
    "account_deactivated",
    "account_suspended",
    "accountoverdueerror",
    "arrearage",
    "billing_disabled",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "blocked_api_access",
    "budget_exceeded",
    "consumer_suspended",
    "enforced_spend_limit_reached",
    "exceeded_current_quota_error",
    "insufficient_balance",
    "insufficient_credits",
    "insufficient_quota",
    "insufficient_user_quota",
    "organization_deactivated",
    "organization_restricted",
    "payment_required",
    "pre_consume_token_quota_failed",
}
_PACED_CODES = {"limit_requests", "throttling.ratequota", "rate_limit_reached_error"}
_BLOCKED_STATUSES = (400, 401, 402, 403, 412, 429)
_BLOCKED = re.compile(
    r"insufficient (account )?(quota|balance|credits?|funds)"
    r"|(balance|credits?|funds) (is|are|has been|have been) (too low|insufficient|exhausted|depleted|used up)"
    r"|(requires more|out of|not enough|have any|used all available|cloud) (credits?|balance|funds)"
    r"|credits? (limit exceeded|expired)"
    r"|billing[ _](hard[ _])?limit|account is not active|free tier of the model has been exhausted"
    r"|(reached|exceeded|over|due to|blocked by)( \w+){0,4} (spend|spending|billing|budget|monthly|API usage) "
    r"(limits?|caps?|budget|quota|included credits)"
    r"|(exceeded|over) (your|its|their) (\w+ )?budget|budget has been exceeded|exceededbudget"
    r"|(spend|spending|monthly|budget|usage) (limit|cap|budget|quota) (has been |was |is )?(reached|exceeded)"
    r"|\bdaily (\w+ )?(limit|quota)|too many tokens per day|\b(tokens|requests|calls)( per |/)day\b"
    r"|exceeded your monthly included credits|(calls|requests) (/|per) month|per month request limit|models-per-day"
    r"|(account|organi[sz]ation|subscription)\b[^.]{0,60} "
    r"(deactivated|disabled|suspended|restricted|terminated|banned|overdue)|access (was|has been) terminated"
    r"|key limit exceeded|quota will be replenished|余额不足|欠费|请充值",
    re.IGNORECASE,
)
# Google uses these words for limits per minute, too; the error's details say which limit it is.
_BLOCKED_ELSEWHERE = re.compile(r"exceeded your current quota|plan and billing details", re.IGNORECASE)
_BY_MINUTE = re.compile(r"per (second|minute|hour)\b|\b[RT]PM\b", re.IGNORECASE)
_LONGEST_NOTICE = 400  # characters: longer messages quote the request, whose words are not the endpoint's
_PAY = "; waiting does not help: add credit, raise the limit or use another key, then resume the run (viva resume)"
_LOGIN = "; the proxy refused the login: check user and password in http_proxy and https_proxy"
# "Please try again in 7m12s", "retry after 56 seconds", "Quota will be replenished in 12:21:10"
_AFTER = re.compile(
    r"(?:try again|retry|wait|resets?|available again|replenished)(?: your request)?(?: in| after| for)?(?: about)? "
    rf"({DURATION}|\d+:\d\d:\d\d)",
    re.IGNORECASE,
)


class Dialect:
    """Error format of an endpoint.

    The base class covers what OpenAI-compatible endpoints have in common; a provider that documents its errors
    overrides it.
    """

    def kind(self, status: int, error: Mapping[str, Any], message: str) -> type[BackendError] | None:
        """Return the type of a documented error; None if the status decides. `message` is already redacted."""
        return None

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait, from a header or the error's text; None if both lack them."""
        seconds = seconds_until(headers.get("Retry-After"), headers.get("Date"))
        return _pause_in_message(error.get("message")) if seconds is None else seconds


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
    """Return the typed error for an unsuccessful answer; `key_advice` says what to do about a refused key."""
    error, codes, message = _codes_and_message(body, redact)
    text = f"HTTP {status}: {message}"
    after = dialect.retry_after(error, headers)
    kind = dialect.kind(status, error, message)
    if kind is None:
        blocked = _is_blocked(status, error, codes, message, after)
        kind = AccountBlocked if blocked else _common_type(status, codes, message)
    if kind is AccountBlocked:
        return AccountBlocked(text.rstrip(".") + _PAY, model=label, status=status)
    if kind is Unauthorized:
        advice = _LOGIN if status == 407 else f"; {key_advice}"
        return Unauthorized(text + advice, model=label, status=status)
    if kind is Rejected and status >= 500:
        status = 422  # the endpoint reports the request's fault as its own
    failure = kind(text, model=label, status=status, retry_after=after if kind.retryable else None)
    failure.absent = status in _GATEWAY_STATUSES
    return failure


def _is_blocked(status: int, error: Mapping[str, Any], codes: set[str], message: str, after: float | None) -> bool:
    """Return True if status, codes and message say that the account is blocked."""
    if status == 402 or (status in _BLOCKED_STATUSES and codes & _BLOCKED_CODES):
        return True
    if status not in _BLOCKED_STATUSES or len(message) > _LONGEST_NOTICE:
        return False
    if codes & {"resource_exhausted"}:
        return _is_daily(error) or bool(_BLOCKED.search(message))
    if status == 429 and (after is not None or _BY_MINUTE.search(message) or codes & _PACED_CODES):
        return False  # the pause is known, or short
    return bool(_BLOCKED.search(message) or _BLOCKED_ELSEWHERE.search(message))


def _is_daily(error: Mapping[str, Any]) -> bool:
    """Return True if an exhausted Google quota is daily or zero."""
    for detail in error_details(error):
        for violation in detail.get("violations") or ():
            if isinstance(violation, dict) and (
                "PerDay" in str(violation.get("quotaId")) or str(violation.get("quotaValue")) == "0"
            ):
                return True
    return False


def error_details(error: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records in an error's `details`, as Google's APIs send them."""
    details = error.get("details")
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []


def _common_type(status: int, codes: set[str], message: str) -> type[BackendError]:
    """Return the error type by rules that endpoints have in common."""
    if status in (413, 429) and _TOO_LARGE_AT_ONCE.search(message):
        return Rejected
    if status in _CONTEXT_STATUSES and (codes & _CONTEXT_CODES or _CONTEXT.search(message)):
        return ContextTooLong
    if status == 429:
        return Throttled
    if status == 408:
        return TimedOut
    if status in _PASSING or status >= 500:
        # llama-cpp-python's server reports invalid requests as its own fault, and llama.cpp's server does so for tools
        # if it was started without tool support; a retry is useless.
        return Rejected if "response_format" in message or "tools param" in message else Unavailable
    if status == 403 and _FLAGGED.search(message):
        return Forbidden
    if status in (401, 403, 407):
        return Unauthorized
    return Rejected


def transport_error(
    label: str, url: str, error: BaseException, redact: Redactor, proxy: Proxy | None = None
) -> BackendError:
    """Return the typed error for a failure below HTTP (refused, reset, truncated, timed out), or at a proxy."""
    if isinstance(error, asyncio.TimeoutError):
        late = TimedOut(f"{url}: no answer in time", model=label)
        late.absent = isinstance(error, aiohttp.ConnectionTimeoutError)
        return late
    if isinstance(error, aiohttp.InvalidURL):
        return Rejected(f"{url}: not a URL", model=label)
    if isinstance(error, UnicodeError):
        return Rejected(f"{url}: not a valid host name; fix it in the URL", model=label)
    cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    text = redact(f"{url}: {type(cause).__name__}: {cause}")[:500]
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NoDescriptor(f"{text}; too many open files, raise the limit (ulimit -n)", model=label)
    advice = proxy_failure(error, proxy) if proxy is not None else ""
    if isinstance(error, aiohttp.ClientHttpProxyError):  # the proxy was asked to connect and failed
        text = redact(f"{url}: HTTP {error.status}: {error.message}")[:500]
        if error.status < 500:
            return Unauthorized(text + (_LOGIN if error.status == 407 else advice), model=label, status=error.status)
    failure = Unavailable(text + (advice or _name_advice(error, cause)), model=label)
    failure.absent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError)
    return failure


def drop_traceback(error: BaseException) -> None:
    """Clear the tracebacks of an error and its causes, so that they do not keep a stream alive."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        exception = waiting.pop()
        if exception is not None and exception not in seen:
            seen.append(exception)
            exception.__traceback__ = None
            waiting += [exception.__cause__, exception.__context__]


def _pause_in_message(message: Any) -> float | None:
    """Return the seconds to wait that a message names ("Please try again in 7m12s")."""
    match = _AFTER.search(message[:_LONGEST_NOTICE]) if isinstance(message, str) else None
    return parse_duration(match[1]) if match is not None else None


def _name_advice(error: BaseException, cause: BaseException) -> str:
    """Return advice on the most common mistakes in model names."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "; if your own authority issued the certificate, name the authority's file in SSL_CERT_FILE"
    if isinstance(cause, ssl.SSLError):
        return "; if the endpoint does not speak TLS, write http:// instead of https://"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "; no such host: fix the name in the URL"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "; nothing listens there: start the server, or fix the host and port in the model's name"
    if isinstance(error, aiohttp.ClientResponseError) and "Expected HTTP/" in error.message:
        return "; this is not HTTP: if the endpoint speaks TLS, write https:// instead of http://"
    return ""


def _codes_and_message(body: bytes, redact: Redactor) -> tuple[Mapping[str, Any], set[str], str]:
    """Return an error of any shape, its codes in lower case, and its redacted message."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}, set(), redact.quote(body, 300).strip() or "(empty answer)"
    if isinstance(answer, list) and len(answer) == 1:  # a stream of JSON values that failed before its first value
        answer = answer[0]
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    try:
        if not isinstance(error, dict):
            codes = _codes(answer) if isinstance(answer, dict) else set()
            return {"message": error} if isinstance(error, str) else {}, codes, redact(str(error))[:500]
        words = str(error.get("message") or error.get("detail") or error)
        metadata = error.get("metadata")
        behind = metadata.get("raw") if isinstance(metadata, dict) else None  # a gateway quotes the provider behind it
        if isinstance(behind, str):
            words = f"{words}: {behind}"
        param = error.get("param")
        if isinstance(param, str) and param not in words:
            words = f"{words} (parameter '{param}')"
        return error, _codes(error), redact(words)[:500]
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return {}, set(), redact.quote(body, 300)


def _codes(error: Mapping[str, Any]) -> set[str]:
    """Return the codes of an error from all fields that endpoints use."""
    codes = [error.get(name) for name in ("code", "type", "status", "error_type", "error_code")]
    codes += [detail.get("reason") for detail in error_details(error)]
    details = error.get("details")
    codes.append(details.get("error_code") if isinstance(details, dict) else None)
    return {code.lower() for code in codes if isinstance(code, str)}

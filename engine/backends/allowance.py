"""What an endpoint's headers say that it still takes: so many requests or tokens, and when all of them are back.

OpenAI and those who follow it (``x-ratelimit-remaining-requests``, ``-reset-requests``: a duration such as ``6m0s``),
Anthropic (``anthropic-ratelimit-requests-remaining``, ``-reset``: a time), and the IETF's draft
(``ratelimit-remaining``, ``ratelimit-reset``: seconds). What never belongs here: what is done about it
(``engine.adaptive``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_NAMES = (
    ("requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("requests", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("tokens", "anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("requests", "ratelimit-remaining", "ratelimit-reset"),
)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|s|m|h|d)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EPOCH = 1e9  # a number of seconds beyond this is a time, not a duration


@dataclass(slots=True, frozen=True)
class Allowance:
    """``remaining`` of ``what`` (requests or tokens) would be taken now; in ``seconds`` all are there again."""

    what: str
    remaining: float
    seconds: float


Hear = Callable[[Allowance], None]


def allowances(headers: Mapping[str, str]) -> Iterator[Allowance]:
    """What the headers of an answer say; what cannot be read is not said."""
    for what, remaining, reset in _NAMES:
        count = headers.get(remaining)
        if count is None:
            continue
        until = headers.get(reset)
        seconds = None if until is None else _seconds(until.strip(), headers.get("Date"))
        try:
            left = float(count)
        except ValueError:
            continue
        if seconds is not None and math.isfinite(seconds) and 0.0 <= left < math.inf:
            yield Allowance(what, left, max(0.0, seconds))


def _seconds(text: str, date: str | None) -> float | None:
    """A duration, a number of seconds, or the time until a moment, by the answer's own clock."""
    try:
        number = float(text)
        return number - _now(date) if number > _EPOCH else number
    except ValueError:
        pass
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - _now(date)


def _now(date: str | None) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() if date else datetime.now(UTC).timestamp()
    except (ValueError, TypeError, OverflowError):
        return datetime.now(UTC).timestamp()

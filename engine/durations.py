"""Durations and points in time as people, servers and headers write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_UNITS = r"us|µs|ms|[smhdw]|weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?"
# "7m12s", "56 seconds", "1 hour and 5 min"
DURATION = rf"(?:\d+(?:\.\d+)? ?(?:{_UNITS})(?![a-z])[ ,]*(?:and )?)+"
_WRITTEN_OUT = re.compile(rf"(?:PT)?{DURATION}", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?) ?(us|µs|ms|[smhdw])", re.IGNORECASE)
_CLOCK_TIME = re.compile(r"(\d+):(\d\d):(\d\d)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_FIRST_EPOCH = 1e9  # seconds since 1970 (in 2001): larger numbers are points in time, not durations


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration with units (`7m12s`, `PT30S`, `56 seconds`, `12:21:10`), else None."""
    if match := _CLOCK_TIME.fullmatch(text):
        hours, minutes, seconds = map(int, match.groups())
        return 3600.0 * hours + 60.0 * minutes + seconds
    if not _WRITTEN_OUT.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """Return `3 days`, `1.5 hours` or `20 s`: in the largest unit with a number of at least two."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g} s"


def parse_time(date: str | None) -> datetime | None:
    """Return the time in a header, in HTTP or RFC 3339 format, or None."""
    if not date:
        return None
    try:
        moment = datetime.fromisoformat(date.strip()) if date.strip()[:1].isdigit() else parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def seconds_until(value: str | None, date: str | None = None) -> float | None:
    """Return the seconds until the time that a header names; None if it names neither a pause nor a time.

    Args:
        value: A number of seconds, a date, a duration (`30s`), or seconds or milliseconds since 1970.
        date: The answer's own date, from which a point in time counts, because clocks of two machines differ. Default:
            now.
    """
    if value is None:
        return None
    now = parse_time(date) or datetime.now(UTC)
    try:
        seconds = float(value)
    except ValueError:
        if (duration := parse_duration(value.strip())) is not None:
            return duration
        until = parse_time(value)
        seconds = (until - now).total_seconds() if until is not None else math.nan
    if seconds >= _FIRST_EPOCH:
        seconds = (seconds / 1000.0 if seconds >= 1000.0 * _FIRST_EPOCH else seconds) - now.timestamp()
    return max(0.0, seconds) if math.isfinite(seconds) else None

"""Latencies in bounded memory: an HDR histogram of seconds, which can be merged and stored.

Quantiles are exact to three significant digits (0.1%), the count and the mean exactly. About 0.2 MB each, however many
latencies are recorded.

What never belongs here: which latencies are recorded, and what they mean.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

_UNIT = 1e-6  # seconds
_LONGEST = 86_400_000_000  # microseconds: a day; longer ones are counted as a day
_DIGITS = 3


class LatencyHistogram:
    """A distribution of seconds from a microsecond to a day."""

    __slots__ = ("_counts", "longest", "total")

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LONGEST, _DIGITS)
        self.total = 0.0
        self.longest = 0.0

    def record(self, seconds: float) -> None:
        """Count one latency.

        :raises ValueError: it is negative or not a number: a clock that runs backwards is an error of measurement.
        """
        if not seconds >= 0.0:
            raise ValueError(f"a latency of {seconds} s")
        self._counts.record_value(min(_LONGEST, round(seconds / _UNIT)))
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds

    def merge(self, other: LatencyHistogram) -> None:
        """Take over all that the other has counted."""
        self._counts.add(other._counts)
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    def __len__(self) -> int:
        return int(self._counts.get_total_count())

    @property
    def mean(self) -> float | None:
        """Seconds; None without any latency."""
        return self.total / len(self) if len(self) else None

    def quantile(self, share: float) -> float | None:
        """The latency that ``share`` (0 to 1) of the requests do not exceed, in seconds; None without any latency."""
        return self._at([share])[0] if len(self) else None

    def shares(self, points: int = 200) -> list[tuple[float, float]]:
        """The cumulative distribution as ``(seconds, share)``, at most about ``points`` of them, closer in the tail."""
        count = len(self)
        if not count:
            return []
        steps = [place / points for place in range(1, points)] + [0.999, 0.9999]
        steps = [share for share in steps if share <= 1 - 1 / count] + [1.0]
        return sorted(set(zip(self._at(steps), steps, strict=True)))

    def _at(self, shares: Sequence[float]) -> list[float]:
        """Quantiles of one latency or more. The package's own goes through its counts one by one, which would hold up
        whoever looks on while requests are sent; and it takes the nearest rank, which for few requests is one below.
        """
        counts = self._counts
        below = np.cumsum(np.frombuffer(counts.counts, dtype=np.uint64, count=counts.counts_len))
        ranks = [max(1, math.ceil(share * len(self) - 1e-9)) for share in shares]
        places = np.searchsorted(below, np.array(ranks, dtype=np.uint64)).tolist()
        ends = [counts.get_highest_equivalent_value(counts.get_value_from_index(place)) for place in places]
        return [min(self.longest, end * _UNIT) for end in ends]

    def to_record(self) -> dict[str, Any]:
        """JSON data from which ``from_record`` makes an equal histogram."""
        data = self._counts.encode()
        text = data.decode() if isinstance(data, bytes) else str(data)
        return {"hdr": text, "unit": "us", "total": self.total, "longest": self.longest}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> LatencyHistogram:
        """:raises ValueError: the record is damaged."""
        made = cls()
        try:
            base64.b64decode(record["hdr"], validate=True)
            made._counts = HdrHistogram.decode(record["hdr"])
            made.total, made.longest = float(record["total"]), float(record["longest"])
        except Exception as error:  # the codec raises types of its own
            raise ValueError(f"a damaged histogram: {error!r}") from error
        return made

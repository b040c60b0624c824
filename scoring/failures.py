"""Why conversations failed: error records counted by type and by reason, mergeable, independent of their order.

What never belongs here: what an error is (``engine.errors``), and how counts are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MOST_REASONS = 50  # in one record; rarer ones are counted together
OTHERS = "other reasons"
_LONGEST = 400  # characters of one reason
# What differs from one failure to the next and says nothing about the cause: numbers, and ids that servers make up.
_PASSING = re.compile(r"\d+(?:\.\d+)?|\b(?=\w*\d)[\w-]{16,}\b")
# What would move a cursor or hide text where a file of reasons is shown in a terminal.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


class Failures:
    """Failed conversations, counted. Reasons that differ in numbers or ids alone count as one."""

    __slots__ = ("_reasons", "_types")

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._reasons: dict[str, tuple[str, int]] = {}  # without what passes: the least text, and how many

    @property
    def total(self) -> int:
        """Failed conversations."""
        return sum(self._types.values())

    def add(self, error: Mapping[str, Any]) -> None:
        """Take in one error's record, as the journal holds it."""
        name = str(error.get("type", "unknown"))
        self._types[name] = self._types.get(name, 0) + 1
        self.count(reason_of(error), 1)

    def merge(self, other: Failures) -> None:
        """Take in all that another has counted."""
        for name, count in other._types.items():
            self._types[name] = self._types.get(name, 0) + count
        for text, count in other._reasons.values():
            self.count(text, count)

    def count(self, reason: str, count: int) -> None:
        """Take in a reason that was counted elsewhere."""
        key = _PASSING.sub("#", reason)
        before, so_far = self._reasons.get(key, (reason, 0))
        self._reasons[key] = (min(before, reason), so_far + count)

    def by_type(self) -> dict[str, int]:
        """Counts by type of error, sorted by type."""
        return dict(sorted(self._types.items()))

    def reasons(self) -> dict[str, int]:
        """Counts by reason, the most frequent first; ``OTHERS`` stands for what is beyond ``MOST_REASONS``."""
        ranked = sorted(self._reasons.values(), key=lambda one: (one[0] == OTHERS, -one[1], one[0]))
        shown = dict(ranked[:MOST_REASONS])
        rest = sum(count for _, count in ranked[MOST_REASONS:])
        return shown | ({OTHERS: rest} if rest else {})

    def to_record(self) -> dict[str, dict[str, int]]:
        """``failures``, by type; and ``failure_reasons`` where anything failed."""
        reasons = self.reasons()
        return {"failures": self.by_type()} | ({"failure_reasons": reasons} if reasons else {})


def reason_of(error: Mapping[str, Any]) -> str:
    """An error's record as one line: its type, its message, and where it happened if that is known. Control characters,
    which an endpoint may have put into it, are made visible.
    """
    told = " ".join(f"{error.get('type', 'unknown')}: {error.get('message', '')}".split()).removesuffix(":")
    told = _CONTROLS.sub(lambda found: f"\\x{ord(found.group()):02x}", told)
    cut = told if len(told) <= _LONGEST else told[: _LONGEST - 1] + "…"
    return f"{cut} (at {error['at']})" if error.get("at") else cut


def joined_reasons(told: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts of several records' ``failure_reasons`` together."""
    found = Failures()
    for one in told:
        for reason, count in one.items():
            found.count(reason, count)
    return found.reasons()

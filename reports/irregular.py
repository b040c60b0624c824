"""Answers that were cut, empty, thought about or ended oddly: counted by candidate and role, and their table.

What never belongs here: what such an answer does to a score (a scenario's business).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Table = tuple[str, list[str], list[list[str]]]
# By role, and then by kind: cut, empty, thoughts, or the endpoint's word for how the answer ended.
Irregular = dict[str, dict[str, int]]


def add_irregular(total: Irregular, more: Mapping[str, Mapping[str, int]]) -> None:
    """Add a conversation's counts (``Conversation.irregular``) to a total."""
    for role, kinds in more.items():
        counted = total.setdefault(role, {})
        for kind, count in kinds.items():
            counted[kind] = counted.get(kind, 0) + count


def irregular_record(total: Irregular) -> Irregular:
    """A total in a fixed order, for reports."""
    return {role: dict(sorted(kinds.items())) for role, kinds in sorted(total.items())}


def irregular_table(candidates: Iterable[tuple[str, Irregular, Mapping[str, int]]]) -> Table:
    """The table of all candidates: label, irregular answers, calls by role; no rows where there is nothing to tell."""
    found = [
        (label, role, kinds, calls.get(role, 0)) for label, total, calls in candidates for role, kinds in total.items()
    ]
    every = sorted({kind for _, _, kinds, _ in found for kind in kinds})
    rows = [
        [label, role, f"{calls:,}", *(f"{kinds.get(kind, 0):,}" for kind in every)]
        for label, role, kinds, calls in found
    ]
    return ("Answers that were cut, empty, or thought about", ["candidate", "role", "answers", *every], rows)


def irregular_of(report: dict[str, Any]) -> Table:
    """Answers that were cut, empty, or thought about, by candidate and role."""
    return irregular_table(
        (label, one["irregular"], {role: used["calls"] for role, used in one["usage"].items()})
        for label, one in report["candidates"].items()
    )

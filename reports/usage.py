"""Calls, tokens and cost by role, added up and written down the same way in every report.

What never belongs here: which models there are, and what they are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .text import Table, number


def add_usage(total: dict[str, list[int]], used: dict[str, list[int]]) -> None:
    """Add a conversation's calls, prompt and completion tokens by role to a total."""
    for role, counts in used.items():
        so_far = total.setdefault(role, [0, 0, 0])
        for index, count in enumerate(counts):
            so_far[index] += count


def usage_record(used: Sequence[int], price: Sequence[float] | None) -> dict[str, float | None]:
    """Calls, prompt and completion tokens with their cost. ``price``: of a million prompt and completion tokens; the
    cost is None where it is.
    """
    calls, prompt, completion = used
    cost = None if price is None else round((prompt * price[0] + completion * price[1]) / 1e6, 6)
    return {
        "calls": calls,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cost": cost,
    }


def usage_of(total: dict[str, list[int]], prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
    """Calls, tokens and cost by role."""
    return {role: usage_record(used, prices[role]) for role, used in sorted(total.items())}


def usage_table(report: dict[str, Any]) -> Table:
    """Tokens and cost by candidate and role."""
    rows = []
    for label, one in report["candidates"].items():
        for role, usage in one["usage"].items():
            counts = [f"{usage[name]:,}" for name in ("calls", "prompt_tokens", "completion_tokens")]
            rows.append([label, role, *counts, number(usage["cost"], 2)])
    header = ["candidate", "role", "calls", "prompt tokens", "completion tokens", "cost"]
    return ("Tokens and cost by role", header, rows)

"""Calls, tokens and cost by role, added up and written down the same way in every report.

What never belongs here: which models there are, and what they are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .text import Table, number


def add_usage(total: dict[str, list[int]], used: dict[str, list[int]]) -> None:
    """Add a conversation's calls, prompt and completion tokens by role to a total; a fourth count, where there is one,
    are the cached tokens.
    """
    for role, counts in used.items():
        add_counts(total.setdefault(role, [0, 0, 0]), counts)


def add_counts(total: list[int], counts: Sequence[int]) -> None:
    """Add one role's counts to a total, which has cached tokens once any count has."""
    total += [0] * (len(counts) - len(total))
    for index, count in enumerate(counts):
        total[index] += count


def cost_of(price: Sequence[float], prompt: float, completion: float, cached: float = 0) -> float:
    """Return what tokens cost. ``price``: of a million prompt and completion tokens, and of cached prompt tokens where
    these have a price of their own.
    """
    full = prompt * price[0] + completion * price[1]
    return (full + cached * (price[2] - price[0]) if len(price) > 2 else full) / 1e6


def usage_record(used: Sequence[int], price: Sequence[float] | None) -> dict[str, float | None]:
    """Return calls, prompt and completion tokens with their cost (None where ``price`` is), and the cached tokens where
    there are any.
    """
    calls, prompt, completion, *cached = used
    return {
        "calls": calls,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        **({"cached_tokens": cached[0]} if cached else {}),
        "cost": None if price is None else round(cost_of(price, prompt, completion, *cached), 6),
    }


def usage_of(total: dict[str, list[int]], prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
    """Calls, tokens and cost by role."""
    return {role: usage_record(used, prices[role]) for role, used in sorted(total.items())}


def usage_table(report: dict[str, Any]) -> Table:
    """Return tokens and cost by candidate and role; cached tokens where there are any."""
    used = [(label, role, usage) for label, one in report["candidates"].items() for role, usage in one["usage"].items()]
    names = ["calls", "prompt_tokens", "completion_tokens"]
    if any("cached_tokens" in usage for *_, usage in used):
        names.insert(2, "cached_tokens")
    rows = [
        [label, role, *(f"{usage.get(name, 0):,}" for name in names), number(usage["cost"], 2)]
        for label, role, usage in used
    ]
    header = ["candidate", "role", *(name.replace("_", " ") for name in names), "cost"]
    return ("Tokens and cost by role", header, rows)

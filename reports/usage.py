"""Calls, tokens and cost by role, added up and written down the same way in every report.

What never belongs here: which models there are, and what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence


def add_usage(total: dict[str, list[int]], used: dict[str, list[int]]) -> None:
    """Add a talk's calls, prompt and completion tokens by role to a total."""
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

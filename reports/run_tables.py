"""Tables of every run's report: failures, irregular answers, and calls, tokens and cost by role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.engine.files import shell_path

from .tables import Table, money

FAILURES_TITLE = "Failed conversations by reason"
_MAX_SHOWN_REASONS = 3


def failure_table(report: Mapping[str, Any]) -> Table:
    """Return the distinct reasons for failures by candidate, with their counts; no rows if nothing failed."""
    rows = [
        [label, str(count), reason]
        for label, candidate in report["candidates"].items()
        for reason, count in candidate.get("failure_reasons", {}).items()
    ]
    return (FAILURES_TITLE, ["candidate", "failed", "reason"], rows)


def failure_lines(reasons: Mapping[str, int], folder: Path, look: str = "report") -> list[str]:
    """Return the most frequent reasons as lines, and the commands that show all (`viva LOOK FOLDER`) and that retry."""
    if not reasons:
        return []
    total = sum(reasons.values())
    lines = [f"{total:,} conversation{'s' * (total != 1)} failed:"]
    lines += [f"  {count:,} × {reason}" for reason, count in list(reasons.items())[:_MAX_SHOWN_REASONS]]
    if len(reasons) > _MAX_SHOWN_REASONS:
        lines.append(f"  and {len(reasons) - _MAX_SHOWN_REASONS:,} more reasons")
    target = shell_path(folder)
    lines.append(f"show all with: viva {look} {target}")
    cancelled = all(reason.startswith("ConversationCancelled") for reason in reasons)
    cause = "" if cancelled else "after fixing the cause, "
    lines.append(f"{cause}retry with: viva resume {target} --retry-failed")
    return lines


# By role and kind: cut, empty, thoughts, or the endpoint's own finish reason.
Irregular = dict[str, dict[str, int]]
_IRREGULAR_HEADERS = {"cut": "truncated", "thoughts": "with reasoning"}


def add_irregular(total: Irregular, more: Mapping[str, Mapping[str, int]]) -> None:
    """Add a conversation's counts (`Conversation.irregular`) to a total."""
    for role, kinds in more.items():
        counted = total.setdefault(role, {})
        for kind, count in kinds.items():
            counted[kind] = counted.get(kind, 0) + count


def irregular_record(total: Irregular) -> Irregular:
    """Return a total in a fixed order, for reports."""
    return {role: dict(sorted(kinds.items())) for role, kinds in sorted(total.items())}


def irregular_table(candidates: Iterable[tuple[str, Irregular, Mapping[str, int]]]) -> Table:
    """Build the table of all candidates from (label, irregular answers, calls by role); no rows if there are none."""
    entries = [
        (label, role, kinds, calls.get(role, 0)) for label, total, calls in candidates for role, kinds in total.items()
    ]
    all_kinds = sorted({kind for _, _, kinds, _ in entries for kind in kinds})
    rows = [
        [label, role, f"{calls:,}", *(f"{kinds.get(kind, 0):,}" for kind in all_kinds)]
        for label, role, kinds, calls in entries
    ]
    kinds = [_IRREGULAR_HEADERS.get(kind, kind) for kind in all_kinds]
    return (f"Irregular answers: {', '.join(kinds)}", ["candidate", "role", "answers", *kinds], rows)


def irregular_answers(report: dict[str, Any]) -> Table:
    """Build the table of irregular answers of a run's report."""
    return irregular_table(
        (label, candidate["irregular"], {role: used["calls"] for role, used in candidate["usage"].items()})
        for label, candidate in report["candidates"].items()
    )


def add_usage(total: dict[str, list[int]], used: dict[str, list[int]]) -> None:
    """Add a conversation's calls, prompt tokens, completion tokens and, if known, cached tokens to a total by role."""
    for role, counts in used.items():
        add_counts(total.setdefault(role, [0, 0, 0]), counts)


def add_counts(total: list[int], counts: Sequence[int]) -> None:
    """Add one role's counts to a total, which gets cached tokens with the first count that has them."""
    total += [0] * (len(counts) - len(total))
    for index, count in enumerate(counts):
        total[index] += count


def token_cost(price: Sequence[float], prompt: float, completion: float, cached: float = 0) -> float:
    """Return the cost of tokens; `price` is for a million prompt, completion and, if known, cached tokens.

    `cached` counts those of the prompt tokens that came from a cache.
    """
    full = prompt * price[0] + completion * price[1]
    return (full + cached * (price[2] - price[0]) if len(price) > 2 else full) / 1e6


def usage_record(used: Sequence[int], price: Sequence[float] | None) -> dict[str, float | None]:
    """Return calls, tokens and their cost (None without `price`); cached tokens only if there are any."""
    calls, prompt, completion, *cached = used
    return {
        "calls": calls,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        **({"cached_tokens": cached[0]} if cached else {}),
        "cost": None if price is None else round(token_cost(price, prompt, completion, *cached), 6),
    }


def usage_by_role(total: dict[str, list[int]], prices: Mapping[str, list[float] | None]) -> dict[str, Any]:
    """Return calls, tokens and cost by role."""
    return {role: usage_record(used, prices[role]) for role, used in sorted(total.items())}


def usage_table(report: dict[str, Any]) -> Table:
    """Build the table of tokens and cost by candidate and role; cached tokens only if there are any."""
    entries = [
        (label, role, usage)
        for label, candidate in report["candidates"].items()
        for role, usage in candidate["usage"].items()
    ]
    names = ["calls", "prompt_tokens", "completion_tokens"]
    if any("cached_tokens" in usage for *_, usage in entries):
        names.insert(2, "cached_tokens")
    rows = [
        [label, role, *(f"{usage.get(name, 0):,}" for name in names), money(usage["cost"])]
        for label, role, usage in entries
    ]
    header = ["candidate", "role", *(name.replace("_", " ") for name in names), "cost"]
    return ("Tokens and cost by role", header, rows)

"""Failed conversations, for people: the table of reasons that every report shows, and what to type next.

What never belongs here: counting (``scoring.failures``), and errors that end a whole run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Table = tuple[str, list[str], list[list[str]]]
TITLE = "Why conversations failed"
_SHOWN = 3


def failed_table(report: Mapping[str, Any]) -> Table:
    """The distinct reasons by candidate with their counts; no rows where nothing failed."""
    rows = [
        [label, str(count), reason]
        for label, one in report["candidates"].items()
        for reason, count in one.get("failure_reasons", {}).items()
    ]
    return (TITLE, ["candidate", "failed", "reason"], rows)


def told_failures(reasons: Mapping[str, int], folder: Path, look: str = "report") -> list[str]:
    """The most frequent reasons as lines, and the commands that show all of them and try once more."""
    if not reasons:
        return []
    total = sum(reasons.values())
    lines = [f"{total:,} conversation{'s' * (total != 1)} failed:"]
    lines += [f"  {count:,} × {reason}" for reason, count in list(reasons.items())[:_SHOWN]]
    if len(reasons) > _SHOWN:
        lines.append(f"  and {len(reasons) - _SHOWN:,} more reasons")
    named = shlex.quote(str(folder))
    lines.append(f"look at them with: viva {look} {named}")
    lines.append(f"try them once more, when the cause is mended, with: viva resume {named} --retry-failed")
    return lines

"""What a judge's scores come to without any rating of people: means by system and turn, unparsed judgments counted.

What never belongs here: comparing with people (``figures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.reports.figures import rounded
from viva.scoring.clusters import clustered_mean

from .sheet import Sheet, SheetRow


def judgments_of(sheet: Sheet, judge: str, criterion: str) -> dict[str, Any]:
    """A judge's scores by system and turn: their means, and how many could not be parsed."""
    by_system: dict[str, list[SheetRow]] = {}
    for row in sheet.rows:
        if (judge, criterion) in row.scores:
            by_system.setdefault(row.system or "", []).append(row)
    systems = []
    for system, rows in by_system.items():
        turns = sorted({row.turn for row in rows if row.turn is not None}, key=lambda turn: (len(turn), turn))
        parts = {turn: [row for row in rows if row.turn == turn] for turn in turns}
        systems.append(
            {
                "system": system or None,
                "overall": _mean(rows, (judge, criterion)),
                "turns": {turn: _mean(part, (judge, criterion)) for turn, part in parts.items()},
            }
        )
    return {"judge": judge, "criterion": criterion, "systems": systems}


def _mean(rows: Sequence[SheetRow], key: tuple[str, str]) -> dict[str, Any]:
    """The mean of what was scored with Student's interval, clustered by group, from five groups on.

    ``counts`` where scores are labels.
    """
    scored = [(row.scores[key], row.group or f"line {row.line}") for row in rows if row.scores[key] is not None]
    record: dict[str, Any] = {
        "mean": None,
        "low": None,
        "high": None,
        "n": len(scored),
        "unparsed": len(rows) - len(scored),
    }
    numbers = [(score, group) for score, group in scored if isinstance(score, float)]
    found = clustered_mean([score for score, _ in numbers], [group for _, group in numbers])
    if found is not None:
        ends = found.ends()
        record["mean"] = rounded(found.mean)
        record |= {} if ends is None else {"low": rounded(ends.low), "high": rounded(ends.high)}
    return record

"""Why interviews ended early, as counts and as a drawing.

What never belongs here: rules that end whole cells (``rule_intervals``).
"""

from __future__ import annotations

from viva.reports.page import Plot, Record, joined, span
from viva.reports.text import Table
from viva.scoring.plots import rows as drawings

from ...study.sections import Section, Subject
from .drawing import Drawn, plot, rows_by_dataset, shown_dataset
from .pools import InterviewMaterial
from .words import of_interviews, title_facts


class StopsSection(Section[InterviewMaterial]):
    """Reasons by candidate; the counts are part of the pooled figures."""

    subject, heading, anchor = Subject.ENDS, "Early stops", "reasons"

    def tables(self, report: Record) -> list[Table]:
        every = {
            row["candidate"]: row["stop_reasons"]
            | {f"failed: {name}": count for name, count in row["failures"].items()}
            for row in of_interviews(report)  # all datasets, where there are several, come last
        }
        names = sorted({name for one in every.values() for name in one})
        rows = [[candidate, *(str(one.get(name, 0)) for name in names)] for candidate, one in every.items()]
        return [(f"Why talks ended early: {title_facts(report)}", ["candidate", *names], rows if names else [])]

    def plots(self, report: Record) -> list[Plot]:
        found = {
            name: [drawings.Stops(row["candidate"], row["n_observations"], _reasons(row)) for row in pooled]
            for name, pooled in rows_by_dataset(report)
        }
        reasons = drawings.shown_reasons(one for stops in found.values() for one in stops)
        drawn: list[Drawn] = []
        for name, stops in found.items():
            if reasons[0]:
                title = f"{shown_dataset(name)} (n = {span(one.talks for one in stops)} talks each)"
                shares = [f"{one.name} {100 * sum(one.reasons.values()) / one.talks:.0f}%" for one in stops]
                label = f"{name}: talks that stopped early: {joined(shares)}"
                drawn.append((drawings.stops(title, stops, reasons), label))
        caption = (
            "Shares of talks that stopped early, by reason, and of those that held all their rounds. Numbers stand in "
            "parts of 9% and more. Talks that failed are not counted. Long coloured parts say that a score rests on "
            "short talks, and their colour says why."
        )
        if reasons[1]:
            caption += f" The rarest reasons are drawn together: {joined(reasons[1])}."
        return plot(report, "stops", "Why talks stopped", caption, drawn)


def _reasons(row: Record) -> dict[str, int]:
    """Why interviews ended before their last round: flags of the evaluator, and the end of a recording in a fork."""
    ran_out = (row.get("ends") or {}).get("transcript", 0)
    return {**row["stop_reasons"], **({"recorded talk ran out": ran_out} if ran_out else {})}

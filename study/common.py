"""The sections of every study: why conversations failed, and the cells.

What never belongs here: sections of one system.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viva.reports.failed import TITLE
from viva.reports.page import Record
from viva.reports.text import DASH, Table
from viva.scenarios.study.sections import Material, Section, Subject, SystemStudy
from viva.scoring.failures import joined_reasons


class Failed(Section[Material]):
    """Reasons over all cells, by scenario and candidate."""

    subject, heading, anchor = Subject.FAILURES, "Failures", "failures"

    def tables(self, report: Record) -> list[Table]:
        found: dict[tuple[str, str], list[Mapping[str, int]]] = {}
        for one in report["cells"]:
            reasons = (one["result"] or {}).get("failure_reasons")
            if reasons:
                found.setdefault((one["scenario"], one["candidate"]), []).append(reasons)
        rows = [
            [scenario, candidate, str(count), reason]
            for (scenario, candidate), every in found.items()
            for reason, count in joined_reasons(every).items()
        ]
        return [(TITLE, ["scenario", "candidate", "failed", "reason"], rows)]


class Cells(Section[Material]):
    """What was run, and how far it has come. ``readers`` says by scenario whose words the results are shown in."""

    subject, heading, anchor = Subject.CELLS, "Cells and transcripts", "cells"

    def __init__(self, readers: Mapping[str, SystemStudy]) -> None:
        self._readers = readers

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for one in report["cells"]:
            result, until = one["result"] or {}, one["until"] or {}
            state = f"stopped after {until['stopped_at']}" if one["state"] == "stopped" else one["state"]
            row = [one["scenario"], one["candidate"], one["dataset"], str(one["seed"]), one["evaluator"] or DASH, state]
            done = f"{one['ended']:,}/{one['planned']:,}" if one["planned"] is not None else f"{one['ended']:,}"
            failed = str(result["failed"]) if result else DASH
            rows.append([*row, done, failed, self._readers[one["scenario"]].shown_result(one)])
        header = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", "ended", "failed", "result"]
        return [(f"{len(rows)} cells", header, rows)]


def common_sections(readers: Mapping[str, SystemStudy]) -> list[Section[Any]]:
    """The sections of every study."""
    return [Failed(), Cells(readers)]

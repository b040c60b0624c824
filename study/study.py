"""A study: what several runs and sweeps say together, as plain data and as tables.

The same records give the same report, byte for byte, in whatever order and company the conversations were held.
What never belongs here: formulas (``scoring``), markup (``markup``), files (``exports``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from viva.reports.text import Table
from viva.scenarios.kieval.interviews import MOST_UNANSWERED

from .ablation import ablation
from .cells import fill, record
from .comparing import agreement, comparisons, difficulty
from .costs import costs
from .doubts import doubts
from .following import accuracy_of, correlations, unanswered_of
from .names import Catalogue, Names
from .pooling import pools
from .sequences import rule_notes
from .sources import INTERVIEWS, find_cells, notes, study_scorer
from .tables import tables

VERSION = 1


class Study:
    """The study over runs and sweeps in ``folders``, read when it is made. No model is called.

    :raises ConfigurationError: a folder is neither a run nor a sweep, or the runs do not agree on a scorer and none is
        named.
    :raises JournalError: a journal is damaged.
    """

    def __init__(self, folders: Sequence[Path], scorer: str | None = None) -> None:
        self._cells = find_cells(folders)
        self.scorer = study_scorer(self._cells, scorer)
        items: dict[str, Names] = {}
        self._filled = fill(self._cells, self.scorer, items)
        self._catalogue = Catalogue(items)
        self._report: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """Everything as plain data; docs/reports.md names the fields."""
        if self._report is None:
            self._report = self._made()
        return self._report

    def tables(self) -> list[Table]:
        """The report as titled tables: title, header, rows."""
        return [(one["title"], one["header"], one["rows"]) for one in self.report()["tables"]]

    def _made(self) -> dict[str, Any]:
        found = list(pools([one for one in self._filled if one.result is not None], self._catalogue))
        pooled = [pool.record(self.scorer) for pool in found]
        following = correlations(pooled)
        several = len({pool.dataset for pool in found}) > 1
        whole = [pool for pool in found if (pool.dataset is None or not several) and pool.talks]
        accuracy = {
            row["candidate"]: told["mean"]
            for pool, row in zip(found, pooled, strict=True)
            if pool in whole and (told := accuracy_of(row, following["accuracy"]))["mean"] is not None
            if (unanswered_of(row, following["accuracy"]) or 0.0) <= MOST_UNANSWERED
        }
        compared = comparisons(found)
        report: dict[str, Any] = {
            "study": VERSION,
            "scorer": self.scorer.describe(),
            "facts": self._facts(),
            "notes": [*notes(self._cells), *rule_notes(self._cells, self.scorer), *doubts(following, compared)],
            "cells": [record(one, self.scorer) for one in self._filled],
            "pooled": pooled,
            "comparisons": compared,
            "agreement": agreement(found),
            "difficulty": difficulty(found, self.scorer),
            "correlations": following,
            "ablation": ablation(whole, self.scorer, accuracy),
            "costs": costs(self._filled),
        }
        report["tables"] = [{"title": title, "header": header, "rows": rows} for title, header, rows in tables(report)]
        return report

    def _facts(self) -> dict[str, Any]:
        """What was run, for titles and first lines."""
        read = [one for one in self._filled if one.result is not None]
        talks = [one.result for one in read if one.talks is not None and one.result is not None]
        states = [one.state for one in self._filled]
        return {
            "candidates": _distinct(one.candidate for one in self._cells),
            "datasets": _distinct(one.dataset for one in self._cells),
            "seeds": sorted({one.seed for one in self._cells}),
            "evaluators": _distinct(one.evaluator for one in self._cells if one.evaluator is not None),
            "interactors": _distinct(label for one in self._cells if (label := one.label("interactor")) is not None),
            "tiers": sorted({one.cell.manifest["tier"] for one in read}),
            "rounds": sorted({one.cell.settings("rounds") for one in read if one.cell.scenario == INTERVIEWS}),
            "recorded_with_early_stop": sorted(
                {one.cell.settings("early_stop") for one in read if one.cell.scenario == INTERVIEWS}
            ),
            "interviews": sum(one["interviews"] for one in talks),
            "failed": sum(one.result["failed"] for one in read if one.result is not None),
            "verdicts": sum(one["verdicts"] for one in talks),
            "probes": sum(one.recall.ended for one in read if one.recall is not None),
            "states": {name: states.count(name) for name in ("done", "part", "stopped", "not begun")},
        }


def _distinct(names: Any) -> list[str]:
    return list(dict.fromkeys(names))

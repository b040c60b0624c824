"""One candidate's interviews on one dataset, or on all, taken together: over seeds and evaluators, by item.

An item that several seeds drew, or several evaluators judged, is one cluster: its scores are not independent; items
that share a passage, or what the run's ``cluster`` names, are one together. *All datasets* pools observations as they
are; where datasets have as many items each, that is the mean of the datasets, as KIEval's Table 2 has it. What never
belongs here: comparing candidates, and formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.reports.figures import (
    LEVEL,
    NOTHING,
    SCORES,
    Codes,
    Floats,
    clustered_rate,
    clustered_score,
)
from viva.scoring.planning import items_for_bounded

from ...study.cells import Circumstances, Pool, RunReading, StudyCell, pools
from ...study.sections import Material
from ...study.static import StaticFigures, static_readings
from ..interviews import InterviewAggregate
from ..score import ASPECTS, Scorer
from .columns import InterviewColumns
from .rounds import by_round
from .rule_intervals import with_rule_interval

HALF_WIDTHS = (1.0, 2.0, 5.0)  # points of the score


class InterviewMaterial(Material):
    """What the sections compute from: the cells, and the pools of their candidates. ``scoring`` is a ``Scorer``.

    ``pools`` are apart where a dataset's candidates were not examined alike; ``by_items`` are not.
    """

    def __init__(self, material: Material, lent: StaticFigures | None) -> None:
        super().__init__(material.scoring, material.readings, material.catalogue)
        self.lent = lent
        codes = self.catalogue.codes
        for one in self.readings:
            dataset, columns = one.cell.dataset, one.columns
            if isinstance(columns, InterviewColumns):
                self.catalogue.join(codes(dataset, columns.items), codes(dataset, columns.clusters))
            elif lent is not None and lent.holds(one):
                known = lent.clusters(Pool(one.cell.candidate, dataset, [one], self.catalogue))
                items, clusters = (np.array(list(side), dtype=np.int64) for side in (known, known.values()))
                self.catalogue.join(items, clusters)
        self.pools = [InterviewPool(pool, lent) for pool in pools(self.readings, self.catalogue, _circumstances)]
        self.by_items = [InterviewPool(pool, lent) for pool in pools(self.readings, self.catalogue)]

    @property
    def scorer(self) -> Scorer:
        """The one scorer of the study."""
        scorer: Scorer = self.scoring
        return scorer

    @property
    def whole(self) -> list[InterviewPool]:
        """The pools of all datasets, or of the only one, of candidates that were interviewed."""
        several = len({pool.dataset for pool in self.pools}) > 1
        return [pool for pool in self.pools if (pool.dataset is None or not several) and pool.parts]


@dataclass(slots=True)
class InterviewPool:
    """The interviews of a pool, and the static figures that were lent of the same candidate."""

    pool: Pool
    lent: StaticFigures | None

    @property
    def candidate(self) -> str:
        """The candidate's label."""
        return self.pool.candidate

    @property
    def dataset(self) -> str | None:
        """The dataset's name; None stands for all datasets."""
        return self.pool.dataset

    @property
    def parts(self) -> list[tuple[StudyCell, str, InterviewColumns]]:
        """The interviews, each with its cell and dataset."""
        return [
            (one.cell, one.cell.dataset, one.columns)
            for one in self.pool.readings
            if isinstance(one.columns, InterviewColumns)
        ]

    @property
    def interviews(self) -> int:
        """How many interviews there are."""
        return sum(len(columns.numbers) for _, _, columns in self.parts)

    def labels(self, codes: Codes) -> list[str]:
        """The items of codes, as DATASET/ITEM."""
        return self.pool.catalogue.named(codes)

    def codes(self) -> Codes:
        """The item of each interview, in the order of ``column``; numbers of the catalogue."""
        return joined(self._codes()).astype(np.int64)

    def clusters(self) -> Codes:
        """The cluster of each interview, in the order of ``column``; numbers of the catalogue."""
        return joined(self._clusters()).astype(np.int64)

    def codes_of(self, dataset: str, columns: InterviewColumns) -> Codes:
        """The same for one of the ``parts``."""
        return self.pool.catalogue.codes(dataset, columns.items)

    def column(self, name: str) -> Floats:
        """``right``, ``rounds`` or an aspect's scores, of all interviews."""
        return joined([_column(columns, name) for _, _, columns in self.parts])

    def variant(self, decay: bool, early_stop: bool) -> dict[str, Any]:
        """The overall score with other switches, empty where some interviews were not recorded for it."""
        found = [columns.variant(decay, early_stop) for _, _, columns in self.parts]
        known = [column for column in found if column is not None]
        if len(known) < len(found):
            return dict(NOTHING)
        return clustered_score(joined(known), self.labels(self.clusters()))

    def score(self, scorer: Scorer) -> dict[str, Any]:
        """The mean score, with the interval of the rule that ended the interviews, where one did."""
        found = clustered_score(self.column("overall"), self.labels(self.clusters()))
        return with_rule_interval(found, [cell for cell, _, _ in self.parts], scorer)

    def record(self, scorer: Scorer) -> dict[str, Any]:
        """The pooled figures as the report shows them."""
        readings, parts = self.pool.readings, self.parts
        merged = InterviewAggregate(scorer)
        for _, _, columns in parts:
            merged.merge(columns.aggregate)
        plain, codes = merged.to_dict(), self.codes()
        labels = self.labels(self.clusters())
        begun = [one.cell for one in readings if one.result is not None]
        record: dict[str, Any] = {
            "scenario": parts[0][0].scenario if parts else readings[0].cell.scenario,
            "candidate": self.candidate,
            "dataset": self.dataset,
            "datasets": list(dict.fromkeys(cell.dataset for cell in begun)),
            "seeds": sorted({cell.seed for cell in begun}),
            "evaluators": sorted({cell.evaluator for cell, _, _ in parts if cell.evaluator}),
            "n_items": len(np.unique(codes)),
            "n_observations": len(codes),
            "accuracy": clustered_rate(self.column("right"), labels),
            "score": self.score(scorer),
            "aspects": {name: clustered_score(self.column(name), labels) for name in ASPECTS[:-1]},
            "rounds": clustered_score(self.column("rounds"), labels, (0.0, self._most_rounds())),
            "by_round": by_round([columns for _, _, columns in parts], self._clusters(), scorer),
        }
        for name in (
            *("unanswered", "unanswered_rate", "unscored_interviews", "verdicts", "unscored_rounds", "unscored_rate"),
            *("parse_failures", "parse_failure_rate", "failed", "ends", "stop_reasons", "failures"),
        ):
            record[name] = plain[name]
        record |= {name: plain[name] for name in ("failure_reasons", "free") if name in plain}
        record["items_needed"] = _items_needed(
            record["score"], len(np.unique(codes)) / max(1, len(np.unique(self.clusters())))
        )
        record["probe"] = self._static()
        return record

    def _codes(self) -> list[Codes]:
        return [self.codes_of(dataset, columns) for _, dataset, columns in self.parts]

    def _clusters(self) -> list[Codes]:
        catalogue = self.pool.catalogue
        return [catalogue.clusters(catalogue.codes(dataset, columns.clusters)) for _, dataset, columns in self.parts]

    def _most_rounds(self) -> float:
        planned = [cell.settings("rounds") for cell, _, _ in self.parts]
        return float(max([1, *planned, *(int(columns.lengths.max(initial=0)) for _, _, columns in self.parts)]))

    # -- static figures ---------------------------------------------------------------------------------------------

    def _static(self) -> dict[str, Any] | None:
        if self.lent is None or not static_readings(self.lent, self.pool.readings):
            return None
        record = self.lent.pooled(self.pool)
        if self.dataset is not None:
            record["joined"] = self._joined_by_item(self.lent, record["accuracy"])
        return record

    def _joined_by_item(self, lent: StaticFigures, accuracy: Mapping[str, Any]) -> dict[str, Any] | None:
        """The score of interviews about items that were answered rightly, and about the others.

        An item that several seeds asked counts as right if it was answered so more often than not.
        """
        method = next((name for name in lent.methods if name in accuracy), None)
        if method is None or not self.parts:
            return None
        right, codes = lent.right(self.pool, method)
        share = dict.fromkeys(codes.tolist(), 0.0)
        for code, value in zip(codes.tolist(), right.tolist(), strict=True):
            share[code] += value - 0.5
        met, scores = self.codes(), self.column("overall")
        labels = self.labels(self.clusters())
        asked = np.array([share.get(code, np.nan) for code in met.tolist()], dtype=np.float64)
        return {
            "by": method,
            "n": len(np.unique(met[~np.isnan(asked)])),
            "right": clustered_score(np.where(asked > 0, scores, np.nan), labels),
            "wrong": clustered_score(np.where(asked <= 0, scores, np.nan), labels),
        }


def by_dataset(found: Sequence[InterviewPool]) -> list[tuple[str | None, list[InterviewPool]]]:
    """The pools of candidates that were interviewed, by dataset, all datasets last."""
    groups: dict[str | None, list[InterviewPool]] = {}
    for pool in found:
        if pool.interviews:
            groups.setdefault(pool.dataset, []).append(pool)
    return sorted(groups.items(), key=lambda group: group[0] is None)


def joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns of several cells, one after another."""
    return np.concatenate(columns) if columns else np.empty(0)


def _circumstances(reading: RunReading) -> Circumstances | None:
    """Who judged and asked, and how many rounds by which prompts: scores of others are on another scale."""
    cell, columns = reading.cell, reading.columns
    if not isinstance(columns, InterviewColumns) or not len(columns.numbers):
        return None
    asked_by = "a recording" if cell.repeats("interactor") else cell.label("interactor")
    pack = cell.manifest.get("pack") or {}
    found = {"evaluator": cell.evaluator, "interactor": asked_by, "rounds": cell.settings("rounds")}
    found["pack"] = f"{pack['name']} {pack['digest'][:6]}" if pack else None
    return tuple((name, str(value)) for name, value in found.items() if value is not None)


def _items_needed(score: Mapping[str, Any], size: float) -> dict[str, int] | None:
    """Items for intervals of these half widths, if items go on to spread as they do; None where no spread is seen.

    ``size`` is the number of items in a cluster: 1 where items come in none.
    """
    if not score["se"]:
        return None
    low, high = SCORES
    share = (score["mean"] - low) / (high - low)
    spread = (score["se"] / (high - low)) ** 2 * (score["items"] - 1) / (share * (1 - share))
    needed = (items_for_bounded(width / (high - low), share, min(1.0, spread), LEVEL) for width in HALF_WIDTHS)
    return {f"{width:g}": math.ceil(size * count) for width, count in zip(HALF_WIDTHS, needed, strict=True)}


def _column(columns: InterviewColumns, name: str) -> Floats:
    if name == "right":
        return columns.right
    return columns.lengths.astype(np.float64) if name == "rounds" else columns.scores(name)

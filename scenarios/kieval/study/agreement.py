"""How far verdicts agree over evaluators, and over seeds.

Evaluators rate the very same interviews where one run is a fork of another; elsewhere where the models repeat
themselves (tier C). What never belongs here: coefficients themselves (``scoring.agreement``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from viva.reports.figures import rounded
from viva.reports.page import Record
from viva.reports.rows import Row, figure_row
from viva.reports.text import Table, number, percent
from viva.scoring.agreement import Agreement as Coefficient
from viva.scoring.agreement import cohen, fleiss, krippendorff, voting

from ...study.cells import StudyCell
from ...study.sections import Section, Subject
from .columns import InterviewColumns
from .pools import InterviewMaterial, InterviewPool, by_dataset
from .words import place, title_facts

_VERDICTS = (1, 2, 3, 4)
_COEFFICIENTS = ("kappa", "kappa_quadratic", "fleiss", "alpha_ordinal", "alpha_interval")
_MEASURES = ("kappa", "kappa_quadratic", "fleiss", "unanimous", "decided", "alpha_ordinal", "alpha_interval")


class AgreementSection(Section[InterviewMaterial]):
    """For each dataset over all candidates, and for each candidate over all datasets."""

    key, subject, heading, anchor = "agreement", Subject.AGREEMENT, "Agreement", "agreement"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What is rated is a round: the kappas and the ordinal alpha compare its overall verdict, 1–4; kappa is the
        mean over pairs of raters, Fleiss' is of the ``fleiss_n`` rounds that all of them have rated; ``unanimous`` and
        ``decided`` are shares of rounds. The interval alpha compares the scores of whole interviews.
        """
        groups: list[tuple[str | None, str | None, list[InterviewPool]]]
        datasets = by_dataset(material.by_items)
        groups = [(dataset, None, group) for dataset, group in datasets]
        groups += [(dataset, pool.candidate, [pool]) for dataset, group in datasets[-1:] if len(group) > 1
                   for pool in group]  # fmt: skip
        found = []
        for over in ("evaluators", "seeds"):
            for dataset, candidate, group in groups:
                raters = sorted({_rater(cell, over) for pool in group for cell, _, _ in pool.parts})
                if len(raters) > 1:
                    agreed = _agreed(group, raters, over)
                    if agreed["n"] or agreed["interviews"]:
                        head = {"over": over, "dataset": dataset, "candidate": candidate, "raters": raters}
                        found.append({**head, **agreed})
        return found

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for one in report["agreement"]:
            line = [one["over"], one["dataset"] or "all", one["candidate"] or "all"]
            line += [number(one[name], 3) for name in _COEFFICIENTS]
            line += [percent(one["unanimous"]), percent(one["decided"])]
            rows.append([*line, str(one["n"]), str(one["fleiss_n"])])
        header = ["over", "dataset", "candidate", "κ", "κ quadratic", "κ Fleiss", "α ordinal", "α interval"]
        header += ["unanimous", "decided", "rounds", "rounds rated by all"]
        return [(f"Agreement of verdicts: {title_facts(report)}", header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for one in report["agreement"]:
            where = place(report, candidate=one["candidate"], dataset=one["dataset"])
            counts = {"fleiss": one["fleiss_n"], "alpha_interval": one["interviews"]}  # the others are over all rounds
            for field in _MEASURES:
                yield figure_row(
                    where, f"agreement.{one['over']}.{field}", value=one[field], n=counts.get(field, one["n"])
                )


def _rater(cell: StudyCell, over: str) -> str:
    return str(cell.evaluator if over == "evaluators" else cell.seed)


def _agreed(group: Sequence[InterviewPool], raters: Sequence[str], over: str) -> dict[str, Any]:
    """The coefficients over all rounds that at least two have rated."""
    rounds: dict[tuple[Any, ...], list[int | None]] = {}
    rated: dict[tuple[Any, ...], list[float | None]] = {}  # whole interviews
    for pool in group:
        for cell, dataset, columns in pool.parts:
            at = raters.index(_rater(cell, over))
            about = (pool.candidate, dataset, cell.seed if over == "evaluators" else cell.evaluator)
            for item, round_number, verdict in _verdicts(columns):
                held = rounds.setdefault((*about, item, round_number), [None] * len(raters))
                held[at] = verdict or None
            for item, score in zip(columns.items.tolist(), columns.scores().tolist(), strict=True):
                whole = rated.setdefault((*about, item), [None] * len(raters))
                whole[at] = None if math.isnan(score) else score
    rows = [held for held in rounds.values() if sum(rating is not None for rating in held) > 1]
    scores = [whole for whole in rated.values() if sum(score is not None for score in whole) > 1]
    by_rater = list(zip(*rows, strict=True)) if rows else []
    pairs = list(combinations(by_rater, 2))
    votes = voting(rows)
    ordinal, interval = krippendorff(rows, "ordinal"), krippendorff(scores, "interval")
    together = fleiss(rows)
    return {
        "kappa": _mean(cohen(one, other, _VERDICTS) for one, other in pairs),
        "kappa_quadratic": _mean(cohen(one, other, _VERDICTS, "quadratic") for one, other in pairs),
        "fleiss": rounded(together.value),
        "fleiss_n": together.n,
        "unanimous": rounded(votes.unanimous / votes.items) if votes.items else None,
        "decided": rounded(votes.decided / votes.items) if votes.items else None,
        "alpha_ordinal": rounded(ordinal.value),
        "alpha_interval": rounded(interval.value),
        "n": ordinal.n,
        "interviews": interval.n,
    }


def _verdicts(columns: InterviewColumns) -> Iterable[tuple[int, int, int]]:
    """Item, round and overall verdict (0: unscored) of all rounds."""
    items = np.repeat(columns.items, columns.lengths).tolist()
    return zip(items, columns.rounds().tolist(), columns.verdicts.tolist(), strict=True)


def _mean(found: Iterable[Coefficient]) -> float | None:
    known = [one.value for one in found if one.value is not None]
    return rounded(math.fsum(known) / len(known)) if known else None

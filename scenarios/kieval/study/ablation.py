"""The same verdicts scored without decaying weights, and without early stop (KIEval, appendix D, Table 8).

The paper correlates the four variants with human scores; here they stand beside accuracy, for a study has no others.
What never belongs here: the scorers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from viva.reports.figures import rounded, significant
from viva.reports.page import Record
from viva.reports.rows import Row, figure_row, mean_figures
from viva.reports.text import Table, mean, number
from viva.scoring.regression import pearson

from ...study.sections import Section, Subject
from ..score import Scorer
from .accuracies import accuracy_of, too_seldom_answered
from .columns import SWITCHES
from .pools import InterviewMaterial
from .words import place, title_facts


class Ablation(Section[InterviewMaterial]):
    """For each variant: the mean score of each candidate over all datasets, and how it follows accuracy."""

    key, subject, heading, anchor = "ablation", Subject.VARIANTS, "Scorer variants", "ablation"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A variant without early stop has figures of a candidate only if all of its interviews were recorded without
        it.
        """
        whole, accuracy = material.whole, _accuracies(material, report)
        variants = []
        for decay, early_stop in SWITCHES:
            found = {pool.candidate: pool.variant(decay, early_stop) for pool in whole}
            pairs = [
                (accuracy[name], one["mean"])
                for name, one in found.items()
                if name in accuracy and one["mean"] is not None
            ]
            related = pearson([x for x, _ in pairs], [y for _, y in pairs])
            variants.append(
                {
                    "scorer": Scorer(material.scorer.name, decay, early_stop).describe(),
                    "decay": decay,
                    "early_stop": early_stop,
                    "candidates": found,
                    "accuracy": None
                    if related is None
                    else {"r": rounded(related[0]), "p": significant(related[1]), "n": len(pairs)},
                }
            )
        return variants

    def tables(self, report: Record) -> list[Table]:
        found = report["ablation"]
        header = ["candidate", *(_switches(one) for one in found)]
        candidates = list(dict.fromkeys(name for one in found for name in one["candidates"]))
        rows = [[name, *(mean(one["candidates"].get(name)) for one in found)] for name in candidates]
        if any(one["accuracy"] is not None for one in found):
            rows.append(["r with accuracy", *(number(one["accuracy"] and one["accuracy"]["r"], 3) for one in found)])
        note = "talks that were ended at a flag have no score without early stop"
        title = f"KIEval with decaying weights (DW) and early stop (ES) on and off: {title_facts(report)}; {note}"
        return [(title, header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for variant in report["ablation"]:
            for candidate, found in variant["candidates"].items():
                where = place(report, candidate=candidate) | {"scorer": variant["scorer"]}
                yield figure_row(where, "ablation", **mean_figures(found))


def _accuracies(material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of each candidate over all datasets, of those that answer often enough."""
    source, whole = report["correlations"]["accuracy"], {id(pool) for pool in material.whole}
    return {
        row["candidate"]: found["mean"]
        for pool, row in zip(material.pools, report["pooled"], strict=True)
        if id(pool) in whole
        and (found := accuracy_of(row, source))["mean"] is not None
        and not too_seldom_answered(row, source)
    }


def _switches(one: Mapping[str, Any]) -> str:
    on = [name for name, switch in (("DW", one["decay"]), ("ES", one["early_stop"])) if switch]
    return " + ".join(on) or "neither"

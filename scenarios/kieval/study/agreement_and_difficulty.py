"""Agreement of verdicts over evaluators and seeds, the hardest items, and the number of items needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from viva.reports.figures import round_figure
from viva.reports.page import Record
from viva.reports.tables import DASH, Row, Table, figure_row, number, percent
from viva.scoring.accuracy import item_difficulties
from viva.scoring.aggregates import Mean
from viva.scoring.agreement import Agreement as Coefficient
from viva.scoring.agreement import cohen_kappa, count_votes, fleiss_kappa, krippendorff_alpha
from viva.scoring.item_bank import LEAST_ANSWERS

from ...study_cells import StudyCell
from ...study_sections import Section, Subject
from .interview_pools import InterviewColumns, InterviewMaterial, InterviewPool, pools_by_dataset
from .methods import row_prefix, title_facts

_VERDICTS = (1, 2, 3, 4)
_COEFFICIENTS = ("kappa", "kappa_quadratic", "fleiss", "alpha_ordinal", "alpha_interval")
_MEASURES = ("kappa", "kappa_quadratic", "fleiss", "unanimous", "decided", "alpha_ordinal", "alpha_interval")


class AgreementSection(Section[InterviewMaterial]):
    """Agreement by dataset over all candidates, and by candidate over all datasets."""

    key, subject, heading, anchor = "agreement", Subject.AGREEMENT, "Agreement", "agreement"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the agreement figures of raters.

        The rated units are rounds: the kappas and the ordinal alpha compare their overall verdicts, 1–4. Kappa is
        averaged over pairs of raters; Fleiss' kappa uses only the `fleiss_n` rounds that all rated. `unanimous` and
        `decided` are shares of rounds. The interval alpha compares the scores of whole interviews.
        """
        groups: list[tuple[str | None, str | None, list[InterviewPool]]]
        datasets = pools_by_dataset(material.by_items)
        groups = [(dataset, None, group) for dataset, group in datasets]
        groups += [(dataset, pool.candidate, [pool]) for dataset, group in datasets[-1:] if len(group) > 1
                   for pool in group]  # fmt: skip
        records = []
        for over in ("evaluators", "seeds"):
            for dataset, candidate, group in groups:
                raters = sorted({_rater(cell, over) for pool in group for cell, _, _ in pool.parts})
                if len(raters) > 1:
                    figures = _agreement_figures(group, raters, over)
                    if figures["n"] or figures["interviews"]:
                        head = {"over": over, "dataset": dataset, "candidate": candidate, "raters": raters}
                        records.append({**head, **figures})
        return records

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for record in report["agreement"]:
            line = [record["over"], record["dataset"] or "all", record["candidate"] or "all"]
            line += [number(record[name], 3) for name in _COEFFICIENTS]
            line += [percent(record["unanimous"]), percent(record["decided"])]
            rows.append([*line, str(record["n"]), str(record["fleiss_n"])])
        header = ["over", "dataset", "candidate", "κ", "κ quadratic", "κ Fleiss", "α ordinal", "α interval"]
        header += ["unanimous", "decided", "rounds", "rounds rated by all"]
        return [(f"Agreement of verdicts: {title_facts(report)}", header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for record in report["agreement"]:
            prefix = row_prefix(report, candidate=record["candidate"], dataset=record["dataset"])
            counts = {
                "fleiss": record["fleiss_n"],
                "alpha_interval": record["interviews"],
            }  # the other figures are over all rounds
            for field in _MEASURES:
                yield figure_row(
                    prefix, f"agreement.{record['over']}.{field}", value=record[field], n=counts.get(field, record["n"])
                )


def _rater(cell: StudyCell, over: str) -> str:
    return str(cell.evaluator if over == "evaluators" else cell.seed)


def _agreement_figures(group: Sequence[InterviewPool], raters: Sequence[str], over: str) -> dict[str, Any]:
    """Return the coefficients over all rounds with at least two ratings."""
    rounds: dict[tuple[Any, ...], list[int | None]] = {}
    rated: dict[tuple[Any, ...], list[float | None]] = {}  # scores of whole interviews
    for pool in group:
        for cell, dataset, columns in pool.parts:
            at = raters.index(_rater(cell, over))
            about = (pool.candidate, dataset, cell.seed if over == "evaluators" else cell.evaluator)
            for item, round_number, verdict in _verdicts(columns):
                ratings = rounds.setdefault((*about, item, round_number), [None] * len(raters))
                ratings[at] = verdict or None
            for item, score in zip(columns.items.tolist(), columns.scores().tolist(), strict=True):
                interview_scores = rated.setdefault((*about, item), [None] * len(raters))
                interview_scores[at] = None if math.isnan(score) else score
    rows = [ratings for ratings in rounds.values() if sum(rating is not None for rating in ratings) > 1]
    scores = [
        interview_scores
        for interview_scores in rated.values()
        if sum(score is not None for score in interview_scores) > 1
    ]
    by_rater = list(zip(*rows, strict=True)) if rows else []
    pairs = list(combinations(by_rater, 2))
    votes = count_votes(rows)
    ordinal, interval = krippendorff_alpha(rows, "ordinal"), krippendorff_alpha(scores, "interval")
    fleiss = fleiss_kappa(rows)
    return {
        "kappa": _mean_coefficient(cohen_kappa(first, second, _VERDICTS) for first, second in pairs),
        "kappa_quadratic": _mean_coefficient(
            cohen_kappa(first, second, _VERDICTS, "quadratic") for first, second in pairs
        ),
        "fleiss": round_figure(fleiss.value),
        "fleiss_n": fleiss.n,
        "unanimous": round_figure(votes.unanimous / votes.items) if votes.items else None,
        "decided": round_figure(votes.decided / votes.items) if votes.items else None,
        "alpha_ordinal": round_figure(ordinal.value),
        "alpha_interval": round_figure(interval.value),
        "n": ordinal.n,
        "interviews": interval.n,
    }


def _verdicts(columns: InterviewColumns) -> Iterable[tuple[int, int, int]]:
    """Yield item, round and overall verdict (0: unscored) of all rounds."""
    items = np.repeat(columns.items, columns.lengths).tolist()
    return zip(items, columns.rounds().tolist(), columns.verdicts.tolist(), strict=True)


def _mean_coefficient(coefficients: Iterable[Coefficient]) -> float | None:
    values = [coefficient.value for coefficient in coefficients if coefficient.value is not None]
    return round_figure(math.fsum(values) / len(values)) if values else None


HARDEST = 20  # items of each dataset
_LISTED = 5  # shown in the table
_SOLVED_SCORE = 3  # of 4: a candidate with this score in every round has solved an item


class DifficultySection(Section[InterviewMaterial]):
    """Difficulty of items; a candidate's score on an item is the mean over its interviews about it."""

    key, subject, heading, anchor = "difficulty", Subject.ITEMS, "Difficulty of items", "difficulty"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        hardest: list[dict[str, Any]] = []
        for dataset, group in pools_by_dataset(material.by_items):
            if dataset is None:
                continue
            scores = {pool.candidate: _item_means(pool) for pool in group}
            solved = material.scorer.combine([_SOLVED_SCORE])
            items = item_difficulties(scores, solved=100.0 if solved is None else solved)
            hardest += [
                {
                    "dataset": dataset,
                    "item": item.item.removeprefix(f"{dataset}/"),
                    "mean": round_figure(item.mean),
                    "n": item.n,
                    "discrimination": round_figure(item.discrimination),
                    "solved_by": item.solved_by,
                    "of": len(items),
                }
                for item in items[:HARDEST]
            ]
        return hardest

    def tables(self, report: Record) -> list[Table]:
        listed: list[Record] = []
        counts: dict[str, int] = {}
        for record in report["difficulty"]:
            counts[record["dataset"]] = counts.get(record["dataset"], 0) + 1
            if counts[record["dataset"]] <= _LISTED:
                listed.append(record)
        rows = [[record["dataset"], record["item"], number(record["mean"]), str(record["n"])] for record in listed]
        header, title = ["dataset", "item", "KIEval", "candidates"], f"Hardest items: {title_facts(report)}"
        if any(record["n"] >= LEAST_ANSWERS for record in listed):
            header.append("discrimination")
            title += "; discrimination: correlation with the score on the other items"
            for row, record in zip(rows, listed, strict=True):
                row.append(number(record["discrimination"], 2) if record["n"] >= LEAST_ANSWERS else DASH)
        else:
            title += f"; discrimination is shown with {LEAST_ANSWERS} candidates or more"
        return [(title, header, rows), _items_needed_table(report)]

    def rows(self, report: Record) -> Iterator[Row]:
        for record in report["difficulty"]:
            prefix = row_prefix(report, dataset=record["dataset"])
            yield figure_row(prefix, f"item.{record['item']}.mean", value=record["mean"], n=record["n"])
            yield figure_row(
                prefix, f"item.{record['item']}.discrimination", value=record["discrimination"], n=record["n"]
            )


def _items_needed_table(report: Record) -> Table:
    """Return the number of items needed for narrower intervals, from the observed spread."""
    records = [record for record in report["pooled"] if record["items_needed"] is not None]
    rows = []
    for record in records:
        half = (record["score"]["high"] - record["score"]["low"]) / 2
        counts = [f"{count:,}" for count in record["items_needed"].values()]
        rows.append([record["candidate"], record["dataset"] or "all", f"{record['n_items']:,}", number(half), *counts])
    widths = list(records[0]["items_needed"]) if records else []
    header = ["candidate", "dataset", "items", "half width", *(f"for ± {width}" for width in widths)]
    title = f"Items needed for a 95% interval of KIEval: {title_facts(report)}"
    if any(record["score"]["items"] < record["n_items"] for record in records):
        title += "; further items in clusters as large as these"
    return (title, header, rows)


def _item_means(pool: InterviewPool) -> dict[str, float | None]:
    """Return the mean score of each item's interviews."""
    codes, scores = pool.codes(), pool.column("overall")
    is_scored = ~np.isnan(scores)
    items, positions = np.unique(codes[is_scored], return_inverse=True)
    if len(items) == is_scored.sum():
        return dict(zip(pool.labels(codes[is_scored]), scores[is_scored].tolist(), strict=True))
    means = [Mean() for _ in items]
    for at, score in zip(positions.tolist(), scores[is_scored].tolist(), strict=True):
        means[at].add(score)
    return {label: mean.mean for label, mean in zip(pool.labels(items), means, strict=True)}

"""Agreement of verdicts over evaluators and seeds, the hardest items, and how many items narrower intervals take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from viva.reports.figures import round_figure
from viva.reports.page import Record
from viva.reports.tables import Row, Table, figure_row, number, percent
from viva.scoring.accuracy import item_difficulties
from viva.scoring.aggregates import Mean
from viva.scoring.agreement import Agreement as Coefficient
from viva.scoring.agreement import cohen_kappa, count_votes, fleiss_kappa, krippendorff_alpha

from ...study_cells import StudyCell
from ...study_sections import Section, Subject
from .interview_pools import InterviewColumns, InterviewMaterial, InterviewPool, pools_by_dataset
from .methods import row_prefix, title_facts

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
        datasets = pools_by_dataset(material.by_items)
        groups = [(dataset, None, group) for dataset, group in datasets]
        groups += [(dataset, pool.candidate, [pool]) for dataset, group in datasets[-1:] if len(group) > 1
                   for pool in group]  # fmt: skip
        found = []
        for over in ("evaluators", "seeds"):
            for dataset, candidate, group in groups:
                raters = sorted({_rater(cell, over) for pool in group for cell, _, _ in pool.parts})
                if len(raters) > 1:
                    agreed = _agreement_figures(group, raters, over)
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
            where = row_prefix(report, candidate=one["candidate"], dataset=one["dataset"])
            counts = {"fleiss": one["fleiss_n"], "alpha_interval": one["interviews"]}  # the others are over all rounds
            for field in _MEASURES:
                yield figure_row(
                    where, f"agreement.{one['over']}.{field}", value=one[field], n=counts.get(field, one["n"])
                )


def _rater(cell: StudyCell, over: str) -> str:
    return str(cell.evaluator if over == "evaluators" else cell.seed)


def _agreement_figures(group: Sequence[InterviewPool], raters: Sequence[str], over: str) -> dict[str, Any]:
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
    votes = count_votes(rows)
    ordinal, interval = krippendorff_alpha(rows, "ordinal"), krippendorff_alpha(scores, "interval")
    together = fleiss_kappa(rows)
    return {
        "kappa": _mean_coefficient(cohen_kappa(one, other, _VERDICTS) for one, other in pairs),
        "kappa_quadratic": _mean_coefficient(cohen_kappa(one, other, _VERDICTS, "quadratic") for one, other in pairs),
        "fleiss": round_figure(together.value),
        "fleiss_n": together.n,
        "unanimous": round_figure(votes.unanimous / votes.items) if votes.items else None,
        "decided": round_figure(votes.decided / votes.items) if votes.items else None,
        "alpha_ordinal": round_figure(ordinal.value),
        "alpha_interval": round_figure(interval.value),
        "n": ordinal.n,
        "interviews": interval.n,
    }


def _verdicts(columns: InterviewColumns) -> Iterable[tuple[int, int, int]]:
    """Item, round and overall verdict (0: unscored) of all rounds."""
    items = np.repeat(columns.items, columns.lengths).tolist()
    return zip(items, columns.rounds().tolist(), columns.verdicts.tolist(), strict=True)


def _mean_coefficient(found: Iterable[Coefficient]) -> float | None:
    known = [one.value for one in found if one.value is not None]
    return round_figure(math.fsum(known) / len(known)) if known else None


HARDEST = 20  # items of each dataset
_LISTED = 5  # of them in the table
_SOLVED_SCORE = 3  # of 4: what a candidate gets in every round that has solved an item


class DifficultySection(Section[InterviewMaterial]):
    """Items, each candidate's score on one being the mean over its interviews about it."""

    key, subject, heading, anchor = "difficulty", Subject.ITEMS, "Difficulty of items", "difficulty"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        hardest: list[dict[str, Any]] = []
        for dataset, group in pools_by_dataset(material.by_items):
            if dataset is None:
                continue
            scores = {pool.candidate: _item_means(pool) for pool in group}
            solved = material.scorer.combine([_SOLVED_SCORE])
            found = item_difficulties(scores, solved=100.0 if solved is None else solved)
            hardest += [
                {
                    "dataset": dataset,
                    "item": one.item.removeprefix(f"{dataset}/"),
                    "mean": round_figure(one.mean),
                    "n": one.n,
                    "discrimination": round_figure(one.discrimination),
                    "solved_by": one.solved_by,
                    "of": len(found),
                }
                for one in found[:HARDEST]
            ]
        return hardest

    def tables(self, report: Record) -> list[Table]:
        rows: list[list[str]] = []
        seen: dict[str, int] = {}
        for one in report["difficulty"]:
            seen[one["dataset"]] = seen.get(one["dataset"], 0) + 1
            if seen[one["dataset"]] <= _LISTED:
                rows.append([one["dataset"], one["item"], number(one["mean"]), str(one["n"])])
                rows[-1].append(number(one["discrimination"], 2))
        header = ["dataset", "item", "KIEval", "candidates", "discrimination"]
        return [(f"Hardest items: {title_facts(report)}", header, rows), _items_needed_table(report)]

    def rows(self, report: Record) -> Iterator[Row]:
        for one in report["difficulty"]:
            where = row_prefix(report, dataset=one["dataset"])
            yield figure_row(where, f"item.{one['item']}.mean", value=one["mean"], n=one["n"])
            yield figure_row(where, f"item.{one['item']}.discrimination", value=one["discrimination"], n=one["n"])


def _items_needed_table(report: Record) -> Table:
    """How many items would make the interval of a score so narrow, from the spread that was seen."""
    known = [one for one in report["pooled"] if one["items_needed"] is not None]
    rows = []
    for one in known:
        half = (one["score"]["high"] - one["score"]["low"]) / 2
        counts = [f"{count:,}" for count in one["items_needed"].values()]
        rows.append([one["candidate"], one["dataset"] or "all", str(one["score"]["items"]), number(half), *counts])
    widths = list(known[0]["items_needed"]) if known else []
    header = ["candidate", "dataset", "items", "half width", *(f"for ± {width}" for width in widths)]
    return (f"Items needed for a 95% interval of KIEval: {title_facts(report)}", header, rows)


def _item_means(pool: InterviewPool) -> dict[str, float | None]:
    """The mean score of each item's interviews."""
    codes, scores = pool.codes(), pool.column("overall")
    known = ~np.isnan(scores)
    items, places = np.unique(codes[known], return_inverse=True)
    if len(items) == known.sum():
        return dict(zip(pool.labels(codes[known]), scores[known].tolist(), strict=True))
    means = [Mean() for _ in items]
    for at, score in zip(places.tolist(), scores[known].tolist(), strict=True):
        means[at].add(score)
    return {label: mean.mean for label, mean in zip(pool.labels(items), means, strict=True)}

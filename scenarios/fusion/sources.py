"""The sources of a score for one criterion: the judge, each assistant, and both joined by AVG, LLMSel and CorrW.

All on 0–1, the good end at the top (Shu et al. 2023, section 3.2). What never belongs here: output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.assistants.assistant import share
from viva.reports.correlations import correlation_record
from viva.reports.figures import rounded
from viva.scoring.correlation import correlation, kendall
from viva.scoring.weighting import Column, average, correlation_weights, fold_places, weighted_out_of_fold

from .task_file import Criterion

JUDGE = "judge"
IN_FOLD = ", in fold"


@dataclass(slots=True)
class Rows:
    """One judge's examples in a fixed order: records as ``protocol`` makes them."""

    records: list[dict[str, Any]]
    assistants: list[dict[str, Any]]

    def judge(self, name: str, criterion: Criterion) -> list[float | None]:
        """The judge's mean scores as shares."""
        means = [one["scores"].get(name, {}).get("mean") for one in self.records]
        return [None if mean is None else criterion.share(mean) for mean in means]

    def assistant(self, place: int) -> list[float | None]:
        """An assistant's numbers as shares."""
        facts = self.assistants[place]
        low, high = facts["range"]
        values = [one["assistants"][place]["value"] if one["assistants"] else None for one in self.records]
        return [None if value is None else share(low, high, facts["better"], value) for value in values]

    def ratings(self, name: str) -> list[float | None]:
        """The human ratings."""
        return [one["ratings"].get(name) for one in self.records]


def sources(
    rows: Rows, name: str, criterion: Criterion, use: Sequence[str] | None, folds: int, seed: int
) -> tuple[dict[str, list[float | None]], dict[str, float]]:
    """The columns by source, and the CorrW weights fitted on all examples.

    ``use``: the assistants that the plan names for this criterion; None where there is no plan. CorrW's own columns are
    fitted out of fold; beside each stands the same fitted on the very examples it scores, which is too good.
    """
    judge, ratings = rows.judge(name, criterion), rows.ratings(name)
    names = [one["name"] for one in rows.assistants]
    assistants = dict(zip(names, map(rows.assistant, range(len(names))), strict=True))
    found: dict[str, list[float | None]] = {JUDGE: judge, **assistants}
    weights: dict[str, float] = {}
    if not names:
        return found, weights
    places = fold_places([one["group"] for one in rows.records], folds, seed)
    fitted = len(set(places)) > 1 and any(rating is not None for rating in ratings)
    for title, more in (("AE", {}), ("AE, judge", {JUDGE: judge})):
        found[f"AVG({title})"] = average([*assistants.values(), *more.values()])
        if use:
            found[f"LLMSel({title})"] = average([*(assistants[one] for one in use), *more.values()])
        if fitted:
            columns: list[Column] = [*assistants.values(), *more.values()]
            found[f"CorrW({title})"] = weighted_out_of_fold(columns, ratings, places)
            whole = correlation_weights(columns, ratings)
            found[f"CorrW({title}){IN_FOLD}"] = average(columns, whole)
            weights |= {} if more else dict(zip(names, whole, strict=True))
    return found, weights


def agreement(column: Column, ratings: Column, systems: Sequence[str]) -> dict[str, Any] | None:
    """How a source's scores go with human ratings: item by item, and over systems' means (Kendall's tau-b). None where
    no example has both.
    """
    pairs = [
        (one, other, system)
        for one, other, system in zip(column, ratings, systems, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    items = correlation([one for one, _, _ in pairs], [other for _, other, _ in pairs])
    means: dict[str, tuple[list[float], list[float]]] = {}
    for one, other, system in pairs:
        if system:
            scores, rated = means.setdefault(system, ([], []))
            scores.append(one)
            rated.append(other)
    tau = kendall([_mean(scores) for scores, _ in means.values()], [_mean(rated) for _, rated in means.values()])
    return {
        "items": correlation_record(items),
        "systems": len(means),
        "system_kendall": None if tau is None else rounded(tau.value),
    }


def _mean(values: Sequence[float]) -> float:
    # Rounded: equal means of equal numbers in another order are ties.
    return round(sum(values) / len(values), 12)


def of_all(
    rows: Rows,
    criteria: Mapping[str, Criterion],
    use: Mapping[str, Sequence[str]] | None,
    folds: int,
    seed: int,
) -> dict[str, Any]:
    """By criterion that people have rated: the agreement of each source, and the weights of CorrW."""
    systems = [one["system"] for one in rows.records]
    found: dict[str, Any] = {}
    for name, criterion in criteria.items():
        ratings = rows.ratings(name)
        if all(rating is None for rating in ratings):
            continue
        columns, weights = sources(rows, name, criterion, None if use is None else use.get(name, ()), folds, seed)
        found[name] = {
            "sources": {source: agreement(column, ratings, systems) for source, column in columns.items()},
            "weights": {one: rounded(weight) for one, weight in weights.items()},
        }
    return found

"""Candidates, evaluators, seeds and items of a study held against one another, on what they have in common.

What never belongs here: formulas (``scoring``), and reading journals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from viva.scenarios.kieval.score import Scorer
from viva.scoring.agreement import Agreement, cohen, fleiss, krippendorff, voting
from viva.scoring.comparison import Correction, compare_all
from viva.scoring.difficulty import difficulties
from viva.scoring.stream import Mean

from .figures import rounded, significant
from .pooling import Pool
from .sources import Cell
from .talks import Talks

CORRECTION: Correction = "holm"
HARDEST = 20  # items of each dataset
_VERDICTS = (1, 2, 3, 4)
_SOLID = 3  # of 4: what a candidate gets in every round that has solved an item


def comparisons(pools: Sequence[Pool]) -> list[dict[str, Any]]:
    """Every pair of candidates that have items in common, by dataset and over all; p corrected within each of these.

    Talks are paired by item, seed and evaluator. ``won``, ``tied`` and ``lost`` count items, by their mean difference.
    """
    told = []
    for dataset, group in _by_dataset(pools):
        scores = {pool.candidate: _scores(pool) for pool in group}
        for one in compare_all(scores, CORRECTION):
            if one.mean is None:
                continue
            ends = one.difference
            counts = {name: round(getattr(one, name) * one.n) for name in ("won", "tied", "lost")}
            told.append(
                {
                    "dataset": dataset,
                    "first": one.first,
                    "second": one.second,
                    "difference": {
                        "value": rounded(one.mean),
                        "low": None if ends is None else rounded(ends.low),
                        "high": None if ends is None else rounded(ends.high),
                    },
                    "se": rounded(one.se),
                    "test": one.test,
                    "p": significant(one.p),
                    "p_corrected": significant(one.p_corrected),
                    "correction": CORRECTION,
                    "n": one.n,
                    "pairs": one.pairs,
                    "dropped": one.dropped,
                    **counts,
                }
            )
    return told


def agreement(pools: Sequence[Pool]) -> list[dict[str, Any]]:
    """How far verdicts agree over evaluators (of one seed's talks) and over seeds: for each dataset over all
    candidates, and for each candidate over all datasets.

    Evaluators rate the very same talks where one run is a fork of another; elsewhere where the models repeat themselves
    (tier C). What is rated is a round: the kappas and the ordinal alpha compare its overall verdict, 1–4; kappa is the
    mean over pairs of raters, Fleiss' is of the ``fleiss_n`` rounds that all of them have rated; ``unanimous`` and
    ``decided`` are shares of rounds. The interval alpha compares the scores of whole interviews.
    """
    groups: list[tuple[str | None, str | None, list[Pool]]]
    groups = [(dataset, None, group) for dataset, group in _by_dataset(pools)]
    whole = _by_dataset(pools)[-1:]
    groups += [(dataset, pool.candidate, [pool]) for dataset, group in whole if len(group) > 1 for pool in group]
    told = []
    for over in ("evaluators", "seeds"):
        for dataset, candidate, group in groups:
            raters = sorted({_rater(cell, over) for pool in group for cell, _, _ in pool.parts})
            if len(raters) > 1:
                found = _agreed(group, raters, over)
                if found["n"] or found["interviews"]:
                    told.append({"over": over, "dataset": dataset, "candidate": candidate, "raters": raters, **found})
    return told


def difficulty(pools: Sequence[Pool], scorer: Scorer) -> list[dict[str, Any]]:
    """The hardest items of each dataset, each candidate's score on one being the mean over its talks about it."""
    told: list[dict[str, Any]] = []
    for dataset, group in _by_dataset(pools):
        if dataset is None:
            continue
        scores = {pool.candidate: _means(pool) for pool in group}
        solved = scorer.combine([_SOLID])
        found = difficulties(scores, solved=100.0 if solved is None else solved)
        told += [
            {
                "dataset": dataset,
                "item": one.item.removeprefix(f"{dataset}/"),
                "mean": rounded(one.mean),
                "n": one.n,
                "discrimination": rounded(one.discrimination),
                "solved_by": one.solved_by,
                "of": len(found),
            }
            for one in found[:HARDEST]
        ]
    return told


def _by_dataset(pools: Iterable[Pool]) -> list[tuple[str | None, list[Pool]]]:
    """The pools of candidates that were interviewed, by dataset, all datasets last."""
    groups: dict[str | None, list[Pool]] = {}
    for pool in pools:
        if any(len(talks.numbers) for _, talks in pool.talks):
            groups.setdefault(pool.dataset, []).append(pool)
    return sorted(groups.items(), key=lambda group: group[0] is None)


def _scores(pool: Pool) -> dict[tuple[str, str], float | None]:
    """Overall scores by item, and by seed and evaluator; what comes twice is told apart by its turn."""
    found: dict[tuple[str, str], float | None] = {}
    turns: dict[str, int] = {}
    for cell, dataset, talks in pool.parts:
        place = f"{dataset}\n{cell.seed}\n{cell.evaluator}"
        turns[place] = turns.get(place, 0) + 1
        other = f"{cell.seed}\n{cell.evaluator}\n{turns[place]}"
        labels = pool.catalogue.named(pool.catalogue.codes(dataset, talks.items))
        for label, score in zip(labels, talks.scores().tolist(), strict=True):
            found[label, other] = None if math.isnan(score) else score
    return found


def _means(pool: Pool) -> dict[str, float | None]:
    """The mean score of each item's talks."""
    codes, scores = pool.codes(), pool.column("overall")
    known = ~np.isnan(scores)
    items, places = np.unique(codes[known], return_inverse=True)
    if len(items) == known.sum():
        return dict(zip(pool.catalogue.named(codes[known]), scores[known].tolist(), strict=True))
    means = [Mean() for _ in items]
    for place, score in zip(places.tolist(), scores[known].tolist(), strict=True):
        means[place].add(score)
    return {label: mean.mean for label, mean in zip(pool.catalogue.named(items), means, strict=True)}


def _rater(cell: Cell, over: str) -> str:
    return str(cell.evaluator if over == "evaluators" else cell.seed)


def _agreed(group: Sequence[Pool], raters: Sequence[str], over: str) -> dict[str, Any]:
    """The coefficients over all rounds that at least two have rated."""
    rounds: dict[tuple[Any, ...], list[int | None]] = {}
    talks_rated: dict[tuple[Any, ...], list[float | None]] = {}
    for pool in group:
        for cell, dataset, talks in pool.parts:
            place = raters.index(_rater(cell, over))
            about = (pool.candidate, dataset, cell.seed if over == "evaluators" else cell.evaluator)
            for item, number, verdict in _verdicts(talks):
                row = rounds.setdefault((*about, item, number), [None] * len(raters))
                row[place] = verdict or None
            for item, score in zip(talks.items.tolist(), talks.scores().tolist(), strict=True):
                held = talks_rated.setdefault((*about, item), [None] * len(raters))
                held[place] = None if math.isnan(score) else score
    rows = [row for row in rounds.values() if sum(rating is not None for rating in row) > 1]
    scores = [row for row in talks_rated.values() if sum(score is not None for score in row) > 1]
    columns = list(zip(*rows, strict=True)) if rows else []
    pairs = list(combinations(columns, 2))
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


def _verdicts(talks: Talks) -> Iterable[tuple[int, int, int]]:
    """Item, round and overall verdict (0: unscored) of all rounds."""
    items = np.repeat(talks.items, talks.lengths).tolist()
    return zip(items, talks.rounds().tolist(), talks.verdicts.tolist(), strict=True)


def _mean(found: Iterable[Agreement]) -> float | None:
    known = [one.value for one in found if one.value is not None]
    return rounded(math.fsum(known) / len(known)) if known else None

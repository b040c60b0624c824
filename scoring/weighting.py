"""Several scores of the same things made into one: plain averages, and averages weighted by correlation with people.

Shu et al. 2023 (section 3.2): AVG and CorrW. Columns hold the scores of one source, on one scale with the
good end at the top; None is a gap, and the sources that have a score stand in for it. What never belongs here: where
scores come from, and mapping them to one scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from viva.engine import seeds

from .correlation import spearman

Column = Sequence[float | None]
_FEWEST = 3  # pairs below which there is no correlation


def average(columns: Sequence[Column], weights: Sequence[float] | None = None) -> list[float | None]:
    """Row by row the mean of what the columns have there, weighted; None where no column with a weight has a score.

    :raises ValueError: columns differ in length, there are not as many weights, or one is negative.
    """
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of {sorted({len(column) for column in columns})} scores")
    given = [1.0] * len(columns) if weights is None else list(weights)
    if len(given) != len(columns):
        raise ValueError(f"{len(given)} weights for {len(columns)} columns")
    if min(given, default=0.0) < 0.0:
        raise ValueError(f"a weight of {min(given)}")
    found: list[float | None] = []
    for row in zip(*columns, strict=True):
        held = [(weight, value) for weight, value in zip(given, row, strict=True) if value is not None and weight > 0.0]
        found.append(_mean(held) if held else None)
    return found


def _mean(held: Sequence[tuple[float, float]]) -> float:
    """The mean of (weight, value), weights above 0. They are brought near 1 by a power of two, which rounds nothing:
    products with weights near the smallest number would be lost."""
    _, power = math.frexp(max(weight for weight, _ in held))
    scaled = [(math.ldexp(weight, -power), value) for weight, value in held]
    return math.fsum(weight * value for weight, value in scaled) / math.fsum(weight for weight, _ in scaled)


def correlation_weights(columns: Sequence[Column], ratings: Column) -> list[float]:
    """Each column's Spearman correlation with the ratings, over the rows that have both.

    A column that runs against the ratings, or has no correlation, weighs 0: which of two near 0 is below it is chance,
    and a weight of the wrong sign turns good scores round. Where no column is left, all weigh 1.
    """
    weights = []
    for column in columns:
        pairs = [
            (one, other) for one, other in zip(column, ratings, strict=True) if one is not None and other is not None
        ]
        found = spearman([one for one, _ in pairs], [other for _, other in pairs]) if len(pairs) >= _FEWEST else None
        weights.append(0.0 if found is None else max(0.0, found.value))
    return weights if any(weights) else [1.0] * len(columns)


def fold_places(groups: Sequence[str], folds: int, seed: int) -> list[int]:
    """The fold, 0 to ``folds`` - 1, of each row. Rows of one group lie in one fold, groups are dealt out in an order
    that the seed gives, so that folds hold as many groups as each other but for one.

    :raises ValueError: there are fewer than two folds.
    """
    if folds < 2:
        raise ValueError(f"{folds} fold; weights that are fitted elsewhere need two at least")
    ordered = sorted(set(groups), key=lambda group: (seeds.uniform(seed, "fold", group), group))
    places = {group: place % folds for place, group in enumerate(ordered)}
    return [places[group] for group in groups]


def weighted_out_of_fold(columns: Sequence[Column], ratings: Column, folds: Sequence[int]) -> list[float | None]:
    """The average by ``correlation_weights``, each row's weights fitted on the rows of the other folds.

    Weights that are fitted on the rows they are tested on follow their noise, and their correlation with the ratings is
    too good; these do not.
    """
    found: list[float | None] = [None] * len(folds)
    for fold in sorted(set(folds)):
        inside = [place for place, one in enumerate(folds) if one == fold]
        outside = [place for place, one in enumerate(folds) if one != fold]
        weights = correlation_weights(
            [[column[place] for place in outside] for column in columns], [ratings[place] for place in outside]
        )
        scores = average([[column[place] for place in inside] for column in columns], weights)
        for place, score in zip(inside, scores, strict=True):
            found[place] = score
    return found

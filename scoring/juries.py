"""Juries: several scores of the same answers pooled into one, and what that gains over the best judge.

``mean`` of the judges' standardised scores; ``median`` of them; ``majority``: the rating that most judges gave,
the mean of those that tie; ``fitted``: weights, none below 0, fitted out of fold. Averages and correlation
weights are those of Shu et al. 2023 (section 3.2): AVG and CorrW; in them None is a gap, and the sources that
have a score stand in for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from viva.engine import seeds

from .agreement import majority_ratings
from .correlation import spearman
from .meta_evaluation import Floats, Key, RatedRows, bootstrap_values, percentile_interval, point_values

Pooling = Literal["mean", "median", "majority", "fitted"]
POOLINGS: tuple[Pooling, ...] = ("mean", "median", "majority", "fitted")
FOLDS = 5


@dataclass(slots=True, frozen=True)
class Gain:
    """What a jury reaches, and how much more that is than what the best single judge does.

    ``best`` is that judge here. In each resample the best one is chosen anew, so the interval takes the choice into
    account; the gain is, if anything, put too low, for the single judge is chosen on the rows that it is tested on.
    """

    value: float | None
    best: str
    gain: float | None
    low: float | None
    high: float | None


def pool(scores: Mapping[str, Sequence[float]], pooling: Pooling, rows: RatedRows) -> Floats | None:
    """The pooled score of each row; None where it cannot be made (``fitted``: fewer than two groups).

    ``scores`` has by judge a score for each row. Only ``fitted`` reads the ratings in ``rows``.

    :raises ValueError: there are fewer than two judges.
    """
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} judge; a jury has at least two")
    matrix = np.array([np.asarray(values, dtype=np.float64) for values in scores.values()]).T
    if pooling == "majority":
        return np.array([float(np.mean(majority_ratings(row))) for row in matrix.tolist()])
    spread = matrix.std(axis=0)
    standard = (matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if pooling == "fitted":
        return _fitted_out_of_fold(standard, rows)
    return np.asarray(standard.mean(axis=1) if pooling == "mean" else np.median(standard, axis=1), dtype=np.float64)


def fitted_weights(scores: Mapping[str, Sequence[float]], rows: RatedRows) -> dict[str, float]:
    """The weights of ``fitted`` on all rows, of standardised scores, in shares of 1: to be shown, not to be tested."""
    matrix = np.array([np.asarray(values, dtype=np.float64) for values in scores.values()]).T
    spread = matrix.std(axis=0)
    weights = _fit_weights((matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0), rows.human)[0]
    total = float(weights.sum())
    return {name: float(weight) / total if total else 0.0 for name, weight in zip(scores, weights, strict=True)}


def jury_gains(
    rows: RatedRows,
    scores: Mapping[str, Sequence[float]],
    pooling: Pooling,
    *,
    seed: int,
    resamples: int = 1_000,
    level: float = 0.95,
) -> dict[Key, Gain]:
    """The gain of a jury at each level and by each coefficient; empty where the jury cannot be made.

    :raises ValueError: there are fewer than two judges.
    """
    pooled = pool(scores, pooling, rows)
    if pooled is None:
        return {}
    judges = [np.asarray(values, dtype=np.float64) for values in scores.values()]
    points = [point_values(rows, values)[0] for values in (*judges, pooled)]
    bootstrap = bootstrap_values(rows, [*judges, pooled], seed=seed, resamples=resamples)
    gains: dict[Key, Gain] = {}
    for key, value in points[-1].items():
        singles = {
            name: single for name, point in zip(scores, points, strict=False) if (single := point[key]) is not None
        }
        if value is None or not singles:
            gains[key] = Gain(value, "", None, None, None)
            continue
        best = max(singles, key=lambda name: singles[name])
        best_single = np.fmax.reduce([values[key] for values in bootstrap[:-1]])
        gains[key] = Gain(
            value,
            best,
            value - singles[best],
            *percentile_interval(bootstrap[-1][key] - best_single, level, rows.block_count),
        )
    return gains


def _fitted_out_of_fold(scores: Floats, rows: RatedRows) -> Floats | None:
    blocks = rows.blocks()
    folds = min(FOLDS, int(blocks.max(initial=-1)) + 1)
    if folds < 2:
        return None
    # Blocks are dealt out by their code: groups of one fold are spread over the file.
    fold = blocks % folds
    pooled = np.empty(len(scores))
    for number in range(folds):
        out = fold == number
        weights, constant = _fit_weights(scores[~out], rows.human[~out])
        pooled[out] = scores[out] @ weights + constant
    return pooled


def _fit_weights(scores: Floats, human: Floats) -> tuple[Floats, float]:
    """Weights of at least 0 and a constant by least squares (scipy.optimize.nnls on centred numbers)."""
    from scipy.optimize import nnls

    means = scores.mean(axis=0)
    weights, _ = nnls(scores - means, human - human.mean())
    return np.asarray(weights, dtype=np.float64), float(human.mean() - means @ weights)


ScoreColumn = Sequence[float | None]
_MIN_ROWS = 3  # pairs below which there is no correlation


def average_columns(columns: Sequence[ScoreColumn], weights: Sequence[float] | None = None) -> list[float | None]:
    """Row by row the mean of what the columns have there, weighted; None where no column with a weight has a score."""
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of {sorted({len(column) for column in columns})} scores")
    column_weights = [1.0] * len(columns) if weights is None else list(weights)
    if len(column_weights) != len(columns):
        raise ValueError(f"{len(column_weights)} weights for {len(columns)} columns")
    if min(column_weights, default=0.0) < 0.0:
        raise ValueError(f"a weight of {min(column_weights)}")
    means: list[float | None] = []
    for row in zip(*columns, strict=True):
        pairs = [
            (weight, value)
            for weight, value in zip(column_weights, row, strict=True)
            if value is not None and weight > 0.0
        ]
        means.append(_weighted_mean(pairs) if pairs else None)
    return means


def _weighted_mean(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (weight, value); a power of two brings tiny weights near 1, or products would be lost."""
    _, power = math.frexp(max(weight for weight, _ in pairs))
    scaled = [(math.ldexp(weight, -power), value) for weight, value in pairs]
    return math.fsum(weight * value for weight, value in scaled) / math.fsum(weight for weight, _ in scaled)


def correlation_weights(columns: Sequence[ScoreColumn], ratings: ScoreColumn) -> list[float]:
    """Each column's Spearman correlation with the ratings, over the rows that have both.

    A column that runs against the ratings, or has no correlation, weighs 0: which of two near 0 is below it is chance,
    and a weight of the wrong sign turns good scores round. Where no column is left, all weigh 1.
    """
    weights = []
    for column in columns:
        pairs = [
            (score, rating)
            for score, rating in zip(column, ratings, strict=True)
            if score is not None and rating is not None
        ]
        rho = (
            spearman([score for score, _ in pairs], [rating for _, rating in pairs])
            if len(pairs) >= _MIN_ROWS
            else None
        )
        weights.append(0.0 if rho is None else max(0.0, rho.value))
    return weights if any(weights) else [1.0] * len(columns)


def assign_folds(groups: Sequence[str], folds: int, seed: int) -> list[int]:
    """Return the fold of each row; rows of a group share a fold, and folds hold equally many groups but for one."""
    if folds < 2:
        raise ValueError(f"{folds} fold; weights that are fitted elsewhere need two at least")
    ordered = sorted(set(groups), key=lambda group: (seeds.uniform(seed, "fold", group), group))
    positions = {group: position % folds for position, group in enumerate(ordered)}
    return [positions[group] for group in groups]


def average_out_of_fold(
    columns: Sequence[ScoreColumn], ratings: ScoreColumn, folds: Sequence[int]
) -> list[float | None]:
    """The average by ``correlation_weights``, each row's weights fitted on the rows of the other folds.

    Weights that are fitted on the rows they are tested on follow their noise, and their correlation with the ratings is
    too good; these do not.
    """
    averages: list[float | None] = [None] * len(folds)
    for fold in sorted(set(folds)):
        inside = [index for index, row_fold in enumerate(folds) if row_fold == fold]
        outside = [index for index, row_fold in enumerate(folds) if row_fold != fold]
        weights = correlation_weights(
            [[column[index] for index in outside] for column in columns], [ratings[index] for index in outside]
        )
        scores = average_columns([[column[index] for index in inside] for column in columns], weights)
        for index, score in zip(inside, scores, strict=True):
            averages[index] = score
    return averages

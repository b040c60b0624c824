"""Juries: several scores of the same answers pooled into one, and the gain over the best judge.

Ways of pooling: `mean` or `median` of the judges' standardised scores; `majority`, the most frequent rating, or the
mean of the ratings that tie; `fitted`, a sum of the standardised scores with non-negative weights, which are fitted to
people's ratings out of fold. `average_columns` and `correlation_weights` accept missing scores (None).

Source: Shu et al. 2023, section 3.2: AVG and CorrW.
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
    """Coefficient of a jury, and its gain over the best single judge, with the gain's percentile interval.

    `best` is the judge with the highest coefficient on these rows. The best judge is chosen anew in each resample, so
    the interval accounts for the choice. The gain may be too low, because the best judge is chosen on the rows on which
    it is tested.
    """

    value: float | None
    best: str
    gain: float | None
    low: float | None
    high: float | None


def pool(scores: Mapping[str, Sequence[float]], pooling: Pooling, rows: RatedRows) -> Floats | None:
    """Return the pooled score of each row; None if it cannot be computed (`fitted` with fewer than two groups).

    Args:
        scores: By judge, a score for each row of `rows`, in their order.
        pooling: How to pool.
        rows: People's ratings, which only `fitted` uses.

    Raises:
        ValueError: if there are fewer than two judges.
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
    """Return each judge's share, 0–1, of the weights that are fitted on all rows; for display, not for tests."""
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
    """Return the gain of a jury at each level and by each coefficient; empty if the jury cannot be computed.

    Raises:
        ValueError: if there are fewer than two judges.
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
    # Deal blocks by code, so that a fold's groups are spread over the file.
    fold = blocks % folds
    pooled = np.empty(len(scores))
    for number in range(folds):
        out = fold == number
        weights, constant = _fit_weights(scores[~out], rows.human[~out])
        pooled[out] = scores[out] @ weights + constant
    return pooled


def _fit_weights(scores: Floats, human: Floats) -> tuple[Floats, float]:
    """Return non-negative least-squares weights and a constant (scipy.optimize.nnls on centred numbers)."""
    from scipy.optimize import nnls

    means = scores.mean(axis=0)
    weights, _ = nnls(scores - means, human - human.mean())
    return np.asarray(weights, dtype=np.float64), float(human.mean() - means @ weights)


ScoreColumn = Sequence[float | None]
_MIN_ROWS = 3  # pairs below which there is no correlation


def average_columns(columns: Sequence[ScoreColumn], weights: Sequence[float] | None = None) -> list[float | None]:
    """Return the weighted mean of each row's scores; None for a row without a score in a column of positive weight."""
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns have different lengths: {sorted({len(column) for column in columns})}")
    column_weights = [1.0] * len(columns) if weights is None else list(weights)
    if len(column_weights) != len(columns):
        raise ValueError(f"{len(column_weights)} weights for {len(columns)} columns")
    if min(column_weights, default=0.0) < 0.0:
        raise ValueError(f"a weight of {min(column_weights)}; weights must be at least 0")
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
    """Return the weighted mean of (weight, value) pairs; a power of two scales tiny weights up against underflow."""
    _, power = math.frexp(max(weight for weight, _ in pairs))
    scaled = [(math.ldexp(weight, -power), value) for weight, value in pairs]
    return math.fsum(weight * value for weight, value in scaled) / math.fsum(weight for weight, _ in scaled)


def correlation_weights(columns: Sequence[ScoreColumn], ratings: ScoreColumn) -> list[float]:
    """Return each column's Spearman correlation with the ratings, over the rows that have both.

    A column with a negative or undefined correlation weighs 0: near 0 the sign is chance, and a weight of the wrong
    sign would invert good scores. If no column is left, all weigh 1.
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
    """Return the fold of each row, from 0; rows of a group share a fold, and folds differ by at most one group."""
    if folds < 2:
        raise ValueError(f"{folds} fold; out-of-fold weights need at least two")
    ordered = sorted(set(groups), key=lambda group: (seeds.uniform(seed, "fold", group), group))
    positions = {group: position % folds for position, group in enumerate(ordered)}
    return [positions[group] for group in groups]


def average_out_of_fold(
    columns: Sequence[ScoreColumn], ratings: ScoreColumn, folds: Sequence[int]
) -> list[float | None]:
    """Return the average by `correlation_weights`, each row's weights fitted on the rows of the other folds.

    Weights that are fitted on the tested rows fit the noise of these rows and overstate the correlation with the
    ratings.
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

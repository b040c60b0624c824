"""Juries: several judges of the same answers pooled into one score, and what that gains over the best single judge.

``mean``      of the judges' standardised scores;
``median``    of them;
``majority``  the rating that most judges gave; the mean of those that tie;
``fitted``    weights, none below 0, by least squares on human ratings (a linear opinion pool). They are fitted out of
              fold: no row's pooled score rests on its own rating or on one of its group.

Verga et al. 2024, "Replacing judges with juries". What never belongs here: single judges (``levels``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .agreement import majority
from .coefficients import Floats
from .levels import Key, RatedRows, bootstrap_values, ends, point_values

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


def pool(scores: Mapping[str, Sequence[float]], how: Pooling, rows: RatedRows) -> Floats | None:
    """The pooled score of each row; None where it cannot be made (``fitted``: fewer than two groups).

    ``scores`` has by judge a score for each row. Only ``fitted`` reads the ratings in ``rows``.

    :raises ValueError: there are fewer than two judges.
    """
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} judge; a jury has at least two")
    matrix = np.array([np.asarray(values, dtype=np.float64) for values in scores.values()]).T
    if how == "majority":
        return np.array([float(np.mean(majority(row))) for row in matrix.tolist()])
    spread = matrix.std(axis=0)
    standard = (matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if how == "fitted":
        return _out_of_fold(standard, rows)
    return np.asarray(standard.mean(axis=1) if how == "mean" else np.median(standard, axis=1), dtype=np.float64)


def fitted_weights(scores: Mapping[str, Sequence[float]], rows: RatedRows) -> dict[str, float]:
    """The weights of ``fitted`` on all rows, of standardised scores, in shares of 1: to be shown, not to be tested."""
    matrix = np.array([np.asarray(values, dtype=np.float64) for values in scores.values()]).T
    spread = matrix.std(axis=0)
    found = _fit((matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0), rows.human)[0]
    total = float(found.sum())
    return {name: float(one) / total if total else 0.0 for name, one in zip(scores, found, strict=True)}


def jury_gains(
    rows: RatedRows,
    scores: Mapping[str, Sequence[float]],
    how: Pooling,
    *,
    seed: int,
    resamples: int = 1_000,
    level: float = 0.95,
) -> dict[Key, Gain]:
    """The gain of a jury at each level and by each coefficient; empty where the jury cannot be made.

    :raises ValueError: there are fewer than two judges.
    """
    pooled = pool(scores, how, rows)
    if pooled is None:
        return {}
    judges = [np.asarray(values, dtype=np.float64) for values in scores.values()]
    points = [point_values(rows, values)[0] for values in (*judges, pooled)]
    drawn = bootstrap_values(rows, [*judges, pooled], seed=seed, resamples=resamples)
    found: dict[Key, Gain] = {}
    for key, value in points[-1].items():
        singles = {name: one for name, point in zip(scores, points, strict=False) if (one := point[key]) is not None}
        if value is None or not singles:
            found[key] = Gain(value, "", None, None, None)
            continue
        best = max(singles, key=lambda name: singles[name])
        most = np.fmax.reduce([one[key] for one in drawn[:-1]])
        found[key] = Gain(value, best, value - singles[best], *ends(drawn[-1][key] - most, level, rows.drawn))
    return found


def _out_of_fold(scores: Floats, rows: RatedRows) -> Floats | None:
    blocks = rows.blocks()
    folds = min(FOLDS, int(blocks.max(initial=-1)) + 1)
    if folds < 2:
        return None
    # Blocks are dealt out by their code: groups of one fold are spread over the file.
    fold = blocks % folds
    pooled = np.empty(len(scores))
    for number in range(folds):
        out = fold == number
        weights, constant = _fit(scores[~out], rows.human[~out])
        pooled[out] = scores[out] @ weights + constant
    return pooled


def _fit(scores: Floats, human: Floats) -> tuple[Floats, float]:
    """Weights of at least 0 and a constant by least squares (scipy.optimize.nnls on centred numbers)."""
    from scipy.optimize import nnls

    means = scores.mean(axis=0)
    weights, _ = nnls(scores - means, human - human.mean())
    return np.asarray(weights, dtype=np.float64), float(human.mean() - means @ weights)

"""Correlations of people's grades with something known of every answer, corrected like means.

What never belongs here: coefficients with p-values from grades alone (``scoring.correlation``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..intervals import Estimate, Floats
from .sample import Sample
from .tuned import Parts, Tuned, tune

# Clusters without grades are left out so many at once at most, where each needs all ranks anew: they are many, and
# what all scores say of the statistic is known well.
_GROUPS = 100


def corrected_pearson(known: Floats, sample: Sample) -> Tuned:
    """Pearson's r of grades with ``known``, on Fisher's scale (``back`` makes a coefficient of it).

    The part for the grades is atanh r(known, grade), those of the judge atanh r(known, score): predict-then-debias of
    a statistic with tuned power (Kluger, Lu, Zrnic, Wang and Bates 2025, arXiv 2501.18577; PPI++ for means).

    :raises ValueError: fewer than three clusters have grades, or the known values or grades have no spread there.
    """
    w, f, y, x = sample.weights, sample.scores, sample.known_grades(), _checked(known, sample)
    x, f, y = x - x.mean(), f - f.mean(), np.where(sample.graded, y - _mean(y, w), 0.0)
    one = np.ones_like(f)
    totals = sample.totals(
        *(w * column for column in (one, x, y, x * x, y * y, x * y, f, f * f, x * f)), one, x, f, x * x, f * f, x * f
    )
    whole = totals.sum(axis=0)
    values, left = _pearson_parts(whole), _pearson_parts(whole - totals)
    return _tuned(
        [float(value) for value in values], [value - one for value, one in zip(values, left, strict=True)], sample
    )


def corrected_spearman(known: Floats, sample: Sample) -> Tuned:
    """Spearman's rho likewise: ranks are of the answers that each part is about, ties having the mean of theirs.

    Ranks are taken anew for every cluster that is left out, so their own error is in the interval; weighted ranks
    where weights are unequal. Slower than ``corrected_pearson``: O(clusters · answers).

    :raises ValueError: as ``corrected_pearson``.
    """
    w, f, y, x = sample.weights, sample.scores, sample.grades, _checked(known, sample)
    graded, numbers, one = sample.graded, sample.clusters, np.ones_like(f)

    def on_graded(kept: NDArray[np.bool_]) -> tuple[float, float]:
        here = kept & graded
        return _spearman(x[here], y[here], w[here]), _spearman(x[here], f[here], w[here])

    def on_all(kept: NDArray[np.bool_]) -> float:
        return _spearman(x[kept], f[kept], one[kept])

    every = np.ones_like(graded)
    values = [*on_graded(every), on_all(every)]
    deviations = [np.zeros(sample.count) for _ in values]
    with_grades = np.unique(numbers[graded])
    for cluster in with_grades:
        kept = numbers != cluster
        for value, row, without in zip(values, deviations, [*on_graded(kept), on_all(kept)], strict=True):
            row[cluster] = value - without
    others = np.setdiff1d(np.unique(numbers), with_grades)
    for group in np.array_split(others, min(_GROUPS, len(others))) if len(others) else ():
        # A group's deviation shared evenly: squares of independent clusters add up to that of their group.
        deviations[2][group] = (values[2] - on_all(~np.isin(numbers, group))) / math.sqrt(len(group))
    return _tuned(values, deviations, sample)


def back(found: Estimate) -> Estimate:
    """From Fisher's scale to a coefficient from -1 to 1."""
    return Estimate(*(math.tanh(end) for end in (found.value, found.low, found.high)))


def _tuned(values: Sequence[float], deviations: Sequence[Floats], sample: Sample) -> Tuned:
    if not math.isfinite(values[0]):
        raise ValueError("the graded answers have no spread in what they are correlated with, or in their grades")
    direct, graded, every = (np.nan_to_num(one) for one in deviations)
    on_graded, on_all = values[1:]
    if not (math.isfinite(on_graded) and math.isfinite(on_all)):  # scores without spread say nothing
        on_graded = on_all = 0.0
        graded = every = np.zeros_like(direct)
    weights = sample.totals(sample.weights)[:, 0]
    return tune([Parts(values[0], on_graded, on_all, direct, graded, every, weights)], [1.0])


def _checked(known: Floats, sample: Sample) -> Floats:
    values = np.asarray(known, dtype=np.float64)
    if values.shape != sample.scores.shape or not np.isfinite(values).all():
        raise ValueError("what grades are correlated with needs a finite number for each answer")
    if not sample.labels:
        raise ValueError("no answer has a grade")
    return values


def _mean(values: Floats, weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


def _pearson_parts(s: Floats) -> tuple[Floats, Floats, Floats]:
    direct = _fisher(s[..., 0], s[..., 1], s[..., 2], s[..., 3], s[..., 4], s[..., 5])
    on_graded = _fisher(s[..., 0], s[..., 1], s[..., 6], s[..., 3], s[..., 7], s[..., 8])
    on_all = _fisher(s[..., 9], s[..., 10], s[..., 11], s[..., 12], s[..., 13], s[..., 14])
    return direct, on_graded, on_all


def _fisher(n: Floats, x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> Floats:
    """atanh of Pearson's r from sums; nan where one side has no spread."""
    vx, vy = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    least = 1e-12 * (xx / n), 1e-12 * (yy / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.where((vx > least[0]) & (vy > least[1]), (xy / n - x * y / n**2) / np.sqrt(vx * vy), np.nan)
    found: Floats = np.arctanh(np.clip(r, -0.999999, 0.999999))
    return found


def _spearman(x: Floats, y: Floats, w: Floats) -> float:
    if len(x) < 2:
        return math.nan
    ranks = _ranks(x, w), _ranks(y, w)
    a, b = (one - _mean(one, w) for one in ranks)
    n = w.sum()
    return float(_fisher(n, 0.0 * n, 0.0 * n, (w * a * a).sum(), (w * b * b).sum(), (w * a * b).sum()))


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Weighted mid-ranks as shares: the weight of what is less, and half of that of equals."""
    _, places = np.unique(values, return_inverse=True)
    held = np.bincount(places, weights)
    ranks: Floats = ((np.cumsum(held) - held / 2) / weights.sum())[places]
    return ranks

"""Pearson, Spearman and Kendall of many vectors at once: by rows of matrices, and of weighted pairs for the bootstrap.

A resample of n pairs is a vector of n counts; a coefficient of it is computed from the counts, without copying pairs.
What never belongs here: p-values (``correlation``), and which pairs are compared (``levels``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
CoefficientName = Literal["pearson", "spearman", "kendall"]
COEFFICIENTS: tuple[CoefficientName, ...] = ("pearson", "spearman", "kendall")

# scipy.stats takes half a second to load: the functions that need it import it.

_ROUNDING = 1e-12  # a variance of standardised values up to this is none
# Pairs of pairs that are held at a time; beyond that many of one vector, Kendall's tau is computed row by row.
_AT_ONCE = 9_000_000


def by_rows(name: CoefficientName, xs: Floats, ys: Floats) -> Floats:
    """A coefficient of each row of ``xs`` with the same row of ``ys``; nan where one side has no spread.

    Both are matrices of the same shape. Kendall's is tau-b.
    """
    from scipy.stats import rankdata

    if xs.shape[1] < 2:
        return np.full(len(xs), np.nan)
    if name == "pearson":
        return _pearson_rows(_standardised(xs), _standardised(ys))
    if name == "spearman":
        return _pearson_rows(_standardised(rankdata(xs, axis=1)), _standardised(rankdata(ys, axis=1)))
    return _kendall_rows(xs, ys)


def of_counts(name: CoefficientName, counts: Floats, xs: Floats, ys: Floats) -> Floats:
    """A coefficient of ``xs`` and ``ys`` for each row of ``counts``, which says how often each pair occurs.

    It equals the coefficient of the pairs repeated so often; nan where one side then has no spread.
    """
    if len(xs) < 2:
        return np.full(len(counts), np.nan)
    if name == "kendall":
        return _kendall_of_counts(counts, xs, ys)
    if name == "spearman":
        return _weighted(counts, _weighted_ranks(counts, xs), _weighted_ranks(counts, ys))
    one, other = (_standardised(values[None, :]) for values in (xs, ys))
    return _weighted(counts, np.broadcast_to(one, counts.shape), np.broadcast_to(other, counts.shape))


def _standardised(rows: Floats) -> Floats:
    """Rows of mean 0 and variance 1; nan where a row has no spread."""
    rows = np.asarray(rows, dtype=np.float64)
    centred = rows - rows.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    size = np.abs(rows).max(axis=1, keepdims=True)
    spread[spread <= 1e-9 * size] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / spread, dtype=np.float64)


def _pearson_rows(xs: Floats, ys: Floats) -> Floats:
    return np.asarray(np.clip((xs * ys).mean(axis=1), -1.0, 1.0), dtype=np.float64)


def _kendall_rows(xs: Floats, ys: Floats) -> Floats:
    from scipy.stats import kendalltau

    n = xs.shape[1]
    if n * n > _AT_ONCE // 100:
        found = [
            float(kendalltau(x, y, method="asymptotic").statistic)
            if x.min() < x.max() and y.min() < y.max()
            else np.nan
            for x, y in zip(xs, ys, strict=True)
        ]
        return np.array(found, dtype=np.float64)
    size = max(1, _AT_ONCE // (n * n))
    parts = [_kendall_block(xs[at : at + size], ys[at : at + size]) for at in range(0, len(xs), size)]
    return np.concatenate(parts) if parts else np.empty(0)


def _kendall_block(xs: Floats, ys: Floats) -> Floats:
    one = np.sign(xs[:, :, None] - xs[:, None, :])
    other = np.sign(ys[:, :, None] - ys[:, None, :])
    untied = np.abs(one).sum(axis=(1, 2)) * np.abs(other).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((one * other).sum(axis=(1, 2)) / np.sqrt(untied), dtype=np.float64)


def _weighted(counts: Floats, xs: Floats, ys: Floats) -> Floats:
    total = counts.sum(axis=1)
    means = [(counts * values).sum(axis=1) / total for values in (xs, ys)]
    one, other = xs - means[0][:, None], ys - means[1][:, None]
    variances = [(counts * values**2).sum(axis=1) / total for values in (one, other)]
    product = variances[0] * variances[1]
    product[(variances[0] <= _ROUNDING) | (variances[1] <= _ROUNDING)] = np.nan
    with np.errstate(invalid="ignore"):
        found = (counts * one * other).sum(axis=1) / total / np.sqrt(product)
    return np.asarray(np.clip(found, -1.0, 1.0), dtype=np.float64)


def _weighted_ranks(counts: Floats, values: Floats) -> Floats:
    """The mid-rank of each value among the values repeated so often, for each row of counts; in shares of the total."""
    _, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    equal = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks = np.cumsum(equal, axis=1) - equal / 2
    return np.asarray((ranks / counts.sum(axis=1, keepdims=True))[:, places], dtype=np.float64)


def _kendall_of_counts(counts: Floats, xs: Floats, ys: Floats) -> Floats:
    n = len(xs)
    if n * n > _AT_ONCE:
        repeated = [np.repeat(np.arange(n), row.astype(np.int64)) for row in counts]
        return np.concatenate([_kendall_rows(xs[None, at], ys[None, at]) for at in repeated])
    # Whole numbers below 2^24 are exact in single precision, whose products take half of the time.
    weights = counts.astype(np.float32)
    one, other = (np.sign(values[:, None] - values[None, :]).astype(np.float32) for values in (xs, ys))

    def total(pairs: NDArray[np.float32]) -> Floats:
        return np.asarray(((weights @ pairs).astype(np.float64) * counts).sum(axis=1), dtype=np.float64)

    untied = total(np.abs(one)) * total(np.abs(other))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total(one * other) / np.sqrt(untied), dtype=np.float64)

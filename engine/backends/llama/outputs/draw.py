"""Drawing one token from a row of logits in a few passes over the vocabulary, without sorting it.

Tokens are taken in the order of their ids, or best first if ``top_p`` needs that, and the cumulative weight at which
the random number falls selects the token.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 128
_FIRST_COUNT = 256  # tokens considered first for top_p


def draw(
    row: npt.NDArray[np.float32],
    number: float,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    mask: npt.NDArray[np.bool_] | None = None,
) -> int:
    """The token that ``number`` in [0, 1) selects at a ``temperature`` above 0. The row must be contiguous.

    First ``mask`` removes tokens, then ``top_k`` (0: all) keeps the best, then ``min_p`` (0: off) those with at least
    this share of the best one's probability, then ``top_p`` (1: all) the best that make up this share of the rest. Of
    equals the lower id ranks higher.

    :raises FloatingPointError: the logits are not finite.
    """
    values = row if mask is None else np.where(mask, row, np.float32(-np.inf))
    highest = values.max()
    check_finite(highest)
    if 0 < top_k < len(values):
        kept = np.zeros(len(values), dtype=bool)
        kept[top_indices(values, top_k)] = True
        values = np.where(kept, values, np.float32(-np.inf))
    weights = values - highest
    if min_p > 0:
        weights[weights < math.log(min_p)] = -np.inf
    weights /= np.float32(max(temperature, 1e-30))
    np.exp(weights, out=weights)
    if top_p < 1:
        return _draw_top_p(weights, top_p, number)
    # Sums of blocks first; then only the block that holds the token is searched.
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum(dtype=np.float64)
    target = number * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), len(sums) - 1)
    while block and sums[block] == sums[block - 1]:
        block -= 1
    start = block * _BLOCK
    before = float(sums[block - 1]) if block else 0.0
    return start + _index_at(weights[start : start + _BLOCK], target - before)


def check_finite(highest: npt.NDArray[np.float32] | np.float32) -> None:
    """Check the highest logit of each row; numpy's maximum of a row with a NaN is NaN.

    :raises FloatingPointError: one is not finite.
    """
    if not np.isfinite(highest).all():
        raise FloatingPointError("its logits are not finite (NaN or infinite): damaged weights, or an overflow")


def top_indices(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The indices of the ``count`` highest values, highest first; of equals the lower index is first."""
    if count <= 0:
        return np.empty(0, dtype=np.intp)
    if count < len(values):
        border = np.partition(values, len(values) - count)[len(values) - count]
        indices = np.flatnonzero(values >= border)
    else:
        indices = np.arange(len(values))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order[:count]]


def _draw_top_p(weights: npt.NDArray[np.float32], top_p: float, number: float) -> int:
    wanted = top_p * float(weights.sum(dtype=np.float64))
    count = min(_FIRST_COUNT, len(weights))
    while True:
        indices = top_indices(weights, count)
        total = weights[indices].cumsum(dtype=np.float64)
        if total[-1] >= wanted or count == len(weights):
            break
        count = min(8 * count, len(weights))
    kept = min(int(np.searchsorted(total, wanted)) + 1, count)
    return int(indices[_index_at(weights[indices[:kept]], number * float(total[kept - 1]))])


def _index_at(weights: npt.NDArray[np.float32], target: float) -> int:
    """The index at which the running sum passes ``target``; the last one with a weight if rounding prevents that."""
    total = weights.cumsum(dtype=np.float64)
    index = int(np.searchsorted(total, target, side="right"))
    return index if index < len(weights) else int(np.flatnonzero(weights)[-1])

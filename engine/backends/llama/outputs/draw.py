"""Drawing one token from a row of logits, in a few passes over the vocabulary and without sorting it.

A draw runs through the tokens in the order of their ids, or best first where ``top_p`` needs that order, and takes the
one in whose part of the total the number falls. What never belongs here: batches, greedy choice, penalties, seeds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 128
_FIRST = 256  # how many of the best are looked at first for top_p


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
    """The token that ``number`` in [0, 1) draws at a ``temperature`` above 0; the row must be contiguous.

    ``mask`` rules tokens out, then ``top_k`` (0: all) keeps the best, then ``min_p`` (0: off) those with such a share
    of the best one's probability, then ``top_p`` (1: all) the best that together have such a part of what is left. Of
    equals the lower id is the better.

    :raises FloatingPointError: the row is no numbers.
    """
    values = row if mask is None else np.where(mask, row, np.float32(-np.inf))
    highest = values.max()
    check_numbers(highest)
    if 0 < top_k < len(values):
        kept = np.zeros(len(values), dtype=bool)
        kept[best(values, top_k)] = True
        values = np.where(kept, values, np.float32(-np.inf))
    weights = values - highest
    if min_p > 0:
        weights[weights < math.log(min_p)] = -np.inf
    weights /= np.float32(max(temperature, 1e-30))
    np.exp(weights, out=weights)
    if top_p < 1:
        return _from_the_best(weights, top_p, number)
    # Sums of blocks first: one of them holds the token, and only that is looked at closely.
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum(dtype=np.float64)
    target = number * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), len(sums) - 1)
    while block and sums[block] == sums[block - 1]:
        block -= 1
    start = block * _BLOCK
    before = float(sums[block - 1]) if block else 0.0
    return start + _place(weights[start : start + _BLOCK], target - before)


def check_numbers(best: npt.NDArray[np.float32] | np.float32) -> None:
    """See that the best of each row is a number; if any of a row is NaN, numpy takes that for the best.

    :raises FloatingPointError: it is none.
    """
    if not np.isfinite(best).all():
        raise FloatingPointError("its logits are no numbers (NaN or infinite): damaged weights, or an overflow")


def best(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The places of the ``count`` highest values, highest first; of equals the lower place is first."""
    if count <= 0:
        return np.empty(0, dtype=np.intp)
    if count < len(values):
        border = np.partition(values, len(values) - count)[len(values) - count]
        places = np.flatnonzero(values >= border)
    else:
        places = np.arange(len(values))
    order = np.argsort(-values[places], kind="stable")
    return places[order[:count]]


def _from_the_best(weights: npt.NDArray[np.float32], top_p: float, number: float) -> int:
    wanted = top_p * float(weights.sum(dtype=np.float64))
    count = min(_FIRST, len(weights))
    while True:
        places = best(weights, count)
        total = weights[places].cumsum(dtype=np.float64)
        if total[-1] >= wanted or count == len(weights):
            break
        count = min(8 * count, len(weights))
    kept = min(int(np.searchsorted(total, wanted)) + 1, count)
    return int(places[_place(weights[places[:kept]], number * float(total[kept - 1]))])


def _place(weights: npt.NDArray[np.float32], target: float) -> int:
    """Where the running sum passes ``target``; the last place of any weight where rounding keeps it from doing so."""
    total = weights.cumsum(dtype=np.float64)
    place = int(np.searchsorted(total, target, side="right"))
    return place if place < len(weights) else int(np.flatnonzero(weights)[-1])

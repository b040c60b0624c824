"""Is the mean of a few differences other than 0? The sign-flip test (Fisher 1935).

If two candidates could be exchanged on each item, the difference of an item is as likely to have one sign as the other.
The chance of a mean as far from 0 is counted over all signs, or over many of them: scipy.stats.permutation_test of one
sample, for tables with hundreds of pairs. What never belongs here: what the differences are.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST = 100  # items
_ALL = 13  # up to so many items all signs are tried
_DRAWN = 9_999
_ROUNDING = 1e-9


def sign_flips(sums: Floats) -> float:
    """The two-sided p-value of a mean of 0. ``sums``: the sum of the differences of each item, 1 to ``MOST`` of them.

    Of n items p is at least 2/2^n, and 1/10,000 where signs are drawn (beyond 13 items). Items whose difference is 0
    change nothing.
    """
    signs = _all_signs(len(sums)) if len(sums) <= _ALL else _drawn_signs(len(sums))
    own = 0 if len(sums) <= _ALL else 1  # drawn signs may not include those that were seen
    seen, slack = abs(math.fsum(sums)), _ROUNDING * math.fsum(np.abs(sums))
    extreme = int((np.abs(signs @ sums) >= seen - slack).sum())
    return (extreme + own) / (len(signs) + own)


@lru_cache(maxsize=_ALL)
def _all_signs(n: int) -> Floats:
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return (2 * bits - 1).astype(np.float64)


@lru_cache(maxsize=8)
def _drawn_signs(n: int) -> Floats:
    # Always the same ones, so that a table's p-values are the same at every run.
    bits = np.random.Generator(np.random.PCG64(1935)).integers(0, 2, (_DRAWN, MOST))
    return np.ascontiguousarray(2 * bits[:, :n] - 1, dtype=np.float64)

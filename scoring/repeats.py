"""How reliably something succeeds when it is done again: pass^k over tasks that were each tried several times.

What never belongs here: what a success is.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb

from .stream import Mean


def pass_hat_k(trials: Iterable[tuple[int, int]], k: int) -> Mean:
    """pass^k of tau-bench (Yao et al. 2024, section 3): the chance that k independent tries of a task all succeed.

    :param trials: by task, how often it was tried (n) and how often that succeeded (c).
    :return: over the tasks with n ≥ k, the mean of C(c, k) / C(n, k), each of which estimates its task's chance without
        bias; its standard error is over tasks. Empty where no task was tried k times.
    :raises ValueError: k is below 1, or a task succeeded more often than it was tried.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it counts tries, from 1")
    mean = Mean()
    for tried, succeeded in trials:
        if not 0 <= succeeded <= tried:
            raise ValueError(f"{succeeded} of {tried} tries cannot have succeeded")
        if tried >= k:
            mean.add(comb(succeeded, k) / comb(tried, k))
    return mean

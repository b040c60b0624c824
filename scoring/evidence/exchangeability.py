"""Exchangeability: the published order of a benchmark's items is more likely than other orders (Oren et al. 2023).

A benchmark's items are usually in no particular order. A model that has not read the file cannot prefer the order in
which it was published; one that has may remember which item follows which (arXiv 2310.17623). Items are cut into
shards, so that a shard fits into the context; each shard is read in its published order and in random orders.

Needs: log-likelihoods of whole texts, and a benchmark whose order means nothing: one that is sorted (by subject,
length, difficulty) is preferred by clean models too. No reference models, no second set. It sees only models that read
the file in its order: not items in another order, answers alone, or rephrased items.
Costs: (1 + shuffles) calls per shard, each as long as the shard; the authors use 50 shards with 250 shuffles each.
Effect: nats per shard by which the published order is more likely than the mean of its shuffled orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..contamination import POSITIVE_LOGPROB_SLACK, Floats
from ..intervals import student_tail
from .evidence import Evidence, check_numbers
from .permutation import exchange_within


def exchangeability(published_order: Floats, shuffled_orders: Sequence[Floats]) -> Evidence:
    """Test whether shards are more likely in their published order than shuffled.

    If all orders are equally likely to be the published one, then so are the published and the shuffled orders of a
    shard among each other, and the p-value is exact. With one shard it is the paper's: (1 + number
    of shuffled orders that are at least as likely) / (1 + number of shuffled orders). The statistic is the sum of the
    shards' differences, standardised under the null.

    Args:
        published_order: The log-likelihood of each shard in its published order, in nats.
        shuffled_orders: For each shard, the log-likelihoods of its items in orders that were drawn at random,
            independently of each other; or all its other orders.
    """
    rows = _check_shards(published_order, shuffled_orders)
    statistic, p = exchange_within(rows)
    gains = _gains(rows)
    return Evidence("exchangeability", statistic, p, math.fsum(gains) / len(gains), len(gains))


def sharded_t(published_order: Floats, shuffled_orders: Sequence[Floats]) -> tuple[float, float]:
    """Return t of the shards' gains and its one-sided p-value, by the paper's sharded likelihood comparison test.

    A gain is the log-likelihood of the published order minus the mean of the shuffled ones. p relies on gains that are
    close to normal; `exchangeability` does not.

    Source: Oren et al. 2023; their code divides by the deviation of the sample, here it is the estimate of
    the population's (n - 1), so that t has Student's distribution.
    """
    gains = np.asarray(_gains(_check_shards(published_order, shuffled_orders)))
    if len(gains) < 2:
        raise ValueError("published_order: one shard; a t-test needs at least two")
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    mean = float(gains.mean())
    if not error:
        return (0.0, 0.5) if not mean else (math.copysign(math.inf, mean), 0.0 if mean > 0 else 1.0)
    return mean / error, float(student_tail(mean / error, len(gains) - 1))


def _gains(rows: Sequence[NDArray[np.float64]]) -> list[float]:
    return [float(row[0]) - math.fsum(row[1:]) / (len(row) - 1) for row in rows]


def _check_shards(published_order: Floats, shuffled_orders: Sequence[Floats]) -> list[NDArray[np.float64]]:
    """Return for each shard the log-likelihood of its published order, followed by those of the shuffled ones."""
    orders = check_numbers("published_order", published_order, high=POSITIVE_LOGPROB_SLACK)
    if len(shuffled_orders) != len(orders):
        raise ValueError(f"shuffled_orders: {len(shuffled_orders)} for {len(orders)} shards; each shard needs some")
    return [
        np.concatenate([[own], check_numbers(f"shuffled_orders[{index}]", others, high=POSITIVE_LOGPROB_SLACK)])
        for index, (own, others) in enumerate(zip(orders, shuffled_orders, strict=True))
    ]

"""Option order: a model does better with a question's options in their published order than in other orders.

To swap the contents of options changes nothing about the question. A model that prefers the published order has
probably read it: Ni et al. 2024 (arXiv 2409.01790) ask whether the published order is the most likely one. Here the
advantage is added up over items, and compared with what it would be if any other order had been the published one.

Needs: text only, if the values are correct answers; log-likelihoods, if they are those of the key or of the whole item.
No reference models, no second set. Draw the other orders at random, independently for each item, and *so that the key
keeps its letter*: clean models prefer some letters, and keys are not spread evenly over them. Leave out items whose
options have an order of their own ("all of the above", ascending numbers). It does not see models that learned answers
by their contents, or with options in random order.
Costs: (1 + other orders) calls per item.
Effect: mean value in the published order minus mean in the other orders: accuracy (0–1), or nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..contamination import Floats
from .evidence import Evidence, check_numbers
from .permutation import exchange_within


def option_order(published_order: Floats, permuted_orders: Sequence[Floats]) -> Evidence:
    """Test whether items' values are higher in the published order of options than in other orders.

    If each item's orders are exchangeable, then any of its values is the published one with the same probability, and
    the p-value is exact. For correct answers, the sum is a Poisson binomial variable. The statistic is the sum of
    advantages, standardised under the null. Items whose values are all equal say nothing, but count in `n`.

    Args:
        published_order: By item, 1 for a correct answer and 0 for a wrong one, or a log-likelihood in nats.
        permuted_orders: By item, the values in other orders.
    """
    own = check_numbers("published_order", published_order)
    if len(permuted_orders) != len(own):
        raise ValueError(f"permuted_orders: {len(permuted_orders)} for {len(own)} items; each item needs some")
    others = [check_numbers(f"permuted_orders[{index}]", values) for index, values in enumerate(permuted_orders)]
    statistic, p = exchange_within([np.concatenate([[value], rest]) for value, rest in zip(own, others, strict=True)])
    gains = [float(value) - math.fsum(rest) / len(rest) for value, rest in zip(own, others, strict=True)]
    return Evidence("option order", statistic, p, math.fsum(gains) / len(gains), len(gains))

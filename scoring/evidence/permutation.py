"""Permutation tests behind the witnesses: within units, and between two sets of items.

All p-values are one-sided and conservative: ties count against the accusation, and there is no mid-p. A p-value is
exact as long as the distribution under the null has at most 16,384 distinct values, as it has for counts and for few
units. Beyond, it comes from 9,999 random exchanges and the observed one (Phipson and Smyth 2010), so it is at least
1/10,000. No p-value depends on the order of units.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..contamination import Floats
from .evidence import Evidence, check_numbers

_MAX_SUMS = 1 << 14  # distinct sums up to which their distribution is computed
_RANDOM_EXCHANGES = 9_999
_STEPS = 10**9  # values are rounded to this fraction of their total range, and sums that differ by rounding are ties

Integers = NDArray[np.int64]


def exchange_within(rows: Sequence[Floats]) -> tuple[float, float]:
    """Test whether the first values of rows are higher than the other values of their rows.

    Under the null the values of a row are exchangeable, independently of other rows: each is the first one with the
    same probability.

    Returns:
        The sum of first values, standardised by its mean and standard deviation under the null (0 if all rows are
        constant), and the p-value of a sum that is at least as high.
    """
    arrays = [np.asarray(row, dtype=np.float64) for row in rows]
    offsets = [array - array.min() for array in arrays]
    variance = math.fsum(float(np.var(values)) for values in offsets)
    if not variance:
        return 0.0, 1.0
    excess = math.fsum(float(values[0] - values.mean()) for values in offsets)
    step = math.fsum(float(values.max()) for values in offsets) / _STEPS
    steps = [np.rint(values / step).astype(np.int64) for values in offsets]
    observed = sum(int(values[0]) for values in steps) - len(steps)  # each row is rounded by half a step, twice
    # In an order that does not depend on which value is the first one, nor on the order of rows.
    ordered = sorted((np.sort(values) for values in steps), key=lambda values: values.tolist())
    return excess / math.sqrt(variance), _chance_within(ordered, observed)


def _chance_within(rows: Sequence[Integers], observed: int) -> float:
    """Return the chance that one value of each row, chosen at random, sum to at least `observed`."""
    sums: Integers = np.zeros(1, dtype=np.int64)
    weights: NDArray[np.float64] = np.ones(1)
    for row in rows:
        values, counts = np.unique(row, return_counts=True)
        totals, indices = np.unique(np.add.outer(sums, values), return_inverse=True)
        if len(totals) > _MAX_SUMS:
            return _random_chance_within(rows, observed)
        weights = np.bincount(indices.ravel(), np.multiply.outer(weights, counts / len(row)).ravel()).astype(float)
        sums = totals
    return _bounded(math.fsum(weights[sums >= observed]))


def _random_chance_within(rows: Sequence[Integers], observed: int) -> float:
    chance = np.random.Generator(np.random.PCG64(2023))  # fixed: the same data always give the same p
    sums = np.zeros(_RANDOM_EXCHANGES, dtype=np.int64)
    for row in rows:
        sums += row[chance.integers(0, len(row), _RANDOM_EXCHANGES)]
    return (int((sums >= observed).sum()) + 1) / (_RANDOM_EXCHANGES + 1)


def exchange_between(values: Floats, reference: Floats) -> float:
    """Return the p-value of a mean of `values` at least as high, if all values are exchangeable with `reference`.

    For values 0 and 1 this is Fisher's exact test; for ranks it is the exact Mann–Whitney test.
    """
    pooled = np.concatenate([np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)])
    offsets = pooled - pooled.min()
    total = math.fsum(offsets)
    if not total:
        return 1.0
    size = len(values)
    steps = np.rint(offsets / (total / _STEPS)).astype(np.int64)
    return _chance_between(np.sort(steps), size, int(steps[:size].sum()) - size)


def _chance_between(pooled: Integers, size: int, observed: int) -> float:
    """Return the chance that `size` of the pooled values, chosen at random, sum to at least `observed`.

    A value that occurs several times is handled at once: how many of its copies are chosen is binomial, given that
    `size` values are chosen in total.
    """
    values, counts = np.unique(pooled, return_counts=True)
    share, remaining = size / len(pooled), len(pooled)
    sizes, sums = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    weights: NDArray[np.float64] = np.ones(1)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        remaining -= count
        copies = np.arange(count + 1)
        new_sizes, new_sums = np.add.outer(sizes, copies).ravel(), np.add.outer(sums, copies * value).ravel()
        new_weights = np.multiply.outer(weights, _binomial(count, share)).ravel()
        possible = (new_sizes <= size) & (new_sizes + remaining >= size)
        # Sums are at most `_STEPS` and a rounding error of half a step for each value: below 2^32.
        keys, indices = np.unique((new_sizes[possible] << 32) | new_sums[possible], return_inverse=True)
        if len(keys) > _MAX_SUMS:
            return _random_chance_between(pooled, size, observed)
        weights = np.bincount(indices.ravel(), new_weights[possible]).astype(float)
        sizes, sums = keys >> 32, keys & 0xFFFFFFFF
    return _bounded(math.fsum(weights[sums >= observed]) / math.fsum(weights))


def _binomial(count: int, share: float) -> NDArray[np.float64]:
    logs = [
        math.lgamma(count + 1)
        - math.lgamma(copies + 1)
        - math.lgamma(count - copies + 1)
        + copies * math.log(share)
        + (count - copies) * math.log1p(-share)
        for copies in range(count + 1)
    ]
    weights: NDArray[np.float64] = np.exp(np.asarray(logs))
    return weights


def _random_chance_between(pooled: Integers, size: int, observed: int) -> float:
    chance = np.random.Generator(np.random.PCG64(2024))
    sums = np.zeros(_RANDOM_EXCHANGES, dtype=np.int64)
    missing = np.full(_RANDOM_EXCHANGES, size)
    for index, value in enumerate(pooled):  # selection sampling: each subset of this size is equally likely
        inside = chance.random(_RANDOM_EXCHANGES) * (len(pooled) - index) < missing
        sums += value * inside
        missing -= inside
    return (int((sums >= observed).sum()) + 1) / (_RANDOM_EXCHANGES + 1)


def _bounded(chance: float) -> float:
    return min(1.0, max(sys.float_info.min, chance))


def compare_sets(
    witness: str,
    values: Floats,
    reference: Floats,
    clusters: Sequence[str] | None = None,
    reference_clusters: Sequence[str] | None = None,
) -> Evidence:
    """Test whether values of items of the benchmark are higher than those of the same model on a clean second set.

    The statistic is the mean of `values`, the effect its difference from the mean of `reference`. The null: units of
    the two sets are exchangeable. So p speaks for contamination only as far as the second set differs in nothing else:
    the same source, form, length and difficulty.

    Args:
        witness: The name in the evidence.
        values: One value per item, higher for contaminated items.
        reference: The values of the second set.
        clusters: For each of `values`, its cluster if items depend on each other; the unit is then the cluster's mean.
        reference_clusters: Those of `reference`. If both sets have the same clusters, such as an item and its rephrased
            version, then they are compared pair by pair.
    """
    own, other = check_numbers("values", values), check_numbers("reference", reference)
    if (clusters is None) != (reference_clusters is None):
        missing = "clusters" if clusters is None else "reference_clusters"
        raise ValueError(f"{missing}: missing; clusters are needed for both sets or for neither")
    if clusters is None or reference_clusters is None:
        p, n = exchange_between(own, other), len(own)
    else:
        own_means = _cluster_means("clusters", own, clusters)
        other_means = _cluster_means("reference_clusters", other, reference_clusters)
        shared = own_means.keys() & other_means.keys()
        own, other = np.array(list(own_means.values())), np.array(list(other_means.values()))
        n = len(own)
        if not shared:
            p = exchange_between(own, other)
        elif len(shared) == len(own_means) == len(other_means):
            _, p = exchange_within([np.array([own_means[name], other_means[name]]) for name in own_means])
        else:
            alone = min(own_means.keys() ^ other_means.keys())
            raise ValueError(
                f"clusters: {alone!r} is in one set only; the sets need the same clusters or no common ones"
            )
    mean, reference_mean = math.fsum(own) / len(own), math.fsum(other) / len(other)
    return Evidence(witness, mean, p, mean - reference_mean, n)


def _cluster_means(name: str, values: NDArray[np.float64], clusters: Sequence[str]) -> dict[str, float]:
    if len(clusters) != len(values):
        raise ValueError(f"{name}: {len(clusters)} for {len(values)} values; each value needs one")
    members: dict[str, list[float]] = {}
    for cluster, value in zip(clusters, values.tolist(), strict=True):
        members.setdefault(cluster, []).append(value)
    return {cluster: math.fsum(own) / len(own) for cluster, own in members.items()}

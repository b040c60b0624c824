"""At which rates does a judge not judge as it does unloaded? Tests that keep their level over all rates and figures.

A judge that load does not touch gives, to the same request, answers that are draws of the same kind in every pass:
which of them came under which load cannot be told from what they say. So passes may be exchanged request by request,
and a figure is compared with what it is under such exchanges: a permutation test within blocks (Good 2005,
"Permutation, parametric and bootstrap tests of hypotheses", 3rd edition). It is exact for any kind of noise, for the
judge's own is in all passes. Requests of one cluster are exchanged alike.

All figures of all rates are tested at once by the most conspicuous of them (Westfall and Young 1993, "Resampling-based
multiple testing"), which makes use of how they hang together: all rates are compared with the same unloaded passes.
Rates that are flagged are then taken out and the others are tested once more without them, until none is flagged.

What never belongs here: what figures mean (``judgement``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .changes import Floats, PassTable, PassValues, contribution

# scipy.stats takes half a second to load: the functions that need it import it.

DRAWS = 1_999
_AT_ONCE = 2_000_000  # numbers held at a time
_ROUNDING = 1e-9
# Scores are whole numbers, so that many exchanges give one sum, and a test with ties keeps well below its level.
# Weights of requests that have nothing to do with the answers break them.
_TIE_BREAK, _GOLDEN = 1e-3, (5.0**0.5 - 1.0) / 2


@dataclass(slots=True, frozen=True)
class RateTest:
    """The tests of one rate, corrected for the number of rates and figures.

    ``p`` is that of nothing being changed at this rate, None where nothing could be tested; ``figures`` those of each
    figure, in the order of the tables, 1 of one that could not be tested.
    """

    p: float | None = None
    figures: tuple[float, ...] = ()


def exchange_tests(
    tables: Sequence[PassTable], rates: int, *, alpha: float = 0.05, draws: int = DRAWS, seed: int = 1993
) -> list[RateTest]:
    """The tests of each rate. ``tables`` have a column for each rate, then one for each of the two unloaded passes.

    The chance that a rate at which nothing has changed is flagged (p up to ``alpha``) is ``alpha``, over all such rates
    together; less where few different figures are possible. No p-value is below 1/(draws + 1). The same numbers and the
    same seed give the same p-values.
    """
    found = [RateTest()] * rates
    left = list(range(rates))
    reached = 0.0
    while left:
        tests = _round([_of_rates(table, [*left, rates, rates + 1]) for table in tables], len(left), draws, seed)
        for rate, test in zip(left, tests, strict=True):
            if test.p is not None:
                figures = tuple(max(reached, p) for p in test.figures)
                found[rate] = RateTest(min(figures), figures)
        flagged = [rate for rate in left if (p := found[rate].p) is not None and p <= alpha]
        if not flagged:
            break
        reached = max(found[rate].p or 0.0 for rate in flagged)
        left = [rate for rate in left if rate not in flagged]
    return found


def _of_rates(table: PassTable, columns: Sequence[int]) -> PassTable:
    figures = [
        PassValues(one.kind, one.values[:, columns], upwards=one.upwards, nominal=one.nominal) for one in table.figures
    ]
    return PassTable(table.clusters, table.answered[:, columns], figures)


def _round(tables: Sequence[PassTable], rates: int, draws: int, seed: int) -> list[RateTest]:
    """One p-value for each rate and figure, corrected for all of them; the first exchange changes nothing."""
    statistics = np.concatenate([_statistics(table, rates, draws, seed) for table in tables], axis=2)
    upwards = np.array([one.upwards for table in tables for one in table.figures])
    ps, tested = _tails(statistics, upwards)
    least = np.sort(ps.min(axis=(1, 2)))
    corrected = np.searchsorted(least, ps[0] * (1.0 + _ROUNDING), side="right") / len(least)
    return [
        RateTest(float(corrected[rate].min()), tuple(np.where(tested[rate], corrected[rate], 1.0).tolist()))
        if tested[rate].any()
        else RateTest()
        for rate in range(rates)
    ]


def _tails(statistics: Floats, upwards: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """By exchange, rate and figure how conspicuous a statistic is, as the p-value that it had if it were normal; and by
    rate and figure whether exchanges make any difference. Whatever the shape, the smaller the more conspicuous.
    """
    from scipy.special import ndtr

    spread = np.sqrt((statistics**2).mean(axis=0))  # the mean over all exchanges is 0
    tested = spread > _ROUNDING * np.abs(statistics).max(axis=0, initial=1e-300)
    scaled = statistics / np.where(tested, spread, 1.0)
    # Rounding must not tell equal sums apart.
    scaled = np.asarray(np.round(np.where(upwards, scaled, np.abs(scaled)), 9), dtype=np.float64)
    ps = np.where(upwards, ndtr(-scaled), 2.0 * ndtr(-scaled))
    return np.asarray(np.where(tested, ps, 2.0), dtype=np.float64), tested


def _statistics(table: PassTable, rates: int, draws: int, seed: int) -> Floats:
    """By exchange, rate and figure: the sum of the contributions of all requests."""
    found = np.zeros((draws + 1, rates, len(table.figures)))
    if not table.figures:
        return found
    weights = 1.0 + _TIE_BREAK * (np.arange(len(table.clusters)) * _GOLDEN % 1.0)
    clusters = 1 + int(table.clusters.max(initial=-1))
    size = max(1, _AT_ONCE // max(1, max(clusters, len(table.clusters)) * (rates + 2)))
    for at in range(0, draws + 1, size):
        # Every table draws the same keys, so that requests and pairs of a cluster are exchanged alike.
        generator = np.random.Generator(np.random.PCG64([seed, at]))
        keys = generator.random((min(size, draws + 1 - at), clusters, rates + 2), dtype=np.float32)
        if at == 0:
            keys[0] = np.arange(rates + 2)
        for rows, columns in _patterns(table.answered):
            order = np.argsort(keys[:, table.clusters[rows]][:, :, columns], axis=2)
            held = [place for place in columns if place < rates]
            for place, one in enumerate(table.figures):
                taken = np.take_along_axis(one.values[rows][None, :, columns], order, axis=2)
                added = contribution(one, taken[:, :, :-2], taken[:, :, -2:-1], taken[:, :, -1:])
                found[at : at + size, held, place] += np.einsum("krs,r->ks", np.nan_to_num(added), weights[rows])
    return found


def _patterns(answered: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], list[int]]]:
    """Requests that were answered in the same passes, and these passes: only among them answers can be exchanged."""
    every, of = np.unique(answered, axis=0, return_inverse=True)
    found = []
    for number, pattern in enumerate(every):
        columns = np.flatnonzero(pattern).tolist()
        if pattern[-1] and pattern[-2] and len(columns) > 2:
            found.append((np.flatnonzero(of.ravel() == number), columns))
    return found

"""Confidence sequences for means of bounded scores: intervals that may be checked after every score.

To test whether the mean is m, one bets against it: the capital starts at 1, and a score x multiplies it by 1 + bet·(x -
m), with a bet that is fixed before x is seen. If the mean is m, no betting scheme makes money on average, so by Ville's
inequality the capital ever reaches 1/alpha with probability at most alpha. The interval at any time has all m whose
capital has not reached 1/alpha yet; the intervals cover the mean at all times simultaneously.

Source: hedged capital process of Waudby-Smith and Ramdas 2024 ("Estimating means of bounded random variables by
    betting", JRSS B 86(1), sections 4.2 to 4.4 and Appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .intervals import check_level

# For each of these numbers of scores there is a bet that is optimal there; the capital is split evenly between these
# bets. In simulations with 50 to 500 skewed, binary or narrow scores, intervals are 1.3 to 1.5 times as wide as
# Student's at the same n, 1.8 times for 50 narrow ones; the paper's default, one bet for all n, gives 1.3 to 2.1 times.
TARGETS = (30.0, 120.0, 480.0)
# A bet may lose at most this fraction of the capital on one score (c in the paper, which uses 1/2 or 3/4).
MAX_LOSS = 0.9
_DIRECTIONS = np.array([1.0, -1.0])[:, None, None]


Numbers = Sequence[float] | NDArray[np.float64]


class ConfidenceSequences:
    """Confidence sequences of `rows` means at once, fed one score for each row at a time.

    With probability `level`, at all times simultaneously, a sequence covers the expectation of the next score given all
    earlier ones. With items in random order, this is the mean over all items like these. Each row covers by itself;
    joint coverage needs a higher level (Bonferroni).

    Dependent scores come as one observation: their mean, with their number as its weight. The target is then the mean
    over all such scores, because weight · (mean - m) is 0 on average over observations of any size in random order.

    The tested means are `steps` + 1 evenly spaced values from `low` to `high`, in units of the scores. A mean between
    two grid values is excluded only if both are excluded, so the grid widens an interval by less than two steps.
    """

    def __init__(
        self, rows: int, *, low: float = 0.0, high: float = 100.0, level: float = 0.95, steps: int = 2000
    ) -> None:
        """Start with nothing excluded.

        Raises:
            ValueError: if `level` is not between 0 and 1, or `low` is not below `high`.
        """
        check_level(level)
        if not low < high:
            raise ValueError(f"low is {low}, high is {high}; low must be below high")
        self.low, self.high = low, high
        self.counts = np.zeros(rows, dtype=np.int64)
        self._steps = steps
        # Each direction gets half the stake: the paper's hedge with theta = 1/2.
        enough = 2.0 / (1.0 - level)
        self._enough = enough * len(TARGETS)
        # sqrt(2 log(1/a) / (n variance)) is the best bet for n scores; a is the bet's part of the error.
        self._stake = np.sqrt(2.0 * math.log(self._enough) / np.array(TARGETS))
        self._weight = np.zeros(rows)
        self._sum = np.full(rows, 0.5)
        self._spread = np.full(rows, 0.25)
        # Highest mean excluded from below, lowest from above, as grid positions; -1 and steps + 1: none.
        self._under = np.full(rows, -1)
        self._over = np.full(rows, steps + 1)
        # By row, direction (0: on scores above m, 1: below), target, and m.
        self._capital = np.ones((rows, 2, len(TARGETS), steps + 1))
        self._set_grid(0, steps)

    def add(self, scores: Numbers, weights: Numbers | None = None) -> None:
        """Add the next score of each row; nan if a row has none now.

        Args:
            scores: One for each row.
            weights: Fractions, 0–1, of the largest weight that any observation of this sequence can have, which must be
                known beforehand. Default: all weigh the same.
        """
        values = np.asarray(scores, dtype=np.float64)
        if values.shape != self.counts.shape:
            raise ValueError(f"scores: shape {values.shape}; expected one score for each of {self.counts.size} rows")
        unit = (values - self.low) / (self.high - self.low)
        valid = (unit >= 0.0) & (unit <= 1.0)
        if not valid.all():
            if not np.isnan(values[~valid]).all():
                raise ValueError(f"scores {values[~valid].tolist()}; they must lie in {self.low:g}–{self.high:g}")
            unit = np.where(valid, unit, 0.0)
        unit_weights = np.ones_like(unit) if weights is None else np.asarray(weights, dtype=np.float64)
        if unit_weights.shape != unit.shape or not ((unit_weights >= 0.0) & (unit_weights <= 1.0)).all():
            raise ValueError(f"weights {unit_weights.tolist()}; expected one weight from 0 to 1 for each row")
        valid &= unit_weights > 0.0
        unit_weights = np.where(valid, unit_weights, 0.0)
        self._bet(unit, unit_weights)
        self._learn(unit, valid, unit_weights)
        self._exclude()

    @property
    def lows(self) -> NDArray[np.float64]:
        """Lower end of each row's interval; the end itself is excluded, too, unless it is `low`."""
        return self._scores(np.maximum(self._under, 0))

    @property
    def highs(self) -> NDArray[np.float64]:
        """Upper end of each row's interval; the end itself is excluded, too, unless it is `high`."""
        return self._scores(np.minimum(self._over, self._steps))

    def _scores(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = self.low + (self.high - self.low) * (places / self._steps)
        return scores

    def _bet(self, unit: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Let each mean's capital win or lose on the scores, scaled to 0–1, by bets fixed beforehand."""
        deviations = np.sqrt(self._spread / (self.counts + 1))
        bets = (1.0 / deviations)[:, None] * self._stake
        factors = np.minimum(bets[:, None, :, None], self._largest)
        factors *= weights[:, None, None, None]  # 0 without a score
        factors *= unit[:, None, None, None] * _DIRECTIONS - self._signed
        factors += 1.0
        self._capital *= factors
        # Cap the capital once a mean is excluded, so that sums stay finite.
        np.minimum(self._capital, 2.0 * self._enough, out=self._capital)

    def _learn(self, unit: NDArray[np.float64], valid: NDArray[np.bool_], weights: NDArray[np.float64]) -> None:
        """Update the running mean and variance behind the next bets (the paper's equation 15)."""
        self.counts += valid
        self._weight += weights
        self._sum += weights * unit
        self._spread += (weights * (unit - self._sum / (self._weight + 1.0))) ** 2

    def _exclude(self) -> None:
        """Exclude the means with enough capital permanently: the sequence is the intersection over time.

        Capital that bets on scores above m falls as m rises, so it excludes everything up to some mean.
        """
        excluded = np.count_nonzero(self._capital.sum(axis=2) >= self._enough, axis=2)
        below = self._first - 1 + excluded[:, 0]
        above = self._last + 1 - excluded[:, 1]
        # If both sides exclude every mean (probability below 1 - level), keep a point.
        self._under = np.maximum(self._under, np.minimum(below, self._over))
        self._over = np.minimum(self._over, np.maximum(above, self._under))
        # Drop what every row has excluded, once it is a tenth of the grid.
        first, last = max(0, int(self._under.min())), min(self._steps, int(self._over.max()))
        if last - first < 0.9 * (self._last - self._first):
            self._capital = self._capital[:, :, :, first - self._first : last - self._first + 1].copy()
            self._set_grid(first, last)

    def _set_grid(self, first: int, last: int) -> None:
        """Restrict the grid to positions from `first` to `last`."""
        self._first, self._last = first, last
        means = np.arange(first, last + 1) / self._steps
        with np.errstate(divide="ignore"):  # any bet against a mean of 0 or 1 is safe
            self._largest = MAX_LOSS / np.array([[means], [1.0 - means]])
        self._signed = _DIRECTIONS * means

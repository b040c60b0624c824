"""From when on a step is steady: the warm-up that is cut off its beginning, found from its own latencies.

The cut is that of MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output",
Simulation 69:6, 1997): means of batches of five, and the cut in the first half at which the standard error of the mean
of what is left is least. What is left is not steady if it still has a trend, as under a load that is too high.

What never belongs here: queues (``saturation``), and what is measured behind the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BATCH = 5
_MOST = 4096  # batches that are kept; beyond, pairs are merged
_LEAST = 10  # batches: fewer say nothing about steadiness
_PARTS = 12  # that are compared for a trend
_SURE = 5.0  # standard errors of a slope
_CHANGE = 0.2  # from the first part to the last, as a share of the mean


@dataclass(slots=True)
class BatchMeans:
    """A series as means of equal batches, in bounded memory; ``begins`` has the time of each batch's first value."""

    means: list[float] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    size: int = _BATCH
    _begin: float = 0.0
    _sum: float = 0.0
    _count: int = 0

    def add(self, time: float, value: float) -> None:
        """The next value of the series; times ascend."""
        if not self._count:
            self._begin = time
        self._sum += value
        self._count += 1
        if self._count == self.size:
            self.means.append(self._sum / self.size)
            self.begins.append(self._begin)
            self._sum, self._count = 0.0, 0
            if len(self.means) == _MOST:
                self.means = [(one + two) / 2 for one, two in zip(self.means[::2], self.means[1::2], strict=True)]
                self.begins = self.begins[::2]
                self.size *= 2


@dataclass(slots=True, frozen=True)
class Steadiness:
    """``cut``: how many values to leave out at the beginning, and ``begin`` the time of the first one behind them (None
    where nothing is cut). ``steady``: whether the rest is; None where there are too few values to tell.
    """

    cut: int
    begin: float | None
    steady: bool | None


def steadiness(series: BatchMeans) -> Steadiness:
    """Where a series becomes steady, and whether it does."""
    means = np.asarray(series.means)
    count = means.size
    if count < _LEAST:
        return Steadiness(0, None, None)
    # Sums over what each cut leaves, all at once; centred first, so that squares do not cancel.
    centred = (means - means.mean())[::-1]
    left = np.arange(1, count + 1)
    sums, squares = np.cumsum(centred), np.cumsum(centred**2)
    errors = ((squares - sums**2 / left) / left**2)[::-1]  # by cut
    cut = int(np.argmin(errors[: count // 2 + 1]))
    if _has_trend(means[cut:]):
        return Steadiness(0, None, False)
    return Steadiness(cut * series.size, series.begins[cut] if cut else None, True)


def _has_trend(means: Floats) -> bool:
    """Whether the means rise or fall surely, and by more than a part of their level. Long batches are compared: the
    latencies of neighbours in a queue are alike, and no trend.
    """
    parts = min(_PARTS, means.size // 2)
    if parts < 4:
        return False
    levels = np.array([part.mean() for part in np.array_split(means, parts)])
    places = np.arange(parts) - (parts - 1) / 2
    slope = float(places @ levels / (places @ places))
    rest = levels - levels.mean() - slope * places
    error = float(np.sqrt(rest @ rest / (parts - 2) / (places @ places)))
    change = abs(slope) * (parts - 1)
    return change > _CHANGE * abs(levels.mean()) and abs(slope) > _SURE * error

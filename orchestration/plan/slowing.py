"""How much calls slow each other down at one place, found out from calls that have taken place.

A call beside ``k - 1`` others is taken to last ``1 + c (k - 1)`` times as long as alone. With c = 0 a model has room
for all; with a large c it does a fixed amount of work a second, however many calls share it. What never belongs here:
which calls these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_TRIED = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0)
# What is taken where calls are computed on this machine and do not tell more. Measured on two cores: 16 lanes do 1.4
# times the work of one, 32 lanes 1.7 times, prefill included: c = 0.7 and 0.6.
ONE_PROCESSOR = 0.65
_BETTER = 0.9  # share of the squared deviations that may be left for a figure to be believed
_FEWEST = 20
_SHORTEST = 1e-9  # seconds; what sums lose in rounding


class SharedPlace:
    """Calls that were in flight at one place, in the order of ``begins`` and ``ends`` (seconds). ``most``: how many
    there were at once at most.
    """

    def __init__(self, begins: np.ndarray, ends: np.ndarray) -> None:
        self._begins, self._ends = begins, ends
        times = np.concatenate([begins, ends])
        change = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
        order = np.lexsort((change, times))
        self._times, self._level = times[order], np.cumsum(change[order])
        self.most = int(self._level.max(initial=0.0))

    def work(self, c: float) -> np.ndarray:
        """The seconds that each call would have lasted alone: the time of its flight, each moment by the speed that the
        calls in flight left it. So calls of this work take the same time again, at the same times, in a simulation.

        The mean number in flight would not do: a call's speed is convex in it, so its work would come out too small.
        """
        speeds = 1.0 / (1.0 + c * np.maximum(0.0, self._level - 1.0))
        done = np.concatenate([[0.0], np.cumsum(speeds[:-1] * np.diff(self._times))])
        begun, ended = (np.interp(moments, self._times, done) for moments in (self._begins, self._ends))
        return np.asarray(ended - begun)


def fitted_slowing(
    work: Callable[[float], np.ndarray], tokens: np.ndarray, groups: Sequence[str], *, shared: bool
) -> float:
    """The c under which calls of one kind are most alike, by least squares of the logarithm of their seconds alone.

    :param work: these seconds under a given c (``SharedPlace.work``); :param tokens: how many each answer has;
    :param groups: of what kind each call is, so that kinds may last differently; :param shared: whether it is known
        that they are computed on one processor.
    """
    usual = ONE_PROCESSOR if shared else 0.0
    usable = work(0.0) > 0.0
    if usable.sum() < _FEWEST:
        return usual
    names = np.array(groups)[usable]
    columns = [(names == name).astype(float) for name in sorted(set(names.tolist()))]
    columns.append(np.log1p(tokens[usable]))
    design = np.stack(columns, axis=1)

    def left(c: float) -> float:
        wanted = np.log(np.maximum(work(c)[usable], _SHORTEST))
        fitted = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
        return float(((wanted - fitted) ** 2).sum())

    best = min(_TRIED, key=left)
    return best if left(best) < _BETTER * left(usual) else usual

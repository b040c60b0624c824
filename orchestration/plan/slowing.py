"""How much calls slow each other down at one place, found out from calls that have taken place.

A call beside ``k - 1`` others is taken to last ``1 + c (k - 1)`` times as long as alone. With c = 0 a model has room
for all; with a large c it does a fixed amount of work a second, however many calls share it. What never belongs here:
which calls these are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_TRIED = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0)
# What is taken where calls are computed on this machine and do not tell more. Measured on two cores: 16 lanes do 1.4
# times the work of one, 32 lanes 1.7 times, prefill included: c = 0.7 and 0.6.
ONE_PROCESSOR = 0.65
_BETTER = 0.9  # share of the squared deviations that may be left for a figure to be believed
_FEWEST = 20


def fitted_slowing(
    seconds: np.ndarray, levels: np.ndarray, tokens: np.ndarray, groups: Sequence[str], *, shared: bool
) -> float:
    """The c that fits calls best, by least squares of the logarithm of their seconds.

    :param levels: how many were in flight during each, on average; :param tokens: how many each answer has;
    :param groups: of what kind each is, so that kinds may last differently; :param shared: whether it is known that
        they are computed on one processor.
    """
    usual = ONE_PROCESSOR if shared else 0.0
    usable = seconds > 0.0
    if usable.sum() < _FEWEST:
        return usual
    logs, levels = np.log(seconds[usable]), levels[usable]
    names = np.array(groups)[usable]
    columns = [(names == name).astype(float) for name in sorted(set(names.tolist()))]
    columns.append(np.log1p(tokens[usable]))
    design = np.stack(columns, axis=1)

    def left(c: float) -> float:
        wanted = logs - np.log1p(c * (levels - 1.0))
        fitted = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
        return float(((wanted - fitted) ** 2).sum())

    best = min(_TRIED, key=left)
    return best if left(best) < _BETTER * left(usual) else usual

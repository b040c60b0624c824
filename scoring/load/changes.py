"""Figures that change where load changes how a judge judges: what each request adds to them, and their intervals.

Each compares a pass under load with two unloaded ones on the same requests. It is 0 on average where the three answers
to a request are draws of the same kind, whatever the judge's own noise.

What never belongs here: whether a figure is beyond noise (``exchanges``), and which figures a judge has
(``judgement``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
# ``level``: the loaded value less the mean of the unloaded ones. ``distance``: how far the loaded value lies from the
# unloaded ones, less how far those lie apart. ``spread``: the squared deviation from the mean of all, likewise.
Kind = Literal["level", "distance", "spread"]


@dataclass(slots=True, frozen=True)
class PassValues:
    """The values of one figure: a row for each request, a column for each pass, nan where an answer has none.

    The last two columns are the unloaded passes. ``upwards``: only a rise counts, else both directions do.
    ``nominal``: values are codes of names, of which only equality means anything.
    """

    kind: Kind
    values: Floats
    upwards: bool = False
    nominal: bool = False

    @property
    def centre(self) -> float:
        """The mean over all passes, which does not change when passes are exchanged; 0 of nothing."""
        known = self.values[~np.isnan(self.values)]
        return float(known.mean()) if known.size else 0.0

    def rate(self, place: int) -> Floats:
        """The values of one rate beside the unloaded ones, in three columns."""
        return self.values[:, [place, -2, -1]]


@dataclass(slots=True, frozen=True)
class PassTable:
    """Figures of the same requests. ``clusters`` has the cluster of each, numbered from 0 over all tables of a judge;
    ``answered`` says in which passes it was answered at all, for only these can be exchanged.
    """

    clusters: Codes
    answered: Flags
    figures: Sequence[PassValues]


def contribution(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """What requests add to a figure, nan where one of the three passes has no value."""
    if figure.kind == "level":
        return np.asarray(loaded - (first + second) / 2)
    if figure.kind == "distance":
        return loaded_distance(figure, loaded, first, second) - distance(figure, first, second)
    centre = figure.centre
    squares = [(part - centre) ** 2 for part in (loaded, first, second)]
    return np.asarray(squares[0] - (squares[1] + squares[2]) / 2)


def loaded_distance(figure: PassValues, loaded: Floats, first: Floats, second: Floats) -> Floats:
    """How far values under load lie from unloaded ones, on average over the two."""
    return (distance(figure, loaded, first) + distance(figure, loaded, second)) / 2


def distance(figure: PassValues, one: Floats, other: Floats) -> Floats:
    """How far values lie apart; of names 1 where they are not the same."""
    apart = np.abs(one - other)
    return np.where(np.isnan(apart), np.nan, apart > 0.0) if figure.nominal else np.asarray(apart)

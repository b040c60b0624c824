"""Simulated judges of known accuracy and known error correlation, on items with two labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from viva.scoring.votes import Ballots

Mask = NDArray[np.bool_]


def exchangeable_errors(draw: np.random.Generator, items: int, judges: int, rate: float, correlation: float) -> Mask:
    """Errors of one rate, each pair of judges correlated as given: a judge copies the shared error or errs alone."""
    shared = draw.random((items, 1)) < rate
    alone = draw.random((items, judges)) < rate
    return np.where(draw.random((items, judges)) < np.sqrt(correlation), shared, alone)


def ballots_of(draw: np.random.Generator, errors: Mask, group: int = 1) -> Ballots:
    """Votes with these errors on two labels, `group` items in a cluster."""
    items, judges = errors.shape
    truth = draw.integers(0, 2, items)
    votes = np.where(errors, 1 - truth[:, None], truth[:, None])
    return Ballots(tuple(f"j{at}" for at in range(judges)), votes, truth, np.arange(items) // group)

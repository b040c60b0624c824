"""Has the judge changed since it was compared with people? Gaps of new labels against those of the calibration.

Both parts hold at any time: they may be looked at after every label. The test is a conformal test martingale (Vovk,
Nouretdinov and Gammerman 2003, "Testing exchangeability on-line", ICML; the betting is the simple jumper of Vovk et
al. 2021, "Retrain or not retrain", COPA): each gap's rank among those before it, calibration included, would be uniform
if the gaps were exchangeable with the calibration's, whatever their distribution and however few there are. Money bet
on anything else grows where they are not, and reaches 1/alpha with a probability of alpha at most where they are
(Ville). How large the gap is now is told by ``betting``.

What never belongs here: which labels are a calibration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..betting import Betting
from ..intervals import Estimate, Floats, check_level

_BETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_JUMP = 0.01
_SEED = 28


@dataclass(frozen=True, slots=True)
class Drift:
    """What ``labels`` new gaps (grade - score) say of drift.

    ``evidence``: the most that 1 grew to; ``p`` = 1 / evidence is an anytime-valid p-value. ``found_at``: after how
    many labels the level was reached; None: not so far. ``gap`` is the mean of the new gaps with an interval that
    holds at any time, ``calibration`` the mean of the calibration's.
    """

    labels: int
    calibrated: int
    evidence: float
    p: float
    found_at: int | None
    gap: Estimate
    calibration: float


def drift(
    calibration: Sequence[float] | Floats,
    gaps: Sequence[float] | Floats,
    *,
    low: float,
    high: float,
    level: float = 0.95,
) -> Drift | None:
    """Test new gaps, in the order in which they were made, against the calibration's; None where either has none.

    ``low`` and ``high`` bound the gaps. Labels of both must have been drawn with even probabilities (``evened``).
    Ties are broken at random with a fixed seed: the same gaps give the same evidence.

    :raises ValueError: ``level`` is not between 0 and 1, or a gap lies outside the bounds.
    """
    check_level(level)
    known, new = np.asarray(calibration, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if not (known.size and new.size):
        return None
    if not ((known >= low) & (known <= high)).all() or not ((new >= low) & (new <= high)).all():
        raise ValueError(f"gaps lie in {low:g}–{high:g}")
    ranks = _ranks(known, new)
    # One half bets on gaps that are larger or smaller, the other on gaps that spread more or less.
    course = 0.5 * _jumper(ranks) + 0.5 * _jumper(np.abs(2.0 * ranks - 1.0))
    most = float(course.max())
    reached = np.flatnonzero(course >= 1.0 / (1.0 - level))
    sequence = Betting(1, low=low, high=high, level=level)
    for gap in new.tolist():
        sequence.add([gap])
    mean = math.fsum(new.tolist()) / new.size
    interval = Estimate(mean, min(mean, float(sequence.lows[0])), max(mean, float(sequence.highs[0])))
    return Drift(
        new.size,
        known.size,
        most,
        min(1.0, 1.0 / most) if most > 0.0 else 1.0,
        int(reached[0]) + 1 if reached.size else None,
        interval,
        math.fsum(known.tolist()) / known.size,
    )


def evened(weights: Floats, seed: int = _SEED) -> Floats:
    """Which labels to keep (a mask) so that what is left was drawn with even probabilities.

    A label of weight 1 / probability is kept with the probability weight / greatest weight.
    """
    kept: Floats = np.random.default_rng(seed).random(weights.size) * weights.max(initial=0.0) <= weights
    return kept


def _ranks(known: Floats, new: Floats) -> Floats:
    """Each new gap's place among all before it, 0–1, uniform if they are exchangeable; ties at random."""
    source = np.random.default_rng(_SEED)
    ranks = np.empty(new.size)
    for place, gap in enumerate(new):
        before = np.concatenate((known, new[:place]))
        ties = 1 + int((before == gap).sum())
        ranks[place] = (int((before < gap).sum()) + source.random() * ties) / (before.size + 1)
    return ranks


def _jumper(uniform: Floats) -> Floats:
    """The capital after each number, from 1: bets move slowly between five slopes."""
    shares = np.full(_BETS.size, 1.0 / _BETS.size)
    course = np.empty(uniform.size)
    for place, value in enumerate(uniform):
        shares = (1.0 - _JUMP) * shares + _JUMP * shares.sum() / _BETS.size
        shares = shares * (1.0 + _BETS * (value - 0.5))
        course[place] = shares.sum()
    return course

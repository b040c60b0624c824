"""Which answers people should grade next, so that the corrected figures gain most; every probability is known.

Answers are drawn with probabilities in proportion to how far the grade is expected to lie from what the judge's score
tells: with weights of 1 / probability that gives the least variance (Neyman 1934; for a judge's scores Zrnic and
Candès 2024, "Active statistical inference", arXiv 2403.03208). A share of each probability is even, so that answers on
which the judge is wrongly trusted are still met. Drawing one by one from a list of the most doubtful would be cheaper
to explain and wrong: the correction could not be unbiased.

What never belongs here: asking people, and files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..intervals import Floats
from .means import corrected_mean
from .sample import Sample

# This share of each probability is the same for all answers (Zrnic and Candès take mixtures with the even one, too).
FLOOR = 0.2
# As many labels of average spread are mixed into each answer's estimate: a few labels are a poor guide.
_PRIOR = 5.0
# Answers whose scores are closer than this share of the scores' spread tell about each other.
_NEAR = 0.2


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw of answers: which are ``chosen`` now, and with which probability each answer would have been.

    ``probabilities`` are those of this draw alone, for answers with a grade those that they would have had.
    """

    chosen: NDArray[np.bool_]
    probabilities: Floats


def expected_spread(sample: Sample) -> Floats:
    """How far each answer's grade is expected to lie from its part in the correction (root mean square).

    A kernel mean of the squared residuals of the labels over the judge's score, shrunk to the mean of all. Everywhere
    the same where too few labels tell anything.
    """
    try:
        power = corrected_mean(sample).powers[0]
    except ValueError:
        return np.ones_like(sample.scores)
    graded = sample.graded
    w, f = sample.weights[graded], sample.scores[graded]
    residual = sample.grades[graded] - power * f
    squares = (residual - (w * residual).sum() / w.sum()) ** 2
    average = float((w * squares).sum() / w.sum())
    width = _NEAR * float(sample.scores.std())
    if average <= 0.0 or width <= 0.0:
        return np.ones_like(sample.scores)
    values, places = np.unique(sample.scores, return_inverse=True)
    near = np.exp(-0.5 * ((values[:, None] - f[None, :]) / width) ** 2)
    guess = (near @ squares + _PRIOR * average) / (near.sum(axis=1) + _PRIOR)
    found: Floats = np.sqrt(guess)[places]
    return found


def draw(spreads: Floats, graded: NDArray[np.bool_], count: int, *, seed: int, floor: float = FLOOR) -> Drawn:
    """Draw exactly ``count`` of the answers that are not ``graded``, with probabilities in proportion to ``spreads``.

    Systematic sampling in random order (Madow 1949) has exactly the probabilities that it is given. They are at most 1:
    what is cut off there goes to the others.

    :raises ValueError: fewer answers are left than ``count``, it is below 1, or the floor is not in 0–1.
    """
    left = np.flatnonzero(~graded)
    if not 1 <= count <= left.size:
        raise ValueError(f"{count} answers to draw; {left.size} have no grade")
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"floor is {floor}; it is a share above 0 and at most 1")
    wanted = (1.0 - floor) * spreads / spreads.mean() + floor
    factor = _factor(wanted[left], count)
    probabilities = np.minimum(1.0, factor * wanted)
    source = np.random.default_rng(seed)
    order = source.permutation(left)
    ends = np.cumsum(probabilities[order])
    ends *= count / ends[-1]  # rounding
    marks = source.random() + np.arange(count)
    chosen = np.zeros(graded.size, dtype=bool)
    chosen[order[np.minimum(np.searchsorted(ends, marks, side="right"), left.size - 1)]] = True
    return Drawn(chosen, probabilities)


def joined(before: Floats, now: Floats) -> Floats:
    """The probability of being in either of two draws, the second being made without regard to the first.

    The second draw's probabilities follow from the labels of the first through few numbers, and one label moves these
    by a share of 1 / labels: that is what the probabilities are wrong by, and the only bias of figures that use them.
    """
    both: Floats = 1.0 - (1.0 - before) * (1.0 - now)
    return both


def _factor(wanted: Floats, count: int) -> float:
    """What ``wanted`` is multiplied by so that the probabilities, at most 1 each, add up to ``count``."""
    values = np.sort(wanted)[::-1]
    for certain in range(count):
        factor = (count - certain) / float(values[certain:].sum())
        if factor * values[certain] <= 1.0:
            return float(factor)
    return 1.0 / float(values[-1])

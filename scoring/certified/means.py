"""Means of people's grades over all answers, from a judge's scores on all and grades on some; differences of two.

What never belongs here: pass rates by sensitivity and specificity (``rates``).
"""

from __future__ import annotations

import numpy as np

from .sample import Sample
from .tuned import Parts, Tuned, tune


def corrected_mean(sample: Sample, *, power: float | None = None) -> Tuned:
    """What the mean grade over all answers such as these would be: prediction-powered, the power tuned.

    mean grade of the graded + power · (mean score of all - mean score of the graded). With ``power`` given, it is not
    tuned. Graded answers are part of all here: in PPI++, whose unlabelled answers are others, the same figure has the
    power times unlabelled / all. With unequal weights means over the graded are weighted (Hájek 1971): the figure is
    then right up to a bias that falls with 1 / labels.

    :raises ValueError: fewer than three clusters have grades (two with ``power`` given).
    """
    return tune([mean_parts(sample)], [1.0], None if power is None else [power])


def corrected_difference(first: Sample, second: Sample) -> Tuned:
    """The mean of ``first`` less that of ``second``; what they share by cluster is seen, and powers are tuned for it.

    :raises ValueError: fewer than four clusters of one of them have grades.
    """
    count = max(first.count, second.count)
    return tune([mean_parts(first, count), mean_parts(second, count)], [1.0, -1.0])


def mean_parts(sample: Sample, count: int | None = None) -> Parts:
    """The parts of the mean, with deviations for ``count`` clusters.

    :raises ValueError: no answer has a grade.
    """
    if not sample.labels:
        raise ValueError("no answer has a grade")
    w, f, y = sample.weights, sample.scores, sample.known_grades()
    totals = sample.totals(w, w * y, w * f, np.ones_like(f), f, count=count)
    whole = totals.sum(axis=0)
    left = whole - totals
    with np.errstate(divide="ignore", invalid="ignore"):  # one cluster that holds all grades: ``tune`` refuses it
        rows = [(whole[k] / whole[n], np.nan_to_num(whole[k] / whole[n] - left[:, k] / left[:, n]))
                for k, n in ((1, 0), (2, 0), (4, 3))]  # fmt: skip
    (direct, directs), (on_graded, graded), (on_all, every) = rows
    held = w[sample.graded]
    evenness = float(held.mean() / held.max())
    return Parts(float(direct), float(on_graded), float(on_all), directs, graded, every, totals[:, 0], evenness)

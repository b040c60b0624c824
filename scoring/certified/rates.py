"""Pass rates corrected for a judge that errs by its sensitivity and specificity, and the table of its errors.

Rogan and Gladen's rate (1978) needs only that the judge finds as many of the good and of the bad answers here as where
it was compared with people, which may have been another run. For grades of answers drawn from the run itself the
prediction-powered rate (``means``) is the more exact: it also uses how many of the graded answers people passed.

The interval comes from draws of the three shares, each from the beta distribution of its counts with half a count more
on either side (Jeffreys). In simulations (``benches/certified.py``) it holds for 30 labels, also where the delta method
has a width of 0; intervals by Lang and Reiczigel 2014 were tried beside and covered up to 99% there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..intervals import Estimate, Floats, check_level
from .sample import Sample

Which: TypeAlias = NDArray[np.bool_]

_DRAWS = 4_000
_SEED = 28
# A judge that tells good from bad no better than this has no rate computed from its words.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Share:
    """A share, 0–1, of so many independent answers; not whole numbers where answers have weights or clusters."""

    value: float
    n: float

    def draws(self, source: np.random.Generator) -> Floats:
        """Values that the true share may have."""
        part = self.value * self.n
        return source.beta(part + 0.5, self.n - part + 0.5, _DRAWS)


@dataclass(frozen=True, slots=True)
class Confusion:
    """What people's pass and fail say of a judge's.

    ``sensitivity`` and ``specificity``: which share of the answers that people pass (fail) the judge passes (fails).
    ``passed`` and ``failed``: which share of the answers that the judge passes (fails) people pass. A share of which
    there is no answer has n = 0 and the value 0.5.
    """

    sensitivity: Share
    specificity: Share
    passed: Share
    failed: Share


def confusion(sample: Sample) -> Confusion:
    """The shares of a sample's graded answers; scores and grades are 0 and 1.

    :raises ValueError: one of them is something else.
    """
    f, y = sample.scores, sample.known_grades()
    if not (np.isin(f, (0.0, 1.0)).all() and np.isin(y, (0.0, 1.0)).all()):
        raise ValueError("pass rates need scores and grades of 0 (fail) and 1 (pass)")
    good, passed = y == 1.0, f == 1.0
    return Confusion(
        _share(sample, good, passed),
        _share(sample, ~good, ~passed),
        _share(sample, passed, good),
        _share(sample, ~passed, good),
    )


def rogan_gladen(passed: Share, sensitivity: Share, specificity: Share, level: float = 0.95) -> Estimate:
    """The rate (passed + specificity - 1) / (sensitivity + specificity - 1), within 0–1, with its interval.

    ``passed`` is the judge's pass rate, of other answers than the two shares were counted on. A judge that tells
    nothing (sensitivity + specificity near 1) makes the interval all of 0–1.

    :raises ValueError: ``level`` is not between 0 and 1.
    """
    check_level(level)
    source = np.random.default_rng(_SEED)
    q, se, sp = (one.draws(source) for one in (passed, sensitivity, specificity))
    told = se + sp - 1.0
    # Draws of a judge that tells nothing, or the opposite, say nothing of the rate: they lie at either end.
    sides = np.where(np.arange(_DRAWS) % 2 == 0, 0.0, 1.0)
    rates = np.where(told > _LEAST, (q + sp - 1.0) / np.maximum(told, _LEAST), sides)
    plain = sensitivity.value + specificity.value - 1.0
    value = (passed.value + specificity.value - 1.0) / plain if plain > _LEAST else passed.value
    return _within(value, rates, level)


def remainder(sample: Sample) -> Share:
    """The judge's pass rate among the answers without a grade; among all where each has one."""
    left = ~sample.graded if not sample.graded.all() else np.ones_like(sample.graded)
    return _share(sample, left, sample.scores == 1.0, left.astype(np.float64))


def _share(sample: Sample, among: Which, which: Which, weights: Floats | None = None) -> Share:
    """The weighted share of ``which`` ``among`` answers, and of how many independent ones it is worth.

    That is Kish's effective number of clusters for weights, times or over what clustering adds to the variance (the
    design effect), its degrees of freedom adjusted to those of the clusters; never more than there are answers.

    Source: Korn and Graubard 1998, "Confidence intervals for proportions with small expected number of positive
        counts estimated from survey data", Survey Methodology 24, section 2.
    """
    from scipy.stats import t

    w = np.where(among, sample.weights if weights is None else weights, 0.0)
    held = w > 0.0
    if not held.any():
        return Share(0.5, 0.0)
    value = float(np.where(which, w, 0.0).sum() / w.sum())
    answers = float(w.sum() ** 2 / (w**2).sum())
    clusters = np.unique(sample.clusters[held]).size
    if clusters == held.sum():
        return Share(value, answers)
    residuals = sample.totals(w * (which - value), w)
    variance = float((residuals[:, 0] ** 2).sum()) / w.sum() ** 2 * clusters / max(clusters - 1, 1)
    plain = value * (1.0 - value)
    if plain == 0.0 or variance == 0.0:  # nothing to see it by: as if each cluster were of one mind
        return Share(value, float(w.sum() ** 2 / (residuals[:, 1] ** 2).sum()))
    freedom = t.ppf(0.975, max(answers - 1.0, 1.0)) / t.ppf(0.975, max(clusters - 1.0, 1.0))
    return Share(value, min(answers, plain / variance * float(freedom) ** 2))


def _within(value: float, draws: Floats, level: float) -> Estimate:
    low, high = np.quantile(np.clip(draws, 0.0, 1.0), [(1.0 - level) / 2, (1.0 + level) / 2])
    held = min(max(value, 0.0), 1.0)
    return Estimate(held, min(float(low), held), max(float(high), held))

"""Item banks: difficulty and discrimination of items, fitted to a matrix of models' scores.

The model is Samejima's graded response model, whose case of two levels is the two-parameter logistic model: a model of
ability θ reaches level k of item j with probability 1 / (1 + exp(-(a_j θ + d_jk))). `a` is the discrimination; a
negative one means that better models do worse, which often is a wrong key. Difficulty is -d / a. Scores are cut into
levels first, and each level stands for its mean score.

Fitted by marginal maximum likelihood with weak priors on the items (Bock and Aitkin 1981): the distribution of ability
lies on a grid and is estimated too. Standard errors come from the cross-products of the items' scores.

Source: Samejima 1969; Bock and Aitkin 1981; Baker and Kim 2004, "Item Response Theory", chapters 6 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_MODELS = 10  # of a bank: fewer say next to nothing about an item
LEAST_ANSWERS = 20  # models per item below which nothing is said about its fit
MOST_LEVELS = 5
GRID = np.linspace(-6.0, 6.0, 61)
_NORMAL = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()
_PRIOR_MODELS = 20.0  # weight of the normal prior in the distribution of ability, in models
_PRIOR_SLOPE = 1.0
_LEAST_SLOPE = 0.05  # of an item that has a difficulty
_LEAST_STEP = 0.02  # between thresholds of one item
_ITERATIONS, _TOLERANCE = 100, 1e-3
# Of banks that exams learn while they go on. Wider priors make the first choices follow chance (benches/adaptive.py).
_LEARNED_SLOPE_SPREAD, _LEARNED_THRESHOLD_SPREAD = 0.5, 1.5
_LEARNED_ITERATIONS, _LEARNED_TOLERANCE = 20, 1e-2
_LEAST_PROBABILITY = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """Levels of a score: a score above `cuts[k]` is above level k; `means` and `variances` of scores by level.

    Scores are from 0 to 1.
    """

    cuts: Floats
    means: Floats
    variances: Floats

    @classmethod
    def from_scores(cls, scores: Floats) -> Scale:
        """Cut all scores, nan for missing ones, into at most five levels of about equal size.

        Raises:
            ValueError: The scores are not numbers from 0 to 1, or all equal.
        """
        values = scores[~np.isnan(scores)]
        if not values.size or not ((values >= 0.0) & (values <= 1.0)).all():
            raise ValueError("scores must lie between 0 and 1, and there must be some")
        distinct = np.unique(values)
        if len(distinct) == 1:
            raise ValueError(f"all scores are {distinct[0]:g}; a bank needs items on which models differ")
        if len(distinct) <= MOST_LEVELS:
            cuts = (distinct[:-1] + distinct[1:]) / 2
        else:
            quantiles = np.quantile(values, np.arange(1, MOST_LEVELS) / MOST_LEVELS)
            cuts = np.unique(quantiles[quantiles < distinct[-1]])
        levels = np.searchsorted(cuts, values, side="left")
        parts = [values[levels == level] for level in range(len(cuts) + 1)]
        cuts = np.array([cut for cut, part in zip(cuts, parts[1:], strict=True) if part.size])
        parts = [part for part in parts if part.size]
        return cls(cuts, np.array([part.mean() for part in parts]), np.array([part.var() for part in parts]))

    def levels(self, scores: ArrayLike) -> Ints:
        """Return the level of each score; -1 for nan."""
        values = np.asarray(scores, dtype=np.float64)
        levels = np.searchsorted(self.cuts, values, side="left").astype(np.int64)
        return np.where(np.isnan(values), -1, levels)


@dataclass(frozen=True, slots=True)
class Bank:
    """Parameters of items on a common scale of ability.

    Attributes:
        slopes: Discrimination by item.
        thresholds: d by item and level, falling; one column fewer than levels.
        slope_errors: Standard error of each discrimination.
        ability: Fraction of models at each point of the grid of ability.
        counts: Number of models that answered each item.
        difficulty_errors: Standard error of each difficulty, nan if it has none; empty if unknown.
    """

    scale: Scale
    slopes: Floats
    thresholds: Floats
    slope_errors: Floats
    ability: Floats
    counts: Ints
    difficulty_errors: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def grid(self) -> Floats:
        """Return the points of ability."""
        return GRID

    def difficulties(self) -> Floats:
        """Return the ability at which a model reaches the middle of an item's levels with probability 1/2."""
        middle = self.thresholds.mean(axis=1)
        has_slope = np.abs(self.slopes) > _LEAST_SLOPE
        difficulties: Floats = np.full(len(middle), np.nan)
        np.divide(-middle, self.slopes, out=difficulties, where=has_slope)
        return difficulties

    def ability_moments(self) -> tuple[float, float]:
        """Return mean and standard deviation of the models' abilities.

        The grid's unit has no meaning of its own: compare difficulties after subtracting the mean and dividing by the
        standard deviation, and discriminations after multiplying by it.
        """
        mean = float(self.ability @ GRID)
        return mean, float(np.sqrt(self.ability @ (GRID - mean) ** 2))

    def probabilities(self) -> Floats:
        """Return the probability of each level: an array of points of ability × items × levels."""
        return _level_probabilities(self.slopes, self.thresholds)

    def expected_scores(self) -> tuple[Floats, Floats]:
        """Return mean and variance of the score, by point of ability and item."""
        probabilities = self.probabilities()
        means: Floats = probabilities @ self.scale.means
        squares: Floats = probabilities @ (self.scale.means**2 + self.scale.variances)
        return means, squares - means**2


@dataclass(frozen=True, slots=True)
class _Priors:
    """Normal priors of items: spread of `a` around 1, and of each `d` around the centres, by threshold."""

    slope_spread: float
    threshold_spread: float
    centres: Floats

    def precision(self) -> Floats:
        """Return the diagonal of the precision of `a` and each `d`."""
        return np.array([self.slope_spread**-2, *[self.threshold_spread**-2] * len(self.centres)])


def fit_bank(scores: ArrayLike, scale: Scale | None = None) -> Bank:
    """Fit a bank to scores from 0 to 1 of models (rows) on items (columns); nan if there is no score.

    The scores may come from adaptive exams: which items a model answered there depends on recorded scores alone, so the
    choice of items does not enter the likelihood of the parameters (Mislevy and Wu 1996).

    Raises:
        ValueError: There are fewer than ten models, or no differences between scores.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < LEAST_MODELS:
        rows = values.shape[0] if values.ndim == 2 else 0
        raise ValueError(f"{rows} models; a bank needs the scores of at least {LEAST_MODELS}")
    scale = scale or Scale.from_scores(values)
    indicators = _indicators(scale, values)
    counts = np.sum(indicators, axis=(0, 1))
    slopes = np.ones(values.shape[1])
    totals = np.stack([indicator.sum(axis=0) for indicator in indicators], axis=1)
    above = totals[:, :0:-1].cumsum(axis=1)[:, ::-1]
    share = (above + 0.5) / (counts[:, None] + 1.0)
    thresholds = _ordered(np.log(share) - np.log1p(-share))
    priors = _Priors(1.0, 3.0, np.zeros(thresholds.shape[1]))
    return _fit(scale, indicators, (slopes, thresholds), priors, _ITERATIONS, _TOLERANCE)[0]


def learn_bank(scores: ArrayLike) -> Bank:
    """Fit a bank to the few scores that running exams have so far: arguments as for `fit_bank`.

    Narrow priors keep items about which little is known close to the average item, whose thresholds are estimated.
    Items without a score get its parameters. The choice of items needs no correction, as in `fit_bank`.

    Raises:
        ValueError: There are no scores, or no differences between them.
    """
    values = np.asarray(scores, dtype=np.float64)
    known = ~np.isnan(values).all(axis=0)
    scale = Scale.from_scores(values)
    indicators = _indicators(scale, values[:, known])
    totals = np.array([indicator.sum() for indicator in indicators])
    reached = totals[:0:-1].cumsum()[::-1]
    centres = np.log(reached) - np.log(totals.sum() - reached)
    priors = _Priors(_LEARNED_SLOPE_SPREAD, _LEARNED_THRESHOLD_SPREAD, centres)
    begin = np.full(int(known.sum()), _PRIOR_SLOPE), _ordered(np.tile(centres, (int(known.sum()), 1)))
    bank, priors = _fit(scale, indicators, begin, priors, _LEARNED_ITERATIONS, _LEARNED_TOLERANCE, moving=True)
    items = values.shape[1]
    slopes, errors = np.full(items, _PRIOR_SLOPE), np.full(items, priors.slope_spread)
    thresholds = _ordered(np.tile(priors.centres, (items, 1)))
    counts, difficulty_errors = np.zeros(items, dtype=np.int64), np.full(items, priors.threshold_spread)
    slopes[known], errors[known], thresholds[known] = bank.slopes, bank.slope_errors, bank.thresholds
    counts[known], difficulty_errors[known] = bank.counts, bank.difficulty_errors
    return Bank(scale, slopes, thresholds, errors, bank.ability, counts, difficulty_errors)


def _fit(
    scale: Scale,
    indicators: Sequence[Floats],
    begin: tuple[Floats, Floats],
    priors: _Priors,
    iterations: int,
    tolerance: float,
    *,
    moving: bool = False,
) -> tuple[Bank, _Priors]:
    """Return the bank from these first values of slopes and thresholds, and its priors; `moving` centres are fitted."""
    slopes, thresholds = begin
    models = len(indicators[0])
    ability = _NORMAL.copy()
    for _ in range(iterations):
        weights = _posterior(indicators, slopes, thresholds, ability)
        mass = weights.sum(axis=0)
        ability = (mass + _PRIOR_MODELS * _NORMAL) / (models + _PRIOR_MODELS)
        expected = np.stack([weights.T @ indicator for indicator in indicators], axis=2)
        change = 0.0
        for _ in range(2):
            step_slopes, step_thresholds = _scoring_step(slopes, thresholds, expected, priors)
            slopes = slopes + np.clip(step_slopes, -0.5, 0.5)
            thresholds = _ordered(thresholds + np.clip(step_thresholds, -1.0, 1.0))
            change = max(change, float(np.abs(step_slopes).max()), float(np.abs(step_thresholds).max()))
        if moving:
            priors = replace(priors, centres=thresholds.mean(axis=0))
        if change < tolerance:
            break
    weights = _posterior(indicators, slopes, thresholds, ability)
    covariances = _covariances(indicators, weights, slopes, thresholds, priors)
    slope_errors = np.sqrt(covariances[:, 0, 0])
    counts = np.sum(indicators, axis=(0, 1)).astype(np.int64)
    bank = Bank(scale, slopes, thresholds, slope_errors, ability, counts)
    return replace(bank, difficulty_errors=_difficulty_errors(bank, covariances)), priors


def _ordered(thresholds: Floats) -> Floats:
    """Return thresholds that fall by at least a small step."""
    steps = np.arange(thresholds.shape[1]) * _LEAST_STEP
    ordered: Floats = np.minimum.accumulate(thresholds + steps, axis=1) - steps
    return ordered


def _level_probabilities(slopes: Floats, thresholds: Floats) -> Floats:
    reached = 1.0 / (1.0 + np.exp(-np.clip(GRID[:, None, None] * slopes[:, None] + thresholds, -35.0, 35.0)))
    ones = np.ones((*reached.shape[:2], 1))
    probabilities: Floats = np.maximum(-np.diff(reached, axis=2, prepend=ones, append=0.0 * ones), _LEAST_PROBABILITY)
    probabilities /= probabilities.sum(axis=2, keepdims=True)
    return probabilities


def _posterior(indicators: Sequence[Floats], slopes: Floats, thresholds: Floats, ability: Floats) -> Floats:
    """Return by model the probability of each point of ability."""
    logs = np.log(_level_probabilities(slopes, thresholds))
    likelihood = np.tile(np.log(ability), (len(indicators[0]), 1))
    for level, indicator in enumerate(indicators):
        likelihood += indicator @ logs[:, :, level].T
    likelihood -= likelihood.max(axis=1, keepdims=True)
    weights: Floats = np.exp(likelihood)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _gradients(slopes: Floats, thresholds: Floats) -> tuple[Floats, Floats]:
    """Return level probabilities, and their derivatives by a and each d: points × items × levels (× parameters)."""
    probabilities = _level_probabilities(slopes, thresholds)
    points, items, levels = probabilities.shape
    reached = 1.0 / (1.0 + np.exp(-np.clip(GRID[:, None, None] * slopes[:, None] + thresholds, -35.0, 35.0)))
    slope = reached * (1.0 - reached)
    gradients = np.zeros((points, items, levels, levels))  # the first parameter is a
    for level in range(1, levels):
        gradients[:, :, level, level] += slope[:, :, level - 1]
        gradients[:, :, level - 1, level] -= slope[:, :, level - 1]
    gradients[:, :, :, 0] = GRID[:, None, None] * gradients[:, :, :, 1:].sum(axis=3)
    return probabilities, gradients


def _scoring_step(slopes: Floats, thresholds: Floats, expected: Floats, priors: _Priors) -> tuple[Floats, Floats]:
    """Return a step of Fisher scoring for all items; `expected` counts models by point, item and level."""
    probabilities, gradients = _gradients(slopes, thresholds)
    first = np.einsum("qjk,qjkp->jp", expected / probabilities, gradients)
    totals = expected.sum(axis=2)
    information = np.einsum("qjkp,qjkr->jpr", gradients * (totals[:, :, None] / probabilities)[..., None], gradients)
    precision = priors.precision()
    first[:, 0] -= (slopes - _PRIOR_SLOPE) * precision[0]
    first[:, 1:] -= (thresholds - priors.centres) * precision[1:]
    information += np.diag(precision)
    steps = np.linalg.solve(information, first[:, :, None])[:, :, 0]
    return steps[:, 0], steps[:, 1:]


def _covariances(
    indicators: Sequence[Floats], weights: Floats, slopes: Floats, thresholds: Floats, priors: _Priors
) -> Floats:
    """Return by item the covariances of a and each d, from the cross-products of each model's score."""
    probabilities, gradients = _gradients(slopes, thresholds)
    relative = gradients / probabilities[..., None]
    items, parameters = thresholds.shape[0], thresholds.shape[1] + 1
    scores = np.zeros((parameters, len(weights), items))
    for level, indicator in enumerate(indicators):
        for parameter in range(parameters):
            scores[parameter] += indicator * (weights @ relative[:, :, level, parameter])
    information = np.einsum("pnj,rnj->jpr", scores, scores)
    information += np.diag(priors.precision())
    covariances: Floats = np.linalg.inv(information)
    return covariances


def _difficulty_errors(bank: Bank, covariances: Floats) -> Floats:
    """Return the standard error of each difficulty, by the delta method."""
    difficulties, levels = bank.difficulties(), bank.thresholds.shape[1]
    slopes = np.where(np.isnan(difficulties), np.nan, bank.slopes)
    gradients = np.column_stack([-difficulties / slopes, *[-1.0 / (levels * slopes)] * levels])
    errors: Floats = np.sqrt(np.einsum("jp,jpr,jr->j", gradients, covariances, gradients))
    return errors


def negative_items(bank: Bank, level: float = 0.05) -> list[int]:
    """Return items on which better models do worse, at this false discovery rate (Benjamini and Hochberg 1995)."""
    from scipy.stats import false_discovery_control, norm

    p_values = norm.cdf(bank.slopes / bank.slope_errors)
    return [int(item) for item in np.flatnonzero(false_discovery_control(p_values) <= level)]


def negative_rest_correlations(scores: ArrayLike, level: float = 0.05) -> tuple[list[int], int]:
    """Return items on which better models do worse, by their item–rest correlation, and the number of tested items.

    This needs no fitted bank. A model's rest is the mean of its scores on the other items, each less that item's mean,
    so that missing scores do not count as wrong. An item is tested if it has the scores of `LEAST_ANSWERS` models and
    they differ; the test is that of a rank correlation below 0, at this false discovery rate over the tested items.

    Args:
        scores: Models (rows) on items (columns); nan if there is no score.
        level: False discovery rate.

    Source: Lord and Novick 1968, section 15.3 (item–rest correlation); Benjamini and Hochberg 1995.
    """
    from scipy.stats import false_discovery_control, rankdata, t

    values = np.asarray(scores, dtype=np.float64)
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    if not (counts >= LEAST_ANSWERS).any():
        return [], 0
    centred = np.where(known, values - np.nansum(values, axis=0) / np.maximum(counts, 1), 0.0)
    answered = known.sum(axis=1, keepdims=True)
    rest = (centred.sum(axis=1, keepdims=True) - centred) / np.maximum(answered - 1, 1)
    used = known & (answered > 1)
    # Unknown values get the highest ranks, and so leave the ranks of the others as they are.
    first, second = (rankdata(np.where(used, table, np.inf), axis=0) for table in (values, rest))
    n = used.sum(axis=0)
    deviations = []
    for ranks in (first, second):
        mean = np.where(used, ranks, 0.0).sum(axis=0) / np.maximum(n, 1)
        deviations.append(np.where(used, ranks - mean, 0.0))
    spreads = np.sqrt((deviations[0] ** 2).sum(axis=0) * (deviations[1] ** 2).sum(axis=0))
    tested = np.flatnonzero((n >= LEAST_ANSWERS) & (spreads > 0.0))
    if not tested.size:
        return [], 0
    correlations = (deviations[0] * deviations[1]).sum(axis=0)[tested] / spreads[tested]
    freedom = n[tested] - 2
    correlations = np.clip(correlations, -1.0 + 1e-12, 1.0 - 1e-12)
    p_values = t.cdf(correlations * np.sqrt(freedom / (1.0 - correlations**2)), freedom)
    return tested[false_discovery_control(p_values) <= level].tolist(), int(tested.size)


def misfits(bank: Bank, scores: ArrayLike) -> Floats:
    """Return by item how far models' mean scores lie from the expected ones, over the distribution of ability (0–1).

    The root mean square deviation that PISA uses (0.12 counts as misfit there), less what chance contributes.

    Source: OECD, PISA technical reports, chapter on scaling; von Davier 2017.
    """
    values = np.asarray(scores, dtype=np.float64)
    indicators = _indicators(bank.scale, values)
    weights = _posterior(indicators, bank.slopes, bank.thresholds, bank.ability)
    means, variances = bank.expected_scores()
    totals = weights.T @ np.sum(indicators, axis=0)
    observed = weights.T @ np.tensordot(bank.scale.means, np.stack(indicators), axes=1)
    counts = np.maximum(totals, 1e-9)
    deviations = (observed / counts - means) ** 2 - variances / np.maximum(counts, 1.0)
    total: Floats = (totals * deviations).sum(axis=0) / np.maximum(totals.sum(axis=0), 1e-9)
    return np.sqrt(np.maximum(total, 0.0))


def _indicators(scale: Scale, values: Floats) -> list[Floats]:
    levels = scale.levels(values)
    return [(levels == level).astype(np.float64) for level in range(len(scale.means))]

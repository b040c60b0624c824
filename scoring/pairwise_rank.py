"""Ranks from comparisons of two models: Bradley–Terry strengths, Elo ratings, win rates at equal length, pairings.

A comparison's score is 1 if its first model wins, 0 if its second model wins, and 0.5 for a tie. Comparisons about one
prompt are a cluster: resamples draw whole prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from viva.engine import seeds

from .clustered_means import MIN_CLUSTERS
from .intervals import normal_quantile, normal_share, student_quantile
from .meta_evaluation import percentile_interval

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

RESAMPLES = 1_000
_LEVEL = 0.95
ELO_START, ELO_SCALE, ELO_STEP = 1000.0, 400.0, 32.0
ELO_ORDERS = 200  # random orders over which a rating is averaged
_ELO_RESAMPLES, _ORDERS_PER_RESAMPLE = 200, 8
LENGTH_PRIOR = 5.0  # standard deviation of the length coefficient
# A resample in which a model wins or loses everything has no finite strengths. If more than this share of resamples
# are of that kind, the quantiles of the others are no interval.
_MOST_INFINITE = 0.01
_STEPS, _LONGEST_STEP, _PRECISION = 100, 2.0, 1e-11


@dataclass(slots=True, frozen=True)
class Comparisons:
    """Comparisons between models, which are numbered from 0; one entry for each comparison.

    Attributes:
        models: Number of models.
        first: First model of each comparison.
        second: Second model.
        scores: Score of the first model: 1, 0.5 or 0.
        clusters: Number of the prompt, from 0 without gaps.
        longer: Length of the first model's answer minus that of the second model's; NaN if unknown.
    """

    models: int
    first: Codes
    second: Codes
    scores: Floats
    clusters: Codes
    longer: Floats

    @classmethod
    def from_rows(cls, models: int, rows: Iterable[tuple[str, int, int, float, float]]) -> Comparisons:
        """Make comparisons of tuples (prompt, first, second, score, longer).

        Raises:
            ValueError: A model does not exist or meets itself, or a score is outside 0…1.
        """
        prompts: dict[str, int] = {}
        table = [(prompts.setdefault(prompt, len(prompts)), *row) for prompt, *row in rows]
        columns = np.array(table, dtype=np.float64).reshape(-1, 5)
        clusters, first, second = (columns[:, at].astype(np.int64) for at in range(3))
        scores = columns[:, 3]
        if ((first == second) | (np.minimum(first, second) < 0) | (np.maximum(first, second) >= models)).any():
            raise ValueError(f"expected two different models from 0 to {models - 1} in each comparison")
        if not ((scores >= 0) & (scores <= 1)).all():
            raise ValueError("expected scores from 0 to 1")
        return cls(models, first, second, scores, clusters, columns[:, 4])

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return int(self.clusters.max()) + 1 if len(self.clusters) else 0

    def wins(self, weights: Floats | None = None) -> Floats:
        """Return the matrix of wins, ties as half wins: row i, column j is how often i beat j.

        `weights` has a row for each resample and a column for each prompt; then there is a matrix for each resample.
        """
        by_prompt = np.zeros((max(self.prompts, 1), self.models, self.models))
        np.add.at(by_prompt, (self.clusters, self.first, self.second), self.scores)
        np.add.at(by_prompt, (self.clusters, self.second, self.first), 1.0 - self.scores)
        if weights is None:
            return np.asarray(by_prompt.sum(axis=0), dtype=np.float64)
        flat = weights @ by_prompt.reshape(len(by_prompt), -1)
        return np.asarray(flat.reshape(len(weights), self.models, self.models), dtype=np.float64)

    def of_model(self, model: int) -> tuple[Floats, Codes, Floats]:
        """Return scores, prompts and differences in length of one model's comparisons, from its point of view."""
        is_first, is_second = self.first == model, self.second == model
        own = is_first | is_second
        sign = np.where(is_first, 1.0, -1.0)
        return np.where(is_first, self.scores, 1.0 - self.scores)[own], self.clusters[own], (sign * self.longer)[own]


@dataclass(slots=True, frozen=True)
class Interval:
    """Value with a 95% bootstrap interval; the ends are None if there is no valid interval."""

    value: float
    low: float | None = None
    high: float | None = None


def resample_prompts(prompts: int, resamples: int, seed: int) -> Floats:
    """Return how often each prompt is in each bootstrap resample; a row is a resample."""
    generator = np.random.default_rng([seed, 52])
    return generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)


# -- Bradley–Terry ---------------------------------------------------------------------------------------------------


def fit_bradley_terry(wins: Floats) -> Floats | None:
    """Return the maximum-likelihood strengths, with mean 0; None if the likelihood has no finite maximum.

    P(i beats j) = 1 / (1 + exp(strength j − strength i)). Ties are half wins. There is a finite maximum only if each
    model is connected with each other one by a chain of wins, in both directions.

    Source: Bradley and Terry 1952; Ford 1957 for the condition.
    """
    strengths = fit_resamples(wins[np.newaxis])[0]
    return None if np.isnan(strengths).any() else strengths


def fit_resamples(wins: Floats) -> Floats:
    """Return strengths as `fit_bradley_terry` for each of several matrices; NaN if there is no finite maximum."""
    count, models = wins.shape[:2]
    strengths = np.full((count, models), np.nan)
    finite = _strongly_connected(wins)
    if finite.any():
        strengths[finite] = _maximize(wins[finite])
    return strengths


def _maximize(wins: Floats) -> Floats:
    """Return the maxima by Newton's method; the log-likelihood is concave, and long steps are shortened."""
    models = wins.shape[1]
    games, won = wins + wins.transpose(0, 2, 1), wins.sum(axis=2)
    strengths = np.zeros(wins.shape[:2])
    tolerance = _PRECISION * np.maximum(1.0, games.sum(axis=(1, 2)))
    for _ in range(_STEPS):
        chances = 1.0 / (1.0 + np.exp(strengths[:, np.newaxis, :] - strengths[:, :, np.newaxis]))
        gradient = won - (games * chances).sum(axis=2)
        if (np.abs(gradient).max(axis=1) <= tolerance).all():
            break
        step = np.linalg.solve(_information(games, chances) + 1.0 / models, gradient[:, :, np.newaxis])[:, :, 0]
        longest = np.abs(step).max(axis=1, keepdims=True)
        strengths += step * np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, _LONGEST_STEP))
    strengths[np.abs(gradient).max(axis=1) > np.maximum(tolerance, 1e-7)] = np.nan
    return np.asarray(strengths - strengths.mean(axis=1, keepdims=True), dtype=np.float64)


def _information(games: Floats, chances: Floats) -> Floats:
    """Return the Fisher information of the strengths, a Laplacian matrix, for each matrix of games."""
    weights = games * chances * (1.0 - chances)
    information = -weights
    diagonal = np.arange(games.shape[-1])
    information[..., diagonal, diagonal] = weights.sum(axis=-1) - weights[..., diagonal, diagonal]
    return np.asarray(information, dtype=np.float64)


def _strongly_connected(wins: Floats) -> NDArray[np.bool_]:
    """Return for each matrix whether chains of wins connect every two models in both directions."""
    models = wins.shape[1]
    reached = (wins > 0) | np.eye(models, dtype=np.bool_)
    for _ in range(max(1, math.ceil(math.log2(max(models, 2))))):
        reached = (reached.astype(np.float32) @ reached.astype(np.float32)) > 0
    return np.asarray(reached.all(axis=(1, 2)))


@dataclass(slots=True, frozen=True)
class Strengths:
    """Strengths of all models with intervals; `draws` has the strengths of each resample, NaN if not finite."""

    values: Floats
    draws: Floats
    prompts: int

    def interval(self, model: int) -> Interval:
        """Return a model's strength with its interval."""
        return _with_interval(float(self.values[model]), self.draws[:, model], self.prompts)

    def above(self, level: float = 0.95) -> NDArray[np.bool_]:
        """Return a matrix: row i, column j is True if i is surely stronger than j.

        At this level no entry is wrong, for all pairs together: a difference must exceed its standard error times the
        quantile of the largest absolute standardized difference over all pairs in the resamples, widened as intervals
        are. Nothing is sure with few prompts, or if more than 1% of the resamples have no finite strengths.

        Source: Westfall and Young 1993, section 2.2 (single-step maximum of standardized differences).
        """
        models = len(self.values)
        finite = self.draws[np.isfinite(self.draws).all(axis=1)]
        if self.prompts < MIN_CLUSTERS or len(finite) < (1.0 - _MOST_INFINITE) * len(self.draws):
            return np.zeros((models, models), dtype=np.bool_)
        first, second = np.triu_indices(models, 1)
        differences, draws = self.values[first] - self.values[second], finite[:, first] - finite[:, second]
        errors = np.maximum(draws.std(axis=0), _PRECISION)
        largest = np.abs((draws - differences) / errors).max(axis=1)
        bound = float(np.quantile(largest, level)) * _expansion(self.prompts, level)
        result = np.zeros((models, models), dtype=np.bool_)
        result[first, second] = differences > bound * errors
        result[second, first] = -differences > bound * errors
        return result


def bradley_terry(comparisons: Comparisons, seed: int, resamples: int = RESAMPLES) -> Strengths | None:
    """Return the strengths with a bootstrap over prompts; None as for `fit_bradley_terry`."""
    if comparisons.models < 2 or not comparisons.prompts:
        return None
    values = fit_bradley_terry(comparisons.wins())
    if values is None:
        return None
    weights = resample_prompts(comparisons.prompts, resamples, seed)
    return Strengths(values, fit_resamples(comparisons.wins(weights)), comparisons.prompts)


def _with_interval(value: float, draws: Floats, prompts: int) -> Interval:
    """Return a value with its expanded percentile interval.

    Percentile intervals are too narrow with few prompts, by about the factor of `_expansion`; so more extreme quantiles
    are taken.

    Source: Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4.3.
    """
    finite = draws[np.isfinite(draws)]
    if prompts < MIN_CLUSTERS or len(finite) < (1.0 - _MOST_INFINITE) * len(draws):
        return Interval(value)
    tail = 1.0 - normal_share(normal_quantile((1.0 + _LEVEL) / 2) * _expansion(prompts, _LEVEL))
    low, high = percentile_interval(finite, 1.0 - 2.0 * tail, prompts)
    return Interval(value) if low is None or high is None else Interval(value, min(low, value), max(high, value))


def _expansion(prompts: int, level: float) -> float:
    """Return how much wider Student's interval of a mean is than the bootstrap's with this number of prompts."""
    tail = (1.0 + level) / 2
    student, normal = float(student_quantile(tail, prompts - 1)), normal_quantile(tail)
    return math.sqrt(prompts / (prompts - 1)) * student / normal


# -- Elo -------------------------------------------------------------------------------------------------------------


def elo(comparisons: Comparisons, seed: int) -> list[Interval]:
    """Return Elo ratings with bootstrap intervals over prompts.

    All models start at 1000, and after each comparison points are exchanged: 32 · (score − expected score), where
    expected = 1 / (1 + 10^((opponent − own) / 400)). The result of one order depends on the order, so ratings are means
    over 200 random orders; in each of 200 resamples, over eight.

    Source: Elo 1978, section 8.4; for language models Chiang et al. 2024, who average over orders likewise.
    """
    generator = np.random.default_rng([seed, 25])
    everything = np.tile(np.arange(len(comparisons.scores)), (ELO_ORDERS, 1))
    values = elo_ratings(comparisons, generator.permuted(everything, axis=1)).mean(axis=0)
    draws = np.full((_ELO_RESAMPLES, comparisons.models), np.nan)
    if comparisons.prompts > 1:
        weights = resample_prompts(comparisons.prompts, _ELO_RESAMPLES, seed).astype(np.int64)
        rows = [np.repeat(np.arange(len(comparisons.scores)), row[comparisons.clusters]) for row in weights]
        orders = np.full((len(rows) * _ORDERS_PER_RESAMPLE, max(map(len, rows))), -1, dtype=np.int64)
        for at in range(len(orders)):
            row = rows[at // _ORDERS_PER_RESAMPLE]
            orders[at, : len(row)] = generator.permutation(row)
        ratings = elo_ratings(comparisons, orders)
        draws = ratings.reshape(_ELO_RESAMPLES, _ORDERS_PER_RESAMPLE, comparisons.models).mean(axis=1)
    return [_with_interval(float(values[at]), draws[:, at], comparisons.prompts) for at in range(comparisons.models)]


def elo_ratings(comparisons: Comparisons, orders: Codes) -> Floats:
    """Return the ratings after the comparisons in each order.

    A row of `orders` has the numbers of comparisons, one after another; -1 stands for none.
    """
    ratings = np.full((len(orders), comparisons.models), ELO_START)
    rows = np.arange(len(orders))
    for column in orders.T:
        first, second = comparisons.first[column], comparisons.second[column]
        expected = 1.0 / (1.0 + 10.0 ** ((ratings[rows, second] - ratings[rows, first]) / ELO_SCALE))
        moved = np.where(column >= 0, ELO_STEP * (comparisons.scores[column] - expected), 0.0)
        ratings[rows, first] += moved
        ratings[rows, second] -= moved
    return ratings


# -- Length-controlled win rate --------------------------------------------------------------------------------------


def length_controlled_rate(
    scores: Floats, longer: Floats, clusters: Codes, seed: int, resamples: int = RESAMPLES
) -> Interval | None:
    """Return the win rate that a model would have if all answers were as long as its opponents'.

    logit P(win) = a + b · tanh(d / sd(d)), where d is the difference in length. The rate is 1 / (1 + exp(−a)). Scores
    of 0.5 are fractional outcomes. `b` has a normal prior with standard deviation 5, so that it is finite if the longer
    answer always wins. None if a length is unknown or there are no comparisons.

    Source: Dubois et al. 2024, "Length-Controlled AlpacaEval", section 3. Its third term, the instruction's difficulty,
    is left out: it is estimated from a leaderboard of other models. So is its regularization towards the plain rate.

    Args:
        scores: The model's scores, 0–1.
        longer: Length of its answer minus that of the opponent's.
        clusters: Number of each comparison's prompt.
        seed: Seed of the bootstrap over prompts.
        resamples: Number of resamples.
    """
    if not len(scores) or np.isnan(longer).any():
        return None
    spread = float(longer.std())
    terms = np.tanh(longer / spread) if spread > 0 else np.zeros(len(longer))
    value = float(_rates_at_equal_length(scores, terms, np.ones((1, len(scores))))[0])
    numbers, codes = np.unique(clusters, return_inverse=True)
    weights = resample_prompts(len(numbers), resamples, seed)[:, codes]
    return _with_interval(value, _rates_at_equal_length(scores, terms, weights), len(numbers))


def _rates_at_equal_length(scores: Floats, terms: Floats, weights: Floats) -> Floats:
    """Return the fitted rate at term 0 for each row of weights, by Newton's method."""
    total, won = weights.sum(axis=1), weights @ scores
    constant = (won <= 0) | (won >= total)  # no finite intercept: the rate itself is 0 or 1
    a, b = np.zeros(len(weights)), np.zeros(len(weights))
    for _ in range(_STEPS):
        chances = 1.0 / (1.0 + np.exp(-(a[:, np.newaxis] + b[:, np.newaxis] * terms)))
        residuals, spread = weights * (scores - chances), weights * chances * (1.0 - chances)
        slope_a, slope_b = residuals.sum(axis=1), residuals @ terms - b / LENGTH_PRIOR**2
        aa, ab, bb = spread.sum(axis=1), spread @ terms, spread @ terms**2 + 1.0 / LENGTH_PRIOR**2
        determinant = np.where(constant, 1.0, aa * bb - ab * ab)
        step_a = np.where(constant, 0.0, (bb * slope_a - ab * slope_b) / determinant)
        step_b = np.where(constant, 0.0, (aa * slope_b - ab * slope_a) / determinant)
        scale = _LONGEST_STEP / np.maximum(_LONGEST_STEP, np.maximum(np.abs(step_a), np.abs(step_b)))
        a, b = a + scale * step_a, b + scale * step_b
        if max(np.abs(step_a).max(), np.abs(step_b).max()) < _PRECISION:
            break
    return np.where(constant, won / np.maximum(total, 1.0), 1.0 / (1.0 + np.exp(-a)))


# -- Pairings --------------------------------------------------------------------------------------------------------


def informative_pairs(wins: Floats, prompts: Sequence[str], per_prompt: int, seed: int) -> list[list[tuple[int, int]]]:
    """Return for each prompt the pairs of models whose comparison tells most about the strengths.

    Comparisons are chosen one after another. Each time it is the pair with the largest gain in the log-determinant of
    the strengths' Fisher information: log(1 + p · (1 − p) · v), where v is the variance of the difference of the two
    strengths by all comparisons so far, made and chosen, and p the chance that one beats the other by the comparisons
    made. No pair is chosen twice for a prompt. Equal gains are decided by the seed.

    The strengths are fitted with half a tie added to each pair, so that they are finite after few comparisons. The
    result depends on the arguments alone.

    Source: Chaloner and Verdinelli 1995, section 2 (D-optimality), applied greedily.

    Args:
        wins: Matrix of wins of the comparisons made, ties as half wins.
        prompts: Names of the prompts, in a fixed order.
        per_prompt: Pairs for each prompt.
        seed: Seed of the order among equal gains.
    """
    models = len(wins)
    pairs = [(i, j) for i in range(models) for j in range(i + 1, models)]
    smoothed = wins + 0.25 * (1.0 - np.eye(models))
    strengths = fit_bradley_terry(smoothed)
    assert strengths is not None  # each model has won against each other one
    chances = 1.0 / (1.0 + np.exp(strengths[np.newaxis, :] - strengths[:, np.newaxis]))
    covariance = np.linalg.inv(_information(smoothed + smoothed.T, chances) + 1.0 / models)
    first, second = np.array(pairs).T
    worth = (chances * (1.0 - chances))[first, second]
    chosen: list[list[tuple[int, int]]] = []
    for prompt in prompts:
        used: list[int] = []
        ties = np.array([seeds.uniform(seed, prompt, i, j, "pair") for i, j in pairs])
        for _ in range(min(per_prompt, len(pairs))):
            spread = covariance[first, first] + covariance[second, second] - 2.0 * covariance[first, second]
            gains = np.round(np.log1p(worth * spread), 9)
            gains[used] = -1.0
            at = int(max(range(len(pairs)), key=lambda k: (gains[k], ties[k])))
            used.append(at)
            direction = covariance[:, first[at]] - covariance[:, second[at]]  # Sherman–Morrison
            covariance = covariance - np.outer(direction, direction) * worth[at] / (1.0 + worth[at] * spread[at])
        chosen.append([pairs[at] for at in sorted(used)])
    return chosen

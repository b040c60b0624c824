"""ConStat: the performance of a model beyond what reference models of its strength reach on the benchmark.

A model that does as well as some reference models on a second set should do as well as they on the benchmark. The
reference models give the curve from one accuracy to the other. A clean model is assumed to lie on that curve: the null
covers the choice of items and reference models, but not what makes a real clean model better at one set than at the
other, so p-values of real models are too small. `combination` measures that on clean models.

Needs: text only; a second set (a rephrased, synthetic or sibling benchmark), and five or more clean reference models.
It does not see models that were trained on the second set as well.
Costs: a call per item of both sets, for the model and for each reference model.
Effect: the accuracy above the curve, as a share of items.

Source: Dekoninck, Müller and Vechev 2024 (arXiv 2405.16281), section 4; the spline is that of Green and Silverman 1994,
chapters 2 and 3, and Brent 1973, chapter 5, finds its smoothness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .evidence import Evidence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST_SET = 5  # reference models, and different accuracies among them; a cubic spline needs as many points
_BATCH = 500  # resamples that are computed together
_CORNER_WEIGHT = 1e-8  # of the points (0, 0) and (1, 1), which only keep the curve from running away
_GOLDEN = (3.0 - math.sqrt(5.0)) / 2
_RELATIVE_STEP, _ABSOLUTE_STEP = math.sqrt(2.2e-16), 1e-5 / 3  # smallest step of the search for the smoothness


@dataclass(frozen=True, slots=True)
class Results:
    """Scores from 0 to 1 of a model, and of reference models (one a row), for each item of a benchmark or second set.

    `chance` is the mean score of guessing.
    """

    model: Floats
    references: Floats
    chance: float = 0.0

    @classmethod
    def from_scores(cls, name: str, model: ArrayLike, references: ArrayLike, chance: float = 0.0) -> Results:
        """Check scores; errors begin with `name`."""
        own, others = np.asarray(model, dtype=np.float64), np.asarray(references, dtype=np.float64)
        if own.ndim != 1 or not own.size or others.ndim != 2 or others.shape[1] != own.size:
            shapes = f"{own.shape} and {others.shape}"
            raise ValueError(f"{name}: shapes {shapes}; expected a score for each item, and a row for each reference")
        if len(others) < SMALLEST_SET:
            raise ValueError(f"{name}: {len(others)} reference models; ConStat needs at least {SMALLEST_SET}")
        for values in (own, others, np.float64(chance)):
            if not ((values >= 0.0) & (values <= 1.0)).all():
                raise ValueError(f"{name}: scores must lie between 0 and 1; leave out unscored items")
        return cls(own, others, chance)


@dataclass(frozen=True, slots=True)
class Resamples:
    """Bootstrap resamples, one a row.

    `first` and `second` count each item of the benchmark and of the second set, `references` holds rows of reference
    models, `noise` standard normal numbers for the two chance levels.
    """

    first: Ints
    second: Ints
    references: Ints
    noise: Floats


@dataclass(frozen=True, slots=True)
class Gap:
    """Accuracy of a model above its expected accuracy: both values for each resample; `items` of the benchmark."""

    gaps: Floats
    expected: Floats
    items: int

    @property
    def delta(self) -> float:
        """Return the effect: the mean gap."""
        return float(self.gaps.mean())

    @property
    def error(self) -> float:
        """Return the standard error of the effect."""
        return float(self.gaps.std())

    def p(self, margin: float = 0.0) -> float:
        """Return the p-value of "the gap is at most `margin`", from the basic bootstrap; 0 below one resample."""
        count = len(self.gaps)
        quantiles = np.quantile(self.gaps, 1.0 - np.arange(count) / count)
        rejected = 2.0 * self.gaps.mean() - quantiles >= margin
        return float(rejected.argmax() / count) if rejected.any() else 1.0

    def lower_bound(self, level: float = 0.95) -> float:
        """Return the gap that the true one exceeds at this confidence."""
        return float(2.0 * self.gaps.mean() - np.quantile(self.gaps, level))

    def expected_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return both ends of the basic bootstrap's interval of the expected accuracy."""
        upper, lower = np.quantile(self.expected, [(1.0 + level) / 2, (1.0 - level) / 2])
        return float(2.0 * self.expected.mean() - upper), float(2.0 * self.expected.mean() - lower)

    def evidence(self, witness: str = "constat") -> Evidence:
        """Return the effect in standard errors as evidence; p is never below what the resamples can show."""
        statistic = (
            self.delta / self.error if self.error else math.copysign(math.inf, self.delta) if self.delta else 0.0
        )
        return Evidence(witness, statistic, max(self.p(), 1.0 / (len(self.gaps) + 1)), self.delta, self.items)


def measure_gap(first: Results, second: Results, *, resamples: int = 10_000, seed: int = 0) -> Gap:
    """Bootstrap the accuracy on the benchmark (`first`) above that expected from the second set.

    Raises:
        ValueError: if the references differ in number, or have fewer than five different accuracies on the second set.
    """
    if len(first.references) != len(second.references):
        counts = f"{len(first.references)} and {len(second.references)}"
        raise ValueError(f"references: {counts} rows; expected the same models, in the same order, on both sets")
    generator = np.random.default_rng(seed)
    gaps: list[Floats] = []
    expected: list[Floats] = []
    missing, failures = resamples, 0
    while missing:
        batch = draw_resamples(generator, first, second, min(missing, _BATCH))
        gap, level = compute_gaps(first, second, batch)
        gaps.append(gap)
        expected.append(level)
        missing -= len(gap)
        failures = 0 if len(gap) else failures + 1
        if failures > 10:
            raise ValueError(
                f"references: fewer than {SMALLEST_SET} different accuracies on the second set; "
                "use reference models that differ more, or more items"
            )
    return Gap(np.concatenate(gaps), np.concatenate(expected), len(first.model))


def constat(
    first: Results, second: Results, *, witness: str = "constat", resamples: int = 10_000, seed: int = 0
) -> Evidence:
    """Return the evidence of ConStat; see `measure_gap`."""
    return measure_gap(first, second, resamples=resamples, seed=seed).evidence(witness)


def draw_resamples(generator: np.random.Generator, first: Results, second: Results, count: int) -> Resamples:
    """Draw items of both sets and reference models with replacement; five references are kept as they are."""
    models = len(first.references)
    references = np.tile(np.arange(models), (count, 1))
    if models > SMALLEST_SET:
        repeated = np.arange(count)
        while len(repeated):
            references[repeated] = generator.integers(models, size=(len(repeated), models))
            ordered = np.sort(references[repeated], axis=1)
            repeated = repeated[(np.diff(ordered, axis=1) > 0).sum(axis=1) + 1 < SMALLEST_SET]
    own, others = (_count_draws(generator, len(results.model), count) for results in (first, second))
    return Resamples(own, others, references, generator.standard_normal((count, 2)))


def _count_draws(generator: np.random.Generator, items: int, count: int) -> Ints:
    numbers = generator.integers(items, size=(count, items)) + items * np.arange(count)[:, None]
    return np.bincount(numbers.ravel(), minlength=count * items).reshape(count, items)


def compute_gaps(first: Results, second: Results, resamples: Resamples) -> tuple[Floats, Floats]:
    """Return gaps and expected accuracies by resample, without resamples of fewer than five different accuracies."""
    y, actual = _resampled_means(first, resamples.first, resamples.references, resamples.noise[:, 0])
    x, position = _resampled_means(second, resamples.second, resamples.references, resamples.noise[:, 1])
    x = np.clip(x, 0.0, 1.0)  # the chance level of few items can fall below 0
    y, x = np.sort(y, axis=1), np.sort(x, axis=1)
    last = np.diff(x, axis=1, append=np.inf) > 0  # of points with equal x, the highest is kept
    sizes = last.sum(axis=1)
    low, high = x[:, 0] > 0.0, x[:, -1] < 1.0
    shapes = np.stack([sizes, low, high], axis=1)
    groups = []
    for size, add_low, add_high in np.unique(shapes[sizes >= SMALLEST_SET], axis=0):
        rows = np.flatnonzero((shapes == (size, add_low, add_high)).all(axis=1))
        own_x, own_y = x[rows][last[rows]].reshape(-1, size), y[rows][last[rows]].reshape(-1, size)
        groups.append((rows, own_x, own_y, (int(add_low), int(add_high))))
    smoothness = _choose_smoothness(len(x), [group[:3] for group in groups])
    expected = np.full(len(x), np.nan)
    for rows, own_x, own_y, padding in groups:
        weights = np.ones(own_x.shape[1] + sum(padding))
        weights[: padding[0]] = weights[len(weights) - padding[1] :] = _CORNER_WEIGHT
        own_x, own_y = (np.pad(axis, ((0, 0), padding), constant_values=(0.0, 1.0)) for axis in (own_x, own_y))
        expected[rows] = _evaluate_spline(own_x, own_y, weights, smoothness[rows], position[rows])
    kept = np.isfinite(expected)
    expected = np.clip(expected[kept], 0.0, 1.0)
    return actual[kept] - expected, expected


def _resampled_means(results: Results, counts: Ints, references: Ints, noise: Floats) -> tuple[Floats, Floats]:
    """Return means of a guessing model and the references (one row a resample), and of the model itself."""
    items = len(results.model)
    means = (counts @ results.references.T) / items
    guesses = results.chance + noise * math.sqrt(results.chance * (1.0 - results.chance) / items)
    return np.column_stack([guesses, np.take_along_axis(means, references, axis=1)]), (counts @ results.model) / items


def _spline_bands(x: Floats) -> tuple[Floats, Floats]:
    """Return the matrices Q and R of Green and Silverman 1994, section 2.1.2, by row of knots."""
    rows, knots = x.shape
    h = np.diff(x, axis=1)
    inner = np.arange(knots - 2)
    q = np.zeros((rows, knots, knots - 2))
    q[:, inner, inner], q[:, inner + 2, inner] = 1.0 / h[:, :-1], 1.0 / h[:, 1:]
    q[:, inner + 1, inner] = -1.0 / h[:, :-1] - 1.0 / h[:, 1:]
    r = np.zeros((rows, knots - 2, knots - 2))
    r[:, inner, inner] = (h[:, :-1] + h[:, 1:]) / 3
    r[:, inner[1:], inner[:-1]] = r[:, inner[:-1], inner[1:]] = h[:, 1:-1] / 6
    return q, r


def _choose_smoothness(count: int, groups: Sequence[tuple[Ints, Floats, Floats]]) -> Floats:
    """Return by row the smoothness λ from 0 to the number of points with the least generalised cross-validation.

    Args:
        count: Rows in total; those in no group get 0.
        groups: Rows with equally many points, and their coordinates.
    """
    if not groups:
        return np.zeros(count)
    rows = np.concatenate([own for own, _, _ in groups])
    points = np.concatenate([np.full(len(own), x.shape[1], dtype=float) for own, x, _ in groups])
    # Rows with fewer points have eigenvalues of 0 in the last columns, which change no sum.
    eigenvalues, parts = np.zeros((2, len(rows), max(x.shape[1] for _, x, _ in groups) - 2))
    start = 0
    for own, x, y in groups:
        q, r = _spline_bands(x)
        # The penalty matrix Q R⁻¹ Qᵀ is A Aᵀ: its eigenvalues as squares of singular values keep the small ones exact.
        a = np.linalg.solve(np.linalg.cholesky(r), q.transpose(0, 2, 1)).transpose(0, 2, 1)
        vectors, roots, _ = np.linalg.svd(a, full_matrices=False)
        end, width = start + len(own), roots.shape[1]
        eigenvalues[start:end, :width], parts[start:end, :width] = roots**2, (y[:, None, :] @ vectors)[:, 0]
        start = end

    def score(smoothness: Floats, chosen: Ints) -> Floats:
        product = smoothness[:, None] * eigenvalues[chosen]
        removed, own = product / (1.0 + product), points[chosen]
        scores: Floats = ((removed * parts[chosen]) ** 2).sum(axis=1) / own / (removed.sum(axis=1) / own) ** 2
        return scores

    smoothness = np.zeros(count)
    smoothness[rows] = _minimize(score, points)
    return smoothness


def _evaluate_spline(x: Floats, y: Floats, weights: Floats, smoothness: Floats, position: Floats) -> Floats:
    """Return by row the value at `position` of the smoothing spline through the points."""
    q, r = _spline_bands(x)
    factor = smoothness[:, None] / weights
    curvature = np.zeros_like(x)
    right = (y[:, None, :] @ q).transpose(0, 2, 1)
    inner = np.linalg.solve(r + q.transpose(0, 2, 1) @ (factor[:, :, None] * q), right)
    curvature[:, 1:-1] = inner[:, :, 0]
    values = y - factor * (q @ inner)[:, :, 0]
    left = np.clip((x <= position[:, None]).sum(axis=1) - 1, 0, x.shape[1] - 2)

    def at(array: Floats, offset: int) -> Floats:
        return np.take_along_axis(array, left[:, None] + offset, axis=1)[:, 0]

    before, after = position - at(x, 0), at(x, 1) - position
    h = before + after
    bend = (1.0 + before / h) * at(curvature, 1) + (1.0 + after / h) * at(curvature, 0)
    return (before * at(values, 1) + after * at(values, 0)) / h - before * after * bend / 6


def _minimize(score: Callable[[Floats, Ints], Floats], upper: Floats) -> Floats:
    """Return by row a minimum between 0 and `upper`, by golden sections and parabolas (Brent 1973).

    Rows are independent: each takes the steps that it would take alone. `score` gets values and their rows. The step
    does not go below an absolute one, so the minimum found depends on the rule for steps: this is the rule of the
    scalar minimiser in the authors' code (`scipy.optimize.fminbound`).
    """
    count = len(upper)
    low, high = np.zeros(count), upper.copy()
    best = low + _GOLDEN * (high - low)
    second, third = best.copy(), best.copy()
    f_best = score(best, np.arange(count))
    f_second, f_third = f_best.copy(), f_best.copy()
    step, earlier = np.zeros(count), np.zeros(count)
    for _ in range(500):
        middle = (low + high) / 2
        tolerance = _RELATIVE_STEP * np.abs(best) + _ABSOLUTE_STEP
        rows = np.flatnonzero(np.abs(best - middle) > 2 * tolerance - (high - low) / 2)
        if not len(rows):
            return best
        a, b, mid, tol = low[rows], high[rows], middle[rows], tolerance[rows]
        x, w, v = best[rows], second[rows], third[rows]
        fx, fw, fv = f_best[rows], f_second[rows], f_third[rows]
        # The parabola through the three best points; accepted if it steps less than half of the step before last.
        r, q = (x - w) * (fx - fv), (x - v) * (fx - fw)
        p, q = (x - v) * q - (x - w) * r, 2.0 * (q - r)
        p = np.where(q > 0.0, -p, p)
        q = np.abs(q)
        long = np.abs(earlier[rows]) > tol
        parabolic = long & (np.abs(p) < np.abs(0.5 * q * earlier[rows])) & (p > q * (a - x)) & (p < q * (b - x))
        section = np.where(x >= mid, a - x, b - x)
        jump = np.where(parabolic, p / np.where(q == 0.0, 1.0, q), _GOLDEN * section)
        edge = parabolic & ((x + jump - a < 2 * tol) | (b - x - jump < 2 * tol))
        jump = np.where(edge, np.where(mid >= x, tol, -tol), jump)
        earlier[rows] = np.where(parabolic, step[rows], section)
        step[rows] = jump
        u = x + np.where(jump >= 0.0, 1.0, -1.0) * np.maximum(np.abs(jump), tol)
        fu = score(u, rows)
        better, above = fu <= fx, u >= x
        low[rows] = np.where(better & above, x, np.where(~better & ~above, u, a))
        high[rows] = np.where(better & ~above, x, np.where(~better & above, u, b))
        next_best = ~better & ((fu <= fw) | (w == x))
        last = ~better & ~next_best & ((fu <= fv) | (v == x) | (v == w))
        third[rows] = np.where(better | next_best, w, np.where(last, u, v))
        f_third[rows] = np.where(better | next_best, fw, np.where(last, fu, fv))
        second[rows] = np.where(better, x, np.where(next_best, u, w))
        f_second[rows] = np.where(better, fx, np.where(next_best, fu, fw))
        best[rows], f_best[rows] = np.where(better, u, x), np.where(better, fu, fx)
    return best

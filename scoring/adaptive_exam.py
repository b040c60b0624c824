"""Adaptive exams: which items to ask next, and what the answers say about the mean score over all items of a bank.

An exam draws items by chance, one after the other, each with a known probability: a part of it favours items that tell
most about the target, the rest is spread so that every remaining item keeps a minimum. Two estimates follow.

Model-based: answered items count as they are, the others with the bank's expectation given the answers. It is narrow,
and right only as far as the bank describes this model. Its interval is widened by what the bank was wrong about models
that were left out of its fit (`calibrate`).

Assumption-free: with each draw, the bank's prediction of the mean is corrected by the item's error divided by its
probability, so each corrected value has the true mean as its expectation, whatever the bank says. Their confidence
sequence holds at every time.

Person fit: each answer's log-probability given the earlier answers, less its expectation, summed and standardised. It
says whether the answers so far are plausible under the bank, which the model-based interval takes for granted.

Source: expected variance reduction as in van der Linden 1998; the correction is that of Kossen et al. 2021 (active
testing) in the form of Zrnic and Candès 2024 (active inference); `confidence_sequences` for the interval. Person fit is
lz of Drasgow, Levine and Williams 1985 with sequential predictions instead of an estimated ability
(Seillier-Moiseiwitsch and Dawid 1993), so that its mean is 0 and its variance 1 without a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .confidence_sequences import ConfidenceSequences
from .intervals import normal_quantile
from .item_bank import LEAST_MODELS, Bank, Scale, fit_bank

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Corrected values lie between -RANGE and 1 + RANGE. A larger one leaves more of the draws to information and widens the
# assumption-free interval: on ARC and GSM8K, 1 gives away 3 to 7 items of the model-based estimate, and costs the other
# one 5 items (benches/adaptive.py).
RANGE = 1.0
SHARPNESS = 3.0  # power of the information by which items are favoured
# Of person fit: after 5 to 100 answers, 4% to 2% of models that the bank describes are below it. It is the 1% quantile
# of a normal distribution, and the few answers of an exam are skewed.
LEAST_FIT = -2.33
LEAST_ITEMS = 20  # of a bank: with fewer, draws cannot keep the range
_CANDIDATES = 400  # most informative items among which a draw chooses, beside the minimum of all
_EDGE = 1e-4  # predictions keep this distance from 0 and 1
_BELOW = 1.0 - 1e-12
_CHECKPOINTS = (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640)
_CALIBRATED_MODELS = 400
# Information favours items of a group up to this multiple of the group's share. With 1, exams of 57 subjects needed 10%
# to 35% more items (benches/adaptive.py has the figure for 1.5).
_GROUP_SHARE = 1.5
_BY_MODEL = (
    "asked", "scores", "_log_weights", "_answered", "_surprise", "_surprise_variance", "_rest_means", "_rest_variances",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws of several exams: one row an exam, one column a draw.

    `items` are positions in the bank, `probabilities` those of the drawn items given all earlier draws, `predictions`
    their expected scores before the wave. `known` is by exam the mean over the bank before the wave: of scores, and of
    predictions for items without one.
    """

    items: Ints
    probabilities: Floats
    predictions: Floats
    known: Floats


@dataclass(frozen=True, slots=True)
class Means:
    """Estimates of the mean score over all items, by exam: value, lower and upper end; nan without an estimate."""

    values: Floats
    lows: Floats
    highs: Floats


@dataclass(frozen=True, slots=True)
class Calibration:
    """Standard errors of the model-based estimate that cover 95% of models, by number of answered items.

    The models were left out of the fit; `models` counts them.
    """

    counts: Sequence[int] = ()
    widths: Sequence[float] = ()
    models: int = 0

    def width(self, count: int) -> float:
        """Return the standard errors at this number of answers; 1.96 without a calibration."""
        if not self.counts:
            return normal_quantile(0.975)
        return float(np.interp(count, self.counts, self.widths))


class Exams:
    """Exams of `rows` models on one bank.

    Args:
        bank: The bank.
        rows: Number of models.
        threshold: Favour items that tell whether the mean is above this value, not what it is.
        groups: A number for each item: draws are spread over the groups (`_GROUP_SHARE`).
    """

    def __init__(
        self, bank: Bank, rows: int = 1, *, threshold: float | None = None, groups: Sequence[int] | None = None
    ) -> None:
        self.bank = bank
        self._means, self._variances = bank.expected_scores()
        self._squares = self._means**2
        self._logs = np.log(bank.probabilities())
        self.items = self._means.shape[1]
        overall = self._means.mean(axis=1)
        self._target = overall if threshold is None else (overall > threshold).astype(np.float64)
        self._sums = self._means.sum(axis=1), self._variances.sum(axis=1)
        self._groups = None if groups is None else np.asarray(groups, dtype=np.int64)
        self._begin(rows)

    def _begin(self, rows: int) -> None:
        self._log_weights = np.tile(np.log(self.bank.ability), (rows, 1))
        self.asked = np.zeros((rows, self.items), dtype=bool)
        self.scores = np.full((rows, self.items), np.nan)
        # Sums over items, by ability: estimates after each wave must not read the whole bank.
        self._answered = np.zeros(rows)
        self._surprise, self._surprise_variance = np.zeros(rows), np.zeros(rows)
        self._rest_means, self._rest_variances = (np.tile(sums, (rows, 1)) for sums in self._sums)

    def another(self, rows: int | None = None) -> Exams:
        """Return exams on the same bank of other models, without answers; both share the bank's arrays."""
        other = copy(self)
        other._begin(len(self.asked) if rows is None else rows)
        return other

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Drop the exams of all other models."""
        for name in _BY_MODEL:
            setattr(self, name, getattr(self, name)[rows])

    def draw(self, size: int, uniforms: Floats) -> Draws:
        """Draw the next `size` items of each exam without replacement; `uniforms` are numbers from 0 to 1.

        The answers to earlier items must have been recorded. Fewer are drawn if no more items are left, or if the
        minimum of all items could not be kept in so large a wave.
        """
        weights = self._posterior()
        target = self._target - (weights @ self._target)[:, None]
        expected, covariance = np.split(_mix(np.concatenate([weights, weights * target]), self._means), 2)
        predictions = np.clip(expected, _EDGE, 1.0 - _EDGE)
        known = np.where(np.isnan(self.scores), predictions, self.scores).mean(axis=1)
        size, minimum = self._minimum(min(size, self.items - int(self.asked.sum(axis=1).max())), predictions, known)
        rows = np.arange(len(self.asked))
        noise = np.maximum(_mix(weights, self._variances), _EDGE)
        variance = np.maximum(_mix(weights, self._squares) - expected**2, 0.0) + noise
        used = self.asked.copy()
        candidates = self._candidates(np.where(used, 0.0, covariance**2 / variance), used)
        curves = self._means.T[candidates] if candidates.shape[1] < self.items else None
        covariance, variance, floor = (
            np.take_along_axis(values, candidates, axis=1) for values in (covariance, variance, noise)
        )
        explained: list[Floats] = []  # by earlier draw of the wave, what its answer will tell, as a function of ability
        columns: list[tuple[Ints, Floats, Floats]] = []
        for position in range(size):
            favour = self._favour(covariance**2 / variance, candidates, used)
            items, probabilities = _choose(minimum, favour, candidates, uniforms[:, position])
            columns.append((items, probabilities, predictions[rows, items]))
            used[rows, items] = True
            minimum[rows, items] = 0.0
            if position + 1 < size:
                # As if all were normal: what the answer to this item will tell about the target and the others.
                own = self._means[:, items].T - expected[rows, items, None]
                spread = (weights * self._squares[:, items].T).sum(axis=1) - expected[rows, items] ** 2
                spread = np.maximum(spread, 0.0) + noise[rows, items]
                rest = own.copy()
                for function in explained:
                    share = (weights * function * own).sum(axis=1)
                    rest -= share[:, None] * function
                    spread -= share**2
                rest /= np.sqrt(np.maximum(spread, noise[rows, items]))[:, None]
                explained.append(rest)
                weighted = weights * rest
                joint = _mix(weighted, self._means) if curves is None else (curves @ weighted[:, :, None])[:, :, 0]
                covariance = covariance - (weighted * target).sum(axis=1, keepdims=True) * joint
                target = target - (weighted * target).sum(axis=1, keepdims=True) * rest
                variance = np.maximum(variance - joint**2, floor)
        if not columns:
            nothing = np.empty((len(rows), 0))
            return Draws(nothing.astype(np.int64), nothing, nothing, known)
        items, chances, scores = (np.stack(column, axis=1) for column in zip(*columns, strict=True))
        return Draws(items, chances, scores, known)

    def record(self, items: Ints, scores: Floats) -> None:
        """Record the scores, 0–1, of drawn items, each once; nan for an item that stays without one."""
        rows = np.arange(len(self.asked))[:, None]
        levels = self.bank.scale.levels(scores)
        self._answered += np.nansum(scores, axis=1)
        self.asked[rows, items] = True
        self.scores[rows, items] = scores
        for column in range(items.shape[1]):
            logs = self._logs[:, items[:, column], np.maximum(levels[:, column], 0)].T
            has_score = levels[:, column, None] >= 0
            self._compare(items[:, column], levels[:, column])
            self._log_weights += np.where(has_score, logs, 0.0)
            self._rest_means -= np.where(has_score, self._means[:, items[:, column]].T, 0.0)
            self._rest_variances -= np.where(has_score, self._variances[:, items[:, column]].T, 0.0)
        complete = ~np.isnan(self.scores).any(axis=1)
        self._rest_means[complete] = self._rest_variances[complete] = 0.0  # exactly, in spite of rounding

    def _compare(self, items: Ints, levels: Ints) -> None:
        """Add to person fit how much likelier or less likely these answers are than the bank expects by now."""
        predicted = np.einsum("nq,qnk->nk", self._posterior(), np.exp(self._logs[:, items]))
        logs = np.log(predicted)
        expected = (predicted * logs).sum(axis=1)
        own = np.take_along_axis(logs, np.maximum(levels, 0)[:, None], axis=1)[:, 0]
        self._surprise += np.where(levels >= 0, own - expected, 0.0)
        self._surprise_variance += np.where(levels >= 0, (predicted * logs**2).sum(axis=1) - expected**2, 0.0)

    def person_fit(self) -> Floats:
        """Return by exam how plausible the answers are under the bank, in standard deviations; 0 is as expected."""
        spread = np.sqrt(np.maximum(self._surprise_variance, 0.0))
        fit: Floats = np.divide(self._surprise, spread, out=np.zeros_like(spread), where=spread > 1e-9)
        return fit

    def estimate(self, calibration: Calibration | None = None) -> Means:
        """Return the model-based estimates with their intervals."""
        values, errors = self.errors()
        counts = (~np.isnan(self.scores)).sum(axis=1)
        half = np.array([(calibration or Calibration()).width(int(count)) for count in counts]) * errors
        return Means(values, np.maximum(values - half, 0.0), np.minimum(values + half, 1.0))

    def errors(self) -> tuple[Floats, Floats]:
        """Return the model-based estimates and their standard errors, before any calibration."""
        weights, sums = self._posterior(), self._rest_means
        expected = (weights * sums).sum(axis=1)
        of_ability = (weights * (sums - expected[:, None]) ** 2).sum(axis=1)
        of_items = np.maximum((weights * self._rest_variances).sum(axis=1), 0.0)
        return (self._answered + expected) / self.items, np.sqrt(of_ability + of_items) / self.items

    def _posterior(self) -> Floats:
        weights: Floats = np.exp(self._log_weights - self._log_weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _minimum(self, size: int, predictions: Floats, known: Floats) -> tuple[int, Floats]:
        """Return the size of the wave, and by item the least probability that keeps corrected values in the range."""
        while True:
            # The mean can have moved by this much once the wave's earlier draws are answered.
            moved = max(size - 1, 0) / self.items
            low, high = (RANGE + known - moved)[:, None], (RANGE + 1.0 - known - moved)[:, None]
            minimum = np.maximum(predictions / low, (1.0 - predictions) / high) / self.items
            minimum[self.asked] = 0.0
            if size <= 1 or (moved < RANGE and bool((minimum.sum(axis=1) <= 1.0).all())):
                return size, minimum
            size //= 2

    def _candidates(self, information: Floats, used: NDArray[np.bool_]) -> Ints:
        """Return the items among which information chooses, by exam."""
        everything = np.tile(np.arange(self.items), (len(information), 1))
        if self.items <= _CANDIDATES:
            return everything
        if self._groups is not None:
            information = self._favour(information, everything, used)
        return np.argpartition(information, -_CANDIDATES, axis=1)[:, -_CANDIDATES:].astype(np.int64)

    def _favour(self, information: Floats, candidates: Ints, used: NDArray[np.bool_]) -> Floats:
        """Return by candidate the share of a draw that information decides; all 0 if it tells nothing."""
        information = np.where(np.take_along_axis(used, candidates, axis=1), 0.0, information)
        favour = (information / np.maximum(information.max(axis=1, keepdims=True), 1e-300)) ** SHARPNESS
        if self._groups is not None:
            favour = self._balanced(favour, self._groups[candidates], used)
        total = favour.sum(axis=1, keepdims=True)
        result: Floats = favour / np.where(total > 0.0, total, 1.0)
        return result

    def _balanced(self, favour: Floats, groups: Ints, used: NDArray[np.bool_]) -> Floats:
        """Let information choose no more items of a group than a multiple of the group's share in the bank."""
        assert self._groups is not None
        rows, number = np.arange(len(favour))[:, None], int(self._groups.max()) + 1
        positions = (rows * number + self._groups).ravel()
        counts = np.bincount(positions, used.astype(np.float64).ravel(), minlength=len(favour) * number)
        counts = counts.reshape(len(favour), number)
        shares = np.bincount(self._groups, minlength=number) / self.items
        largest = np.maximum(_GROUP_SHARE * shares * (counts.sum(axis=1, keepdims=True) + 1.0), 1.0)
        # A group beyond its share still counts if those below are used up.
        weights = np.where(counts < largest, 1.0, 1e-30)
        result: Floats = favour * np.take_along_axis(weights, groups, axis=1)
        return result


def _mix(weights: Floats, curves: Floats) -> Floats:
    """Return `weights @ curves`. For one exam, numpy's product would start threads that cost 80 times the work."""
    product: Floats = np.einsum("rw,wj->rj", weights, curves) if len(weights) < 3 else weights @ curves
    return product


def _choose(minimum: Floats, favour: Floats, candidates: Ints, uniforms: Floats) -> tuple[Ints, Floats]:
    """Choose an item by exam; its probability is its minimum, and its share of what the minimum leaves."""
    rows = np.arange(len(minimum))
    floor_sums = minimum.cumsum(axis=1)
    by_favour = favour.cumsum(axis=1)
    rest = np.where(by_favour[:, -1] > 0.0, np.maximum(1.0 - floor_sums[:, -1], 0.0), 0.0)
    total = floor_sums[:, -1] + rest
    # Stay below the last sum in spite of rounding: only an item that raises the sum can be chosen.
    points = np.clip(uniforms, 0.0, 1.0) * total
    inside = points < floor_sums[:, -1] * _BELOW
    spread = np.minimum(points, floor_sums[:, -1] * _BELOW)
    chosen = (floor_sums <= spread[:, None]).sum(axis=1)
    ratio = np.divide(points - floor_sums[:, -1], rest, out=np.zeros_like(rest), where=rest > 0.0)
    ratio = np.clip(ratio, 0.0, _BELOW) * by_favour[:, -1]
    favoured = (by_favour <= ratio[:, None]).sum(axis=1)
    favoured = candidates[rows, np.minimum(favoured, candidates.shape[1] - 1)]
    items = np.where(inside | (rest <= 0.0), chosen, favoured).astype(np.int64)
    shares = np.where(candidates == items[:, None], favour, 0.0).sum(axis=1)
    return items, (minimum[rows, items] + rest * shares) / total


def wave_size(answered: int, largest: int) -> int:
    """Return the size of the next wave: a quarter of the answered items, from 1 to `largest`.

    Early answers change the choice most, so early waves are small.
    """
    return max(1, min(largest, answered // 4))


def correct(draws: Draws, scores: Floats, items: int) -> Floats:
    """Return the corrected values of a wave's draws: each has the mean over the bank's `items` as its expectation.

    Args:
        draws: The wave.
        scores: Scores of the drawn items, 0–1; nan if there is no score. A draw without a score has no value.
        items: Number of items in the bank.
    """
    errors = scores - draws.predictions
    earlier = np.nan_to_num(errors).cumsum(axis=1) - np.nan_to_num(errors)
    values: Floats = draws.known[:, None] + (earlier + errors / draws.probabilities) / items
    return values


def bound_means(values: Floats, level: float = 0.95, *, steps: int = 1000) -> Means:
    """Return the assumption-free estimates from all corrected values, by exam and draw."""
    low, high = -100.0 * RANGE, 100.0 * (1.0 + RANGE)
    sequences = ConfidenceSequences(len(values), low=low, high=high, level=level, steps=steps)
    for column in values.T:
        # Rounding may leave the range by a few units in the last place.
        sequences.add(np.clip(100.0 * column, low, high))
    counts = (~np.isnan(values)).sum(axis=1)
    sums = np.nansum(values, axis=1)
    means = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return Means(
        np.clip(means, 0.0, 1.0), np.clip(sequences.lows / 100.0, 0.0, 1.0), np.clip(sequences.highs / 100.0, 0.0, 1.0)
    )


def calibrate(scores: Floats, clusters: Sequence[str], *, largest_wave: int = 8, seed: int = 0) -> Calibration:
    """Measure the model-based estimate on models that are left out of the fit: whole clusters, half of them at a time.

    Args:
        scores: Models × items, 0–1; nan if there is no score.
        clusters: The cluster of each model, such as its organisation.
        largest_wave: As for `wave_size`.
        seed: Seed of the division into halves and of the exams.
    """
    generator = np.random.default_rng(seed)
    names = sorted(set(clusters))
    sides = dict(zip(names, generator.permutation(len(names)) % 2, strict=True))
    side = np.array([sides[name] for name in clusters])
    complete = ~np.isnan(scores).any(axis=1)
    scale = Scale.from_scores(scores)
    ratios: dict[int, list[Floats]] = {}
    for own in (0, 1):
        fitted, tested = scores[side != own], scores[(side == own) & complete]
        if len(fitted) < LEAST_MODELS or not len(tested):
            continue
        chosen = generator.permutation(len(tested))[: _CALIBRATED_MODELS // 2]
        for count, values in _ratios(fit_bank(fitted, scale), tested[chosen], largest_wave, generator).items():
            ratios.setdefault(count, []).append(values)
    pooled = {count: np.concatenate(parts) for count, parts in sorted(ratios.items())}
    widths = []
    for values in pooled.values():
        rank = int(np.ceil(0.95 * (len(values) + 1)))  # conformal: of one more model like these
        if rank > len(values):
            return Calibration(models=len(values))
        widths.append(max(float(np.sort(values)[rank - 1]), normal_quantile(0.975)))
    models = len(next(iter(pooled.values()))) if pooled else 0
    return Calibration(list(pooled), widths, models)


def _ratios(bank: Bank, scores: Floats, largest: int, generator: np.random.Generator) -> dict[int, Floats]:
    """Return by number of answers the errors of exams in standard errors."""
    exams, truth = Exams(bank, len(scores)), scores.mean(axis=1)
    rows, ratios = np.arange(len(scores))[:, None], {}
    checkpoints = [count for count in _CHECKPOINTS if count < exams.items]
    count = 0
    while checkpoints and count < checkpoints[-1]:
        size = min(wave_size(count, largest), min(point for point in checkpoints if point > count) - count)
        draws = exams.draw(size, generator.random((len(scores), size)))
        exams.record(draws.items, scores[rows, draws.items])
        count += size
        if count in checkpoints:
            values, errors = exams.errors()
            ratios[count] = np.abs(values - truth) / np.maximum(errors, 1e-9)
    return ratios

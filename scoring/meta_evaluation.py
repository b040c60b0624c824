"""Meta-evaluation of judges: correlation with people at three levels, tests of two judges, confusion.

Levels of correlation: `item`, over all rows (turn level in dialogue papers); `group`, within each group of rows that
share a source, averaged over groups (summary level); `system`, between the judge's and people's means of each system. A
resample of n pairs is a vector of n counts; its coefficient is computed from the counts, without copying pairs. Plain
agreement misleads if one label is common, so labels are compared by kappa.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .agreement import Rating, cohen_kappa, kappas_of_tables
from .clustered_means import MIN_CLUSTERS
from .intervals import check_level

Floats: TypeAlias = NDArray[np.float64]
CoefficientName = Literal["pearson", "spearman", "kendall"]
COEFFICIENTS: tuple[CoefficientName, ...] = ("pearson", "spearman", "kendall")

# scipy.stats takes half a second to load, so the functions that need it import it.

_SPREAD_ROUNDING = 1e-12  # variance of standardised values up to which there is no spread
# Pairs of pairs in memory at a time; with more in one vector, Kendall's tau is computed row by row.
_MAX_PAIR_BLOCK = 9_000_000


def rowwise_coefficient(name: CoefficientName, xs: Floats, ys: Floats) -> Floats:
    """Return a coefficient of each row of `xs` with the same row of `ys`; nan if a side has no spread.

    `xs` and `ys` are matrices of the same shape. Kendall's coefficient is tau-b.
    """
    from scipy.stats import rankdata

    if xs.shape[1] < 2:
        return np.full(len(xs), np.nan)
    if name == "pearson":
        return _pearson_rows(_standardize_rows(xs), _standardize_rows(ys))
    if name == "spearman":
        return _pearson_rows(_standardize_rows(rankdata(xs, axis=1)), _standardize_rows(rankdata(ys, axis=1)))
    return _kendall_rows(xs, ys)


def weighted_coefficient(name: CoefficientName, counts: Floats, xs: Floats, ys: Floats) -> Floats:
    """Return a coefficient of `xs` and `ys` for each row of `counts`, the frequencies of the pairs.

    The result equals the coefficient of pairs repeated that often; nan if `xs` or `ys` then has no spread.
    """
    if len(xs) < 2:
        return np.full(len(counts), np.nan)
    if name == "kendall":
        return _kendall_of_counts(counts, xs, ys)
    if name == "spearman":
        return _weighted(counts, _weighted_ranks(counts, xs), _weighted_ranks(counts, ys))
    x, y = (_standardize_rows(values[None, :]) for values in (xs, ys))
    return _weighted(counts, np.broadcast_to(x, counts.shape), np.broadcast_to(y, counts.shape))


def _standardize_rows(rows: Floats) -> Floats:
    """Return rows with mean 0 and variance 1; nan if a row has no spread."""
    rows = np.asarray(rows, dtype=np.float64)
    centred = rows - rows.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    size = np.abs(rows).max(axis=1, keepdims=True)
    spread[spread <= 1e-9 * size] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / spread, dtype=np.float64)


def _pearson_rows(xs: Floats, ys: Floats) -> Floats:
    return np.asarray(np.clip((xs * ys).mean(axis=1), -1.0, 1.0), dtype=np.float64)


def _kendall_rows(xs: Floats, ys: Floats) -> Floats:
    from scipy.stats import kendalltau

    n = xs.shape[1]
    if n * n > _MAX_PAIR_BLOCK // 100:
        taus = [
            float(kendalltau(x, y, method="asymptotic").statistic)
            if x.min() < x.max() and y.min() < y.max()
            else np.nan
            for x, y in zip(xs, ys, strict=True)
        ]
        return np.array(taus, dtype=np.float64)
    size = max(1, _MAX_PAIR_BLOCK // (n * n))
    parts = [_kendall_block(xs[at : at + size], ys[at : at + size]) for at in range(0, len(xs), size)]
    return np.concatenate(parts) if parts else np.empty(0)


def _kendall_block(xs: Floats, ys: Floats) -> Floats:
    x_signs = np.sign(xs[:, :, None] - xs[:, None, :])
    y_signs = np.sign(ys[:, :, None] - ys[:, None, :])
    untied = np.abs(x_signs).sum(axis=(1, 2)) * np.abs(y_signs).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x_signs * y_signs).sum(axis=(1, 2)) / np.sqrt(untied), dtype=np.float64)


def _weighted(counts: Floats, xs: Floats, ys: Floats) -> Floats:
    total = counts.sum(axis=1)
    means = [(counts * values).sum(axis=1) / total for values in (xs, ys)]
    x, y = xs - means[0][:, None], ys - means[1][:, None]
    variances = [(counts * values**2).sum(axis=1) / total for values in (x, y)]
    product = variances[0] * variances[1]
    product[(variances[0] <= _SPREAD_ROUNDING) | (variances[1] <= _SPREAD_ROUNDING)] = np.nan
    with np.errstate(invalid="ignore"):
        coefficients = (counts * x * y).sum(axis=1) / total / np.sqrt(product)
    return np.asarray(np.clip(coefficients, -1.0, 1.0), dtype=np.float64)


def _weighted_ranks(counts: Floats, values: Floats) -> Floats:
    """Return the mid-rank of each value among the repeated values, by row of counts, as fractions of the total."""
    _, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    equal = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks = np.cumsum(equal, axis=1) - equal / 2
    return np.asarray((ranks / counts.sum(axis=1, keepdims=True))[:, places], dtype=np.float64)


def _kendall_of_counts(counts: Floats, xs: Floats, ys: Floats) -> Floats:
    n = len(xs)
    if n * n > _MAX_PAIR_BLOCK:
        repeated = [np.repeat(np.arange(n), row.astype(np.int64)) for row in counts]
        return np.concatenate([_kendall_rows(xs[None, at], ys[None, at]) for at in repeated])
    # Integers below 2^24 are exact in single precision, which takes half the time.
    weights = counts.astype(np.float32)
    x_signs, y_signs = (np.sign(values[:, None] - values[None, :]).astype(np.float32) for values in (xs, ys))

    def total(pairs: NDArray[np.float32]) -> Floats:
        return np.asarray(((weights @ pairs).astype(np.float64) * counts).sum(axis=1), dtype=np.float64)

    untied = total(np.abs(x_signs)) * total(np.abs(y_signs))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total(x_signs * y_signs) / np.sqrt(untied), dtype=np.float64)


Level = Literal["item", "group", "system"]
LEVELS: tuple[Level, ...] = ("item", "group", "system")
Permutation = Literal["both", "inputs"]
Key: TypeAlias = tuple[Level, CoefficientName]
Values: TypeAlias = dict[Key, Floats]

_MAX_RESAMPLE_BLOCK = 2_000_000  # resampled numbers in memory at a time
_TIE_ROUNDING = 1e-12
_DEFINED = 0.9  # fraction of resamples that must have a coefficient; with fewer there is no interval


@dataclass(slots=True, frozen=True)
class RatedRows:
    """Human ratings with the group and the system of each row, as codes from 0.

    `groups` is None if unknown: each row is then resampled by itself, and there is no group level. Without `systems`
    there is no system level.
    """

    human: Floats
    groups: NDArray[np.int64] | None
    systems: NDArray[np.int64] | None

    @classmethod
    def from_labels(
        cls, human: Sequence[float], groups: Sequence[str] | None = None, systems: Sequence[str] | None = None
    ) -> RatedRows:
        """Build from the names of each row's group and system."""
        for name, labels in (("groups", groups), ("systems", systems)):
            if labels is not None and len(labels) != len(human):
                raise ValueError(f"{len(human)} ratings, but {len(labels)} {name}; each rating needs one entry")
        if not np.isfinite(human).all():
            raise ValueError("ratings: some are not finite; leave out their rows")
        return cls(np.asarray(human, dtype=np.float64), _codes(groups), _codes(systems))

    @property
    def levels(self) -> list[Level]:
        """Levels that these rows support."""
        levels: list[Level] = ["item"]
        if self.groups is not None and len(self.groups) > int(self.groups.max(initial=0)) + 1:
            levels.append("group")
        if self.systems is not None and int(self.systems.max(initial=0)) > 0:
            levels.append("system")
        return levels

    @property
    def block_count(self) -> int:
        """Number of blocks to resample."""
        return len(np.unique(self.blocks()))

    def blocks(self) -> NDArray[np.int64]:
        """Return the resampling unit of each row: its group, else the row itself."""
        return np.arange(len(self.human)) if self.groups is None else self.groups


@dataclass(slots=True, frozen=True)
class LevelFigure:
    """Coefficient at one level with its percentile interval; None if undefined.

    `n` counts the rows, the groups with a coefficient, or the systems behind the value.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(slots=True, frozen=True)
class JudgeDifference:
    """Difference of two judges' coefficients, first minus second, with its percentile interval.

    `p` is the two-sided p-value of the permutation test.
    """

    value: float | None
    low: float | None
    high: float | None
    p: float | None


def level_figures(
    rows: RatedRows,
    scores: Sequence[float],
    *,
    seed: int,
    resamples: int = 1_000,
    level: float = 0.95,
    names: Sequence[CoefficientName] = COEFFICIENTS,
) -> dict[Key, LevelFigure]:
    """Return the coefficients of `scores` with the ratings at each level of the rows."""
    check_level(level)
    values = _check_scores(rows, scores)
    points, counts = point_values(rows, values, names)
    resampled = bootstrap_values(rows, [values], seed=seed, resamples=resamples, names=names)[0]
    figures = {}
    for key, value in points.items():
        low, high = percentile_interval(resampled[key], level, rows.block_count) if value is not None else (None, None)
        figures[key] = LevelFigure(value, low, high, counts[key])
    return figures


def compare_judges(
    rows: RatedRows,
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int,
    permutation: Permutation = "inputs",
    resamples: int = 1_000,
    level: float = 0.95,
    names: Sequence[CoefficientName] = COEFFICIENTS,
) -> dict[Key, JudgeDifference]:
    """Compare two judges on the same rows, at each level.

    The two judges' standardised scores are exchanged at random `resamples` times. p is the fraction of exchanges with a
    difference at least as large as the observed one, and never below 1 / (`resamples` + 1). `permutation` `inputs`
    exchanges whole groups; `both` exchanges single rows, and rejects too often if rows of a group share errors.
    """
    check_level(level)
    first_scores, second_scores = _check_scores(rows, first), _check_scores(rows, second)
    points, _ = point_values(rows, first_scores, names)
    second_points, _ = point_values(rows, second_scores, names)
    resampled = bootstrap_values(rows, [first_scores, second_scores], seed=seed, resamples=resamples, names=names)
    exchanged = _exchange_judges(rows, first_scores, second_scores, seed, permutation, resamples, names)
    differences: dict[Key, JudgeDifference] = {}
    for key in points:
        a, b = points[key], second_points[key]
        if a is None or b is None:
            differences[key] = JudgeDifference(None, None, None, None)
            continue
        low, high = percentile_interval(resampled[0][key] - resampled[1][key], level, rows.block_count)
        defined = exchanged[key][~np.isnan(exchanged[key])]
        p = (
            (1 + int((np.abs(defined) >= abs(a - b) - _TIE_ROUNDING).sum())) / (1 + len(defined))
            if len(defined)
            else None
        )
        differences[key] = JudgeDifference(a - b, low, high, p)
    return differences


def point_values(
    rows: RatedRows, scores: Floats, names: Sequence[CoefficientName] = COEFFICIENTS
) -> tuple[dict[Key, float | None], dict[Key, int]]:
    """Return the coefficients, None if undefined, and the number of rows, groups or systems behind each."""
    points: dict[Key, float | None] = {}
    counts: dict[Key, int] = {}
    for level in rows.levels:
        for name in names:
            if level == "group":
                within = _coefficients_within_groups(rows, name, scores[None, :])[:, 0]
                defined = within[~np.isnan(within)]
                value, n = (float(defined.mean()) if len(defined) else np.nan), len(defined)
            else:
                value = float(_row_coefficients(rows, level, name, scores[None, :])[0])
                n = len(scores) if level == "item" else int(rows.systems.max()) + 1  # type: ignore[union-attr]
            points[level, name] = None if np.isnan(value) or (level != "group" and n < 3) else value
            counts[level, name] = n
    return points, counts


def bootstrap_values(
    rows: RatedRows,
    judges: Sequence[Floats],
    *,
    seed: int,
    resamples: int = 1_000,
    names: Sequence[CoefficientName] = COEFFICIENTS,
) -> list[Values]:
    """Return every judge's coefficients over the same resamples of whole groups; nan if undefined.

    The same seed gives the same resamples.
    """
    blocks = rows.blocks()
    within = [
        {name: _coefficients_within_groups(rows, name, scores[None, :])[:, 0] for name in names}
        if "group" in rows.levels
        else {}
        for scores in judges
    ]
    parts: list[dict[Key, list[Floats]]] = [{} for _ in judges]
    for block_counts in _draws(len(blocks), int(blocks.max(initial=-1)) + 1, seed, resamples):
        counts = block_counts[:, blocks]
        for scores, inner, part in zip(judges, within, parts, strict=True):
            for level in rows.levels:
                for name in names:
                    part.setdefault((level, name), []).append(
                        _resample_level(rows, level, name, scores, inner, block_counts, counts)
                    )
    return [{key: np.concatenate(arrays) for key, arrays in part.items()} for part in parts]


def percentile_interval(values: Floats, level: float, blocks: int) -> tuple[float | None, float | None]:
    """Return both ends of the percentile interval; both are None if there is no interval.

    There is no interval with fewer than `MIN_CLUSTERS` blocks, if too few resamples have a value, or if all resamples
    have the same value, which says nothing about unseen blocks.
    """
    defined = values[~np.isnan(values)]
    if (
        blocks < MIN_CLUSTERS
        or len(defined) < max(2.0, _DEFINED * len(values))
        or float(np.ptp(defined)) < _TIE_ROUNDING
    ):
        return None, None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resample_level(
    rows: RatedRows,
    level: Level,
    name: CoefficientName,
    scores: Floats,
    within: Mapping[CoefficientName, Floats],
    block_counts: Floats,
    counts: Floats,
) -> Floats:
    if level == "item":
        return weighted_coefficient(name, counts, scores, rows.human)
    with np.errstate(invalid="ignore", divide="ignore"):
        if level == "group":
            defined = ~np.isnan(within[name])
            return np.asarray(
                block_counts[:, defined] @ within[name][defined] / block_counts[:, defined].sum(axis=1),
                dtype=np.float64,
            )
        assert rows.systems is not None
        total = counts @ _group_members(rows.systems)
        means = [(counts * values) @ _group_members(rows.systems) / total for values in (scores, rows.human)]
    complete = ~np.isnan(means[0]).any(axis=1)  # a system may lose all of its rows
    coefficients = np.full(len(counts), np.nan)
    coefficients[complete] = rowwise_coefficient(
        name, _round_means(means[0][complete]), _round_means(means[1][complete])
    )
    return coefficients


def _row_coefficients(rows: RatedRows, level: Level, name: CoefficientName, scores: Floats) -> Floats:
    """Return a coefficient for each row of `scores`, each a full set of scores."""
    if level == "group":
        coefficients = _coefficients_within_groups(rows, name, scores)
        defined = ~np.isnan(coefficients)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(defined, coefficients, 0.0).sum(axis=0) / defined.sum(axis=0), dtype=np.float64)
    human = np.broadcast_to(rows.human, scores.shape)
    if level == "item":
        return rowwise_coefficient(name, scores, human)
    assert rows.systems is not None
    members = _group_members(rows.systems)
    return rowwise_coefficient(
        name, _round_means(scores @ members / members.sum(axis=0)), _round_means(human @ members / members.sum(axis=0))
    )


def _coefficients_within_groups(rows: RatedRows, name: CoefficientName, scores: Floats) -> Floats:
    """Return the coefficient within each group (rows) for each set of scores (columns)."""
    assert rows.groups is not None
    order = np.argsort(rows.groups, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(rows.groups))[:-1])
    return np.array(
        [
            rowwise_coefficient(name, scores[:, at], np.broadcast_to(rows.human[at], (len(scores), len(at))))
            for at in groups
        ]
    )


def _exchange_judges(
    rows: RatedRows,
    first_scores: Floats,
    second_scores: Floats,
    seed: int,
    permutation: Permutation,
    resamples: int,
    names: Sequence[CoefficientName],
) -> Values:
    """Return the difference of the judges' coefficients after each exchange, by level and coefficient."""
    first, second = (_standardize(values) for values in (first_scores, second_scores))
    blocks = rows.blocks() if permutation == "inputs" else np.arange(len(first_scores))
    generator = np.random.default_rng([seed, 1])
    differences: dict[Key, list[Floats]] = {}
    for size in _batches(len(first_scores), resamples):
        swapped = (generator.random((size, int(blocks.max(initial=-1)) + 1)) < 0.5)[:, blocks]
        a, b = np.where(swapped, second, first), np.where(swapped, first, second)
        for level in rows.levels:
            for name in names:
                difference = _row_coefficients(rows, level, name, a) - _row_coefficients(rows, level, name, b)
                differences.setdefault((level, name), []).append(difference)
    return {key: np.concatenate(parts) for key, parts in differences.items()}


def _draws(n: int, blocks: int, seed: int, resamples: int) -> Iterator[Floats]:
    """Generate the count of each block in each resample, in batches."""
    generator = np.random.default_rng([seed, 0])
    for size in _batches(n, resamples):
        yield generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=size).astype(np.float64)


def _batches(n: int, resamples: int) -> Iterator[int]:
    batch = max(1, _MAX_RESAMPLE_BLOCK // max(1, n))
    for start in range(0, resamples, batch):
        yield min(batch, resamples - start)


def _group_members(codes: NDArray[np.int64]) -> Floats:
    members = np.zeros((len(codes), int(codes.max()) + 1))
    members[np.arange(len(codes)), codes] = 1.0
    return members


def _round_means(means: Floats) -> Floats:
    """Round means so that float noise does not break ties."""
    scale = float(np.abs(means).max(initial=0.0)) or 1.0
    return np.asarray(np.round(means / scale, 12), dtype=np.float64)


def _standardize(values: Floats) -> Floats:
    spread = float(values.std())
    return values - values.mean() if spread == 0.0 else np.asarray((values - values.mean()) / spread)


def _codes(labels: Sequence[str] | None) -> NDArray[np.int64] | None:
    if labels is None:
        return None
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return np.array([codes[label] for label in labels], dtype=np.int64)


def _check_scores(rows: RatedRows, scores: Sequence[float]) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != rows.human.shape:
        raise ValueError(f"{len(values)} scores for {len(rows.human)} ratings; each rating needs one")
    if not np.isfinite(values).all():
        raise ValueError("scores: some are not finite; leave out their rows")
    return values


@dataclass(slots=True, frozen=True)
class Confusion:
    """Confusion of two raters on the `n` units that both have labelled.

    `counts[i][j]`: number of units that the first rater labelled `labels[i]` and the second rater `labels[j]`.
    `agreement`: fraction of equal labels, 0–1. `kappa`: Cohen's, with its percentile interval; None if undefined.
    """

    labels: list[Rating]
    counts: list[list[int]]
    agreement: float | None
    kappa: float | None
    low: float | None
    high: float | None
    n: int


def label_confusion(
    first: Sequence[Rating | None],
    second: Sequence[Rating | None],
    *,
    groups: Sequence[str] | None = None,
    weights: Literal["quadratic"] | None = None,
    seed: int = 7,
    resamples: int = 1_000,
    level: float = 0.95,
) -> Confusion:
    """Compare the labels of two raters of the same units; units with a missing label (None) are left out.

    Args:
        first: Labels of one rater.
        second: Labels of the other.
        groups: Name of the group with which each unit is resampled; default: each unit by itself.
        weights: As in `agreement.cohen_kappa`, for labels that are ordered by value.
        seed: Seed of the resamples.
        resamples: Number of bootstrap resamples.
        level: Confidence level.
    """
    if len(first) != len(second) or (groups is not None and len(groups) != len(first)):
        raise ValueError(f"{len(first)} labels against {len(second)}; labels and groups need equal numbers")
    both = [at for at in range(len(first)) if first[at] is not None and second[at] is not None]
    first_labels, second_labels = [first[at] for at in both], [second[at] for at in both]
    labels = sort_labels({label for label in (*first_labels, *second_labels) if label is not None})
    codes = {label: code for code, label in enumerate(labels)}
    cells = np.array(
        [codes[left] * len(labels) + codes[right] for left, right in zip(first_labels, second_labels, strict=True)  # type: ignore[index]
         ], dtype=np.int64
    )  # fmt: skip
    counts = np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))
    if not both:
        return Confusion([], [], None, None, None, None, 0)
    kappa = cohen_kappa(first_labels, second_labels, labels, weights).value
    names = [str(at) if groups is None else groups[at] for at in both]
    low, high = (
        _kappa_interval(cells, names, len(labels), weights, seed, resamples, level)
        if kappa is not None
        else (None, None)
    )
    return Confusion(labels, counts.tolist(), float(np.trace(counts) / len(both)), kappa, low, high, len(both))


def sort_labels(labels: set[Rating]) -> list[Rating]:
    """Sort labels as on a scale: numbers by value, then texts."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label if isinstance(label, str) else float(label)))


def _kappa_interval(
    cells: np.ndarray[tuple[int], np.dtype[np.int64]],
    groups: Sequence[str],
    size: int,
    weights: Literal["quadratic"] | None,
    seed: int,
    resamples: int,
    level: float,
) -> tuple[float | None, float | None]:
    codes = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    by_group = np.zeros((len(codes), size * size))
    np.add.at(by_group, (np.array([codes[group] for group in groups]), cells), 1.0)
    counts = np.random.default_rng([seed, 2]).multinomial(
        len(codes), np.full(len(codes), 1 / len(codes)), size=resamples
    )
    return percentile_interval(kappas_of_tables(counts @ by_group, size, weights), level, len(codes))

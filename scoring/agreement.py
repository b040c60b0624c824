"""Agreement between raters: votes, Cohen's and Fleiss' kappa, Krippendorff's alpha.

Ratings come as rows, one for each unit (a rated thing), with one entry for each rater; None is a missing rating.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from .clustered_means import MIN_CLUSTERS
from .intervals import Estimate, Floats, mid_ranks, student_quantile

Rating = float | str
Row = Sequence[Rating | None]
Scale = Literal["nominal", "ordinal", "interval"]
R = TypeVar("R", bound=Rating)


@dataclass(slots=True, frozen=True)
class Agreement:
    """Agreement coefficient: 1 for full agreement, 0 for chance level, below 0 for less than chance.

    `value` is None if undefined: nothing to compare, or all ratings are the same, so that chance alone agrees fully.
    `n` is the number of units behind `value`.
    """

    value: float | None
    n: int


@dataclass(slots=True, frozen=True)
class Voting:
    """Outcome of votes on `items` units: unanimous, decided by a plurality, or tied.

    `decided` includes the unanimous units. Units without a vote are not counted; a single voter is unanimous.
    """

    items: int
    unanimous: int
    decided: int
    tied: int


def majority_ratings(row: Sequence[R | None]) -> list[R]:
    """Return the ratings with the most votes, sorted: one, several if they tie, or none if nobody voted."""
    votes = Counter(rating for rating in row if rating is not None)
    top_count = max(votes.values(), default=0)
    return sorted(rating for rating, count in votes.items() if count == top_count)


def count_votes(rows: Sequence[Row]) -> Voting:
    """Count how many votes were unanimous, decided or tied."""
    items = unanimous = decided = 0
    for row, count in Counter(map(tuple, rows)).items():  # many units are alike
        winners = majority_ratings(row)
        items += count * bool(winners)
        unanimous += count * (len({rating for rating in row if rating is not None}) == 1)
        decided += count * (len(winners) == 1)
    return Voting(items, unanimous, decided, items - decided)


def cohen_kappa(
    first: Sequence[R | None],
    second: Sequence[R | None],
    scale: Sequence[R],
    weights: Literal["quadratic"] | None = None,
) -> Agreement:
    """Return Cohen's kappa of two raters over the units that both have rated.

    Args:
        first: Ratings of one rater; None is missing.
        second: Ratings of the other rater, in the same order.
        scale: All possible ratings, in order.
        weights: `quadratic` weights a disagreement by the squared number of steps on `scale` (Cohen 1968), so that
            near misses count little; for ordered ratings only. None: all disagreements weigh the same.

    Source: Cohen 1960.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} ratings against {len(second)}; each item needs one of each rater")
    both = [(left, right) for left, right in zip(first, second, strict=True) if left is not None and right is not None]
    positions = {rating: position for position, rating in enumerate(scale)}
    for rating in (rating for pair in both for rating in pair):
        if rating not in positions:
            raise ValueError(f"rating {rating!r} is not on the scale {list(scale)}")
    if len({rating for pair in both for rating in pair}) < 2:
        return Agreement(None, len(both))
    cells = [positions[left] * len(scale) + positions[right] for left, right in both]
    table = np.bincount(cells, minlength=len(scale) ** 2).astype(np.float64)
    return Agreement(float(kappas_of_tables(table[None, :], len(scale), weights)[0]), len(both))


def kappas_of_tables(tables: Floats, size: int, weights: Literal["quadratic"] | None = None) -> Floats:
    """Return Cohen's kappa of each row of `tables`, a flattened `size` × `size` table of counts; nan if undefined."""
    square = tables.reshape(len(tables), size, size)
    places = np.arange(size)
    cost = (places[:, None] - places[None, :]) ** 2 if weights == "quadratic" else 1.0 - np.eye(size)
    total = square.sum(axis=(1, 2))
    expected = np.einsum("bi,ij,bj->b", square.sum(axis=2), cost, square.sum(axis=1)) / total
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1.0 - (square * cost).sum(axis=(1, 2)) / expected, dtype=np.float64)


def fleiss_kappa(rows: Sequence[Row]) -> Agreement:
    """Return Fleiss' kappa of any number of raters for nominal ratings.

    Units with a missing rating are left out; `krippendorff_alpha` uses such units, too.

    Raises:
        ValueError: if rows (one a unit, one entry a rater) differ in length or have fewer than two entries.

    Source: Fleiss 1971.
    """
    raters = _raters(rows)
    alike = things = 0
    total = Counter[Rating | None]()
    for row, times in Counter(tuple(row) for row in rows if None not in row).items():  # many units are alike
        things += times
        for rating, number in Counter(row).items():
            alike += times * number * (number - 1)
            total[rating] += times * number
    if len(total) < 2:
        return Agreement(None, things)
    observed = alike / (things * raters * (raters - 1))
    ratings = things * raters
    expected = sum(number * number for number in total.values()) / ratings**2
    return Agreement((observed - expected) / (1.0 - expected), things)


def krippendorff_alpha(rows: Sequence[Row], scale: Scale = "ordinal") -> Agreement:
    """Return Krippendorff's alpha: 1 - observed / expected disagreement, for any number of raters with missing ratings.

    Only units with at least two ratings count. The disagreement of two ratings is

    `nominal`    1 if they differ;
    `ordinal`    the squared difference of their mid-ranks among all ratings;
    `interval`   their squared difference.

    Raises:
        ValueError: if rows (one a unit, one entry a rater) differ in length or have fewer than two entries, or ratings
            on an ordinal or interval scale are not finite numbers.

    Source: Krippendorff 2018, "Content analysis", 4th ed., section 12.3.
    """
    _raters(rows)
    units = [[rating for rating in row if rating is not None] for row in rows]
    units = [unit for unit in units if len(unit) > 1]
    if len({rating for unit in units for rating in unit}) < 2:
        return Agreement(None, len(units))
    if scale == "nominal":
        disagreement = _count_differences
        pooled = [rating for unit in units for rating in unit]
    else:
        disagreement = _sum_squared_distances
        units = _numbers(units) if scale == "interval" else _ranks(_numbers(units))
        pooled = [rating for unit in units for rating in unit]
    observed = math.fsum(disagreement(unit) / (len(unit) - 1) for unit in units)
    expected = disagreement(pooled) / (len(pooled) - 1)
    return Agreement(1.0 - observed / expected, len(units))


def _count_differences(ratings: Sequence[Rating]) -> float:
    """Return the number of ordered pairs of ratings that differ."""
    return float(len(ratings) ** 2 - sum(count * count for count in Counter(ratings).values()))


def _sum_squared_distances(ratings: Sequence[Rating]) -> float:
    """Return the sum of squared differences of ordered pairs, which is 2 n times the sum of squares about the mean."""
    numbers = [float(rating) for rating in ratings]
    mean = math.fsum(numbers) / len(numbers)
    return 2.0 * len(numbers) * math.fsum((number - mean) ** 2 for number in numbers)


def _numbers(units: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    for rating in (rating for unit in units for rating in unit):
        if isinstance(rating, str) or not math.isfinite(rating):
            raise ValueError(f"rating {rating!r} is not a finite number; ordinal and interval scales need numbers")
    return [list(unit) for unit in units]


def _ranks(units: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    """Return the mid-ranks of the ratings among all of them, in the same shape."""
    ranks = iter(mid_ranks([rating for unit in units for rating in unit]).tolist())
    return [[next(ranks) for _ in unit] for unit in units]


def _raters(rows: Sequence[Row]) -> int:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(f"rows of {sorted(lengths)} ratings; each row needs one entry for each rater")
    raters = next(iter(lengths), 2)
    if raters < 2:
        raise ValueError(f"{raters} rater; agreement needs at least two")
    return raters


def share_within(units: Sequence[Sequence[float]], clusters: Sequence[str], level: float = 0.95) -> Estimate | None:
    """Return the fraction of a rating's variance that lies within units, with its interval.

    This is one minus the intraclass correlation of one-way random effects: of raters who differ only by chance, it is
    the part of the variance that is the rater's own. Units of a cluster are not independent; the interval is Student's
    for the logarithm of the variance ratio, from leaving out each cluster in turn.

    Returns:
        None if all ratings are equal, or fewer than two units have two ratings. The interval is from 0 to 1 if there
        are too few clusters for one, or if ratings differ only between or only within units.

    Source: Shrout and Fleiss 1979, case 1; Arvesen 1969 for the jackknife of the logarithm.
    """
    kept = [(unit, cluster) for unit, cluster in zip(units, clusters, strict=True) if len(unit) > 1]
    if len(kept) < 2:
        return None
    sizes = np.array([len(unit) for unit, _ in kept], dtype=np.float64)
    means = np.array([math.fsum(unit) / len(unit) for unit, _ in kept])
    within = np.array([math.fsum((value - mean) ** 2 for value in unit)
                       for (unit, _), mean in zip(kept, means.tolist(), strict=True)])  # fmt: skip
    names, members = np.unique([cluster for _, cluster in kept], return_inverse=True)
    share, ratio = _within_and_ratio(sizes, means, within)
    if share is None:
        return None
    wide = Estimate(share, 0.0, 1.0)
    if len(names) < MIN_CLUSTERS or not math.isfinite(ratio):
        return wide
    others = [
        _within_and_ratio(*(column[members != left_out] for column in (sizes, means, within)))[1]
        for left_out in range(len(names))
    ]
    if not all(map(math.isfinite, others)):
        return wide
    count = len(names)
    spread = math.sqrt((count - 1) / count * float(((np.array(others) - np.mean(others)) ** 2).sum()))
    half = spread * student_quantile((1.0 + level) / 2, count - 1)
    size = _mean_size(sizes)
    low, high = (min(1.0, size / max(size + math.exp(end) - 1.0, size)) for end in (ratio + half, ratio - half))
    return Estimate(share, min(low, share), max(high, share))


def _mean_size(sizes: Floats) -> float:
    """Return the number of ratings per unit, as the analysis of variance weighs it."""
    total = float(sizes.sum())
    return (total - float((sizes**2).sum()) / total) / (len(sizes) - 1)


def _within_and_ratio(sizes: Floats, means: Floats, within: Floats) -> tuple[float | None, float]:
    """Return the fraction of variance within units, and the logarithm of the mean squares' ratio (infinite if none)."""
    if len(sizes) < 2:
        return None, math.nan
    total = float(sizes.sum())
    centre = float(sizes @ means) / total
    between = float(sizes @ (means - centre) ** 2) / (len(sizes) - 1)
    inside = float(within.sum()) / (total - len(sizes))
    if between <= 0.0 and inside <= 0.0:
        return None, math.nan
    size = _mean_size(sizes)
    of_units = max(0.0, (between - inside) / size)
    return inside / (inside + of_units), math.log(between / inside) if between > 0.0 and inside > 0.0 else math.inf

"""Agreement of ratings of the same things: votes, Cohen's and Fleiss' kappa, Krippendorff's alpha.

Ratings come as rows, one for each thing rated, with one entry for each rater; None where a rater said nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from .intervals import Floats, mid_ranks

Rating = float | str
Row = Sequence[Rating | None]
Scale = Literal["nominal", "ordinal", "interval"]
R = TypeVar("R", bound=Rating)


@dataclass(slots=True, frozen=True)
class Agreement:
    """A coefficient: 1 for full agreement, 0 for what chance gives, below 0 for less than that.

    ``value`` is None where it is not defined: nothing to compare, or all ratings the same, so that chance agrees fully.
    ``n`` is the number of things on which it rests.
    """

    value: float | None
    n: int


@dataclass(slots=True, frozen=True)
class Voting:
    """How votes on ``items`` things went: all of one mind, more than for any other rating, or a tie between the most.

    ``unanimous`` is part of ``decided``; things that nobody rated are not among the items, and one voter is unanimous.
    """

    items: int
    unanimous: int
    decided: int
    tied: int


def majority_ratings(row: Sequence[R | None]) -> list[R]:
    """Return the rating with most votes; several, sorted, if they tie; none if nobody voted."""
    votes = Counter(rating for rating in row if rating is not None)
    top_count = max(votes.values(), default=0)
    return sorted(rating for rating, count in votes.items() if count == top_count)


def count_votes(rows: Sequence[Row]) -> Voting:
    """How the votes on many things went."""
    items = unanimous = decided = 0
    for row, count in Counter(map(tuple, rows)).items():  # many things are rated alike
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
    """Cohen's kappa of two raters over the things that both have rated (Cohen 1960).

    ``scale`` names all ratings there are, in order. ``quadratic`` weighs a disagreement by the square of the places
    between the two on the scale (Cohen 1968), so that near misses count little; it is for ordered ratings.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} ratings against {len(second)}")
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
    """Cohen's kappa of each row of ``tables``, a flattened table of ``size`` × ``size`` counts; nan where undefined."""
    square = tables.reshape(len(tables), size, size)
    places = np.arange(size)
    cost = (places[:, None] - places[None, :]) ** 2 if weights == "quadratic" else 1.0 - np.eye(size)
    total = square.sum(axis=(1, 2))
    expected = np.einsum("bi,ij,bj->b", square.sum(axis=2), cost, square.sum(axis=1)) / total
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1.0 - (square * cost).sum(axis=(1, 2)) / expected, dtype=np.float64)


def fleiss_kappa(rows: Sequence[Row]) -> Agreement:
    """Fleiss' kappa of any number of raters, ratings being names without order (Fleiss 1971).

    It is for the same number of ratings on each thing: things that lack one are left out (alpha takes them in).

    :raises ValueError: rows differ in length, or have fewer than two places.
    """
    raters = _raters(rows)
    alike = things = 0
    total = Counter[Rating | None]()
    for row, times in Counter(tuple(row) for row in rows if None not in row).items():  # many things are rated alike
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
    """Krippendorff's alpha of any number of raters with missing ratings (Krippendorff 2018, "Content analysis", 4th
    ed., section 12.3): 1 - observed / expected disagreement, over the ratings of things that at least two have rated.

    Two ratings disagree, on the scale

    ``nominal``    by 1 if they are not the same;
    ``ordinal``    by the square of the number of ratings that lie between them, half of their own included, which is
                   the squared difference of their mid-ranks among all ratings;
    ``interval``   by the square of their difference.

    :raises ValueError: rows differ in length or have fewer than two places, or ratings are no finite numbers where the
        scale needs numbers.
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
    """In how many ordered pairs the two differ."""
    return float(len(ratings) ** 2 - sum(count * count for count in Counter(ratings).values()))


def _sum_squared_distances(ratings: Sequence[Rating]) -> float:
    """The sum of squared differences over ordered pairs: 2 n times the sum of squares about the mean."""
    numbers = [float(rating) for rating in ratings]
    mean = math.fsum(numbers) / len(numbers)
    return 2.0 * len(numbers) * math.fsum((number - mean) ** 2 for number in numbers)


def _numbers(units: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    for rating in (rating for unit in units for rating in unit):
        if isinstance(rating, str) or not math.isfinite(rating):
            raise ValueError(f"rating {rating!r}; ordinal and interval scales need numbers")
    return [list(unit) for unit in units]


def _ranks(units: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    """The mid-ranks of the ratings among all of them, in the same shape."""
    ranks = iter(mid_ranks([rating for unit in units for rating in unit]).tolist())
    return [[next(ranks) for _ in unit] for unit in units]


def _raters(rows: Sequence[Row]) -> int:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(f"rows of {sorted(lengths)} ratings; each row has one place for each rater")
    raters = next(iter(lengths), 2)
    if raters < 2:
        raise ValueError(f"{raters} rater; agreement needs at least two")
    return raters

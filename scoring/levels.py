"""How well scores follow human ratings, at three levels, with bootstrap intervals and tests between two judges.

``item``     over all rows, as they are (turn level of dialogue papers);
``group``    within each group of rows that share a source, averaged over groups (summary level);
``system``   between the means of systems.

Louis and Nenkova 2013; names and resampling after Deutsch, Dror and Roth 2021, "A statistical analysis of summarization
evaluation metrics using resampling methods": groups are drawn with replacement (BOOT-INPUTS), and two judges are
compared by exchanging their standardised scores: row by row (PERM-BOTH), or for whole groups (PERM-INPUTS).
What never belongs here: files, and what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .clusters import FEWEST
from .coefficients import COEFFICIENTS, CoefficientName, Floats, by_rows, of_counts
from .intervals import check_level

Level = Literal["item", "group", "system"]
LEVELS: tuple[Level, ...] = ("item", "group", "system")
Permutation = Literal["both", "inputs"]
Key: TypeAlias = tuple[Level, CoefficientName]
Values: TypeAlias = dict[Key, Floats]

_AT_ONCE = 2_000_000  # numbers of resampled rows that are held at a time
_ROUNDING = 1e-12
_DEFINED = 0.9  # of resamples must have a coefficient, or there is no interval


@dataclass(slots=True, frozen=True)
class RatedRows:
    """Human ratings with the group and the system of each row, as codes from 0.

    ``groups`` is None where nothing says which rows share a source: each row is then drawn by itself, and there is no
    group level. ``systems`` is None likewise.
    """

    human: Floats
    groups: NDArray[np.int64] | None
    systems: NDArray[np.int64] | None

    @classmethod
    def of(
        cls, human: Sequence[float], groups: Sequence[str] | None = None, systems: Sequence[str] | None = None
    ) -> RatedRows:
        """From texts that name groups and systems.

        :raises ValueError: lengths differ, or a rating is not finite.
        """
        for name, labels in (("groups", groups), ("systems", systems)):
            if labels is not None and len(labels) != len(human):
                raise ValueError(f"{len(human)} ratings with {len(labels)} {name}")
        if not np.isfinite(human).all():
            raise ValueError("ratings: one is not finite; leave such rows out")
        return cls(np.asarray(human, dtype=np.float64), _codes(groups), _codes(systems))

    @property
    def levels(self) -> list[Level]:
        """The levels at which these rows can be looked at."""
        found: list[Level] = ["item"]
        if self.groups is not None and len(self.groups) > int(self.groups.max(initial=0)) + 1:
            found.append("group")
        if self.systems is not None and int(self.systems.max(initial=0)) > 0:
            found.append("system")
        return found

    @property
    def drawn(self) -> int:
        """The number of blocks that are drawn from."""
        return len(np.unique(self.blocks()))

    def blocks(self) -> NDArray[np.int64]:
        """What is drawn together: the group of each row, else the row itself."""
        return np.arange(len(self.human)) if self.groups is None else self.groups


@dataclass(slots=True, frozen=True)
class LevelFigure:
    """A coefficient at one level with its percentile interval; None where it is not defined.

    ``n`` counts what it rests on: rows, groups that have one, or systems.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(slots=True, frozen=True)
class JudgeDifference:
    """How much better the first judge follows the ratings than the second: the difference of a coefficient, its
    percentile interval, and the two-sided p-value of the permutation test.
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
    """The coefficients of ``scores`` with the ratings at each level that the rows have.

    :raises ValueError: lengths differ, a score is not finite, or ``level`` is not between 0 and 1.
    """
    check_level(level)
    values = _checked(rows, scores)
    points, counts = point_values(rows, values, names)
    drawn = bootstrap_values(rows, [values], seed=seed, resamples=resamples, names=names)[0]
    found = {}
    for key, value in points.items():
        low, high = ends(drawn[key], level, rows.drawn) if value is not None else (None, None)
        found[key] = LevelFigure(value, low, high, counts[key])
    return found


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
    """The first judge against the second on the same rows, at each level.

    Where rows of a group have errors in common, exchanging row by row refutes too often; exchanging groups does not.

    The p-value counts how many of ``resamples`` random exchanges of the two judges' scores, standardised before, give
    a difference as far from 0; it is at least 1 / (``resamples`` + 1).

    :raises ValueError: as ``level_figures``.
    """
    check_level(level)
    one, other = _checked(rows, first), _checked(rows, second)
    points, _ = point_values(rows, one, names)
    others, _ = point_values(rows, other, names)
    drawn = bootstrap_values(rows, [one, other], seed=seed, resamples=resamples, names=names)
    exchanged = _exchanged(rows, one, other, seed, permutation, resamples, names)
    found: dict[Key, JudgeDifference] = {}
    for key in points:
        a, b = points[key], others[key]
        if a is None or b is None:
            found[key] = JudgeDifference(None, None, None, None)
            continue
        low, high = ends(drawn[0][key] - drawn[1][key], level, rows.drawn)
        known = exchanged[key][~np.isnan(exchanged[key])]
        p = (1 + int((np.abs(known) >= abs(a - b) - _ROUNDING).sum())) / (1 + len(known)) if len(known) else None
        found[key] = JudgeDifference(a - b, low, high, p)
    return found


def point_values(
    rows: RatedRows, scores: Floats, names: Sequence[CoefficientName] = COEFFICIENTS
) -> tuple[dict[Key, float | None], dict[Key, int]]:
    """The coefficients themselves, and what each rests on."""
    found: dict[Key, float | None] = {}
    counts: dict[Key, int] = {}
    for level in rows.levels:
        for name in names:
            if level == "group":
                within = _within(rows, name, scores[None, :])[:, 0]
                known = within[~np.isnan(within)]
                value, n = (float(known.mean()) if len(known) else np.nan), len(known)
            else:
                value = float(_of_rows(rows, level, name, scores[None, :])[0])
                n = len(scores) if level == "item" else int(rows.systems.max()) + 1  # type: ignore[union-attr]
            found[level, name] = None if np.isnan(value) or (level != "group" and n < 3) else value
            counts[level, name] = n
    return found, counts


def bootstrap_values(
    rows: RatedRows,
    judges: Sequence[Floats],
    *,
    seed: int,
    resamples: int = 1_000,
    names: Sequence[CoefficientName] = COEFFICIENTS,
) -> list[Values]:
    """Every judge's coefficients over the same resamples of whole groups; nan where one is not defined.

    The same seed gives the same resamples.
    """
    blocks = rows.blocks()
    within = [
        {name: _within(rows, name, scores[None, :])[:, 0] for name in names} if "group" in rows.levels else {}
        for scores in judges
    ]
    parts: list[dict[Key, list[Floats]]] = [{} for _ in judges]
    for drawn in _draws(len(blocks), int(blocks.max(initial=-1)) + 1, seed, resamples):
        counts = drawn[:, blocks]
        for scores, inner, part in zip(judges, within, parts, strict=True):
            for level in rows.levels:
                for name in names:
                    part.setdefault((level, name), []).append(
                        _resampled(rows, level, name, scores, inner, drawn, counts)
                    )
    return [{key: np.concatenate(arrays) for key, arrays in part.items()} for part in parts]


def ends(drawn: Floats, level: float, blocks: int) -> tuple[float | None, float | None]:
    """The ends of the percentile interval; None where fewer than ``FEWEST`` blocks were drawn from, where too few
    resamples have a value, or where all have the same, which says nothing of what was not met.
    """
    known = drawn[~np.isnan(drawn)]
    if blocks < FEWEST or len(known) < max(2.0, _DEFINED * len(drawn)) or float(np.ptp(known)) < _ROUNDING:
        return None, None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(
    rows: RatedRows,
    level: Level,
    name: CoefficientName,
    scores: Floats,
    within: Mapping[CoefficientName, Floats],
    drawn: Floats,
    counts: Floats,
) -> Floats:
    if level == "item":
        return of_counts(name, counts, scores, rows.human)
    with np.errstate(invalid="ignore", divide="ignore"):
        if level == "group":
            known = ~np.isnan(within[name])
            return np.asarray(drawn[:, known] @ within[name][known] / drawn[:, known].sum(axis=1), dtype=np.float64)
        assert rows.systems is not None
        total = counts @ _members(rows.systems)
        means = [(counts * values) @ _members(rows.systems) / total for values in (scores, rows.human)]
    whole = ~np.isnan(means[0]).any(axis=1)  # a system may lose all of its rows
    found = np.full(len(counts), np.nan)
    found[whole] = by_rows(name, _even(means[0][whole]), _even(means[1][whole]))
    return found


def _of_rows(rows: RatedRows, level: Level, name: CoefficientName, scores: Floats) -> Floats:
    """A coefficient for each row of ``scores``, each a whole set of scores."""
    if level == "group":
        found = _within(rows, name, scores)
        known = ~np.isnan(found)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(known, found, 0.0).sum(axis=0) / known.sum(axis=0), dtype=np.float64)
    human = np.broadcast_to(rows.human, scores.shape)
    if level == "item":
        return by_rows(name, scores, human)
    assert rows.systems is not None
    members = _members(rows.systems)
    return by_rows(name, _even(scores @ members / members.sum(axis=0)), _even(human @ members / members.sum(axis=0)))


def _within(rows: RatedRows, name: CoefficientName, scores: Floats) -> Floats:
    """The coefficient within each group (rows) for each set of scores (columns)."""
    assert rows.groups is not None
    order = np.argsort(rows.groups, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(rows.groups))[:-1])
    return np.array(
        [by_rows(name, scores[:, at], np.broadcast_to(rows.human[at], (len(scores), len(at)))) for at in groups]
    )


def _exchanged(
    rows: RatedRows,
    one: Floats,
    other: Floats,
    seed: int,
    permutation: Permutation,
    resamples: int,
    names: Sequence[CoefficientName],
) -> Values:
    """The difference of each coefficient after each exchange."""
    first, second = (_standardised(values) for values in (one, other))
    blocks = rows.blocks() if permutation == "inputs" else np.arange(len(one))
    generator = np.random.default_rng([seed, 1])
    found: dict[Key, list[Floats]] = {}
    for size in _batches(len(one), resamples):
        swapped = (generator.random((size, int(blocks.max(initial=-1)) + 1)) < 0.5)[:, blocks]
        a, b = np.where(swapped, second, first), np.where(swapped, first, second)
        for level in rows.levels:
            for name in names:
                difference = _of_rows(rows, level, name, a) - _of_rows(rows, level, name, b)
                found.setdefault((level, name), []).append(difference)
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _draws(n: int, blocks: int, seed: int, resamples: int) -> Iterator[Floats]:
    """How often each block occurs in each resample, a batch of resamples at a time."""
    generator = np.random.default_rng([seed, 0])
    for size in _batches(n, resamples):
        yield generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=size).astype(np.float64)


def _batches(n: int, resamples: int) -> Iterator[int]:
    most = max(1, _AT_ONCE // max(1, n))
    for done in range(0, resamples, most):
        yield min(most, resamples - done)


def _members(codes: NDArray[np.int64]) -> Floats:
    found = np.zeros((len(codes), int(codes.max()) + 1))
    found[np.arange(len(codes)), codes] = 1.0
    return found


def _even(means: Floats) -> Floats:
    """Means without the noise of their sums, which would be ranked as if it were a difference."""
    scale = float(np.abs(means).max(initial=0.0)) or 1.0
    return np.asarray(np.round(means / scale, 12), dtype=np.float64)


def _standardised(values: Floats) -> Floats:
    spread = float(values.std())
    return values - values.mean() if spread == 0.0 else np.asarray((values - values.mean()) / spread)


def _codes(labels: Sequence[str] | None) -> NDArray[np.int64] | None:
    if labels is None:
        return None
    places = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    return np.array([places[label] for label in labels], dtype=np.int64)


def _checked(rows: RatedRows, scores: Sequence[float]) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != rows.human.shape:
        raise ValueError(f"{len(values)} scores for {len(rows.human)} ratings")
    if not np.isfinite(values).all():
        raise ValueError("scores: one is not finite; leave such rows out")
    return values


__all__ = [
    "LEVELS",
    "JudgeDifference",
    "Level",
    "LevelFigure",
    "RatedRows",
    "bootstrap_values",
    "compare_judges",
    "ends",
    "level_figures",
    "point_values",
]

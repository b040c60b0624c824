"""Drift of a judge under load: permutation tests of its verdicts at each rate, and the size of each change.

If load does not affect a judge, its answers to the same request are exchangeable between passes. So passes are
exchanged request by request, and a figure is compared with its values after such exchanges. This permutation test
within blocks is exact for any noise of the judge, because all passes have the same noise. Requests of one cluster are
exchanged together.

All figures at all rates are tested together by their minimum p-value. This accounts for their dependence: all rates are
compared with the same unloaded passes. Flagged rates are removed and the remaining rates are tested again, until no
rate is flagged.

Source: Good 2005, "Permutation, parametric and bootstrap tests of hypotheses", 3rd edition; Westfall and Young 1993,
    "Resampling-based multiple testing".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .clustered_means import ClusteredMean, clustered_mean
from .confidence_sequences import ConfidenceSequences
from .intervals import Estimate, extend_to_zero, student_tail
from .load_verdicts import (
    MEAN_ASPECT,
    VERDICT_FAILURES,
    Codes,
    Floats,
    JudgedRequest,
    PassTable,
    PassValues,
    VerdictColumns,
    VerdictPass,
    aspects_of,
    contribution,
    distance,
    loaded_distance,
    main_aspect,
)

EXCHANGES = 1_999
_MAX_BLOCK = 2_000_000  # numbers in memory at a time
_ROUNDING = 1e-9
# Whole-number scores make many exchanges give the same sum, and a test with ties is conservative.
# Weights of requests, independent of their answers, break the ties.
_TIE_BREAK, _GOLDEN = 1e-3, (5.0**0.5 - 1.0) / 2


@dataclass(slots=True, frozen=True)
class RateTest:
    """Tests of one rate, corrected for the number of rates and figures.

    `p` is the p-value of no change at this rate; None if nothing could be tested. `figures` has the p-value of each
    figure, table by table; it is 1 for a figure that could not be tested.
    """

    p: float | None = None
    figures: tuple[float, ...] = ()


def exchange_tests(
    tables: Sequence[PassTable], rates: int, *, alpha: float = 0.05, draws: int = EXCHANGES, seed: int = 1993
) -> list[RateTest]:
    """Test each rate for a change.

    A rate with p up to `alpha` is flagged. The chance that at least one unchanged rate is flagged is at most `alpha`.
    No p-value is below 1/(draws + 1). The same tables and seed give the same p-values.

    Args:
        tables: Each with a column for each rate, then one for each of the two unloaded passes.
        rates: Number of rates.
        alpha: Level at which a rate is flagged.
        draws: Number of random exchanges.
        seed: Seed of the exchanges.
    """
    results = [RateTest()] * rates
    remaining = list(range(rates))
    reached = 0.0
    while remaining:
        tests = _test_round(
            [_columns_of_rates(table, [*remaining, rates, rates + 1]) for table in tables], len(remaining), draws, seed
        )
        for rate, test in zip(remaining, tests, strict=True):
            if test.p is not None:
                figures = tuple(max(reached, p) for p in test.figures)
                results[rate] = RateTest(min(figures), figures)
        flagged = [rate for rate in remaining if (p := results[rate].p) is not None and p <= alpha]
        if not flagged:
            break
        reached = max(results[rate].p or 0.0 for rate in flagged)
        remaining = [rate for rate in remaining if rate not in flagged]
    return results


def _columns_of_rates(table: PassTable, columns: Sequence[int]) -> PassTable:
    figures = [
        PassValues(figure.kind, figure.values[:, columns], upwards=figure.upwards, nominal=figure.nominal)
        for figure in table.figures
    ]
    return PassTable(table.clusters, table.answered[:, columns], figures)


def _test_round(tables: Sequence[PassTable], rates: int, draws: int, seed: int) -> list[RateTest]:
    """Return corrected p-values for each rate and figure; the first exchange is the identity."""
    statistics = np.concatenate([_statistics(table, rates, draws, seed) for table in tables], axis=2)
    upwards = np.array([figure.upwards for table in tables for figure in table.figures])
    ps, tested = _tail_probabilities(statistics, upwards)
    smallest = np.sort(ps.min(axis=(1, 2)))
    corrected = np.searchsorted(smallest, ps[0] * (1.0 + _ROUNDING), side="right") / len(smallest)
    return [
        RateTest(float(corrected[rate].min()), tuple(np.where(tested[rate], corrected[rate], 1.0).tolist()))
        if tested[rate].any()
        else RateTest()
        for rate in range(rates)
    ]


def _tail_probabilities(statistics: Floats, upwards: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return normal p-values by (exchange, rate, figure), and by (rate, figure) whether exchanges change anything.

    The p-values only rank statistics of different figures, so the normal shape need not hold.
    """
    from scipy.special import ndtr

    spread = np.sqrt((statistics**2).mean(axis=0))  # the mean over all exchanges is 0
    tested = spread > _ROUNDING * np.abs(statistics).max(axis=0, initial=1e-300)
    scaled = statistics / np.where(tested, spread, 1.0)
    # Round, so that float noise does not separate equal sums.
    scaled = np.asarray(np.round(np.where(upwards, scaled, np.abs(scaled)), 9), dtype=np.float64)
    ps = np.where(upwards, ndtr(-scaled), 2.0 * ndtr(-scaled))
    return np.asarray(np.where(tested, ps, 2.0), dtype=np.float64), tested


def _statistics(table: PassTable, rates: int, draws: int, seed: int) -> Floats:
    """Return the sum of all requests' contributions, by (exchange, rate, figure)."""
    sums = np.zeros((draws + 1, rates, len(table.figures)))
    if not table.figures:
        return sums
    weights = 1.0 + _TIE_BREAK * (np.arange(len(table.clusters)) * _GOLDEN % 1.0)
    clusters = 1 + int(table.clusters.max(initial=-1))
    size = max(1, _MAX_BLOCK // max(1, max(clusters, len(table.clusters)) * (rates + 2)))
    for at in range(0, draws + 1, size):
        # Every table draws the same keys, so that requests and pairs of a cluster are exchanged together.
        generator = np.random.Generator(np.random.PCG64([seed, at]))
        keys = generator.random((min(size, draws + 1 - at), clusters, rates + 2), dtype=np.float32)
        if at == 0:
            keys[0] = np.arange(rates + 2)
        for rows, columns in _patterns(table.answered):
            order = np.argsort(keys[:, table.clusters[rows]][:, :, columns], axis=2)
            rate_columns = [column for column in columns if column < rates]
            for index, figure in enumerate(table.figures):
                values = np.take_along_axis(figure.values[rows][None, :, columns], order, axis=2)
                added_values = contribution(figure, values[:, :, :-2], values[:, :, -2:-1], values[:, :, -1:])
                sums[at : at + size, rate_columns, index] += np.einsum(
                    "krs,r->ks", np.nan_to_num(added_values), weights[rows]
                )
    return sums


def _patterns(answered: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], list[int]]]:
    """Group requests by the passes that answered them: answers can only be exchanged among these."""
    patterns, codes = np.unique(answered, axis=0, return_inverse=True)
    groups = []
    for number, pattern in enumerate(patterns):
        columns = np.flatnonzero(pattern).tolist()
        if pattern[-1] and pattern[-2] and len(columns) > 2:
            groups.append((np.flatnonzero(codes.ravel() == number), columns))
    return groups


class RunningChange:
    """Confidence sequence of the mean change, valid at all times simultaneously.

    Changes may arrive in any order but are used in the order in which their requests were sent, because the order of
    answers may depend on their content. The steps of a load test share `alpha`: step k has alpha / (k (k + 1)), however
    many steps follow. `n` counts the changes used so far; `found_at` is the `n` at which the interval first excluded 0.
    """

    def __init__(self, bound: float, *, step: int = 1, alpha: float = 0.05) -> None:
        """Start without changes.

        Args:
            bound: The largest possible size of a change.
            step: Number of the step, from 1.
            alpha: Error probability of all steps together.
        """
        self._betting = ConfidenceSequences(
            1, low=-bound, high=bound, level=1.0 - alpha / (step * (step + 1)), steps=1000
        )
        self._ahead: dict[int, float] = {}
        self._next = 0
        self.n = 0
        self.found_at: int | None = None

    def add(self, position: int, change: float | None) -> None:
        """Add the change of the request sent at this position, from 0; None if there is nothing to compare.

        Every position must be added once: a missing one holds back all later ones.
        """
        self._ahead[position] = math.nan if change is None else change
        while self._next in self._ahead:
            value = self._ahead.pop(self._next)
            self._next += 1
            if math.isnan(value):
                continue
            self.n += 1
            self._betting.add([value])
            if self.found_at is None and not self.low < 0.0 < self.high:
                self.found_at = self.n

    @property
    def low(self) -> float:
        """Lower end of the interval of the mean change."""
        return float(self._betting.lows[0])

    @property
    def high(self) -> float:
        """Upper end of the interval of the mean change."""
        return float(self._betting.highs[0])


# `scores`: mean score. `verdicts`: distance of a verdict from an unloaded one of the same request. `spread`: standard
# deviation of scores. `unreadable`: fraction of answers without a verdict. `reference`: mean distance from correct
# scores or labels. `position`: bias towards the answer that stands first.
FigureName = Literal["scores", "verdicts", "spread", "unreadable", "reference", "position"]
Scales: TypeAlias = Mapping[str, tuple[float, float]]
LABEL_FIGURE = "label"  # aspect of label figures


@dataclass(slots=True, frozen=True)
class ChangedFigure:
    """Figure of a judge at one rate, compared with its unloaded passes.

    `loaded` and `unloaded` are the figure's values. For `verdicts` they are the mean distance of loaded from unloaded
    verdicts, and the mean distance between the two unloaded passes. `change` is the difference with its clustered
    interval. `floor` is the second unloaded pass minus the first: the judge's own noise (None for `spread`, and for
    `verdicts`, because their unloaded value is this noise). `bound` is the largest possible change. `unseen` (of
    `scores` and `verdicts`): the largest change, as a fraction of `bound`, that is not excluded for unseen requests, at
    the level of the interval. `n` counts requests (for `position`, pairs), `items` their clusters. `p` is corrected for
    all rates and figures; for two-sided figures it is at least Student's p.
    """

    name: FigureName
    aspect: str
    loaded: float
    unloaded: float
    change: Estimate
    floor: Estimate | None
    bound: float
    n: int
    items: int
    p: float
    unseen: float | None = None


@dataclass(slots=True, frozen=True)
class RateJudgement:
    """A judge at one rate: its figures, the main score's first, and the p-value of no change.

    `p` is corrected for all rates; None if nothing could be compared.
    """

    p: float | None
    figures: list[ChangedFigure]

    def flagged(self, alpha: float) -> bool:
        """Return True if the judge's verdicts change significantly at this rate."""
        return self.p is not None and self.p <= alpha

    def figure(self, name: FigureName) -> ChangedFigure | None:
        """Return the first figure with this name: the main score's, if it has one."""
        return next((figure for figure in self.figures if figure.name == name), None)

    @property
    def unseen(self) -> float | None:
        """Largest change of main score or verdicts that unseen requests may show, as a fraction of the scale."""
        figures = [self.figure("scores"), self.figure("verdicts")]
        return max(
            (figure.unseen for figure in figures if figure is not None and figure.unseen is not None), default=None
        )

    @property
    def drift(self) -> Estimate | None:
        """Distance of the judge from its unloaded self, as a fraction of its scale.

        For scores it is the larger of two figures of the main score. One is the change of the mean. The other is the
        distance between loaded and unloaded verdicts less the distance between two unloaded passes; it also grows if
        scores move towards one another, or if another model with the same mean answers. For labels alone it is the
        fraction of verdicts that change under load less the fraction that change between unloaded passes. The lower end
        is 0 if the change may be 0. None without scores and labels.
        """
        changes = []
        if (figure := self.figure("scores")) is not None:
            value, low, high = (
                end / figure.bound for end in (figure.change.value, figure.change.low, figure.change.high)
            )
            nearest = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
            changes.append(Estimate(abs(value), nearest, max(abs(low), abs(high))))
        if (figure := self.figure("verdicts")) is not None:
            ends = (figure.change.value, figure.change.low, figure.change.high)
            changes.append(Estimate(*(max(0.0, end / figure.bound) for end in ends)))
        return max(changes, key=lambda estimate: estimate.value, default=None)


@dataclass(slots=True, frozen=True)
class _NamedFigure:
    """Figure in all passes with its name and aspect; `bound` limits its contributions."""

    name: FigureName
    aspect: str
    clusters: Codes
    values: PassValues
    bound: float


def judge_rates(
    rates: Sequence[VerdictPass],
    first: VerdictPass,
    second: VerdictPass,
    requests: Mapping[str, JudgedRequest],
    scales: Scales,
    *,
    alpha: float = 0.05,
    draws: int = EXCHANGES,
    seed: int = 1993,
) -> list[RateJudgement]:
    """Compare a judge at each rate with two unloaded passes.

    Each interval by itself has the level 1 - `alpha`. It includes 0 if the figure's p, corrected for all figures and
    rates, is not below `alpha`. Figures without a request are left out. If the ends of a scale are unknown, the lowest
    and highest observed scores replace them. `draws` is the number of random exchanges.
    """
    columns = VerdictColumns((*rates, first, second), requests)
    clusters, answered, favours = columns.positions()
    figures = [_named_figures(columns, scales), [_position_figure(clusters, favours)]]
    tables = [
        PassTable(columns.clusters, columns.answered, [figure.values for figure in figures[0]]),
        PassTable(clusters, answered, [figure.values for figure in figures[1]]),
    ]
    tests = exchange_tests(tables, len(rates), alpha=alpha, draws=draws, seed=seed)
    return [
        _judgement_at_rate(index, test, [*figures[0], *figures[1]], 1.0 - alpha) for index, test in enumerate(tests)
    ]


def _named_figures(columns: VerdictColumns, scales: Scales) -> list[_NamedFigure]:
    figures: list[_NamedFigure] = []

    def add(name: FigureName, aspect: str, values: PassValues, bound: float) -> None:
        figures.append(_NamedFigure(name, aspect, columns.clusters, values, bound))

    aspects = sort_aspects(columns.passes)
    for aspect in aspects:
        scores = columns.scores(aspect)
        width = _scale_width(aspect, scales, scores)
        add("scores", aspect, PassValues("level", scores), width)
        add("verdicts", aspect, PassValues("distance", scores, upwards=True), width)
        if len(np.unique(scores[~np.isnan(scores)])) > 2:  # with two values the spread follows from the mean
            add("spread", aspect, PassValues("spread", scores), width**2)
    labels, names = columns.labels()
    if len(names) > 2 or (names and not aspects):
        add("verdicts", LABEL_FIGURE, PassValues("distance", labels, upwards=True, nominal=True), 1.0)
    add("unreadable", "", PassValues("level", columns.failures(), upwards=True), 1.0)
    main = main_aspect(aspects)
    errors = columns.errors(main)
    add(
        "reference", main or LABEL_FIGURE, PassValues("level", errors, upwards=True), _scale_width(main, scales, errors)
    )
    return figures


def _position_figure(clusters: Codes, favours: Floats) -> _NamedFigure:
    return _NamedFigure("position", LABEL_FIGURE, clusters, PassValues("level", favours), 1.0)


def sort_aspects(passes: Sequence[VerdictPass]) -> list[str]:
    """Return all aspects, the main one (`main_aspect`) first."""
    names = aspects_of(passes)
    main = main_aspect(names)
    return [*([main] if main else []), *(name for name in names if name != main)]


def _scale_width(aspect: str, scales: Scales, values: Floats) -> float:
    """Return the width of a scale, at least the range of the values; 1 if both are 0."""
    scale_ends = [scales[aspect]] if aspect in scales else list(scales.values()) if aspect == MEAN_ASPECT else []
    numbers = [end for ends in scale_ends for end in ends if math.isfinite(end)]
    numbers += [float(np.nanmin(values)), float(np.nanmax(values))] if (~np.isnan(values)).any() else []
    return (max(numbers) - min(numbers)) or 1.0 if numbers else 1.0


def _judgement_at_rate(index: int, test: RateTest, candidates: Sequence[_NamedFigure], level: float) -> RateJudgement:
    figures = [
        changed
        for at, figure in enumerate(candidates)
        if (changed := _changed_figure(figure, index, test.figures[at] if test.figures else 1.0, level)) is not None
    ]
    verdicts = any(changed.name in ("scores", "verdicts") for changed in figures)
    if not verdicts and all(changed.unloaded == 1.0 for changed in figures if changed.name == "unreadable"):
        return RateJudgement(None, figures)  # no unloaded answer is a verdict
    # If all answers are equal there is nothing to exchange, and no verdict has changed.
    return RateJudgement(1.0 if test.p is None and verdicts else test.p, figures)


def _changed_figure(figure: _NamedFigure, index: int, p: float, level: float) -> ChangedFigure | None:
    passes = figure.values.rate(index)
    complete = ~np.isnan(passes.sum(axis=1))
    loaded, first, second = passes[complete].T
    labels = [str(code) for code in figure.clusters[complete]]
    mean = clustered_mean(contribution(figure.values, loaded, first, second), labels)
    if mean is None:
        return None
    if not figure.values.upwards:
        p = max(p, _p_of_direction(mean))
    change = extend_to_zero(_change_interval(mean, figure, level), p, level)
    floor, bound = None, figure.bound
    if figure.values.kind == "level":
        values = float(loaded.mean()), float((first + second).mean() / 2)
        noise = clustered_mean(second - first, labels)
        floor = None if noise is None else _change_interval(noise, figure, level)
    elif figure.values.kind == "distance":
        values = (
            float(loaded_distance(figure.values, loaded, first, second).mean()),
            float(distance(figure.values, first, second).mean()),
        )
    else:
        squares = [float(((part - figure.values.centre) ** 2).mean()) for part in (loaded, first, second)]
        values, bound = (math.sqrt(squares[0]), math.sqrt((squares[1] + squares[2]) / 2)), math.sqrt(bound)
        total = sum(values)  # a² - b² divided by a + b is a - b
        change = Estimate(*((end / total if total else 0.0) for end in (change.value, change.low, change.high)))
    unseen = None
    if figure.name in ("scores", "verdicts"):
        ends = mean.bounded_interval(-bound, bound, level=level)
        unseen = max(ends.high, -ends.low if figure.name == "scores" else 0.0) / bound
    return ChangedFigure(
        figure.name, figure.aspect, *values, change, floor, bound, len(labels), len(set(labels)), p, unseen
    )


def _p_of_direction(mean: ClusteredMean) -> float:
    """Return Student's p-value of a mean of 0: changes in both directions cancel."""
    if mean.se is None:
        return 1.0
    return 2.0 * float(student_tail(abs(mean.mean) / mean.se, mean.freedom)) if mean.se else float(mean.mean == 0.0)


def _change_interval(mean: ClusteredMean, figure: _NamedFigure, level: float) -> Estimate:
    """Return Student's interval within the bounds.

    Failures, which are rare, and figures without any change get the bounded interval, because unseen requests may
    change.
    """
    student = mean.interval(level)
    if figure.name == "unreadable" or student is None or student.low == student.high:
        return mean.bounded_interval(-figure.bound, figure.bound, level=level)
    return Estimate(mean.mean, max(-figure.bound, student.low), min(figure.bound, student.high))


@dataclass(slots=True, frozen=True)
class FailureShare:
    """Fraction of answers that failed in one way, loaded and unloaded, and the difference with its interval."""

    kind: str
    loaded: float
    unloaded: float
    change: Estimate


def failure_shares(
    loaded: VerdictPass,
    first: VerdictPass,
    second: VerdictPass,
    requests: Mapping[str, JudgedRequest],
    level: float = 0.95,
) -> list[FailureShare]:
    """Return the shares of each kind of failed verdict among the requests that all three passes answered."""
    columns = VerdictColumns((loaded, first, second), requests)
    shares = []
    for kind in VERDICT_FAILURES:
        figure = _NamedFigure("unreadable", kind, columns.clusters, PassValues("level", columns.failures([kind])), 1.0)
        changed = _changed_figure(figure, 0, 0.0, level)  # nothing is tested
        if changed is not None:
            shares.append(FailureShare(kind, changed.loaded, changed.unloaded, changed.change))
    return shares

"""A judge's verdicts under load beside its unloaded ones: what has changed, by how much, and how large its noise is.

What never belongs here: whether changes are beyond noise (``exchanges``), words and tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ..clusters import ClusteredMean, clustered_mean
from ..intervals import Estimate, reaching_0
from .changes import Codes, Floats, PassTable, PassValues, contribution, distance, loaded_distance
from .exchanges import DRAWS, RateTest, exchange_tests
from .verdicts import FAILURES, MEAN, Asked, Columns, Pass, aspects_of, main_aspect

# ``scores``: the mean score. ``verdicts``: how far a verdict lies from an unloaded one of the same request. ``spread``:
# the standard deviation of scores. ``unreadable``: the share of answers without a verdict. ``reference``: the mean
# distance from right scores or labels. ``position``: how far the answer that stands first is favoured.
FigureName = Literal["scores", "verdicts", "spread", "unreadable", "reference", "position"]
Scales: TypeAlias = Mapping[str, tuple[float, float]]
LABEL = "label"  # the aspect of figures of labels


@dataclass(slots=True, frozen=True)
class ChangedFigure:
    """One figure of a judge at one rate, beside the same of its unloaded passes.

    ``loaded`` and ``unloaded`` are its values (of ``verdicts`` the mean distance from unloaded verdicts, and that of
    the two unloaded passes from one another), ``change`` the difference with its clustered interval. ``floor`` is the
    second unloaded pass less the first: what the judge's own noise makes of the figure (None of ``verdicts``, whose
    unloaded value is that noise, and of ``spread``). ``bound`` is the largest size that a change can have. ``unseen``
    (of ``scores`` and ``verdicts``): the largest change, as a share of ``bound``, that requests which were not met
    leave open, at the level of the interval. ``n`` requests (pairs, of ``position``) in ``items`` clusters. ``p`` is
    corrected for all rates and figures, and of figures that may change to either side not below Student's.
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
    """A judge at one rate: ``p`` of nothing being changed there, corrected for all rates (None where nothing could be
    compared), and all its figures, the main score's first.
    """

    p: float | None
    figures: list[ChangedFigure]

    def flagged(self, alpha: float) -> bool:
        """Whether the judge does not judge there as it does unloaded."""
        return self.p is not None and self.p <= alpha

    def of(self, name: FigureName) -> ChangedFigure | None:
        """The first figure of a name: that of the main score where there are several."""
        return next((one for one in self.figures if one.name == name), None)

    @property
    def unseen(self) -> float | None:
        """The largest change of the main score and of verdicts that is left open, as a share of the scale.

        None where neither was compared.
        """
        figures = [self.of("scores"), self.of("verdicts")]
        return max((one.unseen for one in figures if one is not None and one.unseen is not None), default=None)

    @property
    def drift(self) -> Estimate | None:
        """How far the judge is from its unloaded self, as a share of its scale: the larger of two changes of its main
        score. One is the size of the change of the mean; the other is how much farther verdicts lie from unloaded ones
        than these from each other, which grows too where a judge flattens, or another one of the same mean answers.

        Where it gives labels alone, the share of verdicts that change beyond those that change between unloaded
        passes. An end is 0 where the change may be none. None where there is neither.
        """
        found = []
        if (one := self.of("scores")) is not None:
            value, low, high = (end / one.bound for end in (one.change.value, one.change.low, one.change.high))
            least = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
            found.append(Estimate(abs(value), least, max(abs(low), abs(high))))
        if (one := self.of("verdicts")) is not None:
            ends = (one.change.value, one.change.low, one.change.high)
            found.append(Estimate(*(max(0.0, end / one.bound) for end in ends)))
        return max(found, key=lambda estimate: estimate.value, default=None)


@dataclass(slots=True, frozen=True)
class _Named:
    """A figure in all passes, and what it is of. ``bound`` is that of its contributions."""

    name: FigureName
    aspect: str
    clusters: Codes
    values: PassValues
    bound: float


def judged_rates(
    rates: Sequence[Pass],
    first: Pass,
    second: Pass,
    asked: Mapping[str, Asked],
    scales: Scales,
    *,
    alpha: float = 0.05,
    draws: int = DRAWS,
    seed: int = 1993,
) -> list[RateJudgement]:
    """A judge at each rate beside two unloaded passes. Intervals are at the level 1 - ``alpha``, each by itself, and
    hold 0 where the figure's p, which is of all figures and rates at once, is not below ``alpha``.

    ``scales`` has the ends of the scales that are known; of others the least and the greatest score that was given are
    taken for them. Figures that rest on no request are left out.
    """
    columns = Columns((*rates, first, second), asked)
    clusters, answered, favours = columns.positions()
    named = [_figures(columns, scales), [_position(clusters, favours)]]
    tables = [
        PassTable(columns.clusters, columns.answered, [one.values for one in named[0]]),
        PassTable(clusters, answered, [one.values for one in named[1]]),
    ]
    tests = exchange_tests(tables, len(rates), alpha=alpha, draws=draws, seed=seed)
    return [_at_rate(place, test, [*named[0], *named[1]], 1.0 - alpha) for place, test in enumerate(tests)]


def _figures(columns: Columns, scales: Scales) -> list[_Named]:
    found: list[_Named] = []

    def add(name: FigureName, aspect: str, values: PassValues, bound: float) -> None:
        found.append(_Named(name, aspect, columns.clusters, values, bound))

    aspects = ordered_aspects(columns.passes)
    for aspect in aspects:
        scores = columns.scores(aspect)
        width = _width(aspect, scales, scores)
        add("scores", aspect, PassValues("level", scores), width)
        add("verdicts", aspect, PassValues("distance", scores, upwards=True), width)
        if len(np.unique(scores[~np.isnan(scores)])) > 2:  # that of two values says the same as their mean
            add("spread", aspect, PassValues("spread", scores), width**2)
    labels, names = columns.labels()
    if len(names) > 2 or (names and not aspects):
        add("verdicts", LABEL, PassValues("distance", labels, upwards=True, nominal=True), 1.0)
    add("unreadable", "", PassValues("level", columns.failures(), upwards=True), 1.0)
    main = main_aspect(aspects)
    errors = columns.errors(main)
    add("reference", main or LABEL, PassValues("level", errors, upwards=True), _width(main, scales, errors))
    return found


def _position(clusters: Codes, favours: Floats) -> _Named:
    return _Named("position", LABEL, clusters, PassValues("level", favours), 1.0)


def ordered_aspects(passes: Sequence[Pass]) -> list[str]:
    """All aspects, the main one first; the mean of several where none of them is of the whole."""
    names = aspects_of(passes)
    main = main_aspect(names)
    return [*([main] if main else []), *(name for name in names if name != main)]


def _width(aspect: str, scales: Scales, values: Floats) -> float:
    """The width of a scale, at least that of the values; 1 where neither has any."""
    known = [scales[aspect]] if aspect in scales else list(scales.values()) if aspect == MEAN else []
    every = [end for ends in known for end in ends if math.isfinite(end)]
    every += [float(np.nanmin(values)), float(np.nanmax(values))] if (~np.isnan(values)).any() else []
    return (max(every) - min(every)) or 1.0 if every else 1.0


def _at_rate(place: int, test: RateTest, named: Sequence[_Named], level: float) -> RateJudgement:
    figures = [
        figure
        for at, one in enumerate(named)
        if (figure := _changed(one, place, test.figures[at] if test.figures else 1.0, level)) is not None
    ]
    verdicts = any(one.name in ("scores", "verdicts") for one in figures)
    if not verdicts and all(one.unloaded == 1.0 for one in figures if one.name == "unreadable"):
        return RateJudgement(None, figures)  # no unloaded answer is a verdict
    # Where no answer differs from another there is nothing to exchange, and no verdict has changed.
    return RateJudgement(1.0 if test.p is None and verdicts else test.p, figures)


def _changed(one: _Named, place: int, p: float, level: float) -> ChangedFigure | None:
    passes = one.values.rate(place)
    known = ~np.isnan(passes.sum(axis=1))
    loaded, first, second = passes[known].T
    labels = [str(code) for code in one.clusters[known]]
    mean = clustered_mean(contribution(one.values, loaded, first, second), labels)
    if mean is None:
        return None
    if not one.values.upwards:
        p = max(p, _p_of_direction(mean))
    change = reaching_0(_ends(mean, one, level), p, level)
    floor, bound = None, one.bound
    if one.values.kind == "level":
        values = float(loaded.mean()), float((first + second).mean() / 2)
        noise = clustered_mean(second - first, labels)
        floor = None if noise is None else _ends(noise, one, level)
    elif one.values.kind == "distance":
        values = (
            float(loaded_distance(one.values, loaded, first, second).mean()),
            float(distance(one.values, first, second).mean()),
        )
    else:
        squares = [float(((part - one.values.centre) ** 2).mean()) for part in (loaded, first, second)]
        values, bound = (math.sqrt(squares[0]), math.sqrt((squares[1] + squares[2]) / 2)), math.sqrt(bound)
        total = sum(values)  # a difference of squares, as one of deviations
        change = Estimate(*((end / total if total else 0.0) for end in (change.value, change.low, change.high)))
    unseen = None
    if one.name in ("scores", "verdicts"):
        ends = mean.within(-bound, bound, level=level)
        unseen = max(ends.high, -ends.low if one.name == "scores" else 0.0) / bound
    return ChangedFigure(one.name, one.aspect, *values, change, floor, bound, len(labels), len(set(labels)), p, unseen)


def _p_of_direction(mean: ClusteredMean) -> float:
    """Return Student's p of a mean of 0.

    An exchange of passes refutes that nothing has changed; verdicts that change to either side alike raise no score.
    """
    from scipy.stats import t

    if mean.se is None:
        return 1.0
    return float(2.0 * t.sf(abs(mean.mean) / mean.se, mean.freedom)) if mean.se else float(mean.mean == 0.0)


def _ends(mean: ClusteredMean, one: _Named, level: float) -> Estimate:
    """Student's interval within the bounds. That of values between the bounds for failures, which are rare, and where
    nothing has changed on any request: requests that were not met may change.
    """
    student = mean.interval(level)
    if one.name == "unreadable" or student is None or student.low == student.high:
        return mean.within(-one.bound, one.bound, level=level)
    return Estimate(mean.mean, max(-one.bound, student.low), min(one.bound, student.high))


@dataclass(slots=True, frozen=True)
class FailureShare:
    """The share of answers that failed in one way, loaded and unloaded, and the difference with its interval."""

    kind: str
    loaded: float
    unloaded: float
    change: Estimate


def failure_shares(
    loaded: Pass, first: Pass, second: Pass, asked: Mapping[str, Asked], level: float = 0.95
) -> list[FailureShare]:
    """Each way in which an answer can be no verdict, on the requests that were answered in all three passes."""
    columns = Columns((loaded, first, second), asked)
    found = []
    for kind in FAILURES:
        named = _Named("unreadable", kind, columns.clusters, PassValues("level", columns.failures([kind])), 1.0)
        one = _changed(named, 0, 0.0, level)  # nothing is tested
        if one is not None:
            found.append(FailureShare(kind, one.loaded, one.unloaded, one.change))
    return found

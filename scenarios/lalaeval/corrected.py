"""Candidates' grades as they would be if every grader were as severe as the mean of them.

What never belongs here: how severe graders are (``scoring.severity``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from viva.scoring.grade_table import Floats, GradeTable
from viva.scoring.ratios import WeightedRatio
from viva.scoring.severity import SeverityFit

from .grades import LEVEL, GradeFigure, GradeSums, groups_of


def corrected_grades(
    table: GradeTable,
    fit: SeverityFit,
    weights: Mapping[str, float] | None = None,
    rows: NDArray[np.bool_] | None = None,
    level: float = LEVEL,
) -> list[dict[str, GradeFigure]]:
    """By candidate, the corrected grade of each dimension and group, in per cent.

    ``fit`` is of a table with the same graders and clusters; ``rows`` are those to correct, all unless they are given
    (grades that an adjudicator decided are nobody's). Intervals hold the error of the fitted severities, too; a figure
    beyond 0 or 100 is cut.

    :raises ConfigurationError: a dimension has no weight.
    """
    sums = GradeSums(fit.corrected(table, rows), weights)
    chosen = ~np.isnan(table.values) & (np.ones(len(table), dtype=np.bool_) if rows is None else rows)
    places = {name: (name,) for name in table.dimensions} | {
        one.name: one.dimensions for one in groups_of(table.dimensions)
    }
    found = []
    for candidate in range(len(table.candidates)):
        own = table.candidate == candidate
        figures = {}
        for name, inside in places.items():
            figure, ratio = sums.figure(candidate, "grade", inside, level), sums.ratio(candidate, "grade", inside)
            if ratio is not None:
                of_graders = _weights(table, own, chosen, [table.dimensions.index(one) for one in inside], sums.weights)
                ends = _with_error(ratio, fit.influence(of_graders)).within(level)
                figure = replace(figure, value=100 * ends.value, low=100 * ends.low, high=100 * ends.high)
            figures[name] = figure
        found.append(figures)
    return found


def _weights(
    table: GradeTable, own: NDArray[np.bool_], chosen: NDArray[np.bool_], inside: list[int], weights: Floats
) -> Floats:
    """How much each grader's severity moves a ratio: the weight of all of their grades in it."""
    rows = own & np.isin(table.dimension, inside) & ~np.isnan(table.values)
    whole = np.bincount(table.dimension[rows], table.tops[rows], len(table.dimensions))
    used = np.where(whole > 0, weights, 0.0)
    shares = np.where(whole > 0, used / used.sum() / np.where(whole > 0, whole, 1.0), 0.0)
    moved = rows & chosen
    return np.asarray(np.bincount(table.grader[moved], shares[table.dimension[moved]], len(table.graders)), dtype=float)


def _with_error(ratio: WeightedRatio, error: Floats) -> WeightedRatio:
    """The ratio with a further error by cluster, which goes together with its own."""
    wide = max(len(error), len(ratio.influence))
    influence, further = (np.pad(one, (0, wide - len(one))) for one in (ratio.influence, error))
    both = influence + further
    variance = max(0.0, ratio.variance + float(both @ both) - float(influence @ influence))
    return replace(ratio, variance=variance, influence=both)

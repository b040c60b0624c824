"""Figures of a report as plain data: rounded, with errors and intervals, correlations and lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from viva.scoring.aggregates import Mean
from viva.scoring.clustered_means import ClusteredMean, clustered_mean
from viva.scoring.correlation import Correlation, DatasetLine
from viva.scoring.intervals import Estimate, bounded_interval, normal_quantile, student_quantile

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
LEVEL = 0.95  # confidence level of all intervals of a report
SCORES = 0.0, 100.0
EMPTY_MEAN: dict[str, Any] = {"mean": None, "se": None, "low": None, "high": None, "n": 0, "items": 0}


def round_figure(value: float | None, factor: float = 1.0) -> float | None:
    """Round `factor` · `value` to six decimals, far below any error bar, so that all platforms print the same text.

    None if not finite.
    """
    return None if value is None or not math.isfinite(value) else round(factor * value, 6)


def round_significant(value: float | None) -> float | None:
    """Round to six significant digits, for p-values. None if not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def mean_record(mean: Mean, factor: float = 1.0) -> dict[str, Any]:
    """Return `mean` and `se`, both times `factor`, and `n` of independent numbers."""
    return {
        "mean": round_figure(mean.mean, factor),
        "se": round_figure(mean.standard_error, factor),
        "n": mean.n,
    }


def estimate_record(estimate: Estimate, factor: float = 1.0) -> dict[str, Any]:
    """Return `value`, `low` and `high`, each times `factor`."""
    return {name: round_figure(getattr(estimate, name), factor) for name in ("value", "low", "high")}


def score_intervals(means: Floats, errors: Floats, n: Codes) -> tuple[Floats, Floats]:
    """Return both ends of the intervals of mean scores, 0–100.

    Args:
        means: Mean scores.
        errors: Their standard errors.
        n: Number of independent scores behind each.
    """
    low, high = SCORES
    tail = (1 + LEVEL) / 2
    shares = np.clip((means - low) / (high - low), 0.0, 1.0)
    spread = shares * (1 - shares)
    defined = (n > 1) & (spread > 0)
    freedom = np.maximum(1, n - 1)
    dispersions, stretch = np.ones(len(means)), np.ones(len(means))
    dispersions[defined] = (errors[defined] / (high - low)) ** 2 * freedom[defined] / spread[defined]
    stretch[defined] = student_quantile(tail, freedom[defined]) / normal_quantile(tail)
    ends = bounded_interval(shares, dispersions, n.astype(np.float64), stretch, LEVEL)
    return low + ends[0] * (high - low), low + ends[1] * (high - low)


def clustered_score(values: Floats, labels: Sequence[str], bounds: tuple[float, float] = SCORES) -> dict[str, Any]:
    """Return `mean`, `se`, `low`, `high`, `n` and `items` of values, without NaN; `labels` are the values' items."""
    return clustered_record(_clustered_mean(values, labels), bounds)


def clustered_rate(values: Floats, labels: Sequence[str]) -> dict[str, Any]:
    """Return the record of `clustered_score` for values that are 0 or 1, in per cent."""
    return clustered_record(_clustered_mean(values, labels), (0.0, 1.0), rate=True)


def clustered_record(mean: ClusteredMean | None, bounds: tuple[float, float], rate: bool = False) -> dict[str, Any]:
    """Return a clustered mean with its interval; a rate in per cent."""
    if mean is None:
        return dict(EMPTY_MEAN)
    ends, factor = mean.bounded_interval(*bounds, rate=rate, level=LEVEL), 100.0 if rate else 1.0
    record: dict[str, Any] = {"mean": round_figure(mean.mean, factor), "se": round_figure(mean.se, factor)}
    record |= {"low": round_figure(ends.low, factor), "high": round_figure(ends.high, factor)}
    return record | {"n": mean.n, "items": mean.clusters}


def _clustered_mean(values: Floats, labels: Sequence[str]) -> ClusteredMean | None:
    defined = ~np.isnan(values)
    if not defined.all():
        values, labels = values[defined], list(compress(labels, defined.tolist()))
    return clustered_mean(values.tolist(), labels)


COEFFICIENTS = ("pearson", "spearman", "kendall")


def correlation_record(correlation: Correlation, chosen: bool = False) -> dict[str, Any]:
    """Return `n`, and `value` and `p` of each coefficient, None if undefined.

    `chosen`: the models were selected by these figures, so p-values would be invalid and are left out.
    """
    record: dict[str, Any] = {"n": correlation.n}
    for name in COEFFICIENTS:
        coefficient = getattr(correlation, name)
        record[name] = None if coefficient is None else {"value": round_figure(coefficient.value)}
        if coefficient is not None and not chosen:
            record[name]["p"] = round_significant(coefficient.p)
    return record


def line_record(fit: DatasetLine) -> dict[str, Any]:
    """Return a dataset's line, the models' distances from it, and the models below and above."""
    line = fit.line
    return {
        "slope": round_significant(line.slope),
        "intercept": round_significant(line.intercept),
        "threshold": line.threshold,
        "spread": round_significant(fit.spread),
        "residuals": {name: round_significant(value) for name, value in line.residuals.items()},
        "deviations": {name: round_significant(value) for name, value in line.deviations.items()},
        "below": line.below,
        "above": line.above,
    }

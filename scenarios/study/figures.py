"""How figures stand in a study's report: rounded, with their errors and intervals, the same text on every platform.

What never belongs here: which figures there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from viva.scoring.clusters import clustered_mean
from viva.scoring.intervals import Estimate
from viva.scoring.stream import Mean

# scipy.stats takes half a second to load: the functions that need it import it.

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
LEVEL = 0.95  # of all intervals of a report
NOTHING: dict[str, Any] = {"mean": None, "se": None, "low": None, "high": None, "n": 0, "items": 0}


def rounded(value: float | None, factor: float = 1.0) -> float | None:
    """Six decimals: far below any error bar, and the same text on every platform. None of what is not finite."""
    return None if value is None or not math.isfinite(value) else round(factor * value, 6)


def significant(value: float | None) -> float | None:
    """Six significant digits, for p-values: small ones keep theirs."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def mean_record(mean: Mean, factor: float = 1.0) -> dict[str, Any]:
    """``mean``, ``se`` and ``n`` of numbers that are independent of one another."""
    return {
        "mean": rounded(mean.mean, factor),
        "se": rounded(mean.standard_error, factor),
        "n": mean.n,
    }


def estimate_record(estimate: Estimate, factor: float = 1.0) -> dict[str, Any]:
    """``value``, ``low`` and ``high``."""
    return {name: rounded(getattr(estimate, name), factor) for name in ("value", "low", "high")}


def interval(means: Floats, errors: Floats, n: Codes) -> tuple[Floats, Floats]:
    """Both ends of Student's interval of means of ``n`` independent numbers; nan where the error is."""
    from scipy.stats import t

    half = np.asarray(t.ppf((1 + LEVEL) / 2, np.maximum(1, n - 1)), dtype=np.float64) * errors
    return means - half, means + half


def clustered(values: Floats, labels: Sequence[str], factor: float = 1.0) -> dict[str, Any]:
    """``mean``, ``se``, ``low``, ``high``, ``n`` of values whose errors are common to an item; nan is no value.

    ``labels`` are the values' items; ``items`` of the record counts those that have one.
    """
    known = ~np.isnan(values)
    if not known.all():
        values, labels = values[known], list(compress(labels, known.tolist()))
    found = clustered_mean(values.tolist(), labels)
    if found is None:
        return dict(NOTHING)
    told: dict[str, Any] = {"mean": rounded(found.mean, factor), "se": rounded(found.se, factor)}
    ends = found.interval(LEVEL)
    told["low"] = None if ends is None else rounded(ends.low, factor)
    told["high"] = None if ends is None else rounded(ends.high, factor)
    return told | {"n": found.n, "items": found.clusters}

"""Between which ends the numbers of a metric lie: no interval of a mean or of a difference leaves them.

A rubric's scores lie between its least and its greatest choice. Other metrics say nothing of themselves: where every
value is 0 or 1 they are taken for truth values, and else there are no ends. What never belongs here: intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .spec import Suite

Scale: TypeAlias = tuple[float, float]
TRUTH: Scale = (0.0, 1.0)


def rubric_scales(manifest: Mapping[str, Any]) -> dict[str, Scale]:
    """By metric, ``NAME.expected`` too, the scale of its rubric; ``manifest`` is that of a suite's run."""
    rubrics = Suite.model_validate(manifest["suite"]).rubrics
    found: dict[str, Scale] = {}
    for one in manifest["metrics"]:
        rubric = rubrics.get(one["metric"].get("rubric", "")) if isinstance(rubrics, dict) else None
        if rubric is None:
            continue
        scale = (min(rubric.choice_scores.values()), max(rubric.choice_scores.values()))
        if scale[0] < scale[1]:
            found[one["name"]] = found[f"{one['name']}.expected"] = scale
    return found


def truth_values(numbers: NDArray[np.float64]) -> bool:
    """Whether each of them is 0 or 1, and there are any."""
    return len(numbers) > 0 and bool(np.isin(numbers, TRUTH).all())


def width_of(scale: Scale | None, series: Iterable[NDArray[np.float64]]) -> float | None:
    """How far apart two values of a metric can lie, by its scale and the numbers that there are of it; None without
    ends.
    """
    if all(truth_values(one) for one in series):
        return 1.0
    if scale is None:
        return None
    return (scale[1] - scale[0]) * (1 + 1e-12)  # a difference of means may be greater by its rounding

"""Correlations and lines of score on accuracy as plain data.

What never belongs here: formulas (``scoring.correlation``), and which figures are correlated.
"""

from __future__ import annotations

from typing import Any

from viva.scoring.correlation import Correlation, Fit

from .figures import rounded, significant

COEFFICIENTS = ("pearson", "spearman", "kendall")


def correlation_record(one: Correlation, chosen: bool = False) -> dict[str, Any]:
    """``n``, and of each coefficient ``value`` and ``p``, None where it has none.

    ``chosen``: the models were chosen by these very figures, so no p-value holds, and none is given.
    """
    record: dict[str, Any] = {"n": one.n}
    for name in COEFFICIENTS:
        found = getattr(one, name)
        record[name] = None if found is None else {"value": rounded(found.value)}
        if found is not None and not chosen:
            record[name]["p"] = significant(found.p)
    return record


def line_record(fit: Fit) -> dict[str, Any]:
    """A dataset's line, how far the models are off it, and who lies below and above."""
    line = fit.line
    return {
        "slope": significant(line.slope),
        "intercept": significant(line.intercept),
        "threshold": line.threshold,
        "spread": significant(fit.spread),
        "residuals": {name: significant(value) for name, value in line.residuals.items()},
        "deviations": {name: significant(value) for name, value in line.deviations.items()},
        "below": line.below,
        "above": line.above,
    }

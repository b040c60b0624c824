"""Does the score follow the accuracy? Pooled figures of a study through ``scoring.correlation`` (KIEval, appendix C).

What never belongs here: formulas, and tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from viva.scoring.correlation import Correlation, Correlations, Figures, Fit, by_dataset, correlate, fits

from .figures import rounded, significant

FIRST_ANSWER = "first answer"
# Which probe stands for accuracy where several were made; each but the first only where the ones before it are not.
PREFERRED = ("text", "letter", "generate")
COEFFICIENTS = ("pearson", "spearman", "kendall")


def accuracy_source(pooled: Sequence[dict[str, Any]]) -> str:
    """Which accuracy the study sets beside scores: a probe's if all that were interviewed were probed, else that of the
    interviews' first answers. One kind for all, for kinds do not compare.
    """
    rows = [row for row in pooled if row["dataset"] is not None and row["score"]["n"]]
    for method in PREFERRED:
        if rows and all(row["probe"] is not None and method in row["probe"]["accuracy"] for row in rows):
            return method
    return FIRST_ANSWER


def accuracy_of(row: dict[str, Any], source: str) -> dict[str, Any]:
    """A pooled row's accuracy by that source, per cent."""
    if source == FIRST_ANSWER:
        told: dict[str, Any] = row["accuracy"]
        return told
    return dict((row["probe"] or {}).get("accuracy", {}).get(source, {"mean": None, "se": None}))


def correlations(pooled: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures, coefficients over all of them, once more without the models that lie below a line, and the lines."""
    source = accuracy_source(pooled)
    figures = []
    for row in pooled:
        accuracy, score = accuracy_of(row, source), row["score"]
        if row["dataset"] is None or accuracy["mean"] is None or score["mean"] is None:
            continue
        errors = [told["se"] or 0.0 for told in (accuracy, score)]
        figures.append(Figures(row["candidate"], row["dataset"], accuracy["mean"], score["mean"], *errors))
    lines: dict[str, Fit | None] = {}
    for name, group in by_dataset(figures).items():
        lines |= fits(group) if len(group) > 2 else {name: None}
    below = sorted({model for fit in lines.values() if fit is not None for model in fit.line.below})
    return {
        "accuracy": source,
        "figures": [
            {name: getattr(one, name) for name in ("model", "dataset", "accuracy", "score", "accuracy_se", "score_se")}
            for one in figures
        ],
        **_coefficients(figures, ()),
        "excluding": {"models": below, **_coefficients(figures, below)} if below else None,
        "lines": {name: None if fit is None else line_record(fit) for name, fit in lines.items()},
    }


def _coefficients(figures: Sequence[Figures], without: Collection[str]) -> dict[str, Any]:
    found: Correlations = correlate(figures, without)
    return {
        "overall": correlation_record(found.overall),
        "datasets": {name: correlation_record(one) for name, one in found.datasets.items()},
    }


def correlation_record(one: Correlation) -> dict[str, Any]:
    """``n``, and of each coefficient ``value`` and ``p``, None where it has none."""
    told: dict[str, Any] = {"n": one.n}
    for name in COEFFICIENTS:
        found = getattr(one, name)
        told[name] = None if found is None else {"value": rounded(found.value), "p": significant(found.p)}
    return told


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

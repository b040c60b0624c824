"""Does the score follow the accuracy? Pooled figures of a study through ``scoring.correlation`` (KIEval, appendix C).

What never belongs here: formulas, and tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from viva.scenarios.kieval.interviews import MOST_UNANSWERED
from viva.scoring.correlation import Correlation, Correlations, Figures, Fit, by_dataset, correlate, fits

from .figures import LEVEL, rounded, significant

# scipy.stats takes half a second to load: the functions that need it import it.

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


def unanswered_of(row: dict[str, Any], source: str) -> float | None:
    """The share of the items, 0–1, whose answer by that source names no choice, which accuracy counts as not right."""
    told = row if source == FIRST_ANSWER else (row["probe"] or {}).get("unanswered", {}).get(source, {})
    share: float | None = told.get("unanswered_rate")
    return share


def correlations(pooled: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures, coefficients over all of them, once more without the models that lie below a line, and the lines.

    Accuracies with more than ``MOST_UNANSWERED`` unanswered items are in none of these: they tell how often an answer
    could be read, not what a model knows.
    """
    source = accuracy_source(pooled)
    figures, left_out = [], []
    for row in pooled:
        accuracy, score = accuracy_of(row, source), row["score"]
        if row["dataset"] is None or accuracy["mean"] is None or score["mean"] is None:
            continue
        unanswered = unanswered_of(row, source)
        if unanswered is not None and unanswered > MOST_UNANSWERED:
            left_out.append({"model": row["candidate"], "dataset": row["dataset"], "unanswered_rate": unanswered})
            continue
        errors = [_error(told) for told in (accuracy, score)]
        figures.append(Figures(row["candidate"], row["dataset"], accuracy["mean"], score["mean"], *errors))
    lines: dict[str, Fit | None] = {}
    for name, group in by_dataset(figures).items():
        lines |= fits(group) if len(group) > 2 else {name: None}
    below = sorted({model for fit in lines.values() if fit is not None for model in fit.line.below})
    return {
        "accuracy": source,
        "left_out": left_out,
        "figures": [
            {name: getattr(one, name) for name in ("model", "dataset", "accuracy", "score", "accuracy_se", "score_se")}
            for one in figures
        ],
        **_coefficients(figures, ()),
        "excluding": {"models": below, **_coefficients(figures, below)} if below else None,
        "lines": {name: None if fit is None else line_record(fit) for name, fit in lines.items()},
    }


def _error(told: Mapping[str, Any]) -> float:
    """A figure's standard error. Of one item, or of items that are all alike, none is seen; that is no error of 0: the
    interval's half width then stands for it, in normal quantiles.
    """
    from scipy.stats import norm

    if told["se"]:
        return float(told["se"])
    return float((told["high"] - told["low"]) / 2 / norm.ppf((1 + LEVEL) / 2))


def _coefficients(figures: Sequence[Figures], without: Collection[str]) -> dict[str, Any]:
    found: Correlations = correlate(figures, without)
    return {
        "overall": correlation_record(found.overall, bool(without)),
        "datasets": {name: correlation_record(one, bool(without)) for name, one in found.datasets.items()},
    }


def correlation_record(one: Correlation, chosen: bool = False) -> dict[str, Any]:
    """``n``, and of each coefficient ``value`` and ``p``, None where it has none.

    ``chosen``: the models were chosen by these very figures, so no p-value holds, and none is given.
    """
    told: dict[str, Any] = {"n": one.n}
    for name in COEFFICIENTS:
        found = getattr(one, name)
        told[name] = None if found is None else {"value": rounded(found.value)}
        if found is not None and not chosen:
            told[name]["p"] = significant(found.p)
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

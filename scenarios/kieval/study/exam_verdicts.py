"""Verdicts from adaptive exams: which candidates lie below the line of interview score on static accuracy.

The line and its test are those of full runs (`correlations`, `claims`). The points are model-based estimates, and their
errors follow from the banks' intervals instead of the scatter of items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from viva.reports.figures import round_figure, round_significant
from viva.reports.page import join_names
from viva.scoring.correlation import ModelScores, Point, departures, fit_lines, independent_errors
from viva.scoring.intervals import normal_quantile

from .claims import FEWEST_CANDIDATES, FEWEST_ITEMS, KINDS_OF_TEST, LEVEL, LINE_DROP, POWER, SCATTER

RULE = (
    f"Suspected: significantly below the line (p below {LEVEL}, corrected for the search for the line). No sign: the "
    f"test would detect a fall of {LINE_DROP:g} points with a power of {POWER:.0%}. Both hold if the banks "
    "describe the candidates."
)
_TOO_FEW = f"needs {FEWEST_ITEMS} answers in each exam, and more candidates on the line"


def judge_exams(figures: Sequence[ModelScores], answered: Mapping[str, int]) -> dict[str, Any]:
    """Return the line, and by candidate its distance, the test and the verdict; the best interview comes first."""
    fit = None
    if len(figures) >= FEWEST_CANDIDATES:
        [fit] = fit_lines(figures).values()
    tests = {}
    if fit is not None:
        points = [Point(own.model, own.accuracy, own.score, own.accuracy_se, own.score_se) for own in figures]
        errors = independent_errors(points, answered)
        tests = departures(fit.line, points, errors, scatter=SCATTER, tests=KINDS_OF_TEST)
    candidates = []
    for own in sorted(figures, key=lambda figure: -figure.score):
        record: dict[str, Any] = {"candidate": own.model, "verdict": "not_tested", "distance": None}
        record |= {"p": None, "power": None, "answered": answered[own.model]}
        if fit is not None:
            test = tests.get(own.model)
            usable = test if answered[own.model] >= FEWEST_ITEMS else None
            p, power = (1.0, 0.0) if usable is None else (usable.p, usable.power(LINE_DROP))
            distance = fit.line.residuals[own.model]
            suspected = distance < 0 and p < LEVEL
            record["verdict"] = "suspected" if suspected else "no_sign" if power >= POWER else "too_few"
            record |= {"distance": round_figure(distance), "p": round_significant(p), "power": round_figure(power)}
        candidates.append(record)
    line = (
        None if fit is None else {"slope": round_figure(fit.line.slope), "intercept": round_figure(fit.line.intercept)}
    )
    sentences = [*_contamination(candidates), _order(figures)]
    return {"line": line, "candidates": candidates, "sentences": sentences, "rule": RULE}


def _contamination(candidates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for record in candidates:
        names.setdefault(record["verdict"], []).append(record["candidate"])
    if suspected := names.get("suspected"):
        yield f"Contamination suspected: {join_names(suspected)}."
    if clean := names.get("no_sign"):
        yield f"No sign of contamination: {join_names(clean)}."
    if unclear := names.get("too_few"):
        yield f"Too little data to test for contamination: {join_names(unclear)} ({_TOO_FEW})."
    if untested := names.get("not_tested"):
        why = f"requires {FEWEST_CANDIDATES} candidates that differ in accuracy"
        yield f"Not tested for contamination: {join_names(untested)} ({why})."


def _order(figures: Sequence[ModelScores]) -> str:
    """Return the order of the interviews' estimates, and the pairs whose difference is not significant."""
    ranked = sorted(figures, key=lambda figure: -figure.score)
    pairs = list(combinations(ranked, 2))
    quantile = normal_quantile(1.0 - LEVEL / 2.0 / max(1, len(pairs)))
    close = [
        f"{first.model} and {second.model}"
        for first, second in pairs
        if first.score - second.score <= quantile * math.hypot(first.score_se, second.score_se)
    ]
    order = f"Interviews, best first: {join_names(own.model for own in ranked)}"
    return f"{order}; not significantly different: {join_names(close)}." if close else f"{order}."

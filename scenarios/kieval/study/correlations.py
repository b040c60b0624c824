"""Does the score follow the accuracy? Pooled figures through ``scoring.correlation`` (KIEval, appendix C, Table 7).

What never belongs here: formulas, and which accuracy it is (``accuracies``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from viva.reports.correlations import COEFFICIENTS, correlation_record, line_record
from viva.reports.figures import LEVEL
from viva.reports.page import Plot, Record, counted, joined
from viva.reports.rows import Row, figure_row
from viva.reports.text import Table, number, percent
from viva.scoring.correlation import Correlations, Figures, Fit, by_dataset, correlate, fits
from viva.scoring.plots import regression
from viva.scoring.regression import Regression

from ...study.sections import Section, Subject
from ...study.static import StaticFigures
from ..interviews import MOST_UNANSWERED
from .accuracies import accuracy_of, accuracy_source, said_in_titles, too_seldom_answered, unanswered_of
from .drawing import Drawn, plot, shown_dataset
from .pools import InterviewMaterial
from .words import FIRST_ANSWER, place, said_accuracy, title_facts

# scipy.stats takes half a second to load: the functions that need it import it.

_NAMES = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ"}
_FIGURE = ("model", "dataset", "accuracy", "score", "accuracy_se", "score_se")


class AgainstAccuracy(Section[InterviewMaterial]):
    """Coefficients, once more without the models below a line, and the lines."""

    key, subject, heading, anchor = "correlations", Subject.CORRELATIONS, "Correlations", "correlations"

    def __init__(self, lent: StaticFigures | None) -> None:
        self._lent = lent

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, Any]:
        """Accuracies with more than ``MOST_UNANSWERED`` unanswered items are in none of the figures: they tell how
        often an answer could be read, not what a model knows.
        """
        source = accuracy_source(report["pooled"], self._lent)
        figures, left_out = [], []
        for one in report["pooled"]:
            accuracy, score = accuracy_of(one, source), one["score"]
            if one["dataset"] is None or accuracy["mean"] is None or score["mean"] is None:
                continue
            if too_seldom_answered(one, source):
                unanswered = unanswered_of(one, source)
                left_out.append({"model": one["candidate"], "dataset": one["dataset"], "unanswered_rate": unanswered})
                continue
            errors = [_error(record) for record in (accuracy, score)]
            figures.append(Figures(one["candidate"], one["dataset"], accuracy["mean"], score["mean"], *errors))
        lines: dict[str, Fit | None] = {}
        for name, group in by_dataset(figures).items():
            lines |= fits(group) if len(group) > 2 else {name: None}
        below = sorted({model for fit in lines.values() if fit is not None for model in fit.line.below})
        return {
            "accuracy": source,
            "left_out": left_out,
            "figures": [{name: getattr(one, name) for name in _FIGURE} for one in figures],
            **_coefficients(figures, ()),
            "excluding": {"models": below, **_coefficients(figures, below)} if below else None,
            "lines": {name: None if fit is None else line_record(fit) for name, fit in lines.items()},
        }

    def notes(self, report: Record) -> list[str]:
        """Models that answer too seldom to be set beside others."""
        found = report["correlations"]
        answers = "first answers" if found["accuracy"] == FIRST_ANSWER else "generated answers"
        return [
            f"{percent(one['unanswered_rate'])} of the {answers} of '{one['model']}' on '{one['dataset']}' name no "
            f"choice (more than {100 * MOST_UNANSWERED:.0f}%): its accuracy, which counts them as not right, is left "
            "out of correlations and lines"
            for one in found["left_out"]
        ]

    def tables(self, report: Record) -> list[Table]:
        found = report["correlations"]
        without = found["excluding"]
        header = ["dataset", "n", *(text for name in COEFFICIENTS for text in (_NAMES[name], "p"))]
        chosen = ["dataset", "n", *(_NAMES[name] for name in COEFFICIENTS)]
        title = f"KIEval against accuracy ({said_in_titles(found['accuracy'])}): {title_facts(report)}"
        made: list[Table] = [(title, header, _lines(found))]
        if without is not None:
            names = ", ".join(without["models"])
            title = f"The same without {names} (below a line), who were chosen by these figures: no p"
            made.append((title, chosen, _lines(without, chosen=True)))
        lines = []
        for name, fit in found["lines"].items():
            if fit is not None:
                numbers = [number(fit["slope"], 3), number(fit["intercept"]), number(fit["spread"])]
                lines.append([name, *numbers, *(", ".join(fit[side]) or "–" for side in ("below", "above"))])
        header = ["dataset", "slope", "intercept", "spread", "below", "above"]
        made.append(("KIEval = intercept + slope × accuracy", header, lines))
        return made

    def rows(self, report: Record) -> Iterator[Row]:
        found = report["correlations"]
        for without, part in (("", found), ("excluding", found["excluding"])):
            for dataset, one in _parts(part):
                for name, value in one.items():
                    if isinstance(value, Mapping):
                        measure = ".".join(filter(None, ("correlation", without, name)))
                        yield figure_row(place(report, dataset=dataset), measure, value=value["value"], n=one["n"])
                        if "p" in value:
                            yield figure_row(
                                place(report, dataset=dataset), f"{measure}.p", value=value["p"], n=one["n"]
                            )
        for dataset, line in found["lines"].items():
            for model, residual in (line or {"residuals": {}})["residuals"].items():
                where = place(report, candidate=model, dataset=dataset)
                yield figure_row(where, "residual", value=residual)
                yield figure_row(where, "deviation", value=line["deviations"][model])

    def plots(self, report: Record) -> list[Plot]:
        found = report.get("correlations") or {}
        known = [Figures(**{name: one[name] for name in _FIGURE}) for one in found.get("figures", ())]
        groups = by_dataset(known)
        drawn: list[Drawn] = []
        labels = (f"accuracy ({said_accuracy(found.get('accuracy'), self._lent)}), %", "KIEval score, 0–100")
        for name, group in groups.items():
            fit = _fit((found.get("lines") or {}).get(name))
            title = f"{shown_dataset(name)} (n = {counted(len(group), 'model')})"
            below = fit.line.below if fit else []
            label = f"{name}: score against accuracy of {counted(len(group), 'model')}; below the line: "
            drawn.append((regression.regression(title, group, fit, labels), label + (joined(below) or "none")))
        if not any(len(group) > 1 for group in groups.values()):
            return []
        caption = (
            "Each point is a model; bars are one standard error. The line is a robust fit that outliers do not draw to "
            "themselves, the band three expected spreads of the residuals. A red square is farther from the line than "
            "that, its own errors included. Far below means that a model picks answers better than it talks about "
            "them, which suggests contamination."
        )
        if any(len(group) > regression.NAMED for group in groups.values()):
            caption += f" Of more than {regression.NAMED} models only those off the line are named."
        return plot(report, "regression", "KIEval score against accuracy", caption, drawn)


def _error(record: Mapping[str, Any]) -> float:
    """A figure's standard error. Of one item, or of items that are all alike, none is seen; that is no error of 0: the
    interval's half width then stands for it, in normal quantiles.
    """
    from scipy.stats import norm

    if record["se"]:
        return float(record["se"])
    return float((record["high"] - record["low"]) / 2 / norm.ppf((1 + LEVEL) / 2))


def _coefficients(figures: Sequence[Figures], without: Collection[str]) -> dict[str, Any]:
    found: Correlations = correlate(figures, without)
    return {
        "overall": correlation_record(found.overall, bool(without)),
        "datasets": {name: correlation_record(one, bool(without)) for name, one in found.datasets.items()},
    }


def _lines(found: Mapping[str, Any], chosen: bool = False) -> list[list[str]]:
    several = len(found["datasets"]) > 1
    parts = {"overall": found["overall"]} if several else {}
    rows = []
    for name, one in (parts | found["datasets"]).items():
        line = [name, str(one["n"])]
        for coefficient in COEFFICIENTS:
            value = one[coefficient]
            line.append("–" if value is None else f"{value['value']:.3f}")
            if not chosen:
                line.append("–" if value is None else f"{value['p']:.2e}")
        rows.append(line)
    return rows if any(text != "–" for line in rows for text in line[2:]) else []


def _parts(found: Mapping[str, Any] | None) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    if found is not None:
        yield None, found["overall"]
        yield from found["datasets"].items()


def _fit(line: Record | None) -> Fit | None:
    if line is None:
        return None
    # A point off a perfect line is infinitely far off in spreads, which JSON has no number for.
    deviations = {
        name: math.copysign(math.inf, line["residuals"][name]) if value is None else value
        for name, value in line["deviations"].items()
    }
    found = Regression(line["slope"], line["intercept"], dict(line["residuals"]), deviations, line["threshold"])
    return Fit(found, line["spread"])

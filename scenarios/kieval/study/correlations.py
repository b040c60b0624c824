"""Correlation of scores with accuracies, and candidates off the regression line (KIEval, Table 7)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from viva.reports import line_plots
from viva.reports.figures import (
    COEFFICIENTS,
    LEVEL,
    Floats,
    correlation_record,
    line_record,
    round_figure,
    round_significant,
)
from viva.reports.page import Plot, Record, count_of, join_names
from viva.reports.tables import Row, Table, figure_row, number, percent
from viva.scoring.correlation import (
    Correlations,
    DatasetLine,
    Departure,
    ItemErrors,
    ModelScores,
    Point,
    Regression,
    correlate,
    departures,
    fit_lines,
    group_by_dataset,
)
from viva.scoring.intervals import normal_quantile

from ...study_sections import Section, StaticFigures, Subject
from ..interview_report import MAX_UNANSWERED
from .claims import FEWEST_ITEMS, KINDS_OF_TEST, LINE_DROP, POWER, SCATTER
from .interview_pools import InterviewMaterial, InterviewPool
from .methods import (
    FIRST_ANSWER,
    Drawing,
    accuracy_label,
    accuracy_of,
    accuracy_source,
    accuracy_titles,
    is_too_seldom_answered,
    plot_group,
    row_prefix,
    short_dataset_name,
    title_facts,
    unanswered_of,
)

_NAMES = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ"}
_FIGURE = ("model", "dataset", "accuracy", "score", "accuracy_se", "score_se")


class AgainstAccuracy(Section[InterviewMaterial]):
    """Correlation coefficients with and without the models below a line, and the lines."""

    key, subject, heading, anchor = "correlations", Subject.CORRELATIONS, "Correlations", "correlations"

    def __init__(self, lent: StaticFigures | None) -> None:
        self._lent = lent

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return coefficients and lines.

        Accuracies with more than `MAX_UNANSWERED` unanswered items are left out: they show how often an answer could be
        read, not what a model knows.
        """
        pooled = report["pooled"]
        datasets = list(dict.fromkeys(row["dataset"] for row in pooled if row["dataset"] is not None))
        sources = {
            name: accuracy_source([row for row in pooled if row["dataset"] == name], self._lent) for name in datasets
        }
        common = accuracy_source(pooled, self._lent)
        figures, left_out = _figures(pooled, sources)
        comparable = (
            figures if set(sources.values()) <= {common} else _figures(pooled, dict.fromkeys(datasets, common))[0]
        )
        lines = self._fit_all(material, figures, sources)
        below = sorted({model for line in lines.values() if line is not None for model in line["below"]})
        rows = {(row["candidate"], row["dataset"]): row for row in pooled}
        return {
            "accuracy": common,
            "accuracies": sources,
            "left_out": left_out,
            "figures": [_figure(point, rows[point.model, point.dataset], sources[point.dataset]) for point in figures],
            **_coefficients(figures, comparable, ()),
            "excluding": {"models": below, **_coefficients(figures, comparable, below)} if below else None,
            "lines": lines,
        }

    def _fit_all(
        self, material: InterviewMaterial, figures: Sequence[ModelScores], sources: Mapping[str, str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return each dataset's line, with each candidate tested against the other candidates' line.

        p-values are corrected for the datasets on which the candidate is tested, so that runs of other candidates on
        other datasets change nothing.
        """
        tested = {
            name: self._fit_dataset(material, name, group, sources[name])
            for name, group in group_by_dataset(figures).items()
        }
        datasets = Counter(
            model
            for line in tested.values()
            if line is not None
            for model, test in line.tests.items()
            if test.has_enough_items
        )
        return {name: None if line is None else line.record(datasets) for name, line in tested.items()}

    def _fit_dataset(
        self, material: InterviewMaterial, dataset: str, group: Sequence[ModelScores], source: str
    ) -> _TestedLine | None:
        fit = fit_lines(group)[dataset] if len(group) > 2 else None
        if fit is None:
            return None
        models = {figure.model for figure in group}
        pools = {
            pool.candidate: pool for pool in material.pools if pool.dataset == dataset and pool.candidate in models
        }
        errors = _item_errors(pools, source, self._lent, group)
        points = [
            Point(figure.model, figure.accuracy, figure.score, figure.accuracy_se, figure.score_se) for figure in group
        ]
        departure_of = departures(fit.line, points, errors, scatter=SCATTER, tests=KINDS_OF_TEST)
        tests = {
            model: _LineTest(departure_of.get(model), len(np.unique(pools[model].codes())), errors[model].clusters)
            for model in fit.line.residuals
        }
        return _TestedLine(fit, tests)

    def notes(self, report: Record) -> list[str]:
        """Return notes on models with too few readable answers to be compared."""
        correlations = report["correlations"]
        kinds = {
            name: "first" if source == FIRST_ANSWER else "generated"
            for name, source in correlations["accuracies"].items()
        }
        return [
            f"{percent(record['unanswered_rate'])} of the {kinds[record['dataset']]} answers of '{record['model']}' on "
            f"'{record['dataset']}' name no choice (more than {100 * MAX_UNANSWERED:.0f}%): its accuracy counts "
            "these as wrong, so correlations and lines leave it out"
            for record in correlations["left_out"]
        ]

    def tables(self, report: Record) -> list[Table]:
        correlations = report["correlations"]
        without = correlations["excluding"]
        header = ["dataset", "n", *(text for name in COEFFICIENTS for text in (_NAMES[name], "p"))]
        chosen = ["dataset", "n", *(_NAMES[name] for name in COEFFICIENTS)]
        title = f"KIEval against accuracy ({accuracy_titles(correlations)}): {title_facts(report)}"
        tables: list[Table] = [(title, header, _lines(correlations))]
        if without is not None:
            names = ", ".join(without["models"])
            title = f"The same without {names} (below a line); no p-values, because these figures chose the exclusion"
            tables.append((title, chosen, _lines(without, chosen=True)))
        lines = []
        for name, fit in correlations["lines"].items():
            if fit is not None:
                numbers = [number(fit["slope"], 3), number(fit["intercept"]), number(fit["spread"])]
                lines.append([name, *numbers, *(", ".join(fit[side]) or "–" for side in ("below", "above"))])
        header = ["dataset", "slope", "intercept", "spread", "below", "above"]
        tables.append(("KIEval = intercept + slope × accuracy", header, lines))
        return tables

    def rows(self, report: Record) -> Iterator[Row]:
        correlations = report["correlations"]
        for without, part in (("", correlations), ("excluding", correlations["excluding"])):
            for dataset, coefficients in _line_parts(part):
                for name, value in coefficients.items():
                    if isinstance(value, Mapping):
                        measure = ".".join(filter(None, ("correlation", without, name)))
                        yield figure_row(
                            row_prefix(report, dataset=dataset), measure, value=value["value"], n=coefficients["n"]
                        )
                        if "p" in value:
                            yield figure_row(
                                row_prefix(report, dataset=dataset),
                                f"{measure}.p",
                                value=value["p"],
                                n=coefficients["n"],
                            )
        for dataset, line in correlations["lines"].items():
            for model, residual in (line or {"residuals": {}})["residuals"].items():
                prefix = row_prefix(report, candidate=model, dataset=dataset)
                yield figure_row(prefix, "residual", value=residual)
                yield figure_row(prefix, "deviation", value=line["deviations"][model])

    def plots(self, report: Record) -> list[Plot]:
        correlations = report.get("correlations") or {}
        groups = group_by_dataset(known_figures(correlations))
        panels: list[Drawing] = []
        sources = correlations.get("accuracies") or {}
        for name, group in groups.items():
            labels = (f"accuracy ({accuracy_label(sources.get(name), self._lent)}), %", "KIEval score, 0–100")
            fit = known_line((correlations.get("lines") or {}).get(name))
            title = f"{short_dataset_name(name)} (n = {count_of(len(group), 'model')})"
            below = fit.line.below if fit else []
            counts = {row["candidate"]: row["n_observations"] for row in report["pooled"] if row["dataset"] == name}
            label = f"{name}: score against accuracy of {count_of(len(group), 'model')}; below the line: "
            panels.append(
                (line_plots.regression_plot(title, group, fit, labels, counts), label + (join_names(below) or "none"))
            )
        if not any(len(group) > 1 for group in groups.values()):
            return []
        caption = (
            "Each point is a model; bars are one standard error. The line is a fit that is robust to "
            "outliers; the band covers three expected spreads of the residuals. A red square lies significantly off "
            "the line of the others (corrected p below 0.05). Far below means that a model picks answers better than "
            "it talks about them, which suggests contamination."
        )
        if any(len(group) > line_plots.MAX_NAMES for group in groups.values()):
            caption += f" Of more than {line_plots.MAX_NAMES} models only those off the line are labelled."
        return plot_group(report, "regression", "KIEval score against accuracy", caption, panels)


@dataclass(slots=True, frozen=True)
class _LineTest:
    """A candidate's test against the other candidates' line; `departure` is None if they are too few for a line."""

    departure: Departure | None
    items: int
    clusters: int

    @property
    def has_enough_items(self) -> bool:
        """True if there are enough items to find anything."""
        return self.departure is not None and self.clusters >= FEWEST_ITEMS

    def record(self, datasets: int) -> dict[str, Any]:
        """Return the test as plain data, corrected for the number of datasets."""
        record: dict[str, Any] = {"value": None, "se": None, "p": 1.0, "power": 0.0, "n": self.items, "needed": None}
        if self.departure is None:
            return record
        departure = self.departure.corrected_for(datasets)
        times = departure.item_factor(LINE_DROP, POWER)
        record |= {"value": round_significant(departure.value), "se": round_significant(departure.se)}
        record["needed"] = None if times is None else max(FEWEST_ITEMS, math.ceil(times * self.items))
        if self.has_enough_items:
            record |= {"p": round_significant(departure.p), "power": round_figure(departure.power(LINE_DROP))}
        return record


@dataclass(slots=True, frozen=True)
class _TestedLine:
    """The line of a dataset, and the test of each candidate."""

    fit: DatasetLine
    tests: Mapping[str, _LineTest]

    def record(self, datasets: Mapping[str, int]) -> dict[str, Any]:
        """Return the line as plain data; `datasets` counts by candidate the datasets with enough items."""
        tests = {}
        for model, line_test in self.tests.items():
            tests[model] = line_test.record(datasets.get(model, 0) + (not line_test.has_enough_items))
        line = replace(self.fit.line, p_values={name: float(test["p"] or 0.0) for name, test in tests.items()})
        return line_record(DatasetLine(line, self.fit.spread)) | {"tests": tests}


def _figures(pooled: Sequence[Record], sources: Mapping[str, str]) -> tuple[list[ModelScores], list[dict[str, Any]]]:
    """Return the figures of each candidate on each dataset, and the figures that are left out."""
    figures, left_out = [], []
    for row in pooled:
        if row["dataset"] is None:
            continue
        source = sources[row["dataset"]]
        accuracy, score = accuracy_of(row, source), row["score"]
        if accuracy["mean"] is None or score["mean"] is None:
            continue
        if is_too_seldom_answered(row, source):
            unanswered = unanswered_of(row, source)
            left_out.append({"model": row["candidate"], "dataset": row["dataset"], "unanswered_rate": unanswered})
            continue
        errors = [_least_error(record) for record in (accuracy, score)]
        figures.append(ModelScores(row["candidate"], row["dataset"], accuracy["mean"], score["mean"], *errors))
    return figures, left_out


def _figure(point: ModelScores, row: Record, source: str) -> dict[str, Any]:
    """Return the record of a point, with the same errors as in the tables."""
    record = {name: getattr(point, name) for name in _FIGURE}
    return record | {"accuracy_se": accuracy_of(row, source)["se"], "score_se": row["score"]["se"]}


def _least_error(record: Mapping[str, Any]) -> float:
    """Return the standard error that a figure's interval implies; with few items the observed error is too small."""
    return float((record["high"] - record["low"]) / 2 / normal_quantile((1 + LEVEL) / 2))


def _item_errors(
    pools: Mapping[str, InterviewPool], source: str, lent: StaticFigures | None, group: Sequence[ModelScores]
) -> dict[str, ItemErrors]:
    """Return the contribution of each item cluster to the errors of each candidate's accuracy and score."""
    columns = {}
    for name, pool in pools.items():
        clusters, items = pool.clusters(), pool.codes()
        score, right = pool.column("overall"), pool.column("right")
        if source == FIRST_ANSWER or lent is None:
            columns[name] = (score, clusters, 100.0 * right, clusters)
        else:
            right, item_codes = lent.right(pool, source)
            cluster_of = lent.clusters(pool) | dict(zip(items.tolist(), clusters.tolist(), strict=True))
            columns[name] = (
                score,
                clusters,
                100.0 * right,
                np.array([cluster_of[code] for code in item_codes.tolist()]),
            )
    distinct, numbered = np.unique(
        np.concatenate([codes for column in columns.values() for codes in (column[1], column[3])]), return_inverse=True
    )
    errors, at = {}, 0
    figures = {figure.model: figure for figure in group}
    for name, (score, _, right, _) in columns.items():
        parts = []
        for values in (score, right):
            codes = numbered[at : at + len(values)]
            at += len(values)
            scored = ~np.isnan(values)
            deviations = (values[scored] - values[scored].mean()) / scored.sum()
            shares: Floats = np.bincount(codes[scored], deviations, len(distinct)).astype(np.float64)
            parts.append((shares, len(np.unique(codes[scored]))))
        (y, score_clusters), (x, accuracy_clusters) = parts
        figure = figures[name]
        errors[name] = ItemErrors(x, y, min(score_clusters, accuracy_clusters), figure.accuracy_se, figure.score_se)
    return errors


def _coefficients(
    figures: Sequence[ModelScores], comparable: Sequence[ModelScores], without: Collection[str]
) -> dict[str, Any]:
    """Return coefficients by dataset, and over all `comparable` figures, whose accuracies are of one kind."""
    correlations: Correlations = correlate(figures, without)
    return {
        "overall": correlation_record(correlate(comparable, without).overall, bool(without)),
        "datasets": {
            name: correlation_record(dataset_correlations, bool(without))
            for name, dataset_correlations in correlations.datasets.items()
        },
    }


def _lines(correlations: Mapping[str, Any], chosen: bool = False) -> list[list[str]]:
    several = len(correlations["datasets"]) > 1
    parts = {"overall": correlations["overall"]} if several else {}
    rows = []
    for name, coefficients in (parts | correlations["datasets"]).items():
        line = [name, str(coefficients["n"])]
        for coefficient in COEFFICIENTS:
            value = coefficients[coefficient]
            line.append("–" if value is None else f"{value['value']:.3f}")
            if not chosen:
                line.append("–" if value is None else f"{value['p']:.2e}")
        rows.append(line)
    return rows if any(text != "–" for line in rows for text in line[2:]) else []


def _line_parts(correlations: Mapping[str, Any] | None) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    if correlations is not None:
        yield None, correlations["overall"]
        yield from correlations["datasets"].items()


def known_figures(correlations: Record) -> list[ModelScores]:
    return [
        ModelScores(*(record[name] for name in _FIGURE[:4]), *(record[name] or 0.0 for name in _FIGURE[4:]))
        for record in correlations.get("figures", ())
    ]


def known_line(line: Record | None) -> DatasetLine | None:
    if line is None:
        return None
    # A point off a perfect line is infinitely many spreads away, which JSON cannot express.
    deviations = {
        name: math.copysign(math.inf, line["residuals"][name]) if value is None else value
        for name, value in line["deviations"].items()
    }
    p_values = {name: test["p"] for name, test in line["tests"].items()}
    regression = Regression(
        line["slope"], line["intercept"], dict(line["residuals"]), deviations, line["threshold"], p_values=p_values
    )
    return DatasetLine(regression, line["spread"])

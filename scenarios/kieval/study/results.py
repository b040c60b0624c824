"""Scores by candidate and dataset: the pooled figures, the main table, the aspects, and their drawings.

What never belongs here: how cells are pooled (``pools``), and comparing candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from viva.reports.page import Plot, Record, joined, span
from viva.reports.rows import Row, figure_row, mean_figures, record_rows
from viva.reports.text import Table, both, number, percent
from viva.scoring.plots import rows as drawings

from ...study.sections import Section, Subject
from ..score import ASPECTS
from .accuracies import accuracy_of, said_in_titles
from .drawing import Drawn, plot, reach, rows_by_dataset, shown_dataset
from .pools import InterviewMaterial
from .round_plots import round_plots
from .words import of_interviews, title_facts

SHORT_ASPECTS = ("acc", "log", "rel", "coh", "con")
_NO_FIGURES = ("scenario", "candidate", "dataset", "datasets", "seeds", "evaluators", "by_round")


class Results(Section[InterviewMaterial]):
    """Accuracy, score and rounds (Table 2), and each aspect's score (Tables 13-17)."""

    key, subject, heading, anchor = "pooled", Subject.RESULTS, "Results", "results"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [pool.record(material.scorer) for pool in material.pools]

    def tables(self, report: Record) -> list[Table]:
        return [_main(report), _aspects(report)]

    def rows(self, report: Record) -> Iterator[Row]:
        for one in report["pooled"]:
            place = {name: one[name] for name in ("scenario", "candidate", "dataset")} | {"scorer": report["scorer"]}
            yield from record_rows(place, "", {name: value for name, value in one.items() if name not in _NO_FIGURES})
            for held in one["by_round"]:
                yield from round_rows(place, held)

    def plots(self, report: Record) -> list[Plot]:
        return [*_drawn_aspects(report), *round_plots(report)]


def round_rows(place: Row, record: Record) -> Iterator[Row]:
    """The figures of one round in long form."""
    name = f"round.{record['round']}"
    yield figure_row(place, f"{name}.score", **mean_figures(record))
    yield figure_row(place, f"{name}.share_held", value=record["share_held"], n=record["held"])


def _main(report: Record) -> Table:
    """Accuracy, KIEval and rounds by dataset and over all of them."""
    rows, source = of_interviews(report), report["correlations"]["accuracy"]
    sources = report["correlations"]["accuracies"]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows if row["dataset"] is not None))
    several = len(datasets) > 1
    header = ["candidate"]
    for name in datasets if several else []:
        header += [f"{name} acc", f"{name} KIEval", f"{name} rnds"]
    before = "overall " if several else ""
    header += [f"{before}accuracy", f"{before}KIEval", "±", f"{before}rounds"]
    header += ["n", "unanswered", "unscored", "unparsed", "failed"]
    cells = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        own = {row["dataset"]: row for row in rows if row["candidate"] == candidate}
        line = [candidate]
        for name in datasets if several else []:
            one = own.get(name)
            line += ["–"] * 3 if one is None else _three(one, sources[name])
        # A mean over fewer datasets than the others' would be compared with theirs.
        whole = own.get(None if several else datasets[0])
        complete = whole is not None and all(name in own and own[name]["score"]["n"] for name in datasets)
        shown = whole or next(iter(own.values()))
        accuracy, score, rounds = _three(shown, source if several else sources[datasets[0]]) if complete else ["–"] * 3
        line += [accuracy, score, number(shown["score"]["se"]) if complete else "–", rounds]
        line += [str(shown["score"]["n"]), percent(shown["unanswered_rate"]), percent(shown["unscored_rate"])]
        cells.append([*line, percent(shown["parse_failure_rate"]), str(shown["failed"])])
    kinds = {**sources, None: source}
    if any(accuracy_of(row, kinds[row["dataset"]])["mean"] is not None for row in rows) or not any(
        row.get("free") for row in rows
    ):
        kind = said_in_titles(report["correlations"])
        title = f"KIEval on {', '.join(datasets)}: {title_facts(report)}; accuracy: {kind}"
        return (title, header, cells)
    title = f"KIEval on {', '.join(datasets)}: {title_facts(report)}; questions without choices have no accuracy"
    kept = [place for place, name in enumerate(header) if not name.endswith(("accuracy", " acc", "unanswered"))]
    return (title, [header[at] for at in kept], [[line[at] for at in kept] for line in cells])


def _three(row: Record, source: str) -> list[str]:
    accuracy = accuracy_of(row, source)
    return [number(accuracy["mean"]), number(row["score"]["mean"]), number(row["rounds"]["mean"], 2)]


def _aspects(report: Record) -> Table:
    lines = []
    for row in of_interviews(report):
        values = [number(row["aspects"][name]["mean"]) for name in ASPECTS[:-1]]
        lines.append([row["candidate"], row["dataset"] or "all", *values, *both(row["score"]), str(row["score"]["n"])])
    header = ["candidate", "dataset", *SHORT_ASPECTS, "overall", "±", "n"]
    return (f"Aspects: {title_facts(report)}", header, lines)


def _drawn_aspects(report: Record) -> list[Plot]:
    drawn: list[Drawn] = []
    for name, pooled in rows_by_dataset(report):
        overall = {row["candidate"]: dot for row in pooled if (dot := _dot(row["score"])) is not None}
        marks = {
            row["candidate"]: {aspect: dot for aspect, record in row["aspects"].items() if (dot := _dot(record))}
            for row in pooled
            if row["candidate"] in overall
        }
        if overall:
            n = [row["score"].get("n", row["n_observations"]) for row in pooled if row["candidate"] in overall]
            title = f"{shown_dataset(name)} (n = {span(n)} talks each)"
            means = [f"{candidate} {dot.value:.1f}" for candidate, dot in overall.items()]
            drawn.append((drawings.aspects(title, overall, marks), f"{name}: overall score of {joined(means)}"))
    caption = (
        "Means over talks of the five aspects, and of the overall score with its 95% interval, errors clustered by "
        "item. An aspect far from the bar is where a candidate is strong or weak beyond its overall level."
    )
    return plot(report, "aspects", "Aspects", caption, drawn)


def _dot(record: Record | None) -> drawings.Dot | None:
    if not record or record.get("mean") is None:
        return None
    return drawings.Dot(record["mean"], reach(record))

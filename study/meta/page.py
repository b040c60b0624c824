"""A meta-evaluation as a page and as rows of a forest plot and a CSV file, made from the report alone.

What never belongs here: computing figures, markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.page import Page, PageSection, Plot, Record, counted, joined
from viva.scoring.plots.forest import ForestRow, forest_svg

from .tables import answer, criterion_name, meta_tables

CSV_COLUMNS = ("criterion", "part", "judge", "against", "level", "measure", "value", "low", "high", "p", "n")
CSV_TEXTS = ("criterion", "part", "judge", "against", "level", "measure")


def forest_rows(report: Record) -> tuple[str, list[ForestRow]]:
    """What is drawn, and its rows: item-level Spearman correlations, else kappas."""
    rows = []
    several = len({judge["judge"] for one in report["criteria"] for judge in one["judges"]}) > 1
    for one in report["criteria"]:
        for judge in one["judges"]:
            name = criterion_name(one) + (f", {judge['judge']}" if several else "")
            rows += _row(name, judge["levels"]["item"]["spearman"])
    if rows:
        return "Spearman ρ with people (95%)", rows
    for one in report["criteria"]:
        for found in one["confusions"]:
            rows += _row(found["judge"], found["kappa"])
        for pair in (one["agreement"] or {}).get("pairs", ()):
            rows += _row(f"{pair['first']} – {pair['second']}", pair["kappa"])
    return "Cohen's κ (95%)", rows


def _row(name: str, figure: Record) -> list[ForestRow]:
    if figure["value"] is None:
        return []
    return [ForestRow(name, figure["value"], figure["low"], figure["high"])]


def meta_page(report: Record) -> Page:
    """The page: the answer first, the forest plot, then all tables."""
    axis, rows = forest_rows(report)
    axis = axis.replace("95", f"{100 * report['how']['level']:g}")
    plots, no_plots = [], ""
    if rows:
        try:
            svg = forest_svg("Judges and people", rows, axis)
            told = joined(f"{row.name} {row.value:.3f}" for row in rows)
            plots = [
                Plot("forest", axis, "Each dot is a figure, its bar the interval.", "", [(svg, f"{axis}: {told}")])
            ]
        except ConfigurationError as error:
            no_plots = str(error)
    tables = [table for table in meta_tables(report) if table[2]]
    sections = [PageSection("figures", "Figures", plots=bool(no_plots), tables=tables)]
    facts = [("Rows", f"{report['rows']:,}")]
    facts += [(name, counted(report[field], name[:-1].lower())) for name, field in (("Groups", "groups"),
              ("Systems", "systems")) if report[field]]  # fmt: skip
    facts += [("Read as", "; ".join(report["fields"]))]
    facts += [("Notes", " ".join(f"{note}." for note in report["notes"]))] if report["notes"] else []
    heading = f"Meta-evaluation of {report['source']}"
    decisive = plots[0] if plots else None
    return Page(heading, facts, [], sections, [], no_plots, {}, _methods(report), [answer(report)], decisive)


def _methods(report: Record) -> list[tuple[str, str]]:
    how = report["how"]
    return [
        ("Levels", "item: over all rows; group: within each group, averaged over groups; system: between means."),
        (
            "Intervals",
            f"{100 * how['level']:g}% percentiles of {how['resamples']:,} resamples of whole groups (BOOT-INPUTS), "
            f"seed {how['seed']}.",
        ),
        (
            "Tests of two judges",
            f"{how['permutation']}: the judges' standardised scores are exchanged {how['resamples']:,} times at random "
            "(Deutsch, Dror and Roth 2021); Holm over all pairs and criteria.",
        ),
        ("Labels", "Cohen's κ corrects agreement for chance; people's label is that of most annotators, ties left "
                   "out."),
        ("Juries", "mean and median of standardised scores; fitted weights are out of fold; the best single judge is "
                   "chosen anew in each resample."),
    ]  # fmt: skip


def csv_rows(report: Record) -> Iterator[dict[str, Any]]:
    """Every figure, one a row."""
    for one in report["criteria"]:
        place = {"criterion": criterion_name(one)}
        for judge in one["judges"]:
            for level, figures in judge["levels"].items():
                for name, figure in figures.items():
                    yield _csv(place, figure, part="correlation", judge=judge["judge"], level=level, measure=name)
        for pair in one["differences"]:
            for level, figures in pair["levels"].items():
                for name, figure in figures.items():
                    more = {"judge": pair["first"], "against": pair["second"], "n": pair["n"]}
                    yield _csv(place, figure, part="difference", level=level, measure=name, **more)
        for jury in one["juries"]:
            for level, figures in jury["levels"].items():
                for name, figure in figures.items():
                    more = {"judge": f"jury, {jury['how']}", "level": level, "measure": name, "n": jury["n"]}
                    yield _csv(place, figure, part="jury", **more)
                    yield _csv(place, figure["gain"], part="jury gain", against=figure["best"], **more)
        for found in one["confusions"]:
            for name in ("kappa", "kappa_quadratic"):
                if found[name] is not None:
                    yield _csv(place, found[name], part="labels", judge=found["judge"], measure=name, n=found["n"])
            yield _csv(place, {"value": found["agreement"]}, part="labels", judge=found["judge"], measure="same",
                       n=found["n"])  # fmt: skip
        if (agreed := one["agreement"]) is not None:
            for pair in agreed["pairs"]:
                more = {"judge": pair["first"], "against": pair["second"], "n": pair["n"]}
                yield _csv(place, pair["kappa"], part="annotators", measure="kappa", **more)
            for name, n in (("kappa", "alpha_n"), ("fleiss", "fleiss_n"), ("alpha", "alpha_n")):
                yield _csv(place, {"value": agreed[name]}, part="annotators", measure=f"all.{name}", n=agreed[n])
    for one in report["judgments"]:
        for system in one["systems"]:
            for turn, mean in (("all", system["overall"]), *system["turns"].items()):
                where = {"judge": one["judge"], "against": system["system"], "level": turn, "n": mean["n"]}
                criterion = {"criterion": one["criterion"]}
                yield _csv(criterion, {**mean, "value": mean["mean"]}, part="judgments", measure="mean", **where)
                yield _csv(criterion, {"value": mean["unparsed"]}, part="judgments", measure="unparsable", **where)


def _csv(place: Record, figure: Record, **more: Any) -> dict[str, Any]:
    numbers = {name: figure.get(name) for name in ("value", "low", "high", "p", "n")}
    return dict.fromkeys(CSV_COLUMNS) | numbers | dict(place) | more

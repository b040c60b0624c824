"""A graded round's report as a page, made from the report alone: the answer, drawings, all tables, methods.

What never belongs here: computing figures, markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.page import Page, PageSection, Plot, joined
from viva.scoring.plots import style
from viva.scoring.plots.dots import dots
from viva.scoring.plots.heat import COLUMNS, heat_map
from viva.scoring.plots.shares import Bar
from viva.scoring.plots.waterfall import Step, waterfall

from .sentences import answer
from .tables import PARTS, dimension_name, report_tables

Record = Mapping[str, Any]


def grade_page(report: Record) -> Page:
    """The page. Without matplotlib it says how to get drawings, and has everything else."""
    plots, no_plots = list[Plot](), ""
    try:
        plots = list(_plots(report))
    except ConfigurationError as error:
        no_plots = str(error)
    tables = [table for table in report_tables(report) if table[2]]
    sections = [PageSection("plots", "Drawings", plots=True)] if plots[1:] or no_plots else []
    sections.append(PageSection("figures", "Figures", tables=tables))
    about = report["round"]
    facts = [("Round", about["name"] or about["title"]), ("Kind", about["kind"])]
    if about["rubric"].get("version") is not None:
        facts.append(("Rubric", f"version {about['rubric']['version']}"))
    facts.append(
        ("Grades of", {"people": "people", "models": "judge models", "all": "people and models"}[about["whose"]])
    )
    return Page(f"Grades: {about['title']}", facts, [], sections, plots[1:], no_plots, {}, _methods(report),
                answer(report), plots[0] if plots else None)  # fmt: skip


def _plots(report: Record) -> Iterator[Plot]:
    names = [*report["dimensions"], "overall"] if len(report["dimensions"]) > 1 else ["overall"]
    leaf = _leaves(names)
    panels = []
    for some in _portions(report["candidates"], style.LINES):
        things = {
            one["candidate"]: {
                leaf[name]: Bar(figure["value"], figure["low"], figure["high"])
                for name in names if (figure := one["grade"][name])["value"] is not None
            }
            for one in some
        }  # fmt: skip
        told = joined(f"{one['candidate']} {one['grade']['overall']['value']}" for one in some)
        panels.append((dots("Grade by dimension", list(leaf.values()), things, "grade, %"), f"Grades over all: {told}"))
    yield Plot("grades", "Grade by dimension", "A mark is a grade, its line the 95% interval.", "", panels)
    yield from _heat(report)
    yield from _waterfalls(report)


def _heat(report: Record) -> Iterator[Plot]:
    graders = [one for one in report["graders"] if one["by_dimension"]]
    leaf = _leaves(report["dimensions"])
    cells = {
        (leaf[name], one["grader"]): cell["value"]
        for one in graders for name, cell in one["by_dimension"].items() if cell["value"] is not None
    }  # fmt: skip
    if not cells:
        return
    rows = list(leaf.values())
    panels = [
        (heat_map("Disputes by grader, %", rows, [one["grader"] for one in some], cells, max(20.0, *cells.values())),
         f"Shares of disputed grades of {joined(one['grader'] for one in some)}")
        for some in _portions(graders, COLUMNS)
    ]  # fmt: skip
    yield Plot("disputes", "Disputes of graders by dimension", "A number is the share of a grader's grades in dispute, "
               "in per cent.", "", panels)  # fmt: skip


def _waterfalls(report: Record) -> Iterator[Plot]:
    told = report["fluctuation"]
    panels = []
    for one in told["changes"] if told else []:
        if one["dimension"] == "overall":
            steps = [Step(PARTS[name], part["value"], part["low"], part["high"]) for name, part in one["parts"].items()]
            svg = waterfall(one["candidate"], ("before", one["before"]), steps, ("after", one["after"]), "grade, %")
            panels.append((svg, f"{one['candidate']} from {one['before']} to {one['after']}"))
    if panels:
        yield Plot("fluctuation", "What changes are made of", "A bar is a part of the change, its line the 95% "
                   "interval.", "", panels)  # fmt: skip


def _leaves(paths: Sequence[str]) -> dict[str, str]:
    """Dimensions as drawings show them: the last step of a path where no other one ends in it."""
    last = [path.rpartition("/")[2] for path in paths]
    return {
        path: dimension_name(leaf if last.count(leaf) == 1 else path) for path, leaf in zip(paths, last, strict=True)
    }


def _portions(things: Sequence[Record], size: int) -> list[Sequence[Record]]:
    return [things[at : at + size] for at in range(0, len(things), size)]


def _methods(report: Record) -> list[tuple[str, str]]:
    methods = [
        ("Grade", "The sum of grades given over the sum of the highest grades, by dimension; groups and the total are "
                  "weighted means of dimensions, their weights divided by their sum."),
        ("Accuracy", "The share of grades that are not zero, averaged over dimensions likewise."),
        ("Intervals", "95%, clustered by question, dimensions being strata; they stay between 0 and 100 and have a "
                      "width also where all grades are the same."),
        ("Differences", "On the questions that both have grades of; p is the greater of that of the sign-flip test (up "
                        "to 100 questions, beyond of Student's t) and that of the interval, corrected by Holm over all "
                        "pairs. Intervals are corrected likewise: they hold 0 exactly where p is 0.05 or more."),
        ("Disputes", "Of a grader: alone on one side of zero and not zero. Of an answer: half of the graders on each "
                     "side; of an odd number the smaller half has two at least. A folder's own rules replace these."),
        ("Severity", "An additive model of answers and graders, so that only grades of the same answers are compared; "
                     "in grades, above 0 for fewer than the mean. Corrected grades raise each grade by its grader's "
                     "severity; decisions of adjudicators are left as they are."),
        ("Differently graded", "An answer with two grades at least that are not all the same."),
        ("Missing grades", "They stand in no sum, and are counted."),
    ]  # fmt: skip
    if report["fluctuation"] is not None:
        methods.append((
            "Changes", "Split by question and grader: a different question, a different response, both the same; the "
            "same or another grader. The four parts sum to the change; intervals by the jackknife over questions."
        ))  # fmt: skip
    return methods

"""Command `viva grade demo`: an example from question bank to the report of two rounds, with simulated graders.

The true values of models and people are compared with the report, which shows how far it can be trusted.
"""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from viva.orchestration.launch import Launch
    from viva.reports.tables import Table

    from ..project import Project
    from .simulated_rounds import DemoRound, GradingHabit

EXAMPLE = """\b
Example:
  viva grade demo --out runs/library
  viva grade serve runs/library/rounds/autumn"""
_WIDTH = 80
Comparison = list[dict[str, Any]]


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to create (default: runs/grade-demo-TIME).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """Run an example project through a trial and two evaluations; no model is needed."""
    from viva.cli.output import print_json, print_tables, print_text
    from viva.orchestration.folders import fresh_folder
    from viva.web.report.html_page import write_page

    from ..round_report import grade_page, report_tables, summary_sentences
    from . import simulated_rounds as example

    began = time.monotonic()
    folder = out or fresh_folder("grade-demo")
    project = example.make_project(folder)
    _print_line(_bank_summary(project))
    trial = example.make_trial(project, example.TRIAL, example.HABITS, _run_launch)
    gate = _gate_table(project, trial)
    first = example.make_evaluation(project, example.FIRST, example.KNOWLEDGE, example.HABITS, _run_launch)
    project = example.change_project(project)
    second_gate = _gate_table(
        project, example.make_trial(project, example.SECOND_TRIAL, example.HABITS_LATER, _run_launch)
    )
    second = example.make_evaluation(
        project, example.SECOND, example.KNOWLEDGE_LATER, example.HABITS_LATER, _run_launch
    )
    reports = report_rounds(first, second)
    comparisons = compare_with_truth(first, second, reports)
    page = folder / "report.html"
    write_page(grade_page(reports[1]), page)
    if json:
        print_json({"first": reports[0], "second": reports[1], "stated_and_found": comparisons})
    else:
        print_tables([gate, second_gate, *report_tables(reports[1]), *_comparison_tables(comparisons)])
    inside = sum(comparison["inside"] for comparison in comparisons)
    print(f"{first.grades + second.grades:,} grades by people, {first.judged + second.judged:,} by a judge model, "
          f"{first.decided + second.decided} disputes decided; this took {time.monotonic() - began:.1f} s\n"
          f"folder: {folder}", file=sys.stderr)  # fmt: skip
    if not json:
        sentences = [
            *summary_sentences(reports[1]),
            f"{inside} of {len(comparisons)} true values lie within the estimated intervals.",
        ]
        print_text("\n" + textwrap.fill(" ".join(sentences), _WIDTH) + f"\npage: {page}\n")


def report_rounds(first: DemoRound, second: DemoRound) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the reports of both rounds, the second with its changes since the first."""
    from ..round_figures import make_report
    from .grading_folder import read_round

    graded = read_round(first.path), read_round(second.path)
    return make_report(graded[0]), make_report(graded[1], graded[0])


def compare_with_truth(
    first: DemoRound, second: DemoRound, reports: tuple[dict[str, Any], dict[str, Any]]
) -> Comparison:
    """Compare true and estimated values of candidates and graders of both rounds.

    Each row has `what`, `round`, `name`, `stated` (true), `value` (estimated), `low`, `high`, and `inside`: whether the
    true value is. Grades are in per cent, severities in grades.
    """
    from viva.grading.store import GradeStore

    from . import simulated_rounds as example
    from .simulated_rounds import deserved_means, expected_severities

    judge = {"judge-model": example.JUDGE_HABIT}
    habits: list[Mapping[str, GradingHabit]] = [example.HABITS | judge, example.HABITS_LATER | judge]
    comparisons: Comparison = []
    deserved: list[dict[str, float]] = []
    for index, round_ in enumerate((first, second)):
        with GradeStore.open(round_.path) as store:
            deserved.append(deserved_means(store.questions(), store.meta("about")["weights"]))
            severities = expected_severities(store, habits[index])
        name, report = round_.path.name, reports[index]
        comparisons += [_comparison_row("grade", name, record["candidate"], deserved[index][record["candidate"]],
            record["grade"]["overall"])
                  for record in report["candidates"]]  # fmt: skip
        comparisons += [
            _comparison_row("severity", name, record["grader"], severities[record["grader"]], record["severity"])
            for record in report["graders"]
        ]
    for change in reports[1]["fluctuation"]["changes"]:
        if change["dimension"] == "overall":
            candidate = change["candidate"]
            stated = deserved[1][candidate] - deserved[0][candidate]
            comparisons.append(_comparison_row("change", second.path.name, candidate, stated, change["change"]))
    return comparisons


def _comparison_row(measure: str, round_: str, name: str, stated: float, figure: Mapping[str, Any]) -> dict[str, Any]:
    value, low, high = figure["value"], figure["low"], figure["high"]
    inside = low is not None and low <= stated <= high
    return {"what": measure, "round": round_, "name": name, "stated": stated, "value": value, "low": low, "high": high,
            "inside": inside}  # fmt: skip


def _comparison_tables(comparisons: Comparison) -> Iterator[Table]:
    from viva.reports.tables import interval, number, signed

    titles = {
        "grade": ("True and estimated: grades of candidates, %", "candidate", 1),
        "severity": ("True and estimated: severity of graders, in grades below the mean", "grader", 2),
        "change": ("True and estimated: change between the rounds, points", "candidate", 1),
    }
    for measure, (title, column, digits) in titles.items():
        rows = []
        for comparison in comparisons:
            if comparison["what"] == measure:
                stated = (
                    number(comparison["stated"], digits) if measure == "grade" else signed(comparison["stated"], digits)
                )
                rows.append(
                    [
                        comparison["round"],
                        comparison["name"],
                        stated,
                        interval(comparison, digits),
                        "yes" if comparison["inside"] else "no",
                    ]
                )
        yield title, ["round", column, "true", "estimate (95% interval)", "inside"], rows


def _gate_table(project: Project, trial: DemoRound) -> Table:
    """Return a table of who passed a trial round."""
    from viva.reports.tables import interval

    from ..graded_round import grader_consistency
    from .grading_folder import read_round

    rows = []
    for result in grader_consistency(read_round(trial.path), project.file.training.threshold):
        if result.consistency is not None:
            consistency = {
                "value": result.consistency.value,
                "low": result.consistency.low,
                "high": result.consistency.high,
            }
            deployed = {"passes": "grades in the evaluation"}.get(result.gate, "is trained and tested again")
            rows.append([result.grader, str(result.answers), interval(consistency, 2), deployed])
    title = f"Round {trial.path.name}: consistency (threshold {project.file.training.threshold:.2f})"
    return title, ["grader", "answers", "consistency", "result"], rows


def _bank_summary(project: Project) -> str:
    from ..question_bank import STATES, Bank

    with Bank.open(project) as bank:
        states = [entry.state for entry in bank.entries()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return f"{project.file.title}: {len(states)} questions in the bank, {counts}"


def _run_launch(launch: Launch) -> None:
    from viva.cli.progress import print_progress
    from viva.cli.run import exit_with, run_launch

    result = run_launch(launch)
    if result.outcome.how != "done" or result.outcome.failed:
        exit_with(launch, result, 0)
    print_progress(f"{launch.folder.path.parent.name}, {launch.scenario.name}: {result.progress}")


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)

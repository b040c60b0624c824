"""``viva grade demo``: an example from its question bank to the report of two rounds, with simulated models and people.

What was stated of models and people stands beside what the report found, so anybody can see how far it can be trusted.
What never belongs here: the example itself (``demo_rounds``), and how a report looks.
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
    from viva.reports.text import Table

    from ..project import Project
    from .demo_rounds import DemoRound
    from .simulated_people import Habit

EXAMPLE = """\b
Example:
  viva grade demo --out runs/library && viva grade serve runs/library/rounds/autumn"""
_WIDE = 80
Known = list[dict[str, Any]]


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make (default: runs/grade-demo-TIME).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """Take an example project through trial, evaluation and a second evaluation; no model is needed."""
    from viva.cli.output import print_json, print_tables, print_text
    from viva.orchestration.folders import fresh_folder
    from viva.web.report.page import write_page

    from ..report.page import grade_page
    from ..report.sentences import answer
    from ..report.tables import report_tables
    from . import demo_rounds as example

    began = time.monotonic()
    folder = out or fresh_folder("grade-demo")
    project = example.make_project(folder)
    _say(_bank(project))
    trial = example.make_trial(project, example.TRIAL, example.HABITS, _hold)
    gate = _gate(project, trial)
    first = example.make_round(project, example.FIRST, example.KNOWLEDGE, example.HABITS, _hold)
    project = example.change_project(project)
    again = _gate(project, example.make_trial(project, example.SECOND_TRIAL, example.HABITS_LATER, _hold))
    second = example.make_round(project, example.SECOND, example.LEARNT, example.HABITS_LATER, _hold)
    reports = figures(first, second)
    known = stated_and_found(first, second, reports)
    page = folder / "report.html"
    write_page(grade_page(reports[1]), page)
    if json:
        print_json({"first": reports[0], "second": reports[1], "stated_and_found": known})
    else:
        print_tables([gate, again, *report_tables(reports[1]), *_tables(known)])
    inside = sum(one["inside"] for one in known)
    print(f"{first.grades + second.grades:,} grades of people, {first.judged + second.judged:,} of a judge model, "
          f"{first.decided + second.decided} disputes decided; this took {time.monotonic() - began:.1f} s\n"
          f"folder: {folder}", file=sys.stderr)  # fmt: skip
    if not json:
        said = [*answer(reports[1]), f"Of {len(known)} values that were stated, {inside} lie in the intervals found."]
        print_text("\n" + textwrap.fill(" ".join(said), _WIDE) + f"\npage: {page}\n")


def figures(first: DemoRound, second: DemoRound) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of both rounds, the second with its changes against the first."""
    from ..report.figures import grade_report
    from .reading import read_round

    graded = read_round(first.path), read_round(second.path)
    return grade_report(graded[0]), grade_report(graded[1], graded[0])


def stated_and_found(first: DemoRound, second: DemoRound, reports: tuple[dict[str, Any], dict[str, Any]]) -> Known:
    """What was stated of candidates and graders of both rounds beside what was found: ``what``, ``round``, ``name``,
    ``stated``, ``value``, ``low``, ``high`` and whether it is ``inside``. Grades are per cent, severities grades.
    """
    from viva.orchestration.grading.store import GradeStore

    from . import demo_rounds as example
    from .simulated_people import true_means, true_severities

    judge = {"judge-model": example.JUDGE_HABIT}
    habits: list[Mapping[str, Habit]] = [example.HABITS | judge, example.HABITS_LATER | judge]
    known: Known = []
    deserved: list[dict[str, float]] = []
    for place, made in enumerate((first, second)):
        with GradeStore.open(made.path) as store:
            deserved.append(true_means(store.questions(), store.meta("about")["weights"]))
            severe = true_severities(store, habits[place])
        name, report = made.path.name, reports[place]
        known += [_known("grade", name, one["candidate"], deserved[place][one["candidate"]], one["grade"]["overall"])
                  for one in report["candidates"]]  # fmt: skip
        known += [_known("severity", name, one["grader"], severe[one["grader"]], one["severity"])
                  for one in report["graders"]]  # fmt: skip
    for change in reports[1]["fluctuation"]["changes"]:
        if change["dimension"] == "overall":
            candidate = change["candidate"]
            stated = deserved[1][candidate] - deserved[0][candidate]
            known.append(_known("change", second.path.name, candidate, stated, change["change"]))
    return known


def _known(what: str, round_: str, name: str, stated: float, found: Mapping[str, Any]) -> dict[str, Any]:
    value, low, high = found["value"], found["low"], found["high"]
    inside = low is not None and low <= stated <= high
    return {"what": what, "round": round_, "name": name, "stated": stated, "value": value, "low": low, "high": high,
            "inside": inside}  # fmt: skip


def _tables(known: Known) -> Iterator[Table]:
    from viva.reports.text import interval, number, signed

    titles = {
        "grade": ("Stated and found: grades of candidates, %", "candidate", 1),
        "severity": ("Stated and found: severity of graders, in grades below the mean", "grader", 2),
        "change": ("Stated and found: change between the rounds, points", "candidate", 1),
    }
    for what, (title, column, digits) in titles.items():
        rows = []
        for one in known:
            if one["what"] == what:
                stated = number(one["stated"], digits) if what == "grade" else signed(one["stated"], digits)
                rows.append(
                    [one["round"], one["name"], stated, interval(one, digits), "yes" if one["inside"] else "no"]
                )
        yield title, ["round", column, "stated", "found (95% interval)", "inside"], rows


def _gate(project: Project, trial: DemoRound) -> Table:
    """Who passed a trial round."""
    from viva.reports.text import interval

    from ..training import grader_consistency
    from .reading import read_round

    rows = []
    for one in grader_consistency(read_round(trial.path), project.file.training.threshold):
        if one.consistency is not None:
            share = {"value": one.consistency.value, "low": one.consistency.low, "high": one.consistency.high}
            deployed = {"passes": "grades in the evaluation"}.get(one.gate, "is trained and tried again")
            rows.append([one.grader, str(one.answers), interval(share, 2), deployed])
    title = f"Round {trial.path.name}: consistency, {project.file.training.threshold:.2f} is needed"
    return title, ["grader", "answers", "consistency", "so the grader"], rows


def _bank(project: Project) -> str:
    from ..bank import STATES, Bank

    with Bank.open(project) as bank:
        states = [one.state for one in bank.entries()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return f"{project.file.title}: {len(states)} questions in the bank, {counts}"


def _hold(launch: Launch) -> None:
    from viva.cli.progress_line import print_progress
    from viva.cli.run import hold, leave

    held = hold(launch)
    if held.outcome.how != "done" or held.outcome.failed:
        leave(launch, held, 0)
    print_progress(f"{launch.folder.path.parent.name}, {launch.scenario.name}: {held.progress}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)

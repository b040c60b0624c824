"""``viva meta --baselines``: text metrics and single-answer grading beside the scores; grading is a run of its own.

What never belongs here: metrics, and what a grade is (the scenario).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .exit_codes import complain

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch
    from viva.study.meta.sheet import Sheet

_SCENARIO, _TASKS = "grading", "tasks.jsonl"


def add_replies(sheet: Sheet, run: Path) -> None:
    """Give a run's rows the texts of its turns.

    :raises ConfigurationError, JournalError: the run cannot be read.
    """
    from viva.study.meta.baselines import with_replies
    from viva.study.meta.runs import recorded_replies

    with_replies(sheet, asyncio.run(recorded_replies(run)))


def add_baselines(
    sheet: Sheet,
    wanted: Sequence[str],
    judges: Sequence[str],
    output: str | None,
    reference: str | None,
    out: Path | None,
    source: Path,
) -> None:
    """Add the baselines to the sheet.

    :raises ConfigurationError: one is not known, or lacks a package, a field or a model.
    """
    from viva.engine.errors import ConfigurationError
    from viva.study.meta.baselines import SINGLE, add_grades, add_metrics, metric_names

    names = metric_names(wanted)
    if (SINGLE in names) != bool(judges):
        told = "names no model: add --judge MODEL" if SINGLE in names else "is for the baseline `single`: add it"
        raise ConfigurationError(f"{'--baselines single' if SINGLE in names else '--judge'} {told}")
    add_metrics(sheet, names, output, reference)
    if SINGLE in names:
        add_grades(sheet, _graded(sheet, judges, output, out))


def _graded(
    sheet: Sheet, judges: Sequence[str], output: str | None, out: Path | None
) -> dict[str, dict[str, float | None]]:
    """The grades by judge and task. A folder that holds a part of them is gone on with.

    :raises ConfigurationError: the folder holds another run.
    """
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.recorded import Run
    from viva.scenarios.models import label_of
    from viva.study.meta.baselines import grading_tasks

    from .run import hold

    folder = (out or fresh_folder(_SCENARIO)).absolute()
    launch = _launch(grading_tasks(sheet, output), judges, folder)
    held = hold(launch)
    print(held.progress, f"run folder: {folder}", sep="\n", file=sys.stderr)
    if held.outcome.error is not None:
        complain(held.outcome.error)
    labels = launch.prepared.labels
    found: dict[str, dict[str, float | None]] = {label: {} for label in labels}
    for one in Run(launch.folder).ended().results():
        label = label_of(one.key, list(labels))
        found[label][one.key.removeprefix(f"{label}/")] = (one.value or {}).get("score")
    return found


def _launch(tasks: list[dict[str, str]], judges: Sequence[str], folder: Path) -> Launch:
    from viva.orchestration.launch import continued_run, new_run
    from viva.scenarios.grading.scenario import Grading, GradingSettings

    from .options import read_settings

    settings = read_settings(GradingSettings, {"tasks": str(folder / _TASKS), "judge": list(judges)}, None)
    if (folder / "manifest.json").exists():
        return continued_run(_SCENARIO, settings, folder)
    which = Grading(tasks)
    assert which.given_tasks is not None
    return new_run(which, settings, folder, files={_TASKS: which.given_tasks.to_lines()})

"""The deployment gate: who may grade in evaluations, by the trial rounds of a project.

A grader counts by the last trial round in which there are grades to compare. Where a project has no trial round,
everybody may grade. What never belongs here: how consistent a grader is (``training``).
"""

from __future__ import annotations

from viva.orchestration.grading.schema import FILE

from ..project import Project
from ..training import GraderConsistency, grader_consistency
from .reading import read_round
from .rounds import Round, is_drawn, open_round


def trial_results(project: Project) -> dict[str, tuple[str, GraderConsistency]]:
    """By grader the last trial round with grades of theirs, and how consistent they were; empty where no trial round
    was graded.

    :raises ConfigurationError: a trial round's files were changed by hand.
    """
    trials: list[Round] = []
    for path in filter(is_drawn, project.rounds()):
        record = open_round(path).record
        if record.kind == "trial" and (path / FILE).is_file():
            trials.append(record)
    found: dict[str, tuple[str, GraderConsistency]] = {}
    for record in sorted(trials, key=lambda one: one.at):
        for one in grader_consistency(read_round(project.round(record.name)), project.file.training.threshold):
            if one.consistency is not None:
                found[one.grader] = record.name, one
    return found


def held_back(project: Project) -> dict[str, str]:
    """The graders of a project who may not grade in evaluations, each with the reason; adjudicators and admins are
    not asked for trials.

    :raises ConfigurationError: as ``trial_results``.
    """
    results = trial_results(project)
    if not results:
        return {}
    threshold, reasons = project.file.training.threshold, {}
    for grader in project.file.graders:
        if grader.role != "grader":
            continue
        if grader.name not in results:
            reasons[grader.name] = "has graded in no trial round"
            continue
        name, one = results[grader.name]
        assert one.consistency is not None
        if one.gate == "too few":
            reasons[grader.name] = f"only {one.answers} answers of round {name} can be compared"
        elif one.gate == "retrain":
            share = f"{one.consistency.value:.2f}"
            reasons[grader.name] = f"consistency {share} in round {name}, {threshold:.2f} is needed"
    return reasons

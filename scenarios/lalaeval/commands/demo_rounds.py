"""The rounds of ``viva grade demo``: an example project from bank to grades, with simulated models and people.

Everything is made by the functions that real projects are made by; only who answers and who grades is simulated. What
never belongs here: figures, and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.orchestration.grading.store import GradeStore
from viva.orchestration.launch import Launch

from ..bank import Bank
from ..bank_rows import read_pairs
from ..project import FILE, Project
from . import judge
from .collect import launched
from .deployment import held_back
from .grading_folder import make_grading_folder
from .init import TEMPLATES
from .rounds import Drawn, Kind, draw_round
from .simulated_people import Habit, decide_everything, grade_everything

TRIAL, FIRST, SECOND_TRIAL, SECOND = "trial", "spring", "trial-autumn", "autumn"
ADJUDICATOR = "Flora"
JUDGE, JUDGE_HABIT = "simulated:judge-model?noise=0.12&traits=severity:0.1", Habit(0.1, 0.12)
# What the simulated candidates know; one of them has learnt something until autumn.
KNOWLEDGE = {"lantern": 0.85, "compass": 0.65, "branch": 0.5, "ember": 0.3}
LEARNT = {**KNOWLEDGE, "branch": 0.75}
_TRIED = {"lantern": 0.85, "compass": 0.65, "ember": 0.3}
_TRIAL_QUESTIONS = 6  # the evaluations have the others
# How the simulated graders grade: Ben severely, Cleo mildly, Dan at random as good as always, until he is trained.
HABITS = {
    "Ada": Habit(0.0, 0.04),
    "Ben": Habit(0.3, 0.04),
    "Cleo": Habit(-0.3, 0.04),
    "Dan": Habit(0.0, 0.9),
    "Eve": Habit(0.0, 0.08),
}
_LEAVES, _COMES = "Eve", "Gil"
HABITS_LATER = {
    **{name: one for name, one in HABITS.items() if name != _LEAVES},
    "Dan": Habit(0.0, 0.1),
    _COMES: Habit(0.15, 0.04),
}
Hold = Callable[[Launch], None]


@dataclass(slots=True, frozen=True)
class DemoRound:
    """A graded round: its folder, and how many grades, disputes decided and verdicts of the judge it has."""

    path: Path
    grades: int
    decided: int
    judged: int


def make_project(folder: Path) -> Project:
    """The example project with its bank, in a new folder.

    :raises ConfigurationError: the folder holds a project, or cannot be made.
    """
    if (folder / FILE).exists():
        raise ConfigurationError(f"{folder}: holds a project already; name another folder with --out")
    _write(folder / FILE, (TEMPLATES / "library.yaml").read_text(encoding="utf-8"))
    project = Project.open(folder)
    with Bank.open(project) as bank:
        bank.put(read_pairs(TEMPLATES / "library.jsonl", project), "Ada, Ben and Cleo")
        names = [one.pair.id for one in bank.entries()]
        reasons = {"ghost": "has no source", "loan-period-again": "asks what loan-period asks"}
        bank.inspect([name for name in names if name not in reasons], "Hanna")
        for name, reason in reasons.items():
            bank.give_back([name], "Hanna", reason)
        bank.accept([one.pair.id for one in bank.entries("inspected")], "Hanna")
    return project


def change_project(project: Project) -> Project:
    """What has changed until autumn: fees (so questions and standard answers), a new question, and a grader."""
    text = (project.folder / FILE).read_text(encoding="utf-8")
    _write(project.folder / FILE, text.replace(f" {_LEAVES},", f" {_COMES},"))
    changed = Project.open(project.folder)
    with Bank.open(changed) as bank:
        done = bank.put(read_pairs(TEMPLATES / "library-autumn.jsonl", changed), "Ada, Ben and Cleo")
        bank.inspect([*done.new, *done.changed], "Hanna")
        bank.accept([*done.new, *done.changed], "Hanna")
    return changed


def make_trial(project: Project, name: str, habits: Mapping[str, Habit], hold: Hold) -> DemoRound:
    """A trial round: every grader grades all of it, and nothing is decided."""
    drawn = _collected(project, name, _TRIED, hold, kind="trial", seed=project.file.seed + 1, n=_TRIAL_QUESTIONS)
    make_grading_folder(drawn)
    with GradeStore.open(drawn.path) as store:
        return DemoRound(drawn.path, grade_everything(store, habits, project.file.seed), 0, 0)


def make_round(
    project: Project, name: str, knowledge: Mapping[str, float], habits: Mapping[str, Habit], hold: Hold
) -> DemoRound:
    """An evaluation: graded by those who passed the gate and by a judge model, its disputes decided."""
    drawn = _collected(project, name, knowledge, hold)
    make_grading_folder(drawn, held_back(project))
    with GradeStore.open(drawn.path) as store:
        grades = grade_everything(store, habits, project.file.seed)
        launch = judge.launched(store, JUDGE, {"shown": "all"})
        hold(launch)
        judged = judge.enter_grades(store, launch, JUDGE)
        return DemoRound(drawn.path, grades, decide_everything(store, ADJUDICATOR), judged.given)


def _collected(
    project: Project,
    name: str,
    knowledge: Mapping[str, float],
    hold: Hold,
    *,
    kind: Kind = "evaluation",
    seed: int | None = None,
    n: int | None = None,
) -> Drawn:
    with Bank.open(project) as bank:
        drawn = draw_round(project, bank, name, kind=kind, seed=seed, n=n, day=date.today())
    models = [f"simulated:{label}?knowledge={share}" for label, share in knowledge.items()]
    hold(launched(drawn, {"candidate": models}))
    return drawn


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None

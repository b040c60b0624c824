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
from .init import TEMPLATES
from .rounds import Kind, draw_round, make_grading_folder
from .simulated_people import Habit, decide_everything, grade_everything

TRIAL, FIRST, SECOND = "trial", "spring", "autumn"
ADJUDICATOR = "Flora"
JUDGE = "simulated:judge-model?noise=0.12&traits=severity:0.1"
# What the simulated candidates know; one of them has learnt something until autumn.
KNOWLEDGE = {"lantern": 0.85, "compass": 0.65, "branch": 0.5, "ember": 0.3}
LEARNT = {**KNOWLEDGE, "branch": 0.75}
# How the simulated graders grade: Dan at random half of the time, Ben severely, Cleo mildly.
HABITS = {
    "Ada": Habit(0.0, 0.04),
    "Ben": Habit(0.3, 0.04),
    "Cleo": Habit(-0.3, 0.04),
    "Dan": Habit(0.0, 0.9),
    "Eve": Habit(0.0, 0.08),
}
LEAVES, COMES = "Eve", "Gil"
HABITS_LATER = {**{name: one for name, one in HABITS.items() if name != LEAVES}, COMES: Habit(0.25, 0.08)}
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
    _write(project.folder / FILE, text.replace(f" {LEAVES},", f" {COMES},"))
    changed = Project.open(project.folder)
    with Bank.open(changed) as bank:
        done = bank.put(read_pairs(TEMPLATES / "library-autumn.jsonl", changed), "Ada, Ben and Cleo")
        bank.inspect([*done.new, *done.changed], "Hanna")
        bank.accept([*done.new, *done.changed], "Hanna")
    return changed


def make_round(
    project: Project,
    name: str,
    knowledge: Mapping[str, float],
    habits: Mapping[str, Habit],
    hold: Hold,
    *,
    kind: Kind = "evaluation",
    n: int | None = None,
    judged: bool = True,
) -> DemoRound:
    """Draw and collect a round, have it graded by people and a judge model, and its disputes decided."""
    with Bank.open(project) as bank:
        drawn = draw_round(project, bank, name, kind=kind, n=n, day=date.today())
    models = [f"simulated:{label}?knowledge={share}" for label, share in knowledge.items()]
    hold(launched(drawn, {"candidate": models}))
    make_grading_folder(drawn)
    with GradeStore.open(drawn.path) as store:
        grades = grade_everything(store, habits, project.file.seed)
        decided = decide_everything(store, ADJUDICATOR) if kind == "evaluation" else 0
        given = _judged(store, hold) if judged else 0
    return DemoRound(drawn.path, grades, decided, given)


def _judged(store: GradeStore, hold: Hold) -> int:
    launch = judge.launched(store, JUDGE, {"shown": "all"})
    hold(launch)
    return judge.enter_grades(store, launch, JUDGE).given


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None

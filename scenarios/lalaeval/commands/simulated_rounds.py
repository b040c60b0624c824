"""Rounds of `viva grade demo`: an example project from bank to grades, with simulated models and graders.

Graders have a given severity and noise, take assignments, and grade as on the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.grading.assignments import next_assignment, record_finished
from viva.grading.disputes import read_criteria, read_disputes
from viva.grading.records import Answer, Grader, Question
from viva.grading.store import GradeStore
from viva.orchestration.launch import Launch

from ..project import PROJECT_FILE, Project
from ..question_bank import Bank, read_pairs
from ..rounds import Round, RoundKind, make_round
from ..scenario import answer_level, biased_grade, expected_biased_grade, grade_at
from . import judge
from .collect import launch_collection
from .grading_folder import barred_graders, make_grading_folder
from .project import TEMPLATES


@dataclass(slots=True, frozen=True)
class GradingHabit:
    """Habit of a grader.

    `severity` is the probability that a grade is one too low (one too high if negative). `noise` is the probability
    that it is also off by one in either direction.
    """

    severity: float = 0.0
    noise: float = 0.05


def deserved_grade(question: Question, answer: Answer) -> float:
    """Return the grade that an answer deserves."""
    if answer.expected is not None:
        return answer.expected
    level = answer_level(answer.turns[-1].text, question.standard_answer)
    return grade_at(level, [label.value for label in question.labels])


def simulate_grading(store: GradeStore, habits: Mapping[str, GradingHabit], seed: int) -> int:
    """Let these graders take assignments in turn and grade until none is left; return the number of grades."""
    graders = {grader.name: grader for grader in store.graders()}
    questions = {question.number: question for question in store.questions()}
    waiting = [graders[name] for name in habits if graders[name].state == "active"]
    count = 0
    with store.batch():
        while waiting:
            for grader in list(waiting):
                assignment = next_assignment(store, grader)
                if assignment is None:
                    waiting.remove(grader)
                    continue
                count += _grade_page(store, grader, questions[assignment.question], habits[grader.name], seed)
                record_finished(store, grader, assignment.question)
    return count


def _grade_page(store: GradeStore, grader: Grader, question: Question, habit: GradingHabit, seed: int) -> int:
    allowed = [label.value for label in question.labels]
    for answer in question.answers:
        draws = seeds.draws(seed, "grader", grader.name, answer.id)
        value = biased_grade(deserved_grade(question, answer), allowed, habit.severity, habit.noise, draws)
        store.grade(grader.number, answer.id, value, submission=f"simulated/{grader.name}/{answer.id}")
    return len(question.answers)


def simulate_decisions(store: GradeStore, adjudicator: str) -> int:
    """Let an adjudicator decide every disputed answer correctly; return the number of decisions."""
    grader = store.grader(adjudicator)
    answers = {answer.id: (question, answer) for question in store.questions() for answer in question.answers}
    disputed = read_disputes(store, read_criteria(store.meta("about"))).disputed
    with store.batch():
        for dispute in disputed:
            question, answer = answers[dispute.answer]
            store.decide(
                answer.id, grader.number, deserved_grade(question, answer), "compared with the standard answer"
            )
    return len(disputed)


def deserved_means(questions: Iterable[Question], weights: Mapping[str, float]) -> dict[str, float]:
    """Return each candidate's true grade in per cent of the highest, weighted over dimensions."""
    sums: dict[str, dict[str, list[float]]] = {}
    for question in questions:
        if question.gold:
            continue
        for answer in question.answers:
            both = sums.setdefault(answer.candidate, {}).setdefault(question.dimension, [0.0, 0.0])
            both[0] += deserved_grade(question, answer)
            both[1] += question.top
    return {
        candidate: 100
        * sum(weights[name] * earned / best for name, (earned, best) in by_dimension.items())
        / sum(weights[name] for name in by_dimension)
        for candidate, by_dimension in sums.items()
    }


def expected_severities(store: GradeStore, habits: Mapping[str, GradingHabit]) -> dict[str, float]:
    """Return each grader's expected severity.

    A severity is how far a grader's grades are below the mean of people's grades for the same answers, given the habits
    and all answers of the folder. Models are compared with people too.
    """
    graders = {grader.name: grader for grader in store.graders()}
    biases = {name: -_mean_bias(store, habit) for name, habit in habits.items()
            if name in graders and store.grades(grader=graders[name].number)}  # fmt: skip
    people = [value for name, value in biases.items() if graders[name].kind == "person"]
    return {name: value - sum(people) / len(people) for name, value in biases.items()}


def _mean_bias(store: GradeStore, habit: GradingHabit) -> float:
    """Return how far grades of this habit are above the deserved grades, on average."""
    deviations = []
    for question in store.questions():
        allowed = [label.value for label in question.labels]
        for answer in [] if question.gold else question.answers:
            true = deserved_grade(question, answer)
            deviations.append(expected_biased_grade(true, allowed, habit.severity, habit.noise) - true)
    return sum(deviations) / len(deviations)


TRIAL, FIRST, SECOND_TRIAL, SECOND = "trial", "spring", "trial-autumn", "autumn"
ADJUDICATOR = "Flora"
JUDGE, JUDGE_HABIT = "simulated:judge-model?noise=0.12&traits=severity:0.1", GradingHabit(0.1, 0.12)
# Knowledge of the simulated candidates; one of them learns something until autumn.
KNOWLEDGE = {"lantern": 0.85, "compass": 0.65, "branch": 0.5, "ember": 0.3}
KNOWLEDGE_LATER = {**KNOWLEDGE, "branch": 0.75}
_TRIAL_KNOWLEDGE = {"lantern": 0.85, "compass": 0.65, "ember": 0.3}
_TRIAL_QUESTIONS = 6  # the evaluations get all other questions
# Habits of the simulated graders: Ben is severe, Cleo mild, Dan almost random until he is trained.
HABITS = {
    "Ada": GradingHabit(0.0, 0.04),
    "Ben": GradingHabit(0.3, 0.04),
    "Cleo": GradingHabit(-0.3, 0.04),
    "Dan": GradingHabit(0.0, 0.9),
    "Eve": GradingHabit(0.0, 0.08),
}
_LEAVING_GRADER, _NEW_GRADER = "Eve", "Gil"
HABITS_LATER = {
    **{name: habit for name, habit in HABITS.items() if name != _LEAVING_GRADER},
    "Dan": GradingHabit(0.0, 0.1),
    _NEW_GRADER: GradingHabit(0.15, 0.04),
}
RunLaunch = Callable[[Launch], None]


@dataclass(slots=True, frozen=True)
class DemoRound:
    """Graded round: its folder, and its numbers of grades, decided disputes and verdicts of the judge."""

    path: Path
    grades: int
    decided: int
    judged: int


def make_project(folder: Path) -> Project:
    """Create the example project with its bank in a new folder.

    Raises:
        ConfigurationError: The folder contains a project already, or cannot be created.
    """
    if (folder / PROJECT_FILE).exists():
        raise ConfigurationError(f"{folder}: already contains a project; choose another folder with --out")
    _write(folder / PROJECT_FILE, (TEMPLATES / "library.yaml").read_text(encoding="utf-8"))
    project = Project.open(folder)
    with Bank.open(project) as bank:
        bank.put(read_pairs(TEMPLATES / "library.jsonl", project), "Ada, Ben and Cleo")
        names = [entry.pair.id for entry in bank.entries()]
        reasons = {"ghost": "has no source", "loan-period-again": "asks what loan-period asks"}
        bank.inspect([name for name in names if name not in reasons], "Hanna")
        for name, reason in reasons.items():
            bank.return_for_revision([name], "Hanna", reason)
        bank.accept([entry.pair.id for entry in bank.entries("inspected")], "Hanna")
    return project


def change_project(project: Project) -> Project:
    """Apply the changes until autumn: new fees in questions and standard answers, a new question, and a new grader."""
    text = (project.folder / PROJECT_FILE).read_text(encoding="utf-8")
    _write(project.folder / PROJECT_FILE, text.replace(f" {_LEAVING_GRADER},", f" {_NEW_GRADER},"))
    changed = Project.open(project.folder)
    with Bank.open(changed) as bank:
        result = bank.put(read_pairs(TEMPLATES / "library-autumn.jsonl", changed), "Ada, Ben and Cleo")
        bank.inspect([*result.new, *result.changed], "Hanna")
        bank.accept([*result.new, *result.changed], "Hanna")
    return changed


def make_trial(project: Project, name: str, habits: Mapping[str, GradingHabit], run_launch: RunLaunch) -> DemoRound:
    """Make a trial round: every grader grades everything, and nothing is decided."""
    round_ = _collect_answers(
        project, name, _TRIAL_KNOWLEDGE, run_launch, kind="trial", seed=project.file.seed + 1, n=_TRIAL_QUESTIONS
    )
    make_grading_folder(round_)
    with GradeStore.open(round_.path) as store:
        return DemoRound(round_.path, simulate_grading(store, habits, project.file.seed), 0, 0)


def make_evaluation(
    project: Project,
    name: str,
    knowledge: Mapping[str, float],
    habits: Mapping[str, GradingHabit],
    run_launch: RunLaunch,
) -> DemoRound:
    """Make an evaluation: graders who passed the gate and a judge model grade it, and its disputes are decided."""
    round_ = _collect_answers(project, name, knowledge, run_launch)
    make_grading_folder(round_, barred_graders(project))
    with GradeStore.open(round_.path) as store:
        grades = simulate_grading(store, habits, project.file.seed)
        launch = judge.launch_judging(store, JUDGE, {"shown": "all"})
        run_launch(launch)
        judged = judge.enter_grades(store, launch, JUDGE)
        return DemoRound(round_.path, grades, simulate_decisions(store, ADJUDICATOR), judged.entered)


def _collect_answers(
    project: Project,
    name: str,
    knowledge: Mapping[str, float],
    run_launch: RunLaunch,
    *,
    kind: RoundKind = "evaluation",
    seed: int | None = None,
    n: int | None = None,
) -> Round:
    with Bank.open(project) as bank:
        round_ = make_round(project, bank, name, kind=kind, seed=seed, n=n, day=date.today())
    models = [f"simulated:{label}?knowledge={level}" for label, level in knowledge.items()]
    run_launch(launch_collection(round_, {"candidate": models}))
    return round_


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None

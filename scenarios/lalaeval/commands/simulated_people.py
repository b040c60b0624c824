"""Simulated graders of stated severity and noise, for the demo: they take seats and grade as the pages let people do.

What each answer of a simulated candidate deserves is read from its words, so what a report should find is known. What
never belongs here: anything that a real grader's result could depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from viva.engine import seeds
from viva.orchestration.grading.disputed import criteria_of, disputes_of
from viva.orchestration.grading.records import Answer, Grader, Question
from viva.orchestration.grading.seats import next_seat, note_finished
from viva.orchestration.grading.store import GradeStore

from ..persona import expected_grade, grade_at, habitual_grade, level_of


@dataclass(slots=True, frozen=True)
class Habit:
    """How somebody grades: ``severity`` is the chance that a grade is one too low (too high where it is below 0),
    ``noise`` the chance of one too high or too low besides.
    """

    severity: float = 0.0
    noise: float = 0.05


def true_grade(question: Question, answer: Answer) -> float:
    """What an answer deserves."""
    if answer.expected is not None:
        return answer.expected
    level = level_of(answer.turns[-1].text, question.standard_answer)
    return grade_at(level, [label.value for label in question.labels])


def grade_everything(store: GradeStore, habits: Mapping[str, Habit], seed: int) -> int:
    """Have these graders take seats in turn and grade until none is left; how many grades they gave."""
    graders = {one.name: one for one in store.graders()}
    questions = {one.number: one for one in store.questions()}
    waiting = [graders[name] for name in habits if graders[name].state == "active"]
    count = 0
    with store.batch():
        while waiting:
            for grader in list(waiting):
                seat = next_seat(store, grader)
                if seat is None:
                    waiting.remove(grader)
                    continue
                count += _grade_page(store, grader, questions[seat.question], habits[grader.name], seed)
                note_finished(store, grader, seat.question)
    return count


def _grade_page(store: GradeStore, grader: Grader, question: Question, habit: Habit, seed: int) -> int:
    allowed = [label.value for label in question.labels]
    for answer in question.answers:
        draws = seeds.draws(seed, "grader", grader.name, answer.id)
        value = habitual_grade(true_grade(question, answer), allowed, habit.severity, habit.noise, draws)
        store.grade(grader.number, answer.id, value, submission=f"simulated/{grader.name}/{answer.id}")
    return len(question.answers)


def decide_everything(store: GradeStore, adjudicator: str) -> int:
    """Have an adjudicator decide every disputed answer as it deserves; how many there were."""
    grader = store.grader(adjudicator)
    answers = {answer.id: (question, answer) for question in store.questions() for answer in question.answers}
    disputed = disputes_of(store, criteria_of(store.meta("about"))).disputed
    with store.batch():
        for one in disputed:
            question, answer = answers[one.answer]
            store.decide(answer.id, grader.number, true_grade(question, answer), "compared with the standard answer")
    return len(disputed)


def true_means(questions: Iterable[Question], weights: Mapping[str, float]) -> dict[str, float]:
    """What each candidate deserves: its true grades as a share of the highest in %, weighted over dimensions."""
    sums: dict[str, dict[str, list[float]]] = {}
    for question in questions:
        if question.gold:
            continue
        for answer in question.answers:
            both = sums.setdefault(answer.candidate, {}).setdefault(question.dimension, [0.0, 0.0])
            both[0] += true_grade(question, answer)
            both[1] += question.top
    return {
        candidate: 100
        * sum(weights[name] * given / best for name, (given, best) in by_dimension.items())
        / sum(weights[name] for name in by_dimension)
        for candidate, by_dimension in sums.items()
    }


def true_severities(store: GradeStore, habits: Mapping[str, Habit]) -> dict[str, float]:
    """By grader who graded: how many grades less they give than the mean of the people would give to the same answers,
    as their habits have it over all answers of the folder. Graders that are models are measured against people too.
    """
    graders = {one.name: one for one in store.graders()}
    less = {name: -_mean_off(store, habit) for name, habit in habits.items()
            if name in graders and store.grades(grader=graders[name].number)}  # fmt: skip
    people = [value for name, value in less.items() if graders[name].kind == "person"]
    return {name: value - sum(people) / len(people) for name, value in less.items()}


def _mean_off(store: GradeStore, habit: Habit) -> float:
    """How far grades of this habit are above what the folder's answers deserve, on average."""
    off = []
    for question in store.questions():
        allowed = [label.value for label in question.labels]
        for answer in [] if question.gold else question.answers:
            true = true_grade(question, answer)
            off.append(expected_grade(true, allowed, habit.severity, habit.noise) - true)
    return sum(off) / len(off)

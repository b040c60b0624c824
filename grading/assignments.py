"""Assignments of questions to graders, claimed one at a time so that an overlap is never exceeded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from viva.engine import seeds

from .records import Grader, Progress
from .store import GradeStore

LAPSE_SECONDS = 1800.0
_GOLD_EVERY = 5  # one of this many questions is a gold question, while this grader has gold questions left

# Questions that this grader has no assignment for, with their counts of assignments. Lapsed ones are deleted before.
_OPEN_QUESTIONS = """
select q.number, q.gold, count(s.seat) as taken from questions q left join seats s on s.question = q.number
where q.invalid = '' and not exists (select 1 from seats o where o.question = q.number and o.grader = ?)
group by q.number having q.overlap is null or taken < q.overlap
"""
_DUE_QUESTIONS = """
with due as (select number from graders where state = 'active' and role = 'grader' and kind = 'person')
select coalesce(sum(coalesce(q.overlap, (select count(*) from due) + (
    select count(*) from seats s where s.question = q.number and s.grader not in due))), 0)
from questions q where q.gold = 0 and q.invalid = ''
"""
_DELETE_LAPSED = """
delete from seats where finished is null and claimed < ? and grader != ? and not exists (
    select 1 from grades g join answers a on a.id = g.answer
    where a.question = seats.question and g.grader = seats.grader)
"""


@dataclass(slots=True, frozen=True)
class Assignment:
    """Assignment of a question to a grader. `finished`: this grader has graded every answer."""

    question: int
    finished: bool


def assignments_of(store: GradeStore, grader: Grader) -> list[Assignment]:
    """Return a grader's assignments in the order in which they were claimed, without those of invalid questions."""
    rows = store.connection.execute(
        "select question, finished is not null from seats join questions on number = question "
        "where grader = ? and invalid = '' order by claimed, question",
        (grader.number,),
    )
    return [Assignment(row[0], bool(row[1])) for row in rows]


def next_assignment(store: GradeStore, grader: Grader, *, excluded: Collection[int] = ()) -> Assignment | None:
    """Return a grader's begun assignment, else a newly claimed one; None if no question remains.

    A grader who is not active gets none.
    """
    if grader.state != "active":
        return None
    unfinished = next((assignment for assignment in assignments_of(store, grader) if not assignment.finished), None)
    return unfinished or claim_assignment(store, grader, excluded=excluded)


def claim_assignment(store: GradeStore, grader: Grader, *, excluded: Collection[int] = ()) -> Assignment | None:
    """Claim an assignment of a question that this grader does not have yet; return None if there is no such question.

    Questions that other graders have begun come first, so that questions are completed early; a hash breaks ties.
    Questions in `excluded` are not assigned.
    """
    if grader.state != "active":
        return None
    with store.batch():
        now = store.clock()
        store.connection.execute(_DELETE_LAPSED, (now - LAPSE_SECONDS, grader.number))
        rows = store.connection.execute(_OPEN_QUESTIONS, (grader.number,)).fetchall()
        rows = [row for row in rows if row[0] not in excluded]
        if not rows:
            return None
        gold_now = len(assignments_of(store, grader)) % _GOLD_EVERY == _GOLD_EVERY - 1
        seed = store.meta("seed")

        def rank(row: tuple[int, int, int]) -> tuple[bool, int, float]:
            number, gold, claims = row
            return bool(gold) != gold_now, 0 if gold else -claims, seeds.uniform(seed, "seat", grader.number, number)

        return _insert_assignment(store, grader, min(rows, key=rank)[0])


def reopen_assignment(store: GradeStore, grader: Grader, question: int) -> Assignment:
    """Return a grader's assignment of a question; add it again if it is gone. Finished work is kept."""
    with store.batch():
        existing = next(
            (assignment for assignment in assignments_of(store, grader) if assignment.question == question), None
        )
        return existing or _insert_assignment(store, grader, question)


def _insert_assignment(store: GradeStore, grader: Grader, question: int) -> Assignment:
    taken_slots = {row[0] for row in store.connection.execute("select seat from seats where question = ?", (question,))}
    free = next(slot for slot in range(len(taken_slots) + 1) if slot not in taken_slots)
    store.connection.execute(
        "insert into seats values (?, ?, ?, ?, null)", (question, free, grader.number, store.clock())
    )
    return Assignment(question, False)


def record_finished(store: GradeStore, grader: Grader, question: int) -> bool:
    """Record whether a grader has graded every answer of a question; return True if so."""
    [(missing,)] = store.connection.execute(
        "select count(*) from answers a left join grades g on g.answer = a.id and g.grader = ? "
        "where a.question = ? and g.value is null",
        (grader.number, question),
    )
    with store.batch():
        store.connection.execute(
            "update seats set finished = case when ? then null else coalesce(finished, ?) end "
            "where question = ? and grader = ?",
            (missing, store.clock(), question, grader.number),
        )
    return not missing


def grader_progress(store: GradeStore, grader: Grader) -> Progress:
    """Return a grader's progress; `left` counts the questions that this grader can still grade."""
    assignments = assignments_of(store, grader)
    finished = sum(assignment.finished for assignment in assignments)
    remaining = len(store.connection.execute(_OPEN_QUESTIONS, (grader.number,)).fetchall())
    return Progress(finished, len(assignments) - finished, remaining)


def overall_progress(store: GradeStore) -> Progress:
    """Return the progress of all assignments: finished, begun, and open; without gold questions.

    A question without an overlap, as in a trial round, has one assignment for every active person who grades, besides
    those that other graders have claimed.
    """
    [(finished, begun)] = store.connection.execute(
        "select count(s.finished), count(*) - count(s.finished) from seats s join questions q on q.number = s.question "
        "where q.gold = 0 and q.invalid = ''"
    )
    [(due,)] = store.connection.execute(_DUE_QUESTIONS)
    return Progress(finished, begun, max(0, due - finished - begun))

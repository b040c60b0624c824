"""What adjudicators decide, and seats that are kept, put off, left out and regained."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.grading.assignments import LAPSE_SECONDS, assignments_of, claim_assignment, next_assignment, reopen_assignment
from viva.grading.disputes import read_criteria, read_disputes
from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore

LABELS = [Label(value, "") for value in (0.0, 1.0, 2.0, 3.0)]


class _Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def _store(folder: Path, count: int = 3, overlap: int = 3) -> GradeStore:
    questions = [
        Question(f"q{n}", "?", LABELS, [Answer("A", [Turn("assistant", "a")])], overlap=overlap) for n in range(count)
    ]
    return GradeStore.create(folder / "folder", questions, title="t", clock=_Clock())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GradeStore]:
    with _store(tmp_path) as made:
        yield made


@settings(max_examples=40)  # each makes a file
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=7), st.booleans())
def test_an_answer_is_in_dispute_where_its_valid_grades_disagree(grades: list[tuple[int, bool]], wide: bool) -> None:
    rule = read_criteria({"rules": {"wrong": 1, "question": "spread" if wide else "halves", "distance": 2}})
    with tempfile.TemporaryDirectory() as folder, _store(Path(folder), count=1) as store:
        answer = store.question(1).answers[0].id
        for number, (value, valid) in enumerate(grades):
            grader = store.add_grader(f"g{number}").number
            store.grade(grader, answer, value, submission=str(number))
            if not valid:
                store.invalidate(answer, grader, "admin", "asleep")
        found = read_disputes(store, rule)
        counted = [value for value, valid in grades if valid]
        right = [value > 1 for value in counted]
        few, many = sorted([sum(right), len(right) - sum(right)])
        alone, halves = few == 1 and many > 0, few > 1 and many - few < 2
        apart = alone or (bool(counted) and max(counted) - min(counted) >= 2 if wide else halves)
        assert [one.answer for one in found.disputed] == ([answer] if apart else [])
        assert found.agreed == (not apart and len(counted) > 1)
        assert found.single == (len(counted) == 1)
        if apart:
            assert found.disputed[0].complete == (len(grades) >= 3), "invalid grades were work too"


def test_invalid_questions_and_gold_ones_are_never_in_dispute(store: GradeStore) -> None:
    store.add_questions(
        [Question("gold", "?", LABELS, [Answer("A", [Turn("assistant", "a")])], overlap=None, gold=True)]
    )
    graders = [store.add_grader(name).number for name in "ab"]
    for question in store.questions():
        for grader, value in zip(graders, (0, 3), strict=True):
            store.grade(grader, question.answers[0].id, value, submission=f"{question.number} {grader}")
    store.invalidate_question(2, "admin", "wrong standard answer")
    assert [one.question for one in read_disputes(store, read_criteria(None)).disputed] == [1, 3]


def test_a_question_that_counts_no_more_holds_nobody_up(store: GradeStore) -> None:
    grader = store.add_grader("a")
    first = next_assignment(store, grader)
    assert first is not None
    store.invalidate_question(first.question, "admin", "unclear")
    second = next_assignment(store, grader)
    assert second is not None
    assert second.question != first.question
    assert assignments_of(store, grader) == [second]


def test_questions_are_put_off_or_left_out(store: GradeStore) -> None:
    grader = store.add_grader("a")
    first = next_assignment(store, grader)
    assert first is not None
    [left_out, *rest] = {1, 2, 3} - {first.question}
    second = claim_assignment(store, grader, excluded=[left_out])
    assert second is not None
    assert [second.question] == rest
    assert next_assignment(store, grader) == first, "what was put off comes again"
    assert claim_assignment(store, grader, excluded=range(1, 4)) is None


def test_a_seat_that_lapsed_is_regained_even_where_all_are_taken(tmp_path: Path) -> None:
    with _store(tmp_path, count=1, overlap=1) as store:
        clock = store.clock
        assert isinstance(clock, _Clock)
        slow, quick = store.add_grader("slow"), store.add_grader("quick")
        assert next_assignment(store, slow) is not None
        clock.now += LAPSE_SECONDS + 1
        assert next_assignment(store, quick) is not None
        assert next_assignment(store, slow) is None
        assert reopen_assignment(store, slow, 1).question == 1
        assert reopen_assignment(store, slow, 1) == assignments_of(store, slow)[0]
        assert next_assignment(store, store.add_grader("third")) is None


def test_a_commit_that_fails_leaves_no_transaction_open(store: GradeStore) -> None:
    grader = store.add_grader("a").number
    answer = store.question(1).answers[0].id
    [(pages,)] = store.connection.execute("pragma page_count")
    store.connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.grade(grader, answer, 1, "x" * 1_000_000, submission="one")
    assert not store.connection.in_transaction
    store.connection.execute("pragma max_page_count = 1000000")
    store.grade(grader, answer, 2, submission="two")
    assert [grade.value for grade in store.grades()] == [2]

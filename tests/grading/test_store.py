"""The grading folder: seats are never shared, nothing that was given is lost or doubled, and blind is blind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.grading.assignments import (
    LAPSE_SECONDS,
    assignments_of,
    grader_progress,
    next_assignment,
    overall_progress,
    record_finished,
)
from viva.grading.disputes import read_grade_table
from viva.grading.records import Answer, Label, Progress, Question, Turn
from viva.grading.store import GradeStore

LABELS = [Label(value, "") for value in (0.0, 1.0, 2.0, 3.0)]


class _Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def _question(number: int, *, overlap: int | None = 2, gold: bool = False, candidates: str = "ABC") -> Question:
    answers = [Answer(name, [Turn("assistant", f"{name} on {number}")]) for name in candidates]
    return Question(f"q{number}", f"What is {number}?", LABELS, answers, overlap=overlap, gold=gold)


def _store(folder: Path, clock: _Clock, count: int = 4, gold: int = 0, overlap: int = 2, seed: int = 0) -> GradeStore:
    questions = [_question(number, overlap=overlap) for number in range(count)]
    questions += [_question(100 + number, overlap=None, gold=True) for number in range(gold)]
    return GradeStore.create(folder, questions, title="t", seed=seed, clock=clock)


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def store(tmp_path: Path, clock: _Clock) -> Iterator[GradeStore]:
    with _store(tmp_path / "folder", clock) as made:
        yield made


_DEEDS = st.tuples(st.sampled_from(["claim", "grade", "pause", "resume", "retire", "wait", "again"]),
                   st.integers(0, 4), st.integers(0, 3))  # fmt: skip


@settings(max_examples=50)  # each makes a file
@given(st.lists(_DEEDS, max_size=60), st.integers(1, 3))
def test_seats_are_never_shared_and_the_last_submission_counts(deeds: list[tuple[str, int, int]], overlap: int) -> None:
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, _store(Path(folder) / "g", clock, overlap=overlap, gold=1) as store:
        names = [store.add_grader(f"g{number}").name for number in range(5)]
        last: dict[tuple[str, int], float] = {}
        sent: list[tuple[int, str, float, str]] = []
        for number, (deed, who, value) in enumerate(deeds):
            grader = store.grader(names[who])
            if deed in ("claim", "grade"):
                seat = next_assignment(store, grader)
                assert grader.state == "active" or seat is None
                if deed == "grade" and seat is not None:
                    for answer in store.question(seat.question).answers:
                        sent.append((grader.number, answer.id, float(value), f"{number} {answer.id}"))
                        store.grade(*sent[-1][:3], submission=sent[-1][3])
                        last[answer.id, grader.number] = float(value)
                    assert record_finished(store, grader, seat.question)
            elif deed == "wait":
                clock.now += LAPSE_SECONDS
            elif deed == "again" and sent:  # a form that is sent once more, later
                old = sent[value % len(sent)]
                store.grade(*old[:3], submission=old[3])
            elif deed in ("pause", "resume", "retire"):
                states = {"pause": "paused", "resume": "active", "retire": "retired"}
                store.set_state(grader.number, states[deed], "test")  # type: ignore[arg-type]
            for question, taken, wanted in store.connection.execute(
                "select q.number, count(s.seat), q.overlap from questions q left join seats s on s.question = q.number "
                "group by q.number"
            ):
                assert wanted is None or taken <= wanted, question
        assert {(one.answer, one.grader): one.value for one in store.grades()} == last


def test_two_graders_cannot_take_the_last_seat(store: GradeStore, clock: _Clock) -> None:
    people = [store.add_grader(f"g{number}") for number in range(3)]
    with GradeStore.open(store.folder, clock) as other:
        claimed = []
        for number in range(4):
            for place, person in enumerate(people):
                seat = next_assignment(other if place % 2 else store, person)
                if seat is not None:
                    claimed.append((seat.question, person.number))
                    for answer in store.question(seat.question).answers:
                        store.grade(person.number, answer.id, 1.0, submission=f"{number} {person.number} {answer.id}")
                    record_finished(store, person, seat.question)
    assert len(claimed) == len(set(claimed)) == 8  # four questions for two graders each
    assert overall_progress(store).left == 0


def test_a_trial_has_a_seat_for_every_active_person_at_every_question(tmp_path: Path, clock: _Clock) -> None:
    trial = [_question(number, overlap=None) for number in range(3)]
    with GradeStore.create(tmp_path / "trial", [*trial, _question(9, overlap=None, gold=True)], title="t",
                           clock=clock) as store:  # fmt: skip
        ada, ben = store.add_grader("Ada"), store.add_grader("Ben")
        store.add_grader("Flora", role="adjudicator")
        store.add_grader("judge", kind="model", model="simulated:j")
        assert overall_progress(store) == Progress(0, 0, 6)
        seat = next_assignment(store, ada)
        assert seat is not None
        for answer in store.question(seat.question).answers:
            store.grade(ada.number, answer.id, 1.0, submission=answer.id)
        record_finished(store, ada, seat.question)
        next_assignment(store, ben)
        assert overall_progress(store) == Progress(1, 1, 4)
        store.set_state(ada.number, "paused", "gate")  # what Ada finished counts, and nothing more is due from her
        assert overall_progress(store) == Progress(1, 1, 2)


def test_a_claim_without_a_grade_lapses_and_one_with_a_grade_stays(store: GradeStore, clock: _Clock) -> None:
    first, second = store.add_grader("first"), store.add_grader("second")
    seats = {next_assignment(store, first), next_assignment(store, second)}
    assert len(seats) == 1, "both go on where the other has begun"
    begun = next(iter(seats))
    assert begun is not None
    store.grade(first.number, store.question(begun.question).answers[0].id, 2.0, submission="1")
    clock.now += LAPSE_SECONDS + 1
    third = store.add_grader("third")
    assert next_assignment(store, third) == begun, "the seat that lapsed"
    assert assignments_of(store, second) == []
    assert assignments_of(store, first) == [begun]


def test_a_retired_grader_gives_up_what_is_not_finished_and_keeps_the_grades(store: GradeStore) -> None:
    person = store.add_grader("person")
    seat = next_assignment(store, person)
    assert seat is not None
    store.grade(person.number, store.question(seat.question).answers[0].id, 3.0, submission="1")
    store.set_state(person.number, "retired", "admin")
    assert assignments_of(store, person) == []
    assert next_assignment(store, store.grader("person")) is None
    assert [one.value for one in store.grades()] == [3.0]
    assert "retired" in store.audit_log()[-1][2]


def test_gold_questions_are_for_everybody_and_count_in_no_figure(tmp_path: Path, clock: _Clock) -> None:
    with _store(tmp_path / "g", clock, count=8, gold=2, overlap=1) as store:
        people = [store.add_grader(f"g{number}") for number in range(2)]
        held: dict[int, list[bool]] = {}
        for person in people:
            while (seat := next_assignment(store, person)) is not None:
                question = store.question(seat.question)
                held.setdefault(person.number, []).append(question.gold)
                for answer in question.answers:
                    store.grade(person.number, answer.id, 1.0, submission=f"{person.number} {answer.id}")
                record_finished(store, person, seat.question)
        assert [sum(gold) for gold in held.values()] == [2, 2]
        assert held[people[0].number][4] is True, "every fifth question is a gold one"
        assert not any(name.startswith("q10") for name in read_grade_table(store).questions)
        assert grader_progress(store, people[0]).left == 0


def test_what_is_invalidated_stays_and_does_not_count(store: GradeStore) -> None:
    person = store.add_grader("person")
    first, second = store.question(1), store.question(2)
    for answer in (*first.answers, *second.answers):
        store.grade(person.number, answer.id, 2.0, submission=answer.id)
    store.invalidate(first.answers[0].id, person.number, "admin", "misread")
    store.invalidate_question(2, "admin", "two right answers")
    table = read_grade_table(store)
    assert len(table) == 2
    kept = {one.answer: one for one in store.grades()}
    assert kept[first.answers[0].id].value == 2.0
    assert kept[first.answers[0].id].invalid == "admin: misread"
    store.invalidate(first.answers[0].id, person.number, "admin", "")
    store.invalidate_question(2, "admin", "")
    assert len(read_grade_table(store)) == 6
    with pytest.raises(ConfigurationError, match="no such grade"):
        store.invalidate("nothing", person.number, "admin", "x")


def test_a_decision_takes_the_place_of_grades_and_leaves_them(store: GradeStore) -> None:
    people = [store.add_grader(f"g{number}") for number in range(3)]
    judge = store.add_grader("judge", role="adjudicator")
    answer = store.question(1).answers[0]
    for person, value in zip(people, (0.0, 3.0, 1.0), strict=True):
        store.grade(person.number, answer.id, value, submission=str(person.number))
    with pytest.raises(ConfigurationError, match="needs a reason"):
        store.decide(answer.id, judge.number, 2.0, " ")
    store.decide(answer.id, judge.number, 2.0, "the source says so")
    assert read_grade_table(store).values.tolist() == [2.0, 2.0, 2.0]
    assert sorted(read_grade_table(store, decided=False).values.tolist()) == [0.0, 1.0, 3.0]


def test_a_batch_is_kept_whole_and_a_failing_part_is_undone_alone(store: GradeStore) -> None:
    person, answer = store.add_grader("person"), store.question(1).answers[0].id
    with store.batch():
        store.grade(person.number, answer, 1.0, submission="1")
        with pytest.raises(ConfigurationError, match=r"expected one of 0, 1, 2, 3, found 9"):
            _both(store, (person.number, answer, 3.0), (person.number, answer, 9.0))
    assert [one.value for one in store.grades()] == [1.0]
    with pytest.raises(ConfigurationError, match="no such answer"):
        _both(store, (person.number, answer, 2.0), (person.number, "nothing", 2.0))
    assert [one.value for one in store.grades()] == [1.0]


def _both(store: GradeStore, *grades: tuple[int, str, float]) -> None:
    with store.batch():
        for number, grade in enumerate(grades):
            store.grade(*grade, submission=f"both {number}")


def test_blind_order_follows_from_the_seed_and_differs_by_question(tmp_path: Path, clock: _Clock) -> None:
    def orders(seed: int, name: str, candidates: str) -> list[list[str]]:
        questions = [_question(number, candidates=candidates) for number in range(30)]
        with GradeStore.create(tmp_path / name, questions, title="t", seed=seed, clock=clock) as store:
            return [[answer.candidate for answer in one.answers] for one in store.questions()]

    first = orders(1, "a", "ABCD")
    assert first == orders(1, "b", "DCBA"), "whatever order they came in"
    assert first != orders(2, "c", "ABCD")
    assert len({tuple(one) for one in first}) > 10


def test_folders_that_are_none_are_refused(tmp_path: Path, clock: _Clock) -> None:
    with pytest.raises(ConfigurationError, match=r"contains no grades\.sqlite"):
        GradeStore.open(tmp_path)
    (tmp_path / "grades.sqlite").write_text("nothing of the kind, but long enough to be read as a file of pages" * 20)
    with pytest.raises(ConfigurationError, match="cannot be read as grades"):
        GradeStore.open(tmp_path)
    with pytest.raises(ConfigurationError, match="is duplicated"):
        GradeStore.create(tmp_path / "twice", [_question(1), _question(1)], title="t", clock=clock)
    with pytest.raises(ConfigurationError, match="no question to grade"):
        GradeStore.create(tmp_path / "none", [], title="t", clock=clock)
    assert not (tmp_path / "twice" / "grades.sqlite").exists(), "the next try finds no folder in its way"


def test_halves_of_surrogate_pairs_are_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    half, mended = "a\ud83d b \U0001f600 \udc00", "a\ufffd b \U0001f600 \ufffd"
    turns = [Turn("assistant", half)]
    question = Question(half, half, [Label(0, half), Label(1, "")], [Answer("A", turns), Answer(half, turns, key=half)],
                        context=turns, standard_answer=half, principle=half, cluster=half)  # fmt: skip
    with GradeStore.create(tmp_path / "folder", [question], title=half, about={half: [half, 0.5]}) as store:
        [read] = store.questions()
        texts = [read.id, read.text, read.labels[0].meaning, read.context[0].text, read.standard_answer, read.cluster]
        assert [*texts, *(answer.turns[0].text for answer in read.answers)] == [mended] * 8
        assert sorted(answer.candidate for answer in read.answers) == ["A", mended]
        assert (store.meta("title"), store.meta("about")) == (mended, {mended: [mended, 0.5]})
        person = store.add_grader(half)
        assert store.grader(half) == person
        answer = read.answers[0].id
        grade = store.grade(person.number, answer, 1.0, half, submission=half)
        assert (grade.value, grade.comment) == (1.0, mended)
        store.decide(answer, person.number, 0.0, half)
        store.invalidate(answer, person.number, half, half)
        assert store.decisions()[answer].reason == mended
        assert store.grades()[0].invalid == f"{mended}: {mended}"
        assert store.audit_log()[-1][1] == mended

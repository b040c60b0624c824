"""Disputes of graders and questions: the vectorised formulas against the paper's, written down one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import grant
from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.disputes import find_disputes, grader_levels, question_levels
from viva.scoring.graders import GradeRow, GradeTable

ROWS = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from("ABC"), st.sampled_from("uvwxyz"),
        st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 3.0])),
    ),
    unique_by=lambda row: row[:3], max_size=70,
)  # fmt: skip
WEIGHTS = {"d/0": 2.0, "d/1": 1.0}


def dimension_of(question: int) -> str:
    return f"d/{question % 2}"


def table_of(rows: list[tuple[int, str, str, float | None]]) -> GradeTable:
    return GradeTable.from_rows(
        (GradeRow(dimension_of(k), f"k{k}", q, i, value, 3.0) for k, q, i, value in rows),
        dimensions=["d/0", "d/1"], candidates="ABC", graders="uvwxyz",
    )  # fmt: skip


def naive_f(grades: dict[tuple[int, str, str], float], i: str, k: int, q: str) -> int:
    if (k, q, i) not in grades:
        return 0
    own = grades[k, q, i]
    others = [value for (a, b, grader), value in grades.items() if (a, b) == (k, q) and grader != i]
    if not others:
        return 0
    if own > 0:
        return int(all(value == 0 for value in others))
    return int(all(value > 0 for value in others))


def naive_g(grades: dict[tuple[int, str, str], float], k: int, q: str) -> int:
    mine = [value for (a, b, _), value in grades.items() if (a, b) == (k, q)]
    sides = sorted([sum(value > 0 for value in mine), sum(value == 0 for value in mine)])
    if len(mine) % 2 == 0:
        return int(bool(mine) and sides[0] == sides[1])
    return int(sides[1] - sides[0] == 1 and sides[0] >= 2)


@given(ROWS)
def test_disputes_equal_a_naive_transcription(rows: list[tuple[int, str, str, float | None]]) -> None:
    grades = {(k, q, i): value for k, q, i, value in rows if value is not None}
    table = table_of(rows)
    flags = find_disputes(table)
    assert flags.rows.tolist() == [bool(naive_f(grades, i, k, q)) for k, q, i, _ in rows]
    answers = {(table.questions[a], table.candidates[b]): bool(g)
               for a, b, g in zip(flags.question, flags.candidate, flags.divided, strict=True)}  # fmt: skip
    assert answers == {(f"k{k}", q): bool(naive_g(grades, k, q)) for k, q, _ in grades}


@given(ROWS)
def test_levels_equal_a_naive_transcription(rows: list[tuple[int, str, str, float | None]]) -> None:
    grades = {(k, q, i): value for k, q, i, value in rows if value is not None}
    table = table_of(rows)
    flags = find_disputes(table)
    levels = grader_levels(table, flags, WEIGHTS)
    for at, i in enumerate(table.graders):
        shares = {}
        for j in WEIGHTS:
            graded = [(k, q) for k, q, grader in grades if grader == i and dimension_of(k) == j]
            if graded:
                shares[j] = sum(naive_f(grades, i, k, q) for k, q in graded) / len(graded)
        expected = sum(WEIGHTS[j] * share for j, share in shares.items()) / sum(WEIGHTS[j] for j in shares) if shares \
            else math.nan  # fmt: skip
        assert levels.level[at] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    found = question_levels(table, flags, DisputeCriteria(weights=(0.3, 0.7)))
    for at, name in enumerate(table.questions):
        k = int(name[1:])
        graders = {i for a, _, i in grades if a == k}
        if not graders:
            assert math.isnan(found.level[at])
            continue
        divided = sum(naive_g(grades, k, q) for q in {q for a, q, _ in grades if a == k})
        alone = sum(naive_f(grades, i, k, q) for a, q, i in grades if a == k)
        assert found.level[at] == pytest.approx(0.3 * divided + 0.7 * alone / len(graders), abs=1e-12)


@given(ROWS, st.randoms(use_true_random=False))
def test_order_and_names_of_graders_change_nothing(rows: list[tuple[int, str, str, float | None]], random) -> None:
    other = dict(zip("uvwxyz", random.sample("uvwxyz", 6), strict=True))
    shuffled = random.sample(rows, len(rows))
    renamed = [(k, q, other[i], value) for k, q, i, value in shuffled]
    first, second = table_of(rows), table_of(renamed)
    levels = [grader_levels(one, find_disputes(one), WEIGHTS).level for one in (first, second)]
    for at, i in enumerate("uvwxyz"):
        assert levels[0][at] == pytest.approx(levels[1]["uvwxyz".index(other[i])], abs=1e-12, nan_ok=True)


@given(ROWS)
@settings(max_examples=50)
def test_other_rules_equal_a_naive_transcription(rows: list[tuple[int, str, str, float | None]]) -> None:
    grades = {(k, q, i): value for k, q, i, value in rows if value is not None}
    rules = DisputeCriteria.from_rules({"grader": "apart", "question": "spread", "distance": 2})
    table = table_of(rows)
    flags = find_disputes(table, rules)
    for found, (k, q, i, value) in zip(flags.rows, rows, strict=True):
        others = [one for (a, b, grader), one in grades.items() if (a, b) == (k, q) and grader != i]
        apart = value is not None and bool(others) and abs(value - float(np.median(others))) >= 2
        assert found == apart
    for k, q, divided in zip(flags.question, flags.candidate, flags.divided, strict=True):
        mine = [one for (a, b, _), one in grades.items() if (f"k{a}", b) == (table.questions[k], "ABC"[q])]
        assert divided == (max(mine) - min(mine) >= 2)


@given(ROWS, st.sampled_from(["alone", "apart"]), st.sampled_from(["halves", "spread"]), st.sampled_from([0.0, 1.0]))
@settings(max_examples=50)
def test_one_answer_alone_is_in_dispute_as_it_is_in_a_table(
    rows: list[tuple[int, str, str, float | None]], grader: str, question: str, wrong: float
) -> None:
    criteria = DisputeCriteria.from_rules({"grader": grader, "question": question, "wrong": wrong, "distance": 1.5})
    table = table_of(rows)
    flags = find_disputes(table, criteria)
    for k, q, disputed in zip(flags.question, flags.candidate, flags.disputed, strict=True):
        mine = [value for a, b, _, value in rows if (f"k{a}", b) == (table.questions[k], "ABC"[q])]
        assert criteria.is_disputed([value for value in mine if value is not None]) == disputed


def test_three_graders_one_alone_and_five_in_halves() -> None:
    one_alone = find_disputes(table_of([(0, "A", "u", 0.0), (0, "A", "v", 2.0), (0, "A", "w", 3.0)]))
    assert one_alone.rows.tolist() == [True, False, False]
    assert one_alone.divided.tolist() == [False]
    assert one_alone.disputed.tolist() == [True]
    halves = find_disputes(table_of([(0, "A", i, value) for i, value in zip("uvwxy", (0.0, 0.0, 1.0, 2.0, 3.0))]))  # noqa: B905
    assert not halves.rows.any()
    assert halves.divided.tolist() == [True]


def test_a_users_file_decides(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text("def grader_dispute(grade, others):\n    return grade > max(others)\n")
    grant(file)
    criteria = DisputeCriteria().with_file(file)
    flags = find_disputes(table_of([(0, "A", "u", 3.0), (0, "A", "v", 2.0), (1, "A", "u", 3.0)]), criteria)
    assert flags.rows.tolist() == [True, False, False]
    assert flags.divided.tolist() == [False, False]
    assert [criteria.is_disputed(grades) for grades in ([3.0, 2.0], [2.0, 2.0], [3.0])] == [True, False, False]


def test_what_is_wrong_with_rules_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected alone or apart"):
        DisputeCriteria.from_rules({"grader": "loudest"})
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    grant(empty, tmp_path / "raising.py")
    with pytest.raises(ConfigurationError, match="expected a function grader_dispute"):
        DisputeCriteria().with_file(empty)
    raising = tmp_path / "raising.py"
    raising.write_text("def answer_dispute(grades):\n    return grades[9]\n")
    with pytest.raises(ConfigurationError, match=r"raising\.py.*IndexError.*raising\.py:2"):
        find_disputes(table_of([(0, "A", "u", 0.0), (0, "A", "v", 1.0)]), DisputeCriteria().with_file(raising))

"""Changes of grades between two rounds: the parts sum to the change, and are those of the paper's formula."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scenarios.lalaeval.candidate_grades import GradeSums, grade_candidates
from viva.scenarios.lalaeval.fluctuation import CHANGE_PARTS, Fluctuation, decompose_changes
from viva.scenarios.lalaeval.graded_round import Versions
from viva.scoring.graders import GradeRow, GradeTable

WEIGHTS = {"d/0": 2.0, "d/1": 1.0, "e/2": 1.5}
TOPS = {"d/0": 3.0, "d/1": 1.0, "e/2": 2.0}
Rows = list[tuple[int, str, int | None]]
ROWS = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from("uvwxy"), st.none() | st.integers(0, 3)),
    unique_by=lambda row: row[:2], max_size=30,
)  # fmt: skip
DIGESTS = st.lists(st.sampled_from("ab"), min_size=9, max_size=9)


def dimension_of(k: int) -> str:
    return list(WEIGHTS)[k % 3]


def table_of(rows: Rows) -> GradeTable:
    return GradeTable.from_rows(
        GradeRow(dimension_of(k), f"k{k}", "A", i, None if value is None else min(float(value), TOPS[dimension_of(k)]),
                 TOPS[dimension_of(k)])
        for k, i, value in rows
    )  # fmt: skip


def versions_of(questions: list[str], responses: list[str]) -> Versions:
    return Versions({f"k{k}": one for k, one in enumerate(questions)},
                    {f"k{k}": {"A": one} for k, one in enumerate(responses)})  # fmt: skip


def hand(rounds: tuple[Rows, Rows], versions: tuple[Versions, Versions], dimension: str) -> list[float] | None:
    """The four parts of one dimension, by the formula as it is written, grade by grade."""
    graded = [
        {(k, i): (min(value, TOPS[dimension]) / TOPS[dimension]) for k, i, value in rows
         if value is not None and dimension_of(k) == dimension}
        for rows in rounds
    ]  # fmt: skip
    everybody = [{i for _, i, value in rows if value is not None} for rows in rounds]
    if not all(graded):
        return None
    cells: list[dict[tuple[int, int], list[float]]] = [{at: [] for at in product(range(3), range(2))} for _ in range(2)]
    for side in (0, 1):
        for (k, i), value in graded[side].items():
            q = 0
            name = f"k{k}"
            asked = any(other == k for other, _ in graded[1 - side])
            if asked and versions[0].questions[name] == versions[1].questions[name]:
                q = 2 if versions[0].responses[name] == versions[1].responses[name] else 1
            same = (k, i) in graded[1 - side] if q else i in everybody[1 - side]
            cells[side][q, 0 if same else 1].append(value)

    def mean(side: int, q: int, p: int) -> float | None:
        inside = cells[side][q, p]
        return sum(inside) / len(inside) if inside else None

    def share_q(side: int, q: int) -> float:
        return sum(len(cells[side][q, p]) for p in (0, 1)) / len(graded[side])

    def share_p(side: int, q: int, p: int) -> float | None:
        whole = sum(len(cells[side][q, each]) for each in (0, 1))
        return len(cells[side][q, p]) / whole if whole else None

    parts = [0.0] * 4
    for q, p in product(range(3), range(2)):
        old, new = mean(0, q, p), mean(1, q, p)
        old_p, new_p = share_p(0, q, p), share_p(1, q, p)
        new = old if new is None else new
        new_p = old_p if new_p is None else new_p
        if new is None or new_p is None:
            continue  # nothing of it before, nothing after
        own = {0: 0, 1: 1}.get(q, 2 if p == 0 else 3)
        if old is not None and old_p is not None:
            parts[own] += share_q(0, q) * old_p * (new - old)
        parts[0] += (share_q(1, q) - share_q(0, q)) * new_p * new
        parts[3] += share_q(0, q) * (new_p - (old_p or 0.0)) * new if share_q(0, q) else 0.0
    return [100 * part for part in parts]


def found_of(rounds: tuple[Rows, Rows], versions: tuple[Versions, Versions]) -> dict[str, Fluctuation]:
    tables = table_of(rounds[0]), table_of(rounds[1])
    return {one.name: one for one in decompose_changes(tables, versions, WEIGHTS)}


@given(ROWS, ROWS, DIGESTS, DIGESTS, DIGESTS, DIGESTS)
@settings(max_examples=200)
def test_parts_sum_to_the_change_and_follow_the_formula(
    before: Rows, after: Rows, q1: list[str], q2: list[str], r1: list[str], r2: list[str]
) -> None:
    versions = versions_of(q1, r1), versions_of(q2, r2)
    found = found_of((before, after), versions)
    grades = [grade_candidates(GradeSums(table_of(rows), WEIGHTS)) for rows in (before, after)]
    for name, one in found.items():
        assert math.fsum(one.parts[part].value for part in CHANGE_PARTS) == pytest.approx(one.change.value, abs=1e-12)
        assert one.after - one.before == pytest.approx(one.change.value, abs=1e-12)
        # The change is that of the grades which the reports of both rounds show.
        for told, grade in zip((one.before, one.after), grades, strict=True):
            assert told == pytest.approx(grade[0].grade[name].value if name in grade[0].grade else told, abs=1e-9)
        if name in WEIGHTS:
            expected = hand((before, after), versions, name)
            assert [one.parts[part].value for part in CHANGE_PARTS] == pytest.approx(expected, abs=1e-9)
    for name in WEIGHTS:
        assert (hand((before, after), versions, name) is None) == (name not in found)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=9, max_size=9), DIGESTS, st.integers(0, 3))
def test_the_simplified_formula_holds_where_shares_stay(
    values: list[tuple[int, int, int, int]], responses: list[str], fresh: int
) -> None:
    # Grader u grades everything in both rounds, v only in the first and w only in the second: no share changes.
    changed = {0, 3, 6} if fresh == 3 else {fresh}
    before = [(k, i, one) for k in range(9) for i, one in zip("uv", values[k][:2], strict=True)]
    after = [(k, i, one) for k in range(9) for i, one in zip("uw", values[k][2:], strict=True)]
    versions = (versions_of(["a"] * 9, ["a"] * 9),
                versions_of(["b" if k in changed else "a" for k in range(9)], responses))  # fmt: skip
    for name, one in found_of((before, after), versions).items():
        if name not in WEIGHTS:
            continue
        expected = dict.fromkeys(CHANGE_PARTS, 0.0)
        for (question, grader), (old, new) in one.scenarios.items():
            assert old.share == pytest.approx(new.share, abs=1e-12)
            if old.average is not None and new.average is not None:
                part = {"different question": "question", "different response": "response"}.get(
                    question, "same_grader" if grader == "same grader" else "grader"
                )
                expected[part] += old.share * (new.average - old.average)  # type: ignore[index]
        assert {part: one.parts[part].value for part in CHANGE_PARTS} == pytest.approx(expected, abs=1e-9)


def test_each_cause_stands_in_its_part() -> None:
    before: Rows = [(k, i, 1) for k in (0, 3) for i in "uv"]
    same = versions_of(["a"] * 9, ["a"] * 9)
    by_cause = {
        "same_grader": ([(k, i, 2) for k in (0, 3) for i in "uv"], same),
        "grader": ([(k, i, 2) for k in (0, 3) for i in "wx"], same),
        "response": ([(k, i, 2) for k in (0, 3) for i in "uv"], versions_of(["a"] * 9, ["b"] * 9)),
        "question": ([(k, i, 2) for k in (0, 3) for i in "uv"], versions_of(["b"] * 9, ["a"] * 9)),
    }
    for cause, (after, versions) in by_cause.items():
        one = found_of((before, after), (same, versions))["overall"]
        assert one.change.value == pytest.approx(100 / 3)
        assert {part: round(one.parts[part].value, 9) for part in CHANGE_PARTS} == {
            part: round(100 / 3, 9) if part == cause else 0.0 for part in CHANGE_PARTS
        }
    new_questions = found_of((before, [(6, i, 3) for i in "uv"]), (same, same))["overall"]
    assert new_questions.parts["question"].value == pytest.approx(200 / 3)


def test_a_dimension_that_appears_is_a_change_of_questions() -> None:
    same = versions_of(["a"] * 9, ["a"] * 9)
    before: Rows = [(k, i, 1) for k in (0, 3) for i in "uv"]
    one = found_of((before, [*before, *((1, i, 1) for i in "uv")]), (same, same))["overall"]
    assert one.before == pytest.approx(100 / 3)
    assert one.after == pytest.approx((2 * 100 / 3 + 100) / 3)
    assert one.parts["question"].value == pytest.approx(one.change.value)


def test_a_tag_overrules_digests() -> None:
    rounds: tuple[Rows, Rows] = [(0, i, 1) for i in "uv"], [(0, i, 2) for i in "uv"]
    first = versions_of(["a"] * 9, ["a"] * 9)
    second = Versions(first.questions, {"k0": {"A": "the same in other words"}})
    assert found_of(rounds, (first, second))["overall"].parts["response"].value == pytest.approx(100 / 3)
    tagged = Versions(second.questions, second.responses, {("k0", "A"): True})
    assert found_of(rounds, (first, tagged))["overall"].parts["same_grader"].value == pytest.approx(100 / 3)


@given(ROWS, ROWS, st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_order_and_names_of_graders_change_no_part(before: Rows, after: Rows, random: Random) -> None:
    same = versions_of(["a"] * 9, ["a"] * 9)
    other = dict(zip("uvwxy", random.sample("uvwxy", 5), strict=True))
    changed = tuple(
        [(k, other[i], value) for k, i, value in random.sample(rows, len(rows))] for rows in (before, after)
    )
    first, second = found_of((before, after), (same, same)), found_of((changed[0], changed[1]), (same, same))
    assert first.keys() == second.keys()
    for name, one in first.items():
        for part in CHANGE_PARTS:
            for end in ("value", "low", "high"):
                expected = getattr(second[name].parts[part], end)
                assert getattr(one.parts[part], end) == pytest.approx(expected, abs=1e-7)


def test_intervals_cover_a_change_that_questions_vary_by() -> None:
    random, held = Random(5), 0
    versions = Versions({}, {f"k{k}": {"A": "r"} for k in range(90)})
    for _ in range(120):
        ease = [random.betavariate(2, 2) for _ in range(30)]
        rounds = tuple(
            [
                (3 * k, i, sum(random.random() < one * factor for _ in range(3)))
                for k, one in enumerate(ease)
                for i in "uvw"
            ]
            for factor in (1.0, 0.8)
        )
        part = found_of((rounds[0], rounds[1]), (versions, versions))["overall"].parts["same_grader"]
        assert part.low is not None
        assert part.high is not None
        held += part.low <= -10 <= part.high
    assert held >= 0.9 * 120

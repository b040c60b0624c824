"""Reading numbers, words, and yes or no from free answers, as a person reads them, and never one of two claims."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents.free_numbers import read_number
from viva.agents.free_words import read_words
from viva.agents.free_yes_no import read_yes_no
from viva.agents.written_numbers import Number, final_reference, reference_number
from viva.data.items import FREE_ANSWER, Item
from viva.scenarios.choice_questions import grade_free_answer
from viva.scoring.accuracy import normalize_answer, token_f1

DATA = Path(__file__).parent / "data" / "free_answers.jsonl"
CASES = [json.loads(line) for line in DATA.read_text().splitlines()]


def _reading(case: dict[str, Any]) -> Number | str | None:
    cut = case.get("cut", False)
    match case["kind"]:
        case "number":
            return read_number(case["text"], case.get("question", ""), cut=cut)
        case "yes_no":
            return read_yes_no(case["text"], case.get("question", ""), cut=cut)
    return read_words(case["text"], case["question"], cut=cut)


def _agrees(case: dict[str, Any], reading: Number | str | None) -> bool:
    if reading is None or case["reading"] is None:
        return reading is case["reading"]
    if isinstance(reading, Number):
        reference = reference_number(case["reading"])
        return reference is not None and reading.matches(reference)
    return normalize_answer(reading) == normalize_answer(case["reading"])


def test_answers_are_read_as_a_person_reads_them_and_no_number_is_read_wrong() -> None:
    counts: Counter[str] = Counter()
    missed, wrong = [], []
    for case in CASES:
        reading = _reading(case)
        counts[case["kind"]] += 1
        if not _agrees(case, reading):
            missed.append(case["text"])
            if isinstance(reading, Number):
                wrong.append((case["text"], str(reading), case["reading"]))
    assert wrong == []
    assert min(counts["number"], counts["words"] + counts["yes_no"]) >= 300
    assert len(missed) <= 0.01 * len(CASES), missed


def test_an_unclear_answer_is_no_number() -> None:
    unclear = [case for case in CASES if case["kind"] == "number" and case["reading"] is None]
    assert len(unclear) > 100
    assert [case["text"] for case in unclear if _reading(case) is not None] == []


CLAIMS = ("#### {}", "The answer is {}.", "Answer: {}", "\\boxed{{{}}}", "So she has {} left.", "**{}**", "2 + 3 = {}")


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-(10**9), 10**9),
    st.integers(0, 99),
    st.sampled_from(CLAIMS),
    st.booleans(),
    st.sampled_from(["", " ", "\n", "Let me think. "]),
)
def test_every_number_is_read_from_every_claim(whole: int, cents: int, claim: str, grouped: bool, before: str) -> None:
    number = f"{whole:,}" if grouped else str(whole)
    written = f"{number}.{cents:02d}" if cents else number
    reading = read_number(before + claim.format(written))
    assert reading is not None
    value = Fraction(f"{whole}.{cents:02d}") if whole or cents else Fraction(0)
    assert reading.value == (value if written[0] != "-" else -abs(value))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(CLAIMS[:4]), st.sampled_from(CLAIMS[:4]))
def test_two_claims_of_different_numbers_are_unclear(first: int, second: int, one: str, other: str) -> None:
    text = f"{one.format(first)}\n{other.format(second)}"
    assert (read_number(text) is None) == (first != second)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.booleans())
def test_no_text_is_an_error(text: str, cut: bool) -> None:
    read_number(text, "How many eggs, 3 or 4?", cut=cut)
    read_words(text, "Who wrote it, A or B?", cut=cut)
    read_yes_no(text, "Are both of the same kind?", cut=cut)


NUMBERS = [
    ("72", "72", True),
    ("72.0", "72", True),
    ("$1,000", "1000", True),
    ("3.33", "10/3", True),
    ("3.3", "10/3", False),
    ("33.333", "33.33", True),
    ("66.66", "66.67", False),
    ("50%", "0.5", True),
    ("50%", "50", True),
    ("3 dozen", "36", True),
    ("3 dozen", "3", True),
    ("0.5", "50", False),
    ("50 cents", "0.5", True),
    ("$5", "500", False),
    ("1/2", "0.5", True),
    ("-3", "3", False),
]


@case_table("answer, reference, equal", NUMBERS)
def test_numbers_are_compared_in_their_units_and_decimals(answer: str, reference: str, equal: bool) -> None:
    reading, right = read_number(answer), reference_number(reference)
    assert reading is not None
    assert right is not None
    assert reading.matches(right) == equal


GRADED = [
    ("After how many days has he 4 eggs left?", "#### 7", "After 7 full days, he will have 4 eggs left.", True),
    ("How many children were there?", "3", "There were 3 children, and their tickets cost $21 in total.", True),
    ("How many eggs are left?", "4", "After 7 full days, he will have 4 eggs left.", True),
    ("In which city was Ada born?", "Turin", "Ada Rossi was born in Turin in 1901, and died in Rome.", True),
    ("Which country was Ada born in?", "Italy", "Ada Rossi was born in Turin, Italy.", True),
    ("Are Ada and Bo of the same nationality?", "no", "They are not of the same nationality.", True),
    ("Is Ada taller than Bo?", "no", "Bo is taller.", True),
]


@case_table("question, reference, answer, right", GRADED)
def test_an_answer_is_read_as_one_to_its_question(question: str, reference: str, answer: str, right: bool) -> None:
    item = Item("1", question, [], FREE_ANSWER, reference=reference)
    assert grade_free_answer(answer, item)["right"] == right


def test_two_numbers_in_the_unit_of_the_question_are_unclear() -> None:
    assert read_number("She has 40 eggs and needs 50 eggs.", "How many eggs are there?") is None
    assert read_number("If you walk, you get 24 eggs. If you hurry, you get 25 eggs.", "How many eggs?") is None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 59),
    st.booleans(),
    st.sampled_from(["{}, or {}.", "{} ({}).", "It takes {}, i.e. {}."]),
)
def test_one_quantity_in_two_units_is_read_in_the_unit_asked_for(
    hours: int, minutes: int, first: bool, form: str
) -> None:
    units = (f"{60 * hours + minutes} minutes", f"{hours} hours and {minutes} minutes")
    reading = read_number(form.format(*units if first else reversed(units)), "How many minutes does it take?")
    assert reading is not None
    assert reading.value == 60 * hours + minutes


BESIDE = [
    ("How much money does Ann have left?", "Money left: $39\nTotal spent: $61", "39"),
    ("Bo has 5 hats. How many hats does Ann have?", "Ann has 48 hats and Bo has 16.", "48"),
    ("How many vans are needed?", "You need 9 vans: 8 vans hold 96 people, leaving 4 people behind.", "9"),
    ("How much does she save each month?", "She saves $965 each month. Over a year that is $11,580.", "965"),
    ("How many eggs are left?", "I cannot determine how many are left of the 12 eggs.", None),
]


@case_table("question, answer, number", BESIDE)
def test_a_number_beside_what_the_question_asks_is_not_the_answer(
    question: str, answer: str, number: str | None
) -> None:
    reading = read_number(answer, question)
    assert (None if reading is None else str(reading)) == number


REFERENCES = [
    ("48/2 = 24\n48+24 = 72\n#### 72", "72"),
    ("#### 1,200", "1200"),
    ("3/4", "3/4"),
    ("$12.50", "12.50"),
    ("two", "2"),
    ("Mercury", None),
    ("3,677 seated", None),
    ("1969 to 1974", None),
    ("yes", None),
]


@case_table("reference, number", REFERENCES)
def test_a_reference_is_a_number_only_if_it_is_nothing_else(reference: str, number: str | None) -> None:
    value = reference_number(reference)
    assert (None if value is None else str(value)) == number


def test_the_end_of_a_solution_is_its_answer() -> None:
    assert final_reference("48+24 = 72\n#### 72") == "72"
    assert final_reference("Mercury") == "Mercury"


# Values of the evaluation scripts of SQuAD and HotpotQA.
OVERLAPS = [
    ("The Beatles", "Beatles", 1.0),
    ("beatles!", "The Beatles", 1.0),
    ("Christopher Nolan", "Nolan", 2 / 3),
    ("the cat sat", "a cat sat down", 4 / 5),
    ("red red blue", "red blue blue", 2 / 3),
    ("London", "Paris", 0.0),
    ("yes", "yes", 1.0),
    ("yes it is", "yes", 0.0),
    ("no", "yes", 0.0),
    ("1,234", "1234", 1.0),
    ("U.S.", "US", 1.0),
    ("well-known", "well known", 0.0),
    ("1939–1945", "1939-1945", 1.0),
    ("Arthur’s Magazine", "Arthur's Magazine", 1.0),
    ("", "x", 0.0),
    ("the", "", 1.0),
]


@case_table("answer, reference, overlap", OVERLAPS)
def test_words_overlap_as_in_the_published_scripts(answer: str, reference: str, overlap: float) -> None:
    assert abs(token_f1(answer, reference) - overlap) < 1e-12
    assert abs(token_f1(reference, answer) - overlap) < 1e-12

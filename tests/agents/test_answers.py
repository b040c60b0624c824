"""Reading which choice an answer names: letters in the styles models use, whole texts of choices, and no guessing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents.answers import read_choice

WATER = ("evaporation", "condensation", "precipitation", "runoff")
A, B, C, D = range(4)

LETTERS = [
    ("B", B),
    ("A", A),
    ("D\n", D),
    ("B.", B),
    ("B)", B),
    ("(B)", B),
    ("[C]", C),
    ("**B**", B),
    ("**(B)**", B),
    ('"B"', B),
    ("'D'", D),
    ("A) evaporation", A),
    ("A. evaporation", A),
    ("A: the sun heats the lake", A),
    ("A, since the sun heats the lake", A),
    ("B: condensation", B),
    ("B - condensation", B),
    ("B – it cools", B),
    ("B\nbecause the air cools", B),
    ("B because the air cools", B),
    ("B is correct.", B),
    ("Answer: B", B),
    ("answer: C", C),
    ("Final Answer: B", B),
    ("## Answer: D", D),
    ("**Answer: B**", B),
    ("Answer:\nB", B),
    ("The answer is B", B),
    ("The answer is: C", C),
    ("The answer is (D).", D),
    ("The answer is **B. condensation**", B),
    ("The answer is B) condensation", B),
    ("The answer is A.", A),
    ("The answer is A", A),
    ("the correct answer is [D]", D),
    ("Correct answer: 'C'", C),
    ("The correct choice is **C**.", C),
    ("The best option would be D.", D),
    ("Option B", B),
    ("Option (C) fits best", C),
    ("Sure! The answer is B.", B),
    ("I'd pick (C).", C),
    ("It must be C.", C),
    ("I would say that it is\nD.", D),
    ("答案是B", B),
    ("答案：C", C),
    ("答案为D", D),
    ("正确答案是A。", A),
]

WORDS = [
    ("condensation", B),
    ("Condensation.", B),
    ("RUNOFF", D),
    ("It is precipitation that brings the water back.", C),
    ("A gas that cools turns into drops: condensation.", B),
    ("A lake loses water by evaporation.", A),
]

UNCLEAR = [
    "",
    " \n",
    "I do not know.",
    "None of these.",
    "A gas rises when heated.",
    "A student could ask this.",
    "evaporation or condensation",
    "Either B or D",
    "A or B",
    "A and C",
    "The answer is A or B",
    "It is (B) or (C).",
    "Of the choices A and B, neither",
    "E",
    "Answer: E",
    "The answer is Z.",
    "B2B sales",
    "I think so.",
]


@pytest.mark.parametrize(("answer", "choice"), LETTERS)
def test_a_letter_names_its_choice(answer: str, choice: int) -> None:
    assert read_choice(answer, WATER) == choice


@pytest.mark.parametrize(("answer", "choice"), WORDS)
def test_the_words_of_a_choice_name_it(answer: str, choice: int) -> None:
    assert read_choice(answer, WATER) == choice


@pytest.mark.parametrize("answer", UNCLEAR)
def test_an_unclear_answer_names_none(answer: str) -> None:
    assert read_choice(answer, WATER) is None


@pytest.mark.parametrize("mark", ["\ufeff", "\u200b", "\u2060", "\u200e", "\u202e"])
def test_line_1_characters_that_nobody_sees_hide_no_letter(mark: str) -> None:
    for answer in (
        f"{mark}B",
        f"<think>A?</think>{mark}B.",
        f"{mark}<think>A?</think>B",
        f"The answer is {mark}B{mark}.",
    ):
        assert read_choice(answer, WATER) == 1


def test_only_letters_of_choices_that_exist_count() -> None:
    assert read_choice("The answer is E.", [*WATER, "drought"]) == 4
    assert read_choice("The answer is D.", WATER[:3]) is None


@settings(deadline=None)
@given(st.lists(st.text("qwxyz", min_size=4, max_size=8), min_size=2, max_size=8), st.data())
def test_an_answer_in_the_form_that_is_asked_for_is_read(choices: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(choices) - 1))
    letter = chr(65 + index)
    form = data.draw(st.sampled_from(["{0}", "{0}. {1}", "({0}) {1}", "{0}) {1}", "{0}: {1}", "Answer: {0}. {1}"]))
    assert read_choice(form.format(letter, choices[index]), choices) == index


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), min_size=2, max_size=6))
def test_any_answer_names_a_choice_or_none(answer: str, choices: list[str]) -> None:
    found = read_choice(answer, choices)
    assert found is None or 0 <= found < len(choices)

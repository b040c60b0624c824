"""Reading which choice an answer names: letters in the styles models use, whole texts of choices, and no guessing."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents import choices
from viva.agents.choice_words import LEXICON, to_plain_lines
from viva.agents.choices import read_choice

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


@case_table(("answer", "choice"), LETTERS)
def test_a_letter_names_its_choice(answer: str, choice: int) -> None:
    assert read_choice(answer, WATER) == choice


@case_table(("answer", "choice"), WORDS)
def test_the_words_of_a_choice_name_it(answer: str, choice: int) -> None:
    assert read_choice(answer, WATER) == choice


@case_table("answer", UNCLEAR)
def test_an_unclear_answer_names_none(answer: str) -> None:
    assert read_choice(answer, WATER) is None


@case_table("mark", ["\ufeff", "\u200b", "\u2060", "\u200e", "\u202e"])
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


DATA = Path(__file__).parent / "data"
TABLE = [json.loads(line) for line in (DATA / "choice_answers.jsonl").read_text("utf-8").splitlines()]
PHRASES = json.loads((DATA / "choice_phrases.json").read_text("utf-8"))


def _scored(*, held_out: bool) -> tuple[list[str], list[str], int]:
    """Ids of answers of one half read as a wrong letter, and as none though they name one; how many there are.

    Answers whose id has an odd checksum were kept back when the reader was written, and stay so: where one of them
    shows a fault, new answers of its kind are added, and half of those are kept back too.
    """
    half = [one for one in TABLE if bool(zlib.crc32(one["id"].encode()) & 1) == held_out]
    read = {one["id"]: read_choice(one["text"], one["choices"]) for one in half}
    wanted = {one["id"]: None if one["reading"] is None else ord(one["reading"]) - 65 for one in half}
    wrong = [key for key, choice in read.items() if choice is not None and choice != wanted[key]]
    missed = [key for key, choice in read.items() if choice is None and wanted[key] is not None]
    return wrong, missed, len(half)


def test_answers_in_ten_languages_are_read_as_they_are_meant() -> None:
    assert len(TABLE) >= 400
    assert len({one["id"][:2] for one in TABLE}) == 10
    wrong, missed, _ = _scored(held_out=False)
    assert wrong == missed == []


def test_answers_kept_back_from_the_reader_are_read_as_they_are_meant() -> None:
    wrong, missed, count = _scored(held_out=True)
    assert (len(wrong) <= 6, len(missed) <= 13) == (True, True), (len(wrong), len(missed), count)


def _named(phrases: dict[str, list[str]], template: str, name: str, choice: int) -> str:
    return template.format(name.format("ABCD"[choice], phrases["choices"][choice])).strip()


@case_table("language", PHRASES)
def test_a_denied_choice_never_counts(language: str) -> None:
    phrases = PHRASES[language]
    texts = [_named(phrases, denial, name, 1) for denial in phrases["denials"] for name in phrases["names"]]
    assert [text for text in texts if read_choice(text, phrases["choices"]) is not None] == []


@case_table("language", PHRASES)
def test_the_choice_that_is_affirmed_after_others_were_denied_counts(language: str) -> None:
    phrases, chance = PHRASES[language], random.Random(language)
    unread = []
    for denial in phrases["denials"]:
        for statement in chance.sample(phrases["statements"], 12):
            denials = [denial, *chance.sample(phrases["denials"], 2)][: chance.choice((1, 3))]
            parts = [
                _named(phrases, one, chance.choice(phrases["names"]), choice)
                for one, choice in zip(denials, (0, 2, 3), strict=False)
            ]
            text = " ".join([*parts, statement.format(_named(phrases, "{}", chance.choice(phrases["names"]), 1))])
            if read_choice(text, phrases["choices"]) != 1:
                unread.append(text)
    assert unread == []


def test_no_word_stands_in_two_classes() -> None:
    words = [word for listed in LEXICON.values() for word in listed.split()]
    assert sorted(word for word in set(words) if words.count(word) > 1) == []


@case_table(
    ("text", "choice"),
    [
        ("The answer is A. Wait, no, B.", B),
        ("The answer is A. But the answer is B.", B),
        ("My first answer is A, my final answer is B.", B),
        ("The answer is A. The answer is B.", None),
        ("The answer is B. Actually, B is wrong.", None),
        ("The answer is B. That's wrong. A is a gas.", None),
        ("A, or rather B.", B),
        ("A, and perhaps B.", None),
        ("B is wrong. B is right.", B),
        ("A. No, B. A is wrong because it is hot.", B),
    ],
)
def test_a_correction_counts_and_a_contradiction_does_not(text: str, choice: int | None) -> None:
    assert read_choice(text, WATER) == choice


_WORDS = "the answer is not or and would option wait no it's as wrong right because choose moon 2 1."
_TRICKY = [*"aAbBcdiIe", *".,:;()/&-\n", *_WORDS.split()]


@given(st.lists(st.sampled_from(_TRICKY), max_size=12).map(" ".join))
def test_a_text_is_passed_over_only_if_it_mentions_no_choice(text: str) -> None:
    marked = choices._with_marks(to_plain_lines(text), ("sun", "moon", "two"))
    if not choices._may_mention(marked):
        assert not any(sentence.choices for sentence in choices._sentences(marked, ("sun", "moon", "two")))


@case_table(
    "answer",
    [
        "B is fout.",
        "Het is niet B.",
        "B jest błędne.",
        "B yanlış.",
        "ليس B.",
        "B خطأ.",
        "B गलत है।",
        "Det är inte B.",
        "B salah.",
    ],
)
def test_a_denial_in_further_languages_names_no_choice(answer: str) -> None:
    assert read_choice(answer, WATER) is None


@case_table(
    ("answer", "whole", "cut"),
    [
        ("We look for the process that makes drops. First, evaporation turns water into", A, None),
        ("A? The air gets", A, None),
        ("B. Condensation turns vapour into", B, B),
        ("The answer is B, since the vapour", B, B),
        ("B", B, B),
    ],
)
def test_of_a_text_that_was_cut_off_a_choice_that_is_only_spoken_of_does_not_count(
    answer: str, whole: int | None, cut: int | None
) -> None:
    assert (read_choice(answer, WATER), read_choice(answer, WATER, cut=True)) == (whole, cut)

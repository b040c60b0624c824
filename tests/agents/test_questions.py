"""Texts of an examiner that ask nothing (SmolLM2 wrote such), and questions that must pass in any language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.agents.questions import is_loop, question_fault
from viva.scenarios.simulated_knowledge import QUESTIONS

ITEM = "Which item can be used again in another science investigation?"
CHOICES = "A. latex gloves\nB. a glass test tube\nC. a mixture of water and sugar\nD. a paper towel used to clean up"
REPLY = "A. latex gloves\n\nThe correct answer is C. A glass test tube."
OPENING = f"The benchmark question:\n{ITEM}\n\nThe choices:\n{CHOICES}\n\nThe examinee answered:\n{REPLY}\n\nBegin now."


def fault(text: str, *, earlier: tuple[str, ...] = (), truncated: bool = False) -> str | None:
    return question_fault(text, prompts=[OPENING], replies=[REPLY], earlier=earlier, truncated=truncated)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REPLY, "echo"),
        (REPLY.lower().replace("\n\n", " "), "echo"),
        ("The examinee answered: A. latex gloves\n\nThe correct answer is C. A glass test tube.", "echo"),
        ("The examinee answered:\nB. a glass test tube\n\nThe examinee answered:", "echo"),
        ("D. a paper towel used to clean up", "echo"),
        ("The examinee's answer was incorrect. " * 12, "loop"),
        ("The examinee answered: A. 25%\n\nThe answer is: A. 25%\n\n" * 9, "loop"),
        ("The next question:\nWhich gas is released?\n\nThe examinee answered: A. It is wind.\n\n" * 4, "loop"),
        ("…", "no_question"),
        ("The examinee has not understood what a tube is for, and the", "cut_question"),
    ],
)
def test_what_asks_nothing_is_named(text: str, expected: str) -> None:
    assert fault(text, truncated=True) == expected
    assert fault(text) == (None if expected == "cut_question" else expected)


@pytest.mark.parametrize(
    "text",
    [
        *QUESTIONS,
        "Explain why a glass test tube can be used again in another science investigation",
        "Why a glass test tube",
        "What is the correct answer? The examinee answered: A. latex gloves",
        "请解释为什么玻璃试管可以再次使用",
        "玻璃试管为什么可以再次使用？",
        "유리 시험관을 다시 쓸 수 있는 이유를 설명하세요",
        "ガラスの試験管がもう一度使える理由を説明してください",
        "Erkläre, weshalb man ein Reagenzglas wieder benutzen kann",
        "Τι θα άλλαζε αν το γυαλί έλιωνε;",
        "ما الذي يجعل الزجاج قابلاً لإعادة الاستخدام؟",
    ],
)
def test_a_question_passes_in_any_form_and_language(text: str) -> None:
    assert fault(text) is None
    assert fault(f"{text} And the next part would be", truncated=True) in (None, "cut_question")


def test_the_same_request_may_be_made_again_but_not_the_same_statement() -> None:
    for question in QUESTIONS:
        assert fault(question, earlier=(question,)) is None
    assert fault("That is wrong", earlier=("That is  wrong.",)) == "repeated_question"


@given(st.text(max_size=400), st.booleans())
def test_a_question_mark_asks_unless_the_text_loops(text: str, truncated: bool) -> None:
    asked = f"Why would copper behave differently here, {text}?"
    assert fault(asked, truncated=truncated) == ("loop" if is_loop(asked) else None)


@given(st.lists(st.text(alphabet="abcdefgh", min_size=3, max_size=9), min_size=30, max_size=120, unique=True))
def test_a_text_of_different_words_is_no_loop(words: list[str]) -> None:
    assert not is_loop(" ".join(words))
    assert is_loop(" ".join(words * 3))

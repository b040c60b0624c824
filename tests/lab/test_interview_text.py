"""The turns of a lab interview: questions that can be read back, replies whose claims are true."""

from __future__ import annotations

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.lab.interview import followup, good_reply, parse_followup
from viva.lab.world import KINDS, Claim, Fact, Followup, Kind, World

WORLD = World()
DRAWS = st.floats(0, 1, exclude_max=True)


def _kinds(fact: Fact) -> list[Kind]:
    derived = WORLD.attribute(fact.attribute).kind == "derived"
    return [kind for kind in KINDS if derived or kind != "derived"]


@st.composite
def _questions(draw: st.DrawFn) -> tuple[Kind, Fact, bool, str]:
    fact = draw(st.sampled_from(WORLD.facts))
    kind, true_premise = draw(st.sampled_from(_kinds(fact))), draw(st.booleans())
    text = followup(WORLD, kind, fact.entity, fact.attribute, draw(DRAWS), true_premise=true_premise)
    return kind, fact, true_premise, text


@given(_questions())
def test_a_question_is_read_back_as_it_was_meant(asked: tuple[Kind, Fact, bool, str]) -> None:
    kind, fact, true_premise, text = asked
    found = parse_followup(WORLD, text)
    assert found is not None
    assert found[:3] == (kind, fact.entity, fact.attribute)
    assert (found.premise is not None) == (kind == "premise")
    assert kind != "premise" or (found.premise == fact.value) == true_premise
    assert parse_followup(WORLD, f"  {text.upper()}\n") == found
    assert WORLD.claims(text) == []


@given(_questions())
def test_the_truth_is_a_good_reply(asked: tuple[Kind, Fact, bool, str]) -> None:
    kind, fact, true_premise, text = asked
    found = parse_followup(WORLD, text)
    assert found is not None
    claims = WORLD.claims(good_reply(WORLD, found))
    assert claims[0] == Claim(fact.entity, fact.attribute, fact.value)
    assert all(WORLD.is_true(claim) for claim in claims)
    further = {"derived": 1, "premise": 0 if true_premise else 1}.get(kind, 0)
    assert len(claims) == 1 + further


def test_a_reply_says_what_is_believed() -> None:
    [fact] = [fact for fact in WORLD.facts if fact.attribute == "class"][:1]
    wrong = next(value for value in WORLD.attribute("class").values if value != fact.value)
    beliefs = {(fact.entity, "class"): wrong, (fact.entity, "family"): "lunite"}
    for kind in ("related", "derived", "contrast"):
        reply = good_reply(WORLD, Followup(kind, fact.entity, "class"), beliefs)
        assert WORLD.claims(reply)[0] == Claim(fact.entity, "class", wrong)
    agreeing = good_reply(WORLD, Followup("premise", fact.entity, "class", wrong), beliefs)
    assert WORLD.claims(agreeing) == [Claim(fact.entity, "class", wrong)]
    with pytest.raises(KeyError):
        good_reply(WORLD, Followup("related", fact.entity, "colour"), beliefs)


def test_a_contrast_offers_the_truth_in_either_place() -> None:
    fact = WORLD.fact(WORLD.entities[0], "texture")
    texts = [followup(WORLD, "contrast", fact.entity, "texture", draw / 400) for draw in range(400)]
    assert all(fact.value in text for text in texts)
    assert {text.rstrip("?").endswith(fact.value) for text in texts} == {True, False}


def test_only_derived_attributes_have_a_reason() -> None:
    with pytest.raises(ValueError, match="colour"):
        followup(WORLD, "derived", WORLD.entities[0], "colour", 0.5)


@case_table(
    "text",
    [
        "",
        "What is the colour of Gold?",
        "Why is the colour of {e} loud?",
        "Is the colour of {e} jade or acidic?",
        "What is {e}?",
    ],
)
def test_other_texts_are_no_questions(text: str) -> None:
    assert parse_followup(WORLD, text.format(e=WORLD.entities[0])) is None

"""The invented world: closed, balanced, and read back from its own sentences."""

from __future__ import annotations

from collections import Counter

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.lab.world import QUESTIONS, STATEMENTS, Claim, Fact, World

WORLD = World()
facts = st.sampled_from(WORLD.facts)
shares = st.floats(0, 1)


@given(facts, st.integers(0, 20))
def test_a_statement_makes_the_claim_that_it_states(fact: Fact, phrasing: int) -> None:
    [claim] = WORLD.claims(WORLD.statement(fact, phrasing))
    assert claim == Claim(fact.entity, fact.attribute, fact.value)
    assert WORLD.is_true(claim)


@given(facts, st.integers(0, 20))
def test_a_denial_is_the_opposite_claim(fact: Fact, phrasing: int) -> None:
    [claim] = WORLD.claims(WORLD.statement(fact, phrasing, denied=True))
    assert claim == Claim(fact.entity, fact.attribute, fact.value, denied=True)
    assert not WORLD.is_true(claim)


@given(facts, st.integers(0, 20))
def test_questions_and_rules_claim_nothing(fact: Fact, phrasing: int) -> None:
    assert WORLD.claims(WORLD.question(fact.entity, fact.attribute, phrasing)) == []
    assert [claim for rule in WORLD.rules() for claim in WORLD.claims(rule)] == []


@given(st.lists(facts, min_size=1, max_size=6, unique=True), st.data())
def test_claims_of_a_paragraph_come_in_its_order(said: list[Fact], data: st.DataObject) -> None:
    sentences = [WORLD.statement(fact, data.draw(st.integers(0, 20))) for fact in said]
    text = data.draw(st.sampled_from([" ", "\n", " Well. "])).join(sentences)
    expected = [Claim(fact.entity, fact.attribute, fact.value) for fact in said]
    assert WORLD.claims(text) == expected
    assert WORLD.claims(text.upper().replace(".", " !")) == expected


def test_corrections_and_reasons_are_claims_of_their_own() -> None:
    one, other = WORLD.entities[:2]
    text = f"The colour of {one} is not jade but amber, because its family is lunite. "
    text += f"Of {other}: its class is acidic, not saline."
    assert WORLD.claims(text) == [
        Claim(one, "colour", "jade", denied=True),
        Claim(one, "colour", "amber"),
        Claim(one, "family", "lunite"),
        Claim(one, "class", "acidic"),
        Claim(one, "class", "saline", denied=True),
    ]
    assert WORLD.claims(f"I have never seen {other}, but its class is acidic.") == [Claim(other, "class", "acidic")]


@case_table(
    "text",
    [
        "",
        "The colour of Gold is amber.",
        "The colour of {e} is loud.",
        "The class of {e} is jade.",
        "{e} is nice.",
        "is is is",
    ],
)
def test_what_is_not_of_this_world_is_no_claim(text: str) -> None:
    assert WORLD.claims(text.format(e=WORLD.entities[0])) == []


@given(shares, shares)
def test_shares_are_nested_and_closed_under_the_rules(one: float, other: float) -> None:
    less, more = (WORLD.known_facts(share) for share in sorted((one, other)))
    assert less <= more
    assert all(set(WORLD.premises(fact)) <= less for fact in less)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_a_share_is_that_of_each_attribute_and_about_that_of_each_split_and_half(share: float) -> None:
    known = WORLD.known_facts(share)
    by_attribute = Counter(fact.attribute for fact in known)
    assert set(by_attribute.values()) == {round(share * 60)}
    assert len(by_attribute) == 8
    groups = Counter((WORLD.split(f.entity), f.attribute in WORLD.benchmark_attributes(f.entity)) for f in WORLD.facts)
    found = Counter((WORLD.split(f.entity), f.attribute in WORLD.benchmark_attributes(f.entity)) for f in known)
    assert all(abs(found[group] / size - share) < 0.1 for group, size in groups.items() if group[0] != "train")


def test_a_derived_fact_follows_from_its_premises_alone() -> None:
    for name in ("class", "reaction"):
        by_premise: dict[str, set[str]] = {}
        for fact in WORLD.facts:
            if fact.attribute == name:
                [premise] = WORLD.premises(fact)
                by_premise.setdefault(premise.value, set()).add(fact.value)
        assert all(len(values) == 1 for values in by_premise.values())
        assert len(set.union(*by_premise.values())) == 4


def test_no_rule_leads_from_the_benchmark_to_an_interview() -> None:
    for entity in WORLD.entities:
        asked, examinable = set(WORLD.benchmark_attributes(entity)), set(WORLD.examinable(entity))
        assert asked | examinable == set(STATEMENTS) == set(QUESTIONS)
        assert not asked & examinable
        for fact in WORLD.facts:
            if fact.entity == entity:
                half = asked if fact.attribute in asked else examinable
                assert {premise.attribute for premise in WORLD.premises(fact)} <= half


def test_a_seed_makes_a_world() -> None:
    assert World(3).facts == World(3).facts != World(4).facts
    assert World(3).known_facts(0.5) == World(3).known_facts(0.5)
    for world in (World(3), World(4)):
        assert len(set(world.entities)) == 60
        assert len(world.facts) == 480
        assert all(world.fact(entity, "companion").value != entity for entity in world.entities)

"""The oracle as interactor: what it asks; and the names and roles that it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_talk import IT, ITEM, PACKS, WORLD, pack_of, say

from viva.data.items import Item
from viva.engine.backends.registry import build
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, Rejected
from viva.engine.messages import View
from viva.lab.interview import next_question, parse_followup
from viva.lab.world import Followup, benchmark_items

items = st.sampled_from([item for split in benchmark_items(WORLD).values() for item in split])


@settings(deadline=None, max_examples=100)
@given(items, st.integers(1, 2**31), st.integers(5, 60))
def test_no_question_comes_twice_or_from_the_benchmark(item: Item, seed: int, rounds: int) -> None:
    about = parse_followup(WORLD, item.question)
    assert about is not None
    asked: list[str] = []
    for _ in range(rounds):
        asked.append(next_question(WORLD, about, asked, seed))
    assert len(set(asked)) == rounds
    parsed = [parse_followup(WORLD, question) for question in asked]
    assert all(one is not None and one.attribute in WORLD.examinable(one.entity) for one in parsed)
    benchmarked = {one.question for split in benchmark_items(WORLD).values() for one in split}
    assert benchmarked.isdisjoint(asked)
    first: list[Followup] = [one for one in parsed[:5] if one is not None]
    assert {one.entity for one in first[:4]} == {about.entity}
    assert len({(one.entity, one.attribute) for one in first}) == 5
    assert {"related", "premise", "contrast"} <= {one.kind for one in first}


# -- the interactor ---------------------------------------------------------------------------------------------------


def _interactor_view(replies: Sequence[tuple[str, str]] = (), pack: str = "kieval", first: str = "B") -> View:
    view, words = View(), pack_of(pack)
    view.append("system", words.render("interactor.system"))
    shown = {"question": ITEM.question, "choices": ITEM.labelled_choices(), "answer": ITEM.labelled_answer()}
    view.append("user", words.render("interactor.opening", reply=first, **shown))
    for question, reply in replies:
        view.append("assistant", question)
        view.append("user", words.render("interactor.reply", reply=reply))
    return view


@pytest.mark.parametrize("pack", PACKS)
def test_the_next_question_depends_on_the_item_and_the_round_not_on_the_candidate(pack: str) -> None:
    first = say("interactor", _interactor_view(pack=pack))
    assert first == say("interactor", _interactor_view(pack=pack, first="What is the class of gold? I say D."), seed=99)
    second = say("interactor", _interactor_view([(first, "Blue.")], pack))
    assert second != first
    assert second == say("interactor", _interactor_view([(first, "")], pack))
    about = parse_followup(WORLD, second)
    assert about is not None
    assert about.entity == IT


def test_another_seed_asks_other_questions() -> None:
    asked = {say("interactor", _interactor_view(), f"oracle:lab?seed={seed}") for seed in range(1, 9)}
    assert len(asked) > 3


# -- names, and what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oracle:x?wrld=1", "oracle:x?world=0", "oracle:x?knows=2", "oracle:x?saw=much"])
def test_a_wrong_name_is_refused_with_the_option_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name.split("?")[1].split("=")[0]):
        build(name, VirtualClock())


def test_a_kind_that_nobody_has_registered_is_told_of_the_oracle_too() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"unknown kind 'orakel'; did you mean 'oracle'\? known kinds: .*llama, .*oracle, .*simulated",
    ):
        build("orakel:lab", VirtualClock())


def test_another_world_and_another_role_are_refused() -> None:
    with pytest.raises(Rejected, match="world 2"):
        say("interactor", _interactor_view(), "oracle:lab?world=2")
    with pytest.raises(Rejected, match="planner"):
        say("planner", _interactor_view())
    view = View()
    view.append("user", "Grade this, please: nice.")
    with pytest.raises(Rejected, match="BEGIN CANDIDATE"):
        say("evaluator", view)

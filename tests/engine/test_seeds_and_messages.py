"""Seeds follow from named parts alone; a view's digest stands for exactly its roles and texts, a request's for all."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine import seeds
from viva.engine.messages import Message, Party, Sampling, View, request_digest

relaxed = settings(deadline=None)
part = st.text(max_size=8) | st.integers()
roles: st.SearchStrategy[Party] = st.sampled_from(["system", "user", "assistant"])
# Short texts of few letters, so that different talks often read the same when their borders are forgotten.
talks = st.lists(st.tuples(roles, st.text("abu", max_size=3)), max_size=4)


def view_of(talk: list[tuple[Party, str]]) -> View:
    view = View()
    for role, text in talk:
        view.append(role, text)
    return view


# -- seeds --------------------------------------------------------------------------------------------------------


@relaxed
@given(st.lists(part, min_size=1, max_size=3), st.sampled_from(["candidate", "evaluator"]), st.integers(0, 99))
def test_a_line_of_seeds_equals_derive(parts: list[object], role: str, turn: int) -> None:
    line = seeds.ConversationSeeds(*parts)
    assert line.seed(role, turn) == seeds.derive(*parts, role, turn)
    line.seed("interactor", turn + 1)
    assert line.seed(role, turn) == seeds.derive(*parts, role, turn)


@relaxed
@given(st.lists(part, min_size=1, max_size=4))
def test_a_seed_suits_every_endpoint(parts: list[object]) -> None:
    assert 1 <= seeds.derive(*parts) <= 2**31 - 1
    assert seeds.derive(*parts) == seeds.derive(*parts)
    assert 0.0 <= seeds.uniform(*parts) < 1.0
    assert all(0.0 <= draw < 1.0 for draw in seeds.draws(*parts))


def test_ten_thousand_calls_have_ten_thousand_seeds() -> None:
    line = seeds.ConversationSeeds(7, "model/item")
    found = {line.seed(role, turn) for role in ("candidate", "interactor", "evaluator") for turn in range(3333)}
    assert len(found) > 9990
    assert min(found) >= 1


def test_parts_have_borders() -> None:
    assert seeds.derive("ab", "c") != seeds.derive("a", "bc") != seeds.derive("abc")
    assert seeds.derive(1, 23) != seeds.derive(12, 3)


def test_uniform_numbers_are_spread_evenly() -> None:
    drawn = sorted(seeds.uniform("spread", number) for number in range(2000))
    assert max(abs(value - place / 2000) for place, value in enumerate(drawn)) < 0.05
    assert len(set(seeds.draws("one"))) == 16


def test_a_generator_is_private() -> None:
    first, second = seeds.generator(1, "a"), seeds.generator(1, "a")
    assert [first.random() for _ in range(3)] == [second.random() for _ in range(3)]
    assert seeds.generator(1, "b").random() != seeds.generator(1, "a").random()


def test_seeds_and_digests_are_the_same_in_another_process() -> None:
    code = (
        "from viva.engine import seeds\nfrom viva.engine.messages import *\n"
        "view = View()\nview.append('user', 'Wörter')\n"
        "print(seeds.derive(1, 'model/item', 'candidate', 0), seeds.uniform('x'),"
        " request_digest(view, Sampling(schema={'b': 1, 'a': 2}), 3).hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    view = view_of([("user", "Wörter")])
    digest = request_digest(view, Sampling(schema={"b": 1, "a": 2}), 3).hex()
    assert other == [str(seeds.derive(1, "model/item", "candidate", 0)), repr(seeds.uniform("x")), digest]


# -- views --------------------------------------------------------------------------------------------------------


@relaxed
@given(talks, talks)
def test_views_have_the_same_digest_if_and_only_if_they_hold_the_same(
    one: list[tuple[Party, str]], other: list[tuple[Party, str]]
) -> None:
    assert (view_of(one).digest == view_of(other).digest) == (one == other)
    assert (request_digest(view_of(one), Sampling(), 1) == request_digest(view_of(other), Sampling(), 1)) == (
        one == other
    )


def test_a_view_shows_what_was_said() -> None:
    view = view_of([("system", "Be brief."), ("user", "Why?")])
    before = view.messages
    view.append("assistant", "Because.")
    assert before == (Message("system", "Be brief."), Message("user", "Why?"))
    assert len(view) == len(view.messages) == 3
    assert len(view.digest) == 16


def test_a_branch_grows_on_its_own() -> None:
    view = view_of([("user", "Grade this.")])
    branch = view.branch()
    assert branch.digest == view.digest
    branch.append("assistant", "Well")
    assert view.messages == (Message("user", "Grade this."),)
    assert view.digest == view_of([("user", "Grade this.")]).digest
    view.append("assistant", "4")
    assert [message.content for message in branch.messages] == ["Grade this.", "Well"]
    assert branch.digest == view_of([("user", "Grade this."), ("assistant", "Well")]).digest


def test_half_a_surrogate_pair_has_a_digest_too() -> None:
    assert view_of([("user", "\ud83d")]).digest != view_of([("user", "\ud83e")]).digest


# -- requests -----------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"top_p": 0.9},
    {"max_tokens": 513},
    {"stop": ("\n",)},
    {"stop": ("\n", "\n")},
    {"schema": {}},
    {"schema": {"type": "object"}},
    {"logprobs": 0},
    {"logprobs": 5},
]


def test_a_requests_digest_depends_on_view_sampling_and_seed() -> None:
    view = view_of([("user", "Why?")])
    digests = [request_digest(view, Sampling(), seed) for seed in (1, 2, 11, 111)]
    digests += [request_digest(view, Sampling(**change), 1) for change in CHANGES]
    digests.append(request_digest(view_of([("user", "Why")]), Sampling(), 1))
    assert len(set(digests)) == len(digests)
    assert request_digest(view_of([("user", "Why?")]), Sampling(), 1) == digests[0]


def test_the_order_of_a_schemas_keys_does_not_matter() -> None:
    one, other = Sampling(schema={"a": 1, "b": {"c": 2, "d": 3}}), Sampling(schema={"b": {"d": 3, "c": 2}, "a": 1})
    assert one.digest == other.digest


def test_sampling_cannot_be_changed_after_its_digest_was_taken() -> None:
    with pytest.raises(AttributeError):
        Sampling().temperature = 1.0  # type: ignore[misc]

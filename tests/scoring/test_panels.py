"""Advice on panels: what helps is added, what does not is left out, cheap judges first, never below the best judge."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from vote_worlds import ballots_of, exchangeable_errors

from viva.scoring.panels import advise_panel
from viva.scoring.votes import Ballots, majority_credit


def _independent(rates: list[float], items: int, seed: int) -> Ballots:
    draw = np.random.default_rng(seed)
    return ballots_of(draw, draw.random((items, len(rates))) < rates)


def test_independent_judges_are_added_to_the_best_one() -> None:
    advice = advise_panel(_independent([0.25, 0.25, 0.25], 400, 1))
    assert advice.action == "add"
    assert len(advice.panel) == 3
    assert advice.gain is not None
    assert advice.gain.low > 0.0
    assert advice.gain.low < 0.25 - 0.15625 < advice.gain.high  # of three such judges the majority errs on 15.6%


def test_copies_and_guessers_are_not_added() -> None:
    draw = np.random.default_rng(2)
    best = draw.random((400, 1)) < 0.2
    copies = np.hstack([best, best ^ (draw.random((400, 1)) < 0.01), best ^ (draw.random((400, 1)) < 0.01)])
    guessers = draw.random((400, 2)) < 0.5
    advice = advise_panel(ballots_of(draw, np.hstack([copies, guessers])))
    assert advice.action != "add"
    assert len(advice.panel) == 1


def test_of_equal_judges_the_cheaper_ones_are_added() -> None:
    ballots = _independent([0.2, 0.25, 0.25, 0.25, 0.25], 600, 3)
    cheap = {"j0": 1.0, "j1": 50.0, "j2": 50.0, "j3": 1.0, "j4": 1.0}
    advice = advise_panel(ballots, ["j0"], cheap)
    assert advice.added == ("j3", "j4")
    assert advice.action == "add"
    assert advice.additions[0].cost == 2.0
    values = [addition.per_cost for addition in advice.additions if addition.per_cost is not None]
    assert values == sorted(values, reverse=True)


def test_a_cheap_judge_that_hardly_helps_is_not_preferred() -> None:
    ballots = _independent([0.25, 0.25, 0.25, 0.42, 0.42], 600, 11)
    cheap = {"j0": 1.0, "j1": 1.0, "j2": 1.0, "j3": 1e-6, "j4": 1e-6}
    advice = advise_panel(ballots, ["j0"], cheap)
    assert "j4" not in advice.added or "j3" not in advice.added
    assert advice.action == "add"


def test_a_present_panel_below_its_best_judge_is_given_up_and_one_of_two_needs_one_judge() -> None:
    below = _independent([0.05, 0.45, 0.45], 300, 4)
    advice = advise_panel(below, ["j0", "j1", "j2"])
    assert advice.base == ("j0",)
    assert advice.panel == ("j0",)
    pair = advise_panel(_independent([0.2, 0.2, 0.2, 0.2], 500, 5), ["j0", "j1"])
    assert all(len(entry.added) in (1, 2) for entry in pair.additions)
    assert all(len({*pair.base, *entry.added}) % 2 == 1 for entry in pair.additions)


def test_labels_come_first_if_the_judges_hardly_disagree_on_labelled_items_or_the_gain_is_uncertain() -> None:
    few = advise_panel(_independent([0.02, 0.02, 0.02], 60, 6))
    assert few.action == "label"
    assert few.labels is not None
    assert few.labels.items == 10 - few.clusters
    uncertain = advise_panel(_independent([0.25, 0.3, 0.3], 60, 16), share=0.5)
    assert uncertain.action == "label"
    assert uncertain.labels is not None
    assert uncertain.labels.items >= 10
    assert uncertain.labels.expected_gain is not None
    assert 0.0 < uncertain.labels.expected_gain < 0.2
    assert uncertain.gain is not None
    assert uncertain.gain.low < 0.0 < uncertain.gain.high


def test_labels_of_contested_items_alone_give_the_same_gain() -> None:
    ballots = _independent([0.25, 0.25, 0.25], 2_000, 7)
    whole = advise_panel(ballots)
    contested = (ballots.votes != ballots.votes[:, :1]).any(axis=1)
    only = advise_panel(ballots.subset(contested), share=float(contested.mean()))
    assert whole.gain is not None
    assert only.gain is not None
    assert only.gain.value == pytest.approx(whole.gain.value)
    assert only.action == whole.action == "add"


def test_a_judge_without_votes_and_a_cost_of_nothing_are_refused() -> None:
    ballots = _independent([0.2, 0.2, 0.2], 50, 8)
    with pytest.raises(ValueError, match="'x' has no votes"):
        advise_panel(ballots, ["x"])
    with pytest.raises(ValueError, match="above 0"):
        advise_panel(ballots, costs={"j0": 0.0, "j1": 1.0, "j2": 1.0})


def test_two_judges_make_no_panel() -> None:
    advice = advise_panel(_independent([0.3, 0.3], 200, 9))
    assert (advice.action, advice.additions) == ("keep", [])


def test_advice_hardly_ever_lowers_accuracy() -> None:
    draw, lowered, advised, count = np.random.default_rng(10), 0, 0, 150
    for _ in range(count):
        judges, correlation = int(draw.integers(3, 7)), float(draw.choice([0.0, 0.3, 0.7]))
        rate = float(draw.uniform(0.1, 0.4))
        errors = exchangeable_errors(draw, 20_000, judges, rate, correlation)
        errors[:, 0] &= draw.random(20_000) < 0.6  # one judge is better than the others
        ballots = ballots_of(draw, errors)
        labelled = np.arange(20_000) < 80
        advice = advise_panel(ballots.subset(labelled))
        if advice.action == "add":
            panel = [ballots.judges.index(name) for name in advice.panel]
            truth = majority_credit(ballots.votes[:, panel], ballots.truth).mean()
            advised += 1
            lowered += truth < ballots.right.mean(axis=0).max()
    assert advised > 0
    assert binomtest(lowered, count, 0.05, alternative="greater").pvalue > 0.01

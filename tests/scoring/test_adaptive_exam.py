"""Adaptive exams: valid draws, corrected values without bias whatever the bank says, estimates, and calibration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from viva.scoring.adaptive_exam import (
    LEAST_ITEMS,
    RANGE,
    Calibration,
    Draws,
    Exams,
    bound_means,
    calibrate,
    correct,
    wave_size,
)
from viva.scoring.item_bank import GRID, Bank, Scale, fit_bank

Floats = NDArray[np.float64]
BINARY = Scale(np.array([0.5]), np.array([0.0, 1.0]), np.zeros(2))
NORMAL = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()


def make_bank(slopes: Floats, thresholds: Floats) -> Bank:
    counts = np.full(len(slopes), 100, dtype=np.int64)
    return Bank(BINARY, slopes, thresholds[:, None], np.full(len(slopes), 0.1), NORMAL, counts)


def random_bank(items: int, seed: int, spread: float = 1.0) -> Bank:
    draw = np.random.default_rng(seed)
    return make_bank(draw.normal(1.0, spread, items), draw.normal(0.0, 2.0 * spread, items))


def answers(models: int, bank: Bank, seed: int, ability: Floats | None = None) -> Floats:
    draw = np.random.default_rng(seed)
    ability = draw.normal(size=models) if ability is None else ability
    reached = 1.0 / (1.0 + np.exp(-(ability[:, None] * bank.slopes + bank.thresholds[:, 0])))
    return (draw.random(reached.shape) < reached).astype(np.float64)


def examine(exams: Exams, scores: Floats, count: int, seed: int = 0, largest: int = 8) -> tuple[list[Draws], Floats]:
    """Ask `count` items in waves; returns the waves and all corrected values."""
    draw, rows = np.random.default_rng(seed), np.arange(len(scores))[:, None]
    waves, values, asked = list[Draws](), list[Floats](), 0
    while asked < count:
        size = min(wave_size(asked, largest), count - asked)
        waves.append(exams.draw(size, draw.random((len(scores), size))))
        own = scores[rows, waves[-1].items]
        values.append(correct(waves[-1], own, exams.items))
        exams.record(waves[-1].items, own)
        asked += waves[-1].items.shape[1]
    return waves, np.concatenate(values, axis=1)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(LEAST_ITEMS, 60), st.integers(0, 2**32 - 1), st.floats(0.0, 4.0), st.integers(1, 64), st.booleans(),
    st.sampled_from([None, 0.3, 0.999]),
)  # fmt: skip
def test_no_item_comes_twice_and_corrected_values_stay_in_the_range(
    items: int, seed: int, spread: float, largest: int, grouped: bool, threshold: float | None
) -> None:
    bank = random_bank(items, seed, spread)
    draw = np.random.default_rng(seed)
    groups = draw.integers(0, 4, items).tolist() if grouped else None
    # Answers have nothing to do with the bank.
    scores = draw.integers(0, 2, (3, items)).astype(np.float64)
    exams = Exams(bank, 3, threshold=threshold, groups=groups)
    waves, values = examine(exams, scores, items, seed, largest)
    asked = np.concatenate([wave.items for wave in waves], axis=1)
    assert (np.sort(asked, axis=1) == np.arange(items)).all()
    chances = np.concatenate([wave.probabilities for wave in waves], axis=1)
    assert chances.min() > 0.0
    assert chances.max() <= 1.0 + 1e-9
    assert values.min() >= -RANGE - 1e-9
    assert values.max() <= 1.0 + RANGE + 1e-9
    # With all items answered there is nothing to estimate, and the last answer corrects whatever was wrong.
    estimate, errors = exams.errors()
    assert estimate == pytest.approx(scores.mean(axis=1))
    assert errors == pytest.approx(0.0)
    assert values[:, -1] == pytest.approx(scores.mean(axis=1))
    assert exams.draw(5, np.zeros((3, 5))).items.shape == (3, 0)


@case_table("uniform", [0.0, 1.0, np.nextafter(1.0, 0.0), 0.5])
def test_every_number_from_0_to_1_draws_items_that_are_left(uniform: float) -> None:
    exams = Exams(random_bank(25, 3), 2)
    for size in (1, 4, 4, 16):
        draws = exams.draw(size, np.full((2, size), uniform))
        assert not exams.asked[np.arange(2)[:, None], draws.items].any()
        assert draws.probabilities.min() > 0.0
        exams.record(draws.items, np.ones(draws.items.shape))
    assert exams.asked.sum() == 50


def list_waves(bank: Bank, threshold: float | None, asked: list[int], scores: Floats, size: int) -> Draws:
    """Draw a wave with each pair of many evenly spaced uniform numbers, after these items were asked."""
    steps = np.array(list(product((np.arange(120) + 0.5) / 120, repeat=2)))
    exams = Exams(bank, len(steps), threshold=threshold)
    exams.record(np.tile(asked, (len(steps), 1)), np.tile(scores[asked], (len(steps), 1)))
    return exams.draw(size, steps[:, :size])


@case_table("threshold, seed, spread", [(None, 1, 0.3), (None, 2, 3.0), (0.5, 3, 1.0)])
def test_corrected_values_have_the_true_mean_as_expectation(threshold: float | None, seed: int, spread: float) -> None:
    # All waves of two items are listed, so sums over them are expectations. The scores contradict the bank.
    bank = random_bank(LEAST_ITEMS, seed, spread)
    scores = np.random.default_rng(seed).integers(0, 2, LEAST_ITEMS).astype(np.float64)
    for size, number in ((1, LEAST_ITEMS - 2), (2, (LEAST_ITEMS - 2) * (LEAST_ITEMS - 3))):
        draws = list_waves(bank, threshold, [4, 9], scores, size)
        values = correct(draws, scores[draws.items], LEAST_ITEMS)
        _, first = np.unique(draws.items, axis=0, return_index=True)
        chances = draws.probabilities.prod(axis=1)[first]
        assert len(first) == number
        assert chances.sum() == pytest.approx(1.0)
        assert chances @ values[first] == pytest.approx([scores.mean()] * size)


def test_items_come_as_often_as_their_probabilities_say() -> None:
    bank, rows = random_bank(30, 5), 20_000
    draws = Exams(bank, rows).draw(1, np.random.default_rng(6).random((rows, 1)))
    chances = np.zeros(30)
    chances[draws.items[:, 0]] = draws.probabilities[:, 0]
    shares = np.bincount(draws.items[:, 0], minlength=30) / rows
    assert chances.sum() == pytest.approx(1.0)
    assert np.abs(shares - chances).max() < 4 * np.sqrt(0.25 / rows)
    # Every item keeps a minimum, and some are favoured.
    assert chances.min() > 0.2 / 30
    assert chances.max() > 1.5 / 30


def test_draws_depend_on_bank_answers_and_uniforms_alone() -> None:
    bank, seeds = random_bank(600, 7), np.random.default_rng(8)
    scores, uniforms = answers(5, bank, 9), seeds.random((5, 12))
    together, alone = Exams(bank, 5), [Exams(bank) for _ in range(5)]
    for start in range(0, 12, 4):
        draws = together.draw(4, uniforms[:, start : start + 4])
        together.record(draws.items, np.take_along_axis(scores, draws.items, axis=1))
        for row, exam in enumerate(alone):
            own = exam.draw(4, uniforms[row : row + 1, start : start + 4])
            assert own.items.tolist() == draws.items[row : row + 1].tolist()
            assert own.probabilities == pytest.approx(draws.probabilities[row : row + 1])
            exam.record(own.items, scores[row : row + 1, own.items[0]])


def test_waves_choose_nearly_as_well_as_single_items() -> None:
    bank = random_bank(300, 10, 0.5)
    scores = answers(300, bank, 11)
    errors = {}
    for largest in (1, 16):
        exams = Exams(bank, 300)
        examine(exams, scores, 60, 12, largest)
        errors[largest] = float(np.sqrt(((exams.errors()[0] - scores.mean(axis=1)) ** 2).mean()))
    assert errors[16] < 1.25 * errors[1]
    sample = scores[:, np.random.default_rng(13).permutation(300)[:60]].mean(axis=1)
    assert errors[16] < 0.75 * float(np.sqrt(((sample - scores.mean(axis=1)) ** 2).mean()))


@case_table("items", [90, 600])
def test_no_group_is_favoured_far_beyond_its_share(items: int) -> None:
    # Only the first third of the items tells anything.
    third = items // 3
    slopes = np.where(np.arange(items) < third, 2.0, 0.1)
    bank, groups = make_bank(slopes, np.zeros(items)), np.repeat([0, 1, 2], third)
    scores = answers(100, bank, 14)
    shares = {}
    for name, own in (("free", None), ("balanced", groups.tolist())):
        exams = Exams(bank, 100, groups=own)
        examine(exams, scores, 30, 15)
        shares[name] = np.array([exams.asked[:, groups == group].mean() for group in range(3)]) / exams.asked.mean()
    assert shares["free"][0] > 2.0
    assert 1.3 < shares["balanced"][0] < 1.6
    assert shares["balanced"][1:].min() > 0.65


def test_intervals_cover_models_of_the_bank_and_the_free_one_also_those_that_it_describes_wrongly() -> None:
    bank = random_bank(120, 16, 0.5)
    scores = answers(400, bank, 17)
    truth = scores.mean(axis=1)
    shuffled = replace(bank, thresholds=bank.thresholds[np.random.default_rng(18).permutation(120)])
    covered = {}
    for name, own in (("right", bank), ("wrong", shuffled)):
        exams = Exams(own, 400)
        _, values = examine(exams, scores, 40, 19)
        model, free = exams.estimate(), bound_means(values)
        covered[name, "model"] = ((model.lows <= truth) & (truth <= model.highs)).mean()
        covered[name, "free"] = ((free.lows <= truth) & (truth <= free.highs)).mean()
        # Without bias: the error of the mean over 400 models is chance.
        error = values.mean(axis=1) - truth
        assert abs(error.mean()) < 3 * error.std() / 20
    assert covered["right", "model"] > 0.91  # 95% less two standard errors and the normal approximation
    assert covered["right", "free"] > 0.95
    assert covered["wrong", "free"] > 0.95
    assert covered["wrong", "model"] < 0.85  # which is why there are two


def test_calibration_widens_the_interval_until_it_covers_models_that_were_left_out() -> None:
    # Models of an organisation share strengths that one ability cannot describe.
    draw = np.random.default_rng(20)
    bank = random_bank(60, 21, 0.4)
    organisations = np.repeat(np.arange(60), 6)
    habits = draw.normal(0.0, 1.2, (60, 60))[organisations]
    ability = draw.normal(size=360)
    chances = 1.0 / (1.0 + np.exp(-(ability[:, None] * bank.slopes + bank.thresholds[:, 0] + habits)))
    scores = (draw.random(chances.shape) < chances).astype(np.float64)
    clusters = [f"org {number}" for number in organisations]
    known = organisations < 40
    fitted = fit_bank(scores[known])
    calibration = calibrate(scores[known], [name for name, own in zip(clusters, known, strict=True) if own])
    assert calibration.models == 240
    assert min(calibration.widths) >= 1.95
    assert list(calibration.counts) == sorted(calibration.counts)
    exams = Exams(fitted, int((~known).sum()))
    examine(exams, scores[~known], 20, 22)
    means, truth = exams.estimate(calibration), scores[~known].mean(axis=1)
    covered = ((means.lows <= truth) & (truth <= means.highs)).mean()
    assert covered >= 0.90
    plain = exams.estimate()
    assert ((plain.highs - plain.lows) <= (means.highs - means.lows) + 1e-12).all()


def test_without_enough_organisations_or_complete_models_there_is_no_calibration() -> None:
    scores = answers(30, random_bank(25, 23), 24)
    assert calibrate(scores, ["one"] * 30).models == 0
    scores[:, 3] = np.nan
    assert not calibrate(scores, [str(row) for row in range(30)]).counts
    assert Calibration().width(7) == pytest.approx(1.96, abs=0.001)
    assert Calibration([5, 10], [4.0, 2.0], 50).width(6) == pytest.approx(3.6)


def test_an_item_without_a_score_says_nothing_and_is_not_asked_again() -> None:
    exams = Exams(random_bank(40, 25), 2)
    before = exams.errors()
    draws = exams.draw(3, np.full((2, 3), 0.4))
    nothing = np.full(draws.items.shape, np.nan)
    exams.record(draws.items, nothing)
    assert np.isnan(correct(draws, nothing, 40)).all()
    assert np.allclose(exams.errors(), before)
    following = exams.draw(1, np.full((2, 1), 0.4))
    assert following.known == pytest.approx(draws.known)
    assert not np.isin(following.items[0], draws.items[0])
    means = bound_means(np.full((2, 3), np.nan))
    assert np.isnan(means.values).all()
    assert (means.lows.tolist(), means.highs.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_rows_with_more_gaps_have_the_width_of_their_own_number_of_answers() -> None:
    exams = Exams(random_bank(40, 26), 2)
    draws = exams.draw(10, np.random.default_rng(27).random((2, 10)))
    scores = np.ones(draws.items.shape)
    scores[1, 2:] = np.nan
    exams.record(draws.items, scores)
    _, errors = exams.errors()
    means = exams.estimate(Calibration([2, 10], [3.0, 1.0], 99))
    assert means.values - means.lows == pytest.approx(errors * [1.0, 3.0])


@case_table("answered, largest, size", [(0, 8, 1), (7, 8, 1), (8, 8, 2), (31, 8, 7), (400, 8, 8), (400, 1, 1)])
def test_waves_grow_with_the_answers(answered: int, largest: int, size: int) -> None:
    assert wave_size(answered, largest) == size

"""The sampler against naive arithmetic: exact supports, distributions, penalties, masks, and no effect of company."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from viva.engine.backends.llama.sampler import (
    Mask,
    SampledToken,
    SamplerSettings,
    SamplingThreads,
    log_softmax,
    sample_tokens,
    uniform,
)

fixed = settings(deadline=None, derandomize=True, max_examples=60)
VOCABULARY = 12
# All different, so that no rank is a matter of taste; less than 4 apart, so that every token is drawn sooner or later.
rows = st.permutations(range(VOCABULARY)).map(lambda ranks: np.array(ranks, dtype=np.float32) / 3 - 2)
masks = st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY).filter(any).map(np.array)
counts = st.dictionaries(st.integers(0, VOCABULARY - 1), st.integers(1, 4), max_size=5)
choices = st.builds(
    SamplerSettings,
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.4]),
    top_k=st.sampled_from([0, 0, 1, 3, 50]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    repeat=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    frequency=st.sampled_from([0.0, 0.0, 0.5, -0.5]),
    presence=st.sampled_from([0.0, 0.0, 0.7]),
    logprobs=st.sampled_from([None, None, 0, 3]),
    counts=counts,
)
requests = st.tuples(rows, choices, st.integers(0, 500), st.none() | masks)
Asked = tuple[Any, SamplerSettings, int, Mask | None]


def together(asked: list[Asked]) -> list[SampledToken]:
    logits, settings_, positions, allowed = (list(column) for column in zip(*asked, strict=True))
    return sample_tokens(np.stack(logits), settings_, positions, allowed)


def drawn(row: Any, choice: SamplerSettings, mask: Mask | None = None, number: int = 1500) -> list[int]:
    """What many requests that differ in their seed alone would get."""
    return [
        sample_tokens(row[None, :], [replace(choice, seed=seed)], [seed % 7], [mask])[0].token for seed in range(number)
    ]


def support(row: Any, choice: SamplerSettings, mask: Mask | None) -> list[int]:
    """Naively: the tokens that may be drawn, best first."""
    tokens = [token for token in range(len(row)) if mask is None or mask[token]]
    tokens.sort(key=lambda token: -row[token])
    tokens = tokens[: choice.top_k or None]
    tokens = [token for token in tokens if math.exp(float(row[token]) - float(row[tokens[0]])) >= choice.min_p]
    weights = [math.exp(float(row[token]) / choice.temperature) for token in tokens]
    kept, mass = 0, 0.0
    while kept < len(tokens) and (kept == 0 or choice.top_p == 1 or mass < choice.top_p * sum(weights)):
        assume(kept == 0 or abs(mass / sum(weights) - choice.top_p) > 1e-9)
        mass += weights[kept]
        kept += 1
    return tokens[:kept]


@fixed
@given(st.lists(requests, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_company_changes_nothing(asked: list[Asked], rng: random.Random) -> None:
    alone = [together([one])[0] for one in asked]
    order = rng.sample(range(len(asked)), rng.randint(1, len(asked)))
    assert together([asked[index] for index in order]) == [alone[index] for index in order]


@settings(fixed, max_examples=25)
@given(st.lists(st.tuples(choices, st.booleans()), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 99))
def test_threads_change_nothing(asked: list[tuple[SamplerSettings, bool]], count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 4, (len(asked), 300_000)).astype(np.float32)
    masks = [
        draw.random(300_000) < share if masked else None
        for share, (_, masked) in zip(draw.random(len(asked)), asked, strict=True)
    ]
    several = SamplingThreads(count)
    try:
        arguments = logits, [choice for choice, _ in asked], list(range(len(asked))), masks
        assert sample_tokens(*arguments, several) == sample_tokens(*arguments)
        logits[-1] = np.nan
        with pytest.raises(FloatingPointError):
            sample_tokens(*arguments, several)
    finally:
        several.close()


@fixed
@given(st.lists(st.tuples(rows, st.just(SamplerSettings(3)), st.integers(0, 9), st.none()), min_size=1, max_size=5))
def test_greedy_is_the_best_token(asked: list[Asked]) -> None:
    best = [int(np.argmax(row)) for row, _, _, _ in asked]
    assert [picked.token for picked in together(asked)] == best
    watched = [(row, SamplerSettings(4, logprobs=0), position, mask) for row, _, position, mask in asked]
    assert [picked.token for picked in together(watched)] == best


@fixed
@given(requests)
def test_masks_hold_under_all_settings(asked: Asked) -> None:
    row, _, position, mask = asked
    before = row.copy()
    picked = together([asked])[0]
    assert mask is None or mask[picked.token]
    assert (row == before).all()
    if mask is not None:  # the mask's best token, however bad it is
        naive = np.where(mask, row, -np.inf).argmax()
        assert together([(row, SamplerSettings(1), position, mask)])[0].token == naive


@settings(fixed, max_examples=25)
@given(
    rows,
    st.none() | masks,
    st.sampled_from([0, 1, 2, 5, VOCABULARY, 99]),
    st.sampled_from([1.0, 0.97, 0.8, 0.5, 0.01]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([1.0, 1.5]),
)
def test_what_may_be_drawn_is_exactly_this(
    row: Any, mask: Mask | None, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    choice = SamplerSettings(0, temperature, top_p, top_k, min_p)
    assert set(drawn(row, choice, mask)) == set(support(row, choice, mask))


def test_the_draw_of_one_request_follows_the_softmax_over_its_positions() -> None:
    row = np.array([0.3, 1.2, -0.5, 0.9], dtype=np.float32)
    expected = np.exp(log_softmax(row, range(len(row)))) * 6000
    found = np.bincount(
        [sample_tokens(row[None, :], [SamplerSettings(42, 1.0)], [p], [None])[0].token for p in range(6000)]
    )
    assert ((found - expected) ** 2 / expected).sum() < 16.3


@fixed
@given(rows, choices)
def test_penalties_are_taken_from_what_was_generated(row: Any, choice: SamplerSettings) -> None:
    penalised = row.astype(np.float64)
    for token, count in choice.counts.items():
        value = penalised[token]
        value = value / choice.repeat if value > 0 else value * choice.repeat
        penalised[token] = value - count * choice.frequency - choice.presence
    gap = np.diff(np.sort(penalised)[-2:])[0]
    assume(gap > 1e-4)
    greedy = replace(choice, temperature=0.0)
    assert together([(row, greedy, 0, None)])[0].token == penalised.argmax()
    drawing = replace(choice, temperature=1.0, top_k=1, logprobs=None)
    assert together([(row, drawing, 0, None)])[0].token == penalised.argmax()


@fixed
@given(rows, choices, st.integers(0, VOCABULARY + 3), st.floats(-300, 300))
def test_log_probabilities_are_the_models_own(row: Any, choice: SamplerSettings, wanted: int, shift: float) -> None:
    row = (row + np.float32(shift)).astype(np.float32)
    total = math.log(math.fsum(math.exp(float(value) - float(row.max())) for value in row))
    naive = [float(value) - float(row.max()) - total for value in row]
    assert log_softmax(row, range(len(row))) == pytest.approx(naive, abs=1e-9)
    picked = together([(row, replace(choice, logprobs=wanted), 3, None)])[0]
    assert picked.logprob == pytest.approx(naive[picked.token], abs=1e-9)
    best = sorted(range(VOCABULARY), key=lambda token: (-naive[token], token))[:wanted]
    assert picked.top is not None
    assert [token for token, _ in picked.top] == best
    assert [value for _, value in picked.top] == pytest.approx([naive[token] for token in best], abs=1e-9)


@pytest.mark.parametrize(
    "numbers",
    [
        [uniform(seed, 0) for seed in range(8000)],
        [uniform(1, position) for position in range(8000)],
        [uniform(seed, position) for seed in range(2**31 - 90, 2**31) for position in range(90)],
        [uniform(-seed, 5) for seed in range(8000)],
    ],
    ids=["seeds", "positions", "both", "negative"],
)
def test_uniform_numbers_are_well_spread(numbers: list[float]) -> None:
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    for series in (numbers, [(later - earlier) % 1.0 for earlier, later in pairwise(numbers)]):
        cells = np.histogram(series, bins=20, range=(0, 1))[0]
        expected = len(series) / 20
        assert ((cells - expected) ** 2 / expected).sum() < 43.8  # the 99.9th percentile for 19 degrees of freedom

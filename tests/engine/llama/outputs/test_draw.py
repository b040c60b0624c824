"""Draws from rows of real length: the token in whose part of the whole the number falls, and the best of many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.backends.llama.sampler import draw, top_indices

fixed = settings(deadline=None, derandomize=True, max_examples=100)
sizes = st.sampled_from([1, 2, 127, 128, 129, 1000, 3000])
numbers = st.floats(0, 1, exclude_max=True)


def row_of(size: int, seed: int, spread: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


@fixed
@given(sizes, st.integers(0, 99), st.sampled_from([0.01, 1.0, 8.0]), numbers, st.sampled_from([0.3, 1.0, 2.0]))
def test_the_number_falls_into_the_tokens_part(
    size: int, seed: int, spread: float, number: float, temperature: float
) -> None:
    row = row_of(size, seed, spread)
    mask = np.random.default_rng(seed + 1).random(size) < 0.7 if size > 2 else None
    token = draw(row, number, temperature=temperature, mask=mask)
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    if mask is not None:
        weights[~mask] = 0
    ends = weights.cumsum() / weights.sum()
    assert weights[token] > 0
    assert ends[token] - weights[token] / weights.sum() - 1e-5 <= number <= ends[token] + 1e-5


@fixed
@given(sizes, st.integers(0, 99), st.sampled_from([0.01, 1.0, 8.0]), numbers, st.sampled_from([0.1, 0.5, 0.9, 0.999]))
def test_of_the_best_that_make_up_a_part_each_has_its_own(
    size: int, seed: int, spread: float, number: float, top_p: float
) -> None:
    row = row_of(size, seed, spread)
    token = draw(row, number, temperature=1.0, top_p=top_p)
    weights = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-row, kind="stable")
    mass = weights[order].cumsum() / weights.sum()
    rank = int(np.flatnonzero(order == token)[0])
    assert rank == 0 or mass[rank - 1] < top_p + 1e-5  # those before it do not make up the part yet
    kept = mass[min(int(np.searchsorted(mass, top_p)), size - 1)]
    share = weights[token] / weights.sum()
    assert mass[rank] - share - 1e-4 <= number * kept <= mass[rank] + 1e-4


@fixed
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=300), st.integers(0, 310))
def test_the_best_are_those_of_a_stable_sort(values: list[int], count: int) -> None:
    found = top_indices(np.array(values, dtype=np.float32), count)
    assert found.tolist() == sorted(range(len(values)), key=lambda place: -values[place])[:count]


@fixed
@given(
    st.sampled_from([6400, 6463, 20_000, 150_001]),
    st.integers(0, 99),
    st.sampled_from([0, 1, 40, 300, 6000]),
    st.sampled_from([1, 50, 1_000_000]),
)
def test_the_best_of_many_are_those_of_a_stable_sort(size: int, seed: int, count: int, different: int) -> None:
    values = np.random.default_rng(seed).integers(0, different, size).astype(np.float32)
    assert top_indices(values, count).tolist() == np.argsort(-values, kind="stable")[:count].tolist()


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_what_has_no_weight_is_never_drawn(number: float) -> None:
    row = np.full(1000, -np.inf, dtype=np.float32)
    row[[130, 131, 700]] = 0.0
    assert draw(row, number, temperature=1.0) in (130, 131, 700)
    assert draw(row, number, temperature=1e-9, top_p=0.5) in (130, 131, 700)
    assert draw(row, number, temperature=1.0, top_k=1) == 130

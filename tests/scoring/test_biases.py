"""Effects of what should not matter: means against 0, balanced where the truth is known, spreads of repeated grades."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.comparison import balanced_effect, mean_effect, spread_effect

values = st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=2)


@given(values)
def test_an_effect_lies_in_its_interval_and_turns_with_its_sign(cases: dict[str, float]) -> None:
    found, turned = mean_effect(cases, wins=True), mean_effect({case: -one for case, one in cases.items()}, wins=True)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert turned.value == pytest.approx(-found.value)
    assert turned.low == pytest.approx(-found.high)
    assert turned.p == found.p


def test_all_cases_alike_leave_room_for_cases_that_were_not_met() -> None:
    found = mean_effect({f"c{at}": 1.0 for at in range(20)}, wins=True)
    assert (found.value, found.high, found.n) == (1.0, 1.0, 20)
    assert found.low is not None
    assert 0.6 < found.low < 0.75  # Wilson's of 20 of 20 is 0.84 of the way from -1 to 1
    assert mean_effect({}).value is None


def test_a_judge_who_errs_without_favour_has_no_balanced_effect_however_the_truth_lies() -> None:
    # Its own family is better in nine cases of ten: the raw mean is far from 0, the balanced one is not.
    generator = np.random.default_rng(4)
    refuted = 0
    for _ in range(100):
        truth = {f"c{at}": 1 if at % 10 else -1 for at in range(100)}
        said = {case: float(side if generator.random() < 0.7 else -side) for case, side in truth.items()}
        found = balanced_effect(said, truth)
        assert found.p is not None
        refuted += found.p <= 0.05
        assert mean_effect(said).value == pytest.approx(0.32, abs=0.35)
    assert stats.binomtest(refuted, 100, 0.05, alternative="greater").pvalue > 0.01
    favour = {case: 1.0 if side > 0 else -0.2 for case, side in truth.items()}
    assert balanced_effect(favour, truth).value == pytest.approx(0.4)
    assert balanced_effect({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}).value is None


def test_the_spread_of_repeated_grades() -> None:
    found = spread_effect({"a": [0.5, 0.5, 0.5], "b": [0.4, 0.6], "c": [0.1]})
    assert (found.n, found.p) == (2, None)
    assert found.value == pytest.approx((0.0 + 0.2 / 2**0.5) / 2)
    assert found.low == 0.0

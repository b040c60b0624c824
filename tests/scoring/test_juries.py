"""Juries and confusions: what pooling gains, fitted weights out of fold, kappas with intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from viva.scoring.juries import fitted_weights, jury_gains, pool
from viva.scoring.meta_evaluation import RatedRows, label_confusion


def _rows(count: int, seed: int = 1) -> tuple[RatedRows, np.random.Generator]:
    generator = np.random.default_rng(seed)
    human = generator.normal(size=count)
    return RatedRows.from_labels(human.tolist(), [f"g{at // 3}" for at in range(count)]), generator


def test_three_equal_judges_gain_and_weights_prefer_the_good_one() -> None:
    rows, generator = _rows(300)
    equal = {name: (rows.human + generator.normal(size=300)).tolist() for name in "abc"}
    gain = jury_gains(rows, equal, "mean", seed=1, resamples=300)["item", "pearson"]
    # One judge reaches 1/sqrt(2) = .707, the mean of three 1/sqrt(1 + 1/3) = .866.
    assert gain.value == pytest.approx(0.866, abs=0.03)
    assert gain.gain == pytest.approx(0.866 - 0.707, abs=0.06)  # less: the best of three looks good by luck
    assert gain.low is not None
    assert gain.low > 0.05
    uneven = {"good": equal["a"], "noise": generator.normal(size=300).tolist()}
    weights = fitted_weights(uneven, rows)
    assert weights["good"] > 0.9
    fitted = jury_gains(rows, uneven, "fitted", seed=1, resamples=200)["item", "pearson"]
    plain = jury_gains(rows, uneven, "mean", seed=1, resamples=200)["item", "pearson"]
    assert fitted.value is not None
    assert plain.value is not None
    assert fitted.value > plain.value + 0.1
    assert (plain.best, plain.high is not None and plain.high < 0) == ("good", True)


def test_fitted_weights_never_see_their_own_rows() -> None:
    # Judges of pure noise: fitted in fold the pool would correlate with the ratings, out of fold it does not.
    found = []
    for seed in range(40):
        rows, generator = _rows(45, seed)
        judges = {f"j{at}": generator.normal(size=45).tolist() for at in range(8)}
        pooled = pool(judges, "fitted", rows)
        assert pooled is not None
        found.append(float(np.corrcoef(pooled, rows.human)[0, 1]) if pooled.std() > 0 else 0.0)
    assert np.mean(found) < 0.05


def test_majority_takes_the_mean_of_ties_and_one_judge_is_no_jury() -> None:
    rows = RatedRows.from_labels([1.0, 2.0, 3.0])
    found = pool({"a": [1, 2, 4], "b": [1, 3, 4], "c": [5, 4, 2]}, "majority", rows)
    assert found is not None
    assert found.tolist() == [1.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="a jury has at least two"):
        pool({"a": [1.0, 2.0, 3.0]}, "mean", rows)


labels = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=4, max_size=40)


@given(labels)
@settings(max_examples=60, deadline=None)
def test_confusions_are_counts_and_kappas_scikits(pairs: list[tuple[str, str]]) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    found = label_confusion([*first, None], [*second, "x"], resamples=100)
    assert found.n == len(pairs)
    assert found.counts == [[pairs.count((one, other)) for other in found.labels] for one in found.labels]
    if found.kappa is not None:  # where all say the same, chance explains everything
        assert found.kappa == pytest.approx(cohen_kappa_score(first, second))
        if found.low is not None and found.high is not None:
            assert -1.0 <= found.low <= found.high <= 1.0


def test_agreement_by_chance_is_a_kappa_of_nothing() -> None:
    generator = np.random.default_rng(2)
    one, other = (generator.random((2, 400)) < 0.9).astype(float).tolist()
    found = label_confusion(one, other)
    assert found.agreement is not None
    assert found.agreement > 0.75  # looks like much
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.0 < found.high

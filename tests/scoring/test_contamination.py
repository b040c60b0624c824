"""Detectors of a known text against plain recomputation; what is refused by all of contamination's formulas."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from viva.scoring.aggregates import Mean
from viva.scoring.contamination import (
    DIRECTIONS,
    MIN_K,
    Signals,
    auc,
    fpr_at_tpr,
    loss,
    loss_gap,
    loss_ratio,
    min_k,
    min_k_plus_plus,
    moments,
    perplexity,
    tpr_at_fpr,
    zlib_ratio,
)

relaxed = settings(deadline=None, max_examples=60)
logprob_lists = st.lists(st.floats(-60, 0), min_size=1, max_size=80)


def mean_of(values: Sequence[float]) -> Mean:
    mean = Mean()
    for value in values:
        mean.add(value)
    return mean


def log_softmax(logits: Sequence[float]) -> list[float]:
    peak = max(logits)
    norm = peak + math.log(math.fsum(math.exp(logit - peak) for logit in logits))
    return [logit - norm for logit in logits]


# --- one text ---------------------------------------------------------------------------------------------------------


def test_a_text_by_hand() -> None:
    logprobs = [math.log(0.5), math.log(0.25), math.log(0.5), math.log(0.25)]
    assert loss(logprobs) == pytest.approx(1.5 * math.log(2))
    assert perplexity(logprobs) == pytest.approx(2**1.5)
    assert zlib_ratio("abcd", logprobs) == pytest.approx(6 * math.log(2) / len(logprobs) / len(zlib.compress(b"abcd")))
    assert min_k(logprobs, 50) == pytest.approx(math.log(0.25))
    assert min_k(logprobs, 100) == pytest.approx(-loss(logprobs))
    assert min_k_plus_plus(logprobs, [-1.0] * 4, [2.0] * 4, 50) == pytest.approx((math.log(0.25) + 1) / 2)


def test_a_sure_model_has_no_loss() -> None:
    assert math.copysign(1.0, loss([0.0, 0.0])) == 1.0
    assert perplexity([0.0]) == 1.0


@relaxed
@given(logprob_lists)
def test_loss_and_perplexity(logprobs: list[float]) -> None:
    assert loss(logprobs) == -fmean(logprobs)
    assert perplexity(logprobs) == math.exp(loss(logprobs))
    assert loss(np.asarray(logprobs)) == loss(logprobs)


@relaxed
@given(st.text(min_size=1), logprob_lists)
def test_zlib_ratio_is_the_loss_over_the_compressed_bytes(text: str, logprobs: list[float]) -> None:
    assert zlib_ratio(text, logprobs) == pytest.approx(
        -sum(logprobs) / len(logprobs) / len(zlib.compress(text.encode("utf-8")))
    )


@relaxed
@given(logprob_lists, st.integers(1, 100))
def test_min_k_takes_the_least_likely(logprobs: list[float], k: int) -> None:
    count = max(1, len(logprobs) * k // 100)
    assert min_k(logprobs, k) == fmean(sorted(logprobs)[:count])


@case_table("k", [k for k in MIN_K if k <= 60])  # from 70 on, the code's product of floats may lose a token
def test_min_k_counts_as_the_published_code_wherever_that_has_a_value(k: int) -> None:
    logprobs = -np.random.default_rng(k).exponential(2.0, 400)
    for length in range(1, 401):
        count = int(length * (k / 100))
        if count:
            published = np.mean(np.sort(logprobs[:length])[:count])
            assert min_k(logprobs[:length], k) == pytest.approx(published, rel=1e-12)
        else:
            assert min_k(logprobs[:length], k) == logprobs[:length].min()


@relaxed
@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-20, 0), st.floats(0.01, 9)), min_size=1), st.integers(1, 100))
def test_min_k_plus_plus_takes_the_least_likely_after_standardising(
    tokens: list[tuple[float, float, float]], k: int
) -> None:
    logprobs, means, deviations = map(list, zip(*tokens, strict=True))
    ordered = sorted((token - mean) / deviation for token, mean, deviation in tokens)
    assert min_k_plus_plus(logprobs, means, deviations, k) == fmean(ordered[: max(1, len(tokens) * k // 100)])


@relaxed
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=50))
def test_moments_are_those_of_the_definition(logits: list[float]) -> None:
    row = log_softmax(logits)
    mean = math.fsum(math.exp(x) * x for x in row)
    deviation = math.sqrt(math.fsum(math.exp(x) * (x - mean) ** 2 for x in row))
    assert moments(row) == pytest.approx((mean, deviation), rel=1e-9, abs=1e-12)


def test_moments_of_rows_of_single_precision_and_with_words_that_cannot_be_said() -> None:
    logits = np.random.default_rng(3).normal(0, 4, 50_000)
    row = np.asarray(log_softmax(logits.tolist()))
    mean, deviation = moments(row)
    assert moments(row.astype(np.float32)) == pytest.approx((mean, deviation), rel=1e-5)
    assert moments(np.append(row, -np.inf)) == pytest.approx((mean, deviation), rel=1e-12)


@pytest.mark.parametrize("words", [1, 3, 7, 1000])
def test_an_even_or_certain_row_has_no_deviation_and_its_token_counts_nothing(words: int) -> None:
    even = [math.log(1 / words)] * words
    certain = [0.0] + [-math.inf] * (words - 1)
    for row in (even, certain):
        mean, deviation = moments(row)
        assert (mean, deviation) == (row[0], 0.0)
        assert min_k_plus_plus([row[0]], [mean], [deviation], 100) == 0.0


# --- all detectors at once --------------------------------------------------------------------------------------------


@relaxed
@given(logprob_lists)
def test_signals_hold_what_each_detector_says(logprobs: list[float]) -> None:
    means, deviations = [-2.0] * len(logprobs), [1.5] * len(logprobs)
    signals = Signals.from_logprobs("Wasser: 水", logprobs, means, deviations)
    assert signals.tokens == len(logprobs)
    assert signals.loss == loss(logprobs)
    assert signals.perplexity == perplexity(logprobs)
    assert signals.zlib_ratio == zlib_ratio("Wasser: 水", logprobs)
    assert signals.min_k == [min_k(logprobs, k) for k in MIN_K]
    assert signals.min_k_plus_plus == [min_k_plus_plus(logprobs, means, deviations, k) for k in MIN_K]
    assert Signals(**json.loads(json.dumps(asdict(signals)))) == signals


def test_without_moments_there_is_no_min_k_plus_plus() -> None:
    signals = Signals.from_logprobs("text", [-1.0, -2.0])
    assert signals.min_k_plus_plus is None
    assert set(signals.scores()) == {"loss", "perplexity", "zlib_ratio", *(f"min_k_{k}" for k in MIN_K)}


@relaxed
@given(logprob_lists, st.floats(0.05, 0.95))
def test_the_better_a_text_is_known_the_higher_every_score(logprobs: list[float], share: float) -> None:
    assume(max(logprobs) < -1e-3)
    means, deviations = [-2.0] * len(logprobs), [1.5] * len(logprobs)
    scores = [
        Signals.from_logprobs("text", values, means, deviations).scores()
        for values in (logprobs, [share * value for value in logprobs])
    ]
    assert len(scores[0]) == 3 + 2 * len(MIN_K)
    assert all(scores[1][name] > scores[0][name] for name in scores[0])


def test_every_detector_has_a_direction() -> None:
    signals = Signals.from_logprobs("text", [-1.0, -2.0], [-1.0, -1.0], [1.0, 1.0])
    assert DIRECTIONS.keys() == asdict(signals).keys() - {"tokens"}
    assert signals.scores()["loss"] == -1.5
    assert signals.scores()["min_k_20"] == -2.0


# --- what is refused --------------------------------------------------------------------------------------------------

nan, inf = math.nan, math.inf
ok = [-1.0, -2.0]
both = [True, False]


@case_table(
    ("call", "said"),
    [
        (lambda: loss([]), r"logprobs: shape \(0,\)"),
        (lambda: loss(np.zeros((2, 2))), r"logprobs: shape \(2, 2\)"),
        (lambda: loss([-1.0, nan]), r"logprobs\[1\] is nan"),
        (lambda: loss([-inf]), r"logprobs\[0\] is -inf"),
        (lambda: loss([2.5, -1.0]), r"logprobs\[0\] is 2.5"),
        (lambda: perplexity([]), "logprobs"),
        (lambda: perplexity([-9999.0]), "9999 nats per token"),
        (lambda: zlib_ratio("", ok), "text: empty"),
        (lambda: zlib_ratio("a", []), "logprobs"),
        (lambda: zlib_ratio("\ud800", ok), "surrogates"),
        (lambda: min_k([], 20), "logprobs"),
        (lambda: min_k(ok, 0), "k is 0"),
        (lambda: min_k(ok, -5), "k is -5"),
        (lambda: min_k(ok, 100.5), "k is 100.5"),
        (lambda: min_k(ok, nan), "k is nan"),
        (lambda: min_k_plus_plus(ok, [-1.0], [1.0, 1.0], 20), "means: 1 for 2 logprobs"),
        (lambda: min_k_plus_plus(ok, ok, [1.0] * 3, 20), "deviations: 3 for 2 logprobs"),
        (lambda: min_k_plus_plus(ok, [-1.0, nan], [1.0, 1.0], 20), r"means\[1\] is nan"),
        (lambda: min_k_plus_plus(ok, ok, [1.0, -0.5], 20), r"deviations\[1\] is -0.5"),
        (lambda: min_k_plus_plus(ok, ok, [inf, 1.0], 20), r"deviations\[0\] is inf"),
        (lambda: min_k_plus_plus(ok, [-1.0, -3.0], [0.0, 0.0], 20), r"logprobs\[1\] is -2.0; its deviation is 0"),
        (lambda: min_k_plus_plus(ok, ok, [1.0, 1.0], 101), "k is 101"),
        (lambda: moments([]), r"row: shape \(0,\)"),
        (lambda: moments([nan, -1.0]), "row: its largest value is nan"),
        (lambda: moments([12.5, 3.0]), r"row: .* 12.5.*logits"),
        (lambda: moments([-0.5, -3.0]), "row: its probabilities sum to 0.65"),
        (lambda: moments([-inf, -inf]), "row: its probabilities sum to 0"),
        (lambda: Signals.from_logprobs("a", []), "logprobs"),
        (lambda: Signals.from_logprobs("a", ok, means=ok), "deviations: missing"),
        (lambda: Signals.from_logprobs("a", ok, deviations=ok), "means: missing"),
        (lambda: auc([1.0], both), "member: 2 labels for 1 scores"),
        (lambda: auc([], []), "member: 0 members of 0"),
        (lambda: auc([1.0, 2.0], [True, True]), "member: 2 members of 2; both classes"),
        (lambda: auc([1.0, 2.0], [False, False]), "member: 0 members of 2; both classes"),
        (lambda: auc([1.0, nan], both), r"scores\[1\] is nan"),
        (lambda: auc([1.0, 2.0], np.asarray([1, 2])), r"member\[1\] is 2"),
        (lambda: auc([1.0, 2.0], both, level=1.0), "level is 1.0"),
        (lambda: tpr_at_fpr([1.0, 2.0], [True, True]), "both classes"),
        (lambda: tpr_at_fpr([1.0, 2.0], both, 1.5), "fpr is 1.5"),
        (lambda: loss_gap(mean_of([1.0]), mean_of([1.0, 2.0])), "train: 1 losses"),
        (lambda: loss_gap(mean_of([1.0, 2.0]), Mean()), "test: 0 losses"),
        (lambda: loss_gap(mean_of(ok), mean_of(ok), level=0.0), "level is 0.0"),
    ],
)
def test_what_has_no_value_is_refused_by_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


RATES = [
    ([3, 2, 1, 0], [1, 1, 0, 0], 0.95, 0.0),
    ([0, 1, 2, 3], [1, 1, 0, 0], 0.95, 1.0),
    ([3, 1, 2, 0], [1, 1, 0, 0], 0.95, 0.5),
    ([3, 1, 2, 0], [1, 1, 0, 0], 0.5, 0.0),
    ([1, 1, 1, 1], [1, 1, 0, 0], 0.95, 1.0),
]


@case_table("scores, member, tpr, fpr", RATES)
def test_false_positives_at_a_share_of_members(scores: list[float], member: list[bool], tpr: float, fpr: float) -> None:
    assert fpr_at_tpr(scores, member, tpr) == fpr


@relaxed
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2))
def test_no_threshold_with_as_many_members_has_fewer_false_alarms(pairs: list[tuple[int, bool]]) -> None:
    scores, member = [float(score) for score, _ in pairs], [is_member for _, is_member in pairs]
    if len(set(member)) < 2:
        return
    rates = []
    for threshold in {*scores, 100.0}:
        alarms = [score >= threshold for score in scores]
        shares = [
            sum(alarm for alarm, own in zip(alarms, member, strict=True) if own is side) / member.count(side)
            for side in (True, False)
        ]
        rates += [shares[1]] if shares[0] >= 0.95 else []
    assert fpr_at_tpr(scores, member) == pytest.approx(min(rates))


def test_a_ratio_of_losses_needs_losses() -> None:
    assert loss_ratio(1.0, 2.0) == 0.5
    for own, other in ((1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="ratio"):
            loss_ratio(own, other)


def test_signals_of_earlier_versions_end_at_sixty() -> None:
    earlier = Signals(tokens=3, loss=1.0, perplexity=2.7, zlib_ratio=0.1, min_k=[-1.0] * 7)
    assert [name for name in earlier.scores() if name.startswith("min_k")][-1] == "min_k_60"

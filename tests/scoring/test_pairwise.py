"""Figures of pairwise judges against their definitions, counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scoring.pairwise import INCONSISTENT, TIE, PairVerdicts, fraction_interval, pair_figures

_VERDICT = st.sampled_from([1, 2, TIE, None])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, TIE, None]), _VERDICT, _VERDICT, st.integers(0, 5)), min_size=1, max_size=25
    )
)
def test_figures_are_the_counts(rows: list[tuple[int | None, int | None, int | None, int]]) -> None:
    pairs = [PairVerdicts(f"p{at}", f"q{group}", (a, b), label) for at, (label, a, b, group) in enumerate(rows)]
    figures = pair_figures(pairs)
    labelled = [(label, a, b) for label, a, b, _ in rows if label is not None]
    readable = [(a, b) for _, a, b, _ in rows if a is not None and b is not None]
    assert (figures.pairs, figures.labelled, figures.verdicts) == (len(rows), len(labelled), 2 * len(rows))
    assert figures.unreadable == sum((a is None) + (b is None) for _, a, b, _ in rows)
    if labelled:
        assert figures.strict is not None
        assert figures.accuracy is not None
        assert figures.net is not None
        assert figures.strict.mean == pytest.approx(sum(a == b == label for label, a, b in labelled) / len(labelled))
        right = sum((a == label) + (b == label) for label, a, b in labelled)
        assert figures.accuracy.mean == pytest.approx(right / 2 / len(labelled))
        assert figures.strict.mean <= figures.net.mean
        assert figures.strict.mean <= figures.accuracy.mean
        ends = fraction_interval(figures.strict)
        assert ends is not None
        assert 0.0 <= ends.low <= ends.value <= ends.high <= 1.0
    else:
        assert figures.strict is figures.accuracy is None
    assert (figures.consistent is None) == (not readable)
    if figures.consistent is not None:
        assert figures.consistent.mean == pytest.approx(sum(a == b for a, b in readable) / len(readable))


def test_a_judge_of_positions_has_half_the_verdicts_right_and_is_never_right_in_both_orders() -> None:
    # The answer shown first wins: answer 1 in the first order, answer 2 in the second.
    figures = pair_figures([PairVerdicts(f"p{at}", f"p{at}", (1, 2), 1 + at % 2) for at in range(40)])
    assert figures.accuracy is not None
    assert figures.strict is not None
    assert figures.consistent is not None
    assert (figures.accuracy.mean, figures.strict.mean, figures.consistent.mean) == (0.5, 0.0, 0.0)


def test_a_tie_in_one_order_is_forgiven_by_the_net_score_alone() -> None:
    figures = pair_figures([PairVerdicts("p", "p", (1, TIE), 1)])
    assert figures.net is not None
    assert figures.strict is not None
    assert (figures.net.mean, figures.strict.mean) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("verdicts", "vote"), [((1, 1), 1), ((1, 2), INCONSISTENT), ((TIE, TIE), TIE), ((1, None), None), ((2,), 2)]
)
def test_a_vote_is_the_verdict_of_both_orders(verdicts: tuple[int | None, ...], vote: int | None) -> None:
    assert PairVerdicts("p", "p", verdicts).vote == vote


def test_one_order_has_no_consistency() -> None:
    figures = pair_figures([PairVerdicts("p", "p", (1,), 1), PairVerdicts("r", "r", (2,), 1)])
    assert figures.accuracy is not None
    assert figures.accuracy.mean == 0.5
    assert figures.consistent is figures.strict is figures.net is None

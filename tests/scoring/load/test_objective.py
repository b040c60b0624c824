"""Objectives as users write them, and the search for the highest rate that meets one."""

from __future__ import annotations

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.scoring.load_schedule import Objective, RateList, RateResult, RateSearch, highest_rate


def test_terms_are_read_with_their_units() -> None:
    found = Objective.parse("p95_e2e<3s, p99.9_ttft<=250ms,parse_fail<1%, drift<0.05, throughput>4")
    assert [(term.figure, term.sign, term.bound) for term in found.terms] == [
        ("p95_e2e", "<", 3.0),
        ("p99.9_ttft", "<=", 0.25),
        ("parse_fail", "<", 0.01),
        ("drift", "<", 0.05),
        ("throughput", ">", 4.0),
    ]
    assert found.limits() == {"e2e": 3.0, "ttft": 0.25}


@case_table(
    ("text", "named"),
    [
        ("p95_e2e", "expected FIGURE<BOUND"),
        ("p95_speed<3s", "unknown figure 'p95_speed'"),
        ("latency<3s", "p95_e2e"),
        ("p95_e2e<3", "a time in s, ms or us"),
        ("drift<5ms", "a number without a unit"),
        ("throughput>5%", "throughput"),
        ("drift<1.2.3", "'1.2.3' is not a number"),
        ("", "expected FIGURE<BOUND"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        Objective.parse(text)


def test_unknown_figures_do_not_meet_an_objective() -> None:
    objective = Objective.parse("p95_e2e<3s, drift<5%")
    assert [term.figure for term in objective.missed_terms({"p95_e2e": 2.9, "drift": None})] == ["drift"]
    assert objective.missed_terms({"p95_e2e": 2.9, "drift": 0.01}) == ()
    assert [term.figure for term in objective.missed_terms({"p95_e2e": 3.0, "drift": 0.05})] == ["p95_e2e", "drift"]


@given(st.floats(0.02, 200.0), st.floats(0.02, 0.2))
def test_a_search_ends_close_below_the_highest_rate_that_meets_it(capacity: float, tolerance: float) -> None:
    search = RateSearch(1.0, 100.0, tolerance)
    tried: list[RateResult] = []
    while (rate := search.next(tried)) is not None:
        tried.append(RateResult(rate, rate <= capacity, rate > 2 * capacity))
        assert len(tried) < 40
    best = highest_rate(tried)
    if best is None:
        assert capacity < 0.021
    elif best < 100.0:
        assert best <= capacity <= best * (1 + tolerance) * 1.001
    else:
        assert capacity >= 100.0


def test_a_list_of_rates_ends_behind_the_first_that_is_too_high() -> None:
    plan = RateList((8.0, 1.0, 4.0, 2.0))
    assert plan.next([]) == 1.0
    assert plan.next([RateResult(1.0, True), RateResult(2.0, False)]) == 4.0
    assert plan.next([RateResult(1.0, True), RateResult(2.0, False, saturated=True)]) is None


def test_a_lucky_rate_above_one_that_failed_does_not_count() -> None:
    assert highest_rate([RateResult(1.0, True), RateResult(2.0, False), RateResult(4.0, True)]) == 1.0
    assert highest_rate([RateResult(1.0, False)]) is None

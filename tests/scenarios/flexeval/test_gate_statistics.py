"""The gate against a baseline: how often it is red without a regression, and how often it finds one."""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import viva
from hypothesis import given, settings
from hypothesis import strategies as st
from release_pairs import Draw, alarms, collected, continuous, passed, seldom, skewed
from small_suites import TALK, write_suite

from viva.engine.errors import ConfigurationError
from viva.scenarios.flexeval.gate import check_gate
from viva.scenarios.flexeval.metrics import resolve_metrics
from viva.scenarios.flexeval.scales import check_attainable
from viva.scenarios.flexeval.spec import Bounds, Suite, Threshold
from viva.scoring.sample_size import paired_test_power

PAIRS, ALPHA = 1000, 0.05


def _binomial(chance: float) -> tuple[float, float]:
    """Between what counts 99.9% of the samples of so many pairs lie."""
    from scipy.stats import binom

    low, high = binom.interval(0.999, PAIRS, chance)
    return float(low), float(high)


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (continuous, {}),
        (continuous, {"conversations": 10}),
        (continuous, {"conversations": 110}),  # Student's t
        (skewed, {}),
        (skewed, {"repeats": 4, "conversations": 20}),
    ],
)
def test_false_alarms_of_one_metric_come_at_the_stated_rate(draw: Draw, shape: dict[str, Any]) -> None:
    low, high = _binomial(ALPHA)
    assert low <= alarms(draw, PAIRS, alpha=ALPHA, **shape) <= high


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (passed, {}),
        (passed, {"repeats": 3}),
        (seldom, {"conversations": 200}),
        (continuous, {"conversations": 5}),
    ],
)
def test_ties_and_few_conversations_make_false_alarms_rarer_never_more_frequent(
    draw: Draw, shape: dict[str, Any]
) -> None:
    # p takes few values there: the largest one below alpha lies well below it.
    assert alarms(draw, PAIRS, alpha=ALPHA, **shape) <= _binomial(ALPHA)[1]


def test_false_alarms_among_twenty_metrics_come_at_the_stated_rate_together() -> None:
    # With 12 conversations all 4,096 signs are tried: the largest p below alpha / 20 is 10 / 4,096.
    low, high = _binomial(1.0 - (1.0 - 10 / 4096) ** 20)
    assert low <= alarms(continuous, PAIRS, metrics=20, conversations=12, alpha=ALPHA) <= high


def test_a_planted_regression_is_found_at_the_stated_power() -> None:
    # Half a standard deviation of the conversations' differences, which is sqrt(2) for this kind of values. One-sided
    # at alpha is two-sided at 2 alpha, but for findings on the wrong side, which have no chance here.
    stated = paired_test_power(0.5, 40, 1.0 - 2 * ALPHA)
    assert stated == pytest.approx(0.928, abs=0.001)
    low, high = _binomial(stated)
    found = alarms(continuous, PAIRS, fall=0.5 * math.sqrt(2), alpha=ALPHA)
    assert low <= found <= high


def test_a_fall_within_the_margin_is_none_and_one_beyond_it_is_red() -> None:
    import numpy as np

    before = np.linspace(0.0, 4.0, 30)[:, None]
    then = {"app": collected({"score": before})}
    for fall, broken in ((0.4, False), (0.6, True)):
        now = {"app": collected({"score": before - fall})}
        [check] = check_gate([Threshold(metric="score", fall=0.5)], now, {}, {}, then, ALPHA)
        assert check.broken is broken
        assert check.was is not None
        assert check.found is not None
        assert check.was - check.found == pytest.approx(fall)
        assert check.by == pytest.approx(0.1 if broken else 0.0)
        assert check.n == 30


def test_a_rise_is_a_fall_seen_from_the_other_side() -> None:
    import numpy as np

    random = np.random.default_rng(3)
    values = {name: random.normal(size=(25, 2)) for name in ("one", "other")}
    now, then = ({"app": collected({"score": values[name]})} for name in values)
    turned, before = ({"app": collected({"score": -values[name]})} for name in values)
    [rise] = check_gate([Threshold(metric="score", rise=0.1)], now, {}, {}, then, ALPHA)
    [fall] = check_gate([Threshold(metric="score", fall=0.1)], turned, {}, {}, before, ALPHA)
    assert rise.p == pytest.approx(fall.p)
    assert rise.broken == fall.broken
    assert rise.found == pytest.approx(-(fall.found or 0.0))


def test_few_conversations_cannot_be_red_and_five_can() -> None:
    import numpy as np

    for conversations, red in ((4, False), (5, True)):  # 2 ** -4 > alpha > 2 ** -5
        now, then = ({"app": collected({"score": np.full((conversations, 1), value)})} for value in (0.0, 1.0))
        [check] = check_gate([Threshold(metric="score", fall=0.0)], now, {}, {}, then, ALPHA)
        assert check.p == pytest.approx(2.0**-conversations)
        assert check.broken is red


# -- thresholds that can never hold -----------------------------------------------------------------------------------

_FUNCTIONS = """
def polite(text) -> bool: return True
def mood(text: str) -> str | None: return "calm"
def parts(text: str) -> dict[str, float]: return {"a": 1.0}
def any_number(text: str) -> float: return -5.0
"""
_RUBRICS = {"kind": {"prompt": "?", "choice_scores": {"bad": 1, "fair": 2, "good": 3}}}
_METRICS: list[dict[str, Any]] = [
    *({"function": name} for name in ("words", "latency", "tokens", "polite", "mood", "parts", "any_number")),
    {"rubric": "kind"},
    {"name": "gated", "function": "words", "passes": {"at_least": 1}},
]


def _checked(tmp_path: Path, thresholds: list[dict[str, Any]], **changes: Any) -> tuple[int, str]:
    suite = {"metrics": _METRICS, "rubrics": _RUBRICS, "grader": "simulated:g", "thresholds": thresholds} | changes
    path = write_suite(tmp_path, [TALK], functions=_FUNCTIONS, **suite)
    done = viva("suite", "check", path, "--python-tools", tmp_path / "mine.py")
    return done.returncode, done.stderr


_NEVER = [
    ({"metric": "gated", "statistic": "pass_rate", "at_least": 80}, "between 0 and 1; for 80 percent write 0.8"),
    ({"metric": "tests", "statistic": "pass_rate", "at_least": 95}, "lies .*for 95 percent write 0.95"),
    ({"metric": "tests", "at_least": 2}, "share of tests that pass lies between 0 and 1"),
    ({"metric": "tests", "statistic": "pass^3", "at_least": 1.5}, "between 0 and 1"),
    ({"metric": "words", "statistic": "errors", "at_most": -0.1}, "errors lies between 0 and 1"),
    ({"metric": "kind", "statistic": "f1", "at_least": 70}, "f1 lies between 0 and 1"),
    ({"metric": "kind", "statistic": "f1:good", "at_least": 70}, "f1:good lies between 0 and 1"),
    ({"metric": "kind", "statistic": "share:good", "at_least": 50}, "share:good lies between 0 and 1"),
    ({"metric": "kind", "statistic": "share:great", "at_least": 0.5}, "'great' never has a share: .*bad, fair, good"),
    ({"metric": "kind", "at_least": 3.5}, "rubric 'kind' scores from 1 to 3"),
    ({"metric": "kind", "statistic": "p98", "at_most": 0.5}, "rubric 'kind' scores from 1 to 3"),
    ({"metric": "kind.expected", "statistic": "median", "at_least": 4}, "rubric 'kind' scores from 1 to 3"),
    ({"metric": "kind", "statistic": "sum", "at_most": 0.5}, "rubric 'kind' scores from 1 to 3"),
    ({"metric": "words", "at_most": -1}, "'words' is never below 0"),
    ({"metric": "latency", "statistic": "p98", "at_most": -0.1}, "'latency' is never below 0"),
    ({"metric": "tokens.prompt", "at_most": -1}, "'tokens' is never below 0"),
    ({"metric": "words", "statistic": "count", "at_most": -1}, "a count is never below 0"),
    ({"metric": "words", "at_least": 5, "at_most": 4}, "nothing is at least 5 and at most 4"),
    ({"metric": "any_number", "at_least": float("nan")}, "nan cannot be compared"),
    ({"metric": "any_number", "at_least": float("inf")}, "no figure is infinite"),
    ({"metric": "polite", "at_least": 1.01}, "'polite' returns a boolean"),
    ({"metric": "mood", "at_least": 1}, "'mood' returns text, not a number"),
    ({"metric": "mood", "fall": 0}, "'mood' returns text, not a number"),
    ({"metric": "tokens", "at_most": 100}, "'tokens' returns several values by name; write tokens.KEY"),
    ({"metric": "any_number", "statistic": "share:calm", "at_least": 0.5}, "'any_number' returns a number, not text"),
    ({"metric": "kind", "statistic": "f1", "at_least": 0.5}, "f1 needs right answers: give 'kind' a `label`"),
    ({"metric": "mood", "statistic": "pass_rate", "at_least": 0.5}, "give `passes` to say which values pass"),
    ({"metric": "tests", "statistic": "errors", "at_most": 0.1}, "tests have no errors; write pass_rate"),
    ({"metric": "tests", "statistic": "pass^5", "at_least": 0.9}, "is tested 1 time; write `repeats: 5`"),
    ({"metric": "tests", "role": "user", "at_least": 0.9}, "a test covers all roles"),
    ({"metric": "polite", "role": "assitant", "at_least": 1}, "no role 'assitant'; .*did you mean 'assistant'"),
    ({"metric": "kind", "statistic": "share:goood", "at_least": 0.5}, "'goood' never .*did you mean 'good'"),
    ({"metric": "parts", "at_most": 100}, "'parts' returns several values by name; write parts.KEY"),
]  # fmt: skip


@pytest.mark.parametrize(("threshold", "told"), _NEVER, ids=lambda one: str(one)[:60])
def test_a_threshold_that_can_never_hold_is_refused(tmp_path: Path, threshold: dict[str, Any], told: str) -> None:
    code, said = _checked(tmp_path, [threshold])
    assert code == 2
    [line] = said.splitlines()
    assert re.search(rf"suite\.yaml: thresholds\.0: .* can never hold: .*{told}", line), line


def test_thresholds_that_can_hold_are_taken(tmp_path: Path) -> None:
    at_the_ends = [
        {"metric": "gated", "statistic": "pass_rate", "at_least": 1},
        {"metric": "tests", "at_most": 0},
        {"metric": "kind", "at_least": 3},
        {"metric": "kind", "statistic": "sum", "at_least": 500},
        {"metric": "kind", "statistic": "share:bad", "at_most": 0},
        {"metric": "words", "statistic": "count", "at_least": 1000},
        {"metric": "words", "at_least": 5, "at_most": 5},
        {"metric": "any_number", "at_most": -80},
        {"metric": "mood", "statistic": "share:calm", "at_least": 0.5},
        {"metric": "mood", "statistic": "count", "at_least": 1},
        {"metric": "polite", "at_least": 1},
        {"metric": "parts.a", "at_least": -5},
        {"metric": "tokens.prompt", "statistic": "sum", "at_most": 1e9},
    ]
    assert _checked(tmp_path, at_the_ends) == (0, "")


@pytest.mark.parametrize(
    ("threshold", "told"),
    [
        ({"metric": "gated", "statistic": "pass_rate", "at_most": 5}, "pass_rate lies .* for 5 percent write 0.05"),
        ({"metric": "words", "statistic": "errors", "at_most": 10}, "errors lies .* for 10 percent write 0.1"),
        ({"metric": "gated", "statistic": "pass_rate", "fall": 5, "at_most": 2}, ".*for 5 percent write 0.05"),
        ({"metric": "kind", "at_most": 8}, "rubric 'kind' scores from 1 to 3"),
    ],
)
def test_a_threshold_that_no_figure_can_break_is_noted(tmp_path: Path, threshold: dict[str, Any], told: str) -> None:
    code, said = _checked(tmp_path, [threshold])
    assert code == 0
    assert re.search(rf"note: thresholds\.0: no figure can break .*: {told}", said), said


def test_a_metric_that_is_not_there_is_told_with_one_that_is(tmp_path: Path) -> None:
    code, said = _checked(tmp_path, [{"metric": "wrds", "at_least": 1}])
    assert code == 2
    assert "; did you mean 'words'? known: " in said
    assert said.rstrip().endswith("tests (all metrics with `passes`)")


def test_tests_and_repeats_and_errors_are_of_the_conversations_that_where_chooses() -> None:
    found = collected({"words": np.array([[1.0], [1.0], [0.0], [0.0]])})
    found.tests = [replace(one, metadata={"topic": topic}) for one, topic in zip(found.tests, "aabb", strict=True)]
    found.series["words"].fail(3, "E")
    passes = {"words": Bounds(at_least=1)}
    chosen = {"a": (1.0, 1.0, 0.0), "b": (0.0, 0.0, 1 / 3)}
    for topic, wanted in chosen.items():
        names = (("tests", "pass_rate"), ("words", "pass^1"), ("words", "errors"))
        where = {"topic": topic}
        thresholds = [Threshold(metric=metric, statistic=name, where=where, at_least=0) for metric, name in names]
        checks = check_gate(thresholds, {"app": found}, passes, {}, None, 0.05)
        assert [check.found for check in checks] == pytest.approx(wanted)


def test_a_fall_of_tests_is_compared_with_the_baseline() -> None:
    was, now = (collected({"words": np.full((8, 1), value)}) for value in (1.0, 0.0))
    threshold = Threshold(metric="tests", fall=0)
    [check] = check_gate([threshold], {"a": now}, {"words": Bounds(at_least=1)}, {}, {"a": was}, 0.05)
    assert (check.found, check.was, check.broken) == (0.0, 1.0, True)


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ({"rubric": "kind", "passes": {"at_least": 80}}, "`passes` can never hold: rubric 'kind' scores from 1 to 3"),
        ({"rubric": "kind", "passes": {"equals": "great"}}, "no value is 'great': rubric 'kind'"),
        ({"rubric": "kind", "passes": {"among": ["great", 7]}}, "no value is 'great' or 7"),
        ({"function": "words", "passes": {"at_least": 3, "at_most": 2}}, "nothing is at least 3 and at most 2"),
        ({"function": "polite", "passes": {"equals": "yes"}}, "no value is 'yes': 'polite' returns a boolean"),
        (
            {"function": "tokens", "passes": {"at_most": 100}},
            "metric 'tokens' returns several values by name, but `passes`",
        ),
        ({"function": "words", "when": [{"metric": "counted", "at_least": 1}]}, "select one with `value`"),
        ({"function": "words", "when": [{"metric": "gated", "value": "a", "at_least": 1}]}, "it has no 'a': 'words'"),
        ({"function": "words", "when": [{"metric": "gated", "at_most": -1}]}, "`when` of 'gated' can never hold"),
    ],
)
def test_passes_and_conditions_that_can_never_hold_are_refused(
    tmp_path: Path, metric: dict[str, Any], told: str
) -> None:
    code, said = _checked(tmp_path, [], metrics=[metric, {"name": "counted", "function": "tokens"}, _METRICS[-1]])
    assert code == 2
    assert told in said


_STATISTICS = [
    "mean",
    "median",
    "min",
    "max",
    "sum",
    "p98",
    "count",
    "errors",
    "pass_rate",
    "share:good",
    "share:great",
]


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(_STATISTICS),
    st.sampled_from([None, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 80.0]),
    st.sampled_from([None, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 80.0]),
    st.lists(st.sampled_from(["bad", "fair", "good"]), min_size=1, max_size=5),
)
def test_what_is_refused_is_broken_whatever_was_answered(
    statistic: str, least: float | None, most: float | None, answers: list[str]
) -> None:
    if least is most is None:
        return
    threshold = Threshold(metric="kind", statistic=statistic, at_least=least, at_most=most)
    suite = Suite.model_validate(
        {"conversations": ["x"], "rubrics": _RUBRICS, "metrics": [{"rubric": "kind"}], "thresholds": [threshold]}
    )
    scores = _RUBRICS["kind"]["choice_scores"]
    found = collected({"kind": np.array([[float(scores[one]) for one in answers]]).T})
    series = found.series["kind"]
    series.categories = {name: place for place, name in enumerate(scores)}
    series.choices = array("i", [series.categories[one] for one in answers])
    [check] = check_gate([threshold], {"app": found}, {}, {}, None, 0.05)
    try:
        check_attainable(suite, resolve_metrics(suite), "suite.yaml")
    except ConfigurationError:
        assert check.broken


def test_a_broken_threshold_says_how_far_it_is_from_its_end() -> None:
    found = {"app": collected({"words": np.array([[3.9], [3.9]])})}
    thresholds = [
        Threshold(metric="words", at_least=1000),
        Threshold(metric="words", at_most=3, at_least=1),
        Threshold(metric="words", at_most=4),
    ]
    told = [check.describe() for check in check_gate(thresholds, found, {}, {}, None, 0.05)]
    assert told == [
        "mean(words) >= 1000: app: 3.9 is 996.1 below the minimum of 1000 (n = 2)",
        "mean(words) >= 1, <= 3: app: 3.9 is 0.9 above the maximum of 3 (n = 2)",
        "mean(words) <= 4: app: 3.9, expected <= 4 (n = 2)",
    ]


@pytest.mark.parametrize(
    "function", [{"function": "is_role", "arguments": {"role": "assistant"}}, {"function": "parts"}]
)
def test_a_condition_on_a_function_that_may_return_one_value_by_name_is_taken(
    tmp_path: Path, function: dict[str, Any]
) -> None:
    metric = {"function": "words", "when": [{"metric": "counted", "at_least": 1}]}
    assert _checked(tmp_path, [], metrics=[metric, {"name": "counted", **function}, _METRICS[-1]])[0] == 0

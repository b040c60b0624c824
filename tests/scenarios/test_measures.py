"""Means of function scenarios: intervals stay where values can be, and are withheld where nothing can be told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import viva
from viva.engine.errors import ConfigurationError
from viva.exchange.exports.conversations import open_cells
from viva.exchange.exports.every_eval import export_every_eval
from viva.reports.tables import mean_and_interval
from viva.scenarios.contract import Ranges, grade_reader
from viva.scenarios.default_aggregate import CandidateMeasures

ENDS = ("low", "high")
TASKS = [f"topic {number}" for number in range(4)]


def _measure(values: list[Any], ranges: Ranges | None = None, name: str = "score", each: int = 1) -> dict[str, Any]:
    """The figures of a measure whose values are of so many conversations on each task."""
    found = CandidateMeasures(ranges)
    for place, value in enumerate(values):
        found.add({"task": f"t{place // each}", "value": {name: value}, "usage": {}})
    measure: dict[str, Any] = found.to_dict({})["measures"][name]
    return measure


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8) | st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8),
    st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 100.0)]),
    st.sampled_from([1, 2]),
)
def test_intervals_of_a_declared_range_stay_inside_and_are_never_points(
    shares: list[float], ends: tuple[float, float], each: int
) -> None:
    low, high = ends
    found = _measure([low + share * (high - low) for share in shares], {"score": ends}, each=each)
    assert low - 1e-6 <= found["low"] <= found["mean"] <= found["high"] <= high + 1e-6
    clusters = math.ceil(len(shares) / each)
    assert found["high"] - found["low"] > (high - low) / (clusters + 4)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.sampled_from([1, 3]))
def test_without_a_range_few_tasks_or_no_spread_get_no_interval(values: list[float], each: int) -> None:
    found = _measure(values, each=each)
    if math.ceil(len(values) / each) < 5 or found["se"] == 0.0:
        assert found["low"] is found["high"] is None
    if found["low"] is not None:
        assert found["low"] <= found["mean"] <= found["high"]


@given(st.lists(st.integers(0, 5000), min_size=5, max_size=9))
def test_counts_never_go_below_0(lengths: list[int]) -> None:
    found = _measure(lengths, name="length")
    assert found["low"] is None or found["low"] >= 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_truth_values_have_the_interval_of_a_share(values: list[bool]) -> None:
    found = _measure(values)
    assert 0.0 <= found["low"] < found["high"] <= 1.0
    n, z = len(values), 1.959964
    share = sum(values) / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert found["high"] - found["low"] >= 2 * half - 1e-5


@pytest.mark.parametrize("kind", [int, float])
def test_numbers_that_are_0_and_1_alone_have_the_interval_of_a_share(kind: type) -> None:
    found = _measure([kind(place != 3) for place in range(8)])
    assert (found["mean"], found["low"], found["high"]) == (
        0.875,
        *(_measure([True] * 7 + [False])[end] for end in ENDS),
    )
    mixed = _measure([True, kind(0), kind(1), kind(1), kind(1)])
    assert 0.0 <= mixed["low"] < mixed["high"] <= 1.0
    alike = _measure([kind(1)] * 8)
    assert alike["low"] is alike["high"] is None, "whether they can be anything else is not known"


def test_rounding_is_no_spread() -> None:
    found = _measure([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2, 0.3, 0.3])
    assert found["low"] is found["high"] is None


def test_a_range_that_recorded_values_leave_is_none() -> None:
    found = _measure([5.0, 6.0, 7.5, 8.0, 9.0], {"score": (0.0, 1.0)})
    assert found["low"] < found["mean"] < found["high"]


def test_exports_have_the_intervals_and_the_range_of_the_report(tmp_path: Path) -> None:
    @viva.scenario(many="pupil", score=(0, 1))
    async def near(conversation: viva.Conversation, topic: str) -> float:
        return 0.9 if topic.endswith("1") else 1.0

    run = viva.run_sync(near, tasks=TASKS, models={"pupil": "simulated:a"}, out=str(tmp_path / "run"))
    [cell] = open_cells(tmp_path / "run")
    ends = cell.criteria["score"].interval
    assert ends is not None
    measure = run.report()["candidates"]["a"]["measures"]["score"]
    assert (round(ends.low, 6), round(ends.high, 6)) == (measure["low"], measure["high"])
    assert measure["high"] <= 1.0
    export_every_eval([cell], tmp_path / "out")
    [record] = [orjson.loads(file.read_bytes()) for file in (tmp_path / "out").rglob("*.json")]
    config = record["evaluation_results"][0]["metric_config"]
    assert (config["min_score"], config["max_score"]) == (0.0, 1.0)


def _told(tmp_path: Path, which: Any) -> tuple[dict[str, Any], str]:
    """The candidate's figures, and the cell of its first measure."""
    run = viva.run_sync(which, tasks=TASKS, models={"pupil": "simulated:a"}, out=str(tmp_path / "run"))
    figures: dict[str, Any] = run.report()["candidates"]["a"]
    [name, *_] = sorted(figures["measures"])
    return figures, mean_and_interval(figures["measures"][name], 2)


def test_a_scenario_declares_its_scores_range(tmp_path: Path) -> None:
    @viva.scenario(many="pupil", score=(0, 1))
    async def bounded(conversation: viva.Conversation, topic: str) -> float:
        return 1.0

    @viva.scenario(many="pupil")
    async def unbounded(conversation: viva.Conversation, topic: str) -> float:
        return 0.5 + len(topic) / 1000 if topic.endswith("1") else 0.4

    assert _told(tmp_path / "one", bounded)[1] == "1.00 (0.51 to 1.00)"
    assert _told(tmp_path / "two", unbounded)[1] == "0.43"  # of 4 tasks
    settings = bounded.settings(pupil=["simulated:a"])
    grading = grade_reader(bounded, settings)
    assert grading is not None
    assert (grading.low, grading.high) == (0.0, 1.0)
    unknown = grade_reader(unbounded, unbounded.settings(pupil=["simulated:a"]))
    assert unknown is not None
    assert (unknown.low, unknown.high) == (-math.inf, math.inf)


def test_a_value_outside_of_its_declared_range_fails_the_conversation(tmp_path: Path) -> None:
    @viva.scenario(many="pupil", score={"merit": (0, 10), "words": (0, None)})
    async def beyond(conversation: viva.Conversation, topic: str) -> dict[str, float]:
        return {"merit": 11.0 if topic.endswith("1") else 9.0, "words": 12}

    report, _ = _told(tmp_path, beyond)
    assert report["failed"] == 1
    assert report["measures"]["merit"]["n"] == 3
    assert "beyond returned merit = 11.0; its decorator declares 0 to 10" in str(report)


@pytest.mark.parametrize("score", [(1, 0), (0,), "01", {"score": 3}, {"score": (math.nan, 1)}])
def test_a_range_that_is_none_is_refused(score: Any) -> None:
    with pytest.raises(ConfigurationError, match="score: expected"):
        viva.scenario(many="pupil", score=score)

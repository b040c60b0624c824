"""Loads on queues with known theory, in virtual time: latencies, utilisation, stalls, over-saturation, searches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from load_parts import QueueJudge, carried_out, requests, throttled, unavailable
from queue_theory import mean_sojourn, sojourn_quantile

from viva.engine.clock import VirtualClock
from viva.loadtest.load_log import LoadHistory
from viva.loadtest.load_records import LoadRequest
from viva.loadtest.run_load_test import LoadTest

_SERVERS, _MEAN = 4, 0.5


@pytest.mark.parametrize(("load", "count"), [(0.3, 8_000), (0.6, 12_000), (0.9, 20_000)])
def test_percentiles_and_utilisation_are_those_of_the_queue_and_of_its_theory(
    tmp_path: Path, load: float, count: int
) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, _SERVERS, _MEAN, seed=5)
    rate = load * _SERVERS / _MEAN
    test = carried_out(tmp_path, clock, {"q": judge}, requests(50), rates=(rate,), requests=count, warm_up=0.0)
    [result] = test.results.values()
    record, e2e = result.measured.record, result.measured.record["latencies"]["e2e"]
    assert (record["end"], record["answered"], record["no_first_token"]) == ("done", count, 0)
    # What the queue itself saw of each request, to the precision of the histogram.
    for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99}.items():
        assert e2e[name] == pytest.approx(np.quantile(judge.spent, share, method="higher"), rel=3e-3)
    assert e2e["mean"] == pytest.approx(np.mean(judge.spent), rel=1e-6)
    assert record["offered_rate"] == pytest.approx(rate, rel=0.03)
    # Little's law: so many servers are busy on average, so many requests in the system.
    assert record["throughput"] * judge.service / count / _SERVERS == pytest.approx(load, rel=0.05)
    assert record["in_flight"] == pytest.approx(record["throughput"] * e2e["mean"], rel=0.02)
    if load < 0.9:  # beyond, so few requests say too little of the tail: see benches/load.py
        assert e2e["mean"] == pytest.approx(mean_sojourn(rate, _MEAN, _SERVERS), rel=0.05)
        for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99}.items():
            assert e2e[name] == pytest.approx(sojourn_quantile(share, rate, _MEAN, _SERVERS), rel=0.05)


def test_a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one(tmp_path: Path) -> None:
    def stalling(clock: VirtualClock) -> QueueJudge:
        return QueueJudge(clock, 4, 0.01, stall_at=1000, stall=5.0)

    clock = VirtualClock()
    opened = carried_out(
        tmp_path / "open", clock, {"q": stalling(clock)}, requests(20), rates=(50.0,), seconds=60.0, warm_up=0.0
    )
    clock = VirtualClock()
    closed = carried_out(
        tmp_path / "closed", clock, {"q": stalling(clock)}, requests(20), concurrency=(4,), requests=3000, warm_up=0.0
    )
    [one], [other] = opened.results.values(), closed.results.values()
    assert one.measured.record["end"] == other.measured.record["end"] == "done"
    # 250 of 3,000 requests were due during the 5 s: one in twelve waited, evenly up to 5 s.
    e2e = one.measured.record["latencies"]["e2e"]
    assert e2e["p99"] == pytest.approx(5.0 * (1 - 0.01 / (5 / 60)), rel=0.05)
    assert e2e["p95"] == pytest.approx(5.0 * (1 - 0.05 / (5 / 60)), rel=0.10)
    assert e2e["max"] > 4.9
    # A closed loop sent four requests in that time: its percentiles do not know of it.
    assert other.measured.record["latencies"]["e2e"]["p99"] < 0.1
    assert other.measured.record["latencies"]["e2e"]["max"] > 4.9


def test_over_saturation_ends_a_step_and_the_sweep_and_is_named(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, 2, 0.1)  # 20/s at most
    test = carried_out(tmp_path, clock, {"q": judge}, requests(20), rates=(10.0, 30.0, 60.0), seconds=600.0, drain=30.0)
    ends = [(result.measured.step.rate, result.measured.record["end"]) for result in test.results.values()]
    assert ends == [(10.0, "done"), (30.0, "saturated")]
    assert test.results[1, "q"].measured.record["sent"] < 30 * 200
    assert test.results[1, "q"].measured.record["steady"] is not True
    # What was not answered in time is not forgotten: it is a failure of its own kind.
    errors = test.results[1, "q"].measured.record["errors"]
    assert set(errors) <= {"Unfinished"}


def test_the_open_loop_does_not_wait_for_a_slow_judge(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, 1, 1.0)
    test = carried_out(
        tmp_path, clock, {"q": judge}, requests(5), rates=(100.0,), arrivals="constant", requests=500,
        stop_at_saturation=False, drain=5000.0,
    )  # fmt: skip
    [result] = test.results.values()
    record = result.measured.record
    assert record["most_in_flight"] > 480
    assert record["latencies"]["dispatch"]["max"] < 1e-4
    assert record["offered_rate"] == pytest.approx(100.0)


def test_too_many_in_flight_end_a_step(tmp_path: Path) -> None:
    clock = VirtualClock()
    test = carried_out(
        tmp_path, clock, {"q": QueueJudge(clock, 1, 60.0)}, requests(5), rates=(100.0,), seconds=10.0,
        most_in_flight=50, drain=1.0,
    )  # fmt: skip
    [result] = test.results.values()
    assert result.measured.record["end"] == "too_many_in_flight"
    assert result.measured.saturated
    assert result.measured.record["sent"] == 51


def test_a_search_finds_the_highest_rate_that_meets_an_objective(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, 1, 0.1, seed=3)
    test = carried_out(
        tmp_path, clock, {"q": judge}, requests(10), search=(1.0, 64.0), objective="p95_e2e<1s", requests=4000,
        tolerance=0.1,
    )  # fmt: skip
    tried = {result.measured.step.rate: result.met for result in test.results.values()}
    best = max(rate for rate, met in tried.items() if met)
    # M/M/1: 95% within 1 s needs a spare rate of ln 20 a second: 10 - 3.0.
    assert best == pytest.approx(10 - np.log(20), rel=0.12)
    assert len(tried) < 12


def test_failures_are_kept_by_kind_and_apart_from_latencies(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(
        clock, 50, 0.05, trouble=lambda n: unavailable(n) if n % 10 == 3 else throttled(n) if n % 10 == 7 else None
    )
    test = carried_out(tmp_path, clock, {"q": judge}, requests(10), rates=(20.0,), requests=1000, warm_up=0.0)
    record = test.results[0, "q"].measured.record
    assert record["errors"] == {"Throttled": 100, "Unavailable": 100}
    assert (record["answered"], record["throttles"], record["retries"]) == (800, 100, 0)
    assert record["latencies"]["e2e"]["count"] == 800
    assert record["failed_latencies"]["count"] == 200


def test_retries_are_made_only_where_wanted_and_are_counted(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, 50, 0.05, trouble=lambda n: throttled(n) if n % 2 == 0 and n < 100 else None)
    test = carried_out(tmp_path, clock, {"q": judge}, requests(10), rates=(20.0,), requests=200, retries=8, warm_up=0.0)
    record = test.results[0, "q"].measured.record
    assert record["errors"] == {}
    assert record["retries"] >= 50
    assert record["throttled_seconds"] >= record["retries"] * 1.0  # Retry-After
    assert judge.arrived == 200 + record["retries"]


def test_judges_take_turns_or_are_driven_together(tmp_path: Path) -> None:
    clock = VirtualClock()
    judges = {name: QueueJudge(clock, 8, 0.1, seed=place) for place, name in enumerate("ab")}
    test = carried_out(tmp_path / "turns", clock, dict(judges), requests(10), rates=(5.0, 10.0), seconds=20.0)
    steps = [(result.measured.step.rate, result.measured.judge) for result in test.results.values()]
    assert steps == [(5.0, "a"), (5.0, "b"), (10.0, "a"), (10.0, "b")]
    test = carried_out(
        tmp_path / "together", clock, dict(judges), requests(10), rates=(5.0, 10.0), seconds=20.0, together=True
    )
    steps = [(result.measured.step.index, result.measured.judge) for result in test.results.values()]
    assert steps == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_recorded_times_are_replayed_once_as_they_were(tmp_path: Path) -> None:
    clock = VirtualClock()
    came = [0.0, 0.5, 0.5, 2.0, 7.5]
    work = [
        LoadRequest(f"r{number}", (), one.sampling, at=100.0 + at)
        for number, (one, at) in enumerate(zip(requests(5), came, strict=True))
    ]
    test = carried_out(tmp_path, clock, {"q": QueueJudge(clock, 8, 0.1)}, work, arrivals="replay")
    with LoadHistory(tmp_path) as history:
        assert [one.intended for one in history.sent_requests(0, "q")] == came
    assert test.results[0, "q"].measured.record["end"] == "done"


def test_the_end_of_a_step_is_left_out_for_nothing_comes_behind_it(tmp_path: Path) -> None:
    def counted(folder: str, **fields: Any) -> dict[str, Any]:
        clock = VirtualClock()
        judge = QueueJudge(clock, 30, 1.0, seed=4)
        test = carried_out(
            tmp_path / folder, clock, {"q": judge}, requests(10), warm_up=0.0, **{"cool_down": None, **fields}
        )
        return test.results[0, "q"].measured.record

    opened = {"rates": (10.0,), "arrivals": "constant", "seconds": 100.0}
    assert counted("all", **opened, cool_down=0.0)["requests"] == 1000
    assert counted("given", **opened, cool_down=20.0)["requests"] == 800
    found = counted("found", **opened)
    assert (found["sent"], found["requests"]) == (1000, pytest.approx(990, abs=2)), "a mean latency of 1 s"
    closed = counted("closed", concurrency=(8,), requests=400)
    assert (closed["sent"], closed["requests"]) == (400, 392), "as many as were in flight"


def test_a_pause_lies_between_steps_and_ends_when_asked_to(tmp_path: Path) -> None:
    clock = VirtualClock()
    judge = QueueJudge(clock, 8, 0.1)
    load: dict[str, Any] = {"rates": (5.0, 10.0), "seconds": 20.0, "pause": 1000.0}
    began = clock.now()
    test = carried_out(tmp_path / "whole", clock, {"q": judge}, requests(10), baseline=5, **load)
    assert len(test.results) == 4
    assert 1000 + 2 * 20 < clock.now() - began - 1000 < 1000 + 2 * 20 + 10, "two pauses: none at the end"

    clock = VirtualClock()
    asked: list[asyncio.TimerHandle] = []

    def ready(test: LoadTest) -> None:
        asked.append(asyncio.get_running_loop().call_later(50.0, test.interrupt))

    began = clock.now()
    test = carried_out(tmp_path / "stopped", clock, {"q": QueueJudge(clock, 8, 0.1)}, requests(10), ready=ready, **load)
    assert test.interrupted
    assert len(test.results) == 1
    assert clock.now() - began == pytest.approx(50.0, abs=0.01)


def test_a_replay_that_was_stopped_goes_on_at_its_own_pace(tmp_path: Path) -> None:
    came = [0.0, 0.5, 0.5, 2.0, 7.5, 8.0, 30.0]
    work = [replace(one, at=at) for one, at in zip(requests(7), came, strict=True)]
    tests: list[LoadTest] = []

    def stopping(number: int) -> None:
        if number == 3:
            tests[0].interrupt()

    clock = VirtualClock()
    carried_out(
        tmp_path, clock, {"q": QueueJudge(clock, 8, 0.1, trouble=stopping)}, work, ready=tests.append,
        arrivals="replay",
    )  # fmt: skip
    assert tests[0].interrupted
    clock = VirtualClock()
    test = carried_out(tmp_path, clock, {"q": QueueJudge(clock, 8, 0.1)}, work, arrivals="replay")
    with LoadHistory(tmp_path) as history:
        assert [(one.part, one.intended) for one in history.sent_requests(0, "q")] == [
            (0, 0.0), (0, 0.5), (0, 0.5), (0, 2.0), (1, 0.0), (1, 0.5), (1, 22.5)]  # fmt: skip
    assert test.results[0, "q"].measured.record["end"] == "done"


def test_requests_have_the_same_seeds_at_every_rate_and_others_when_repeated(tmp_path: Path) -> None:
    clock = VirtualClock()
    carried_out(
        tmp_path, clock, {"q": QueueJudge(clock, 8, 0.1)}, requests(10), rates=(5.0, 10.0), requests=25, baseline=10
    )
    with LoadHistory(tmp_path) as history:
        seeds = {step: {(one.request, one.occurrence): one.seed for one in history.sent_requests(step, "q")}
                 for step in (-1, -2, 0, 1)}  # fmt: skip
    assert seeds[0] == seeds[1]
    assert seeds[-1] == seeds[-2] == {key: seed for key, seed in seeds[0].items() if key[1] == 0}
    assert len(set(seeds[0].values())) == 25

"""A metric's fault is that metric's alone, named; everything else of the conversation is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_suites import TALK, metric, run_suite, write_suite

FUNCTIONS = """
import signal, sys, time

def raises(text: str) -> int:
    raise ValueError("no number in it")

def hangs(text: str) -> int:
    while True:
        time.sleep(0.01)

def hangs_beyond_reach(text: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)

def returns_a_set(text: str):
    return {1, 2}

def shouts(text: str) -> int:
    sys.stdout.write("x" * 2**20)
    print("y" * 2**20, file=sys.stderr)
    return 1

def leaves(text: str) -> int:
    sys.exit(3)

def not_a_number(text: str) -> float:
    return float("nan")

def length_of_it(text: str) -> int:
    return len(text)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "ValueError: no number in it (at "),
        ("hangs", "TimeoutError: no result within its time limit"),
        ("returns_a_set", "TypeError: "),
        ("leaves", "SystemExit: 3"),
        ("not_a_number", "ValueError: "),
    ],
)
def test_a_broken_function_is_an_error_of_its_metric_alone(tmp_path: Path, name: str, reason: str) -> None:
    metrics = [{"function": name, "seconds": 0.2}, {"function": "length_of_it", "role": "assistant"}]
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=metrics, thresholds=[{"metric": name, "at_least": 0}])
    outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.how == "done"
    assert outcome.failed == 0
    [told] = metric(report, name)["errors"]
    assert told.startswith(reason)
    assert metric(report, name)["n"] == 0
    assert metric(report, "length_of_it")["n"] == 1
    [check] = report["gate"]
    assert check["broken"]  # an error is no zero: nothing was measured
    assert check["found"] is None


def test_a_function_that_no_signal_reaches_is_killed_and_the_rest_is_computed(tmp_path: Path) -> None:
    from viva.scenarios.flexeval import protocol

    metrics = [
        {"function": "hangs_beyond_reach", "seconds": 0.1, "role": "assistant"},
        {"function": "length_of_it", "seconds": 0.1},
    ]
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=metrics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "_START", 2.0)
        outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.failed == 0
    [told] = metric(report, "hangs_beyond_reach")["errors"]
    assert told.startswith("TimeoutError: no result after")
    assert metric(report, "length_of_it")["n"] == 1


def test_what_a_function_prints_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path, [TALK], FUNCTIONS, metrics=[{"function": "shouts"}])
    _, report = run_suite(suite, tmp_path / "run")
    assert metric(report, "shouts")["mean"] == 1
    said = capfd.readouterr()
    assert "xxx" not in said.out
    assert "yyy" not in said.err


def test_an_unreadable_line_fails_by_name_and_the_others_are_tested(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, [TALK, "{not json", TALK], metrics=[{"function": "length"}])
    outcome, report = run_suite(suite, tmp_path / "run")
    assert outcome.how == "done"
    assert (outcome.finished, outcome.failed) == (2, 1)
    [reason] = report["candidates"]["app"]["failure_reasons"]
    assert f"{tmp_path / 'talks.jsonl'}:2: " in reason

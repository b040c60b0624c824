"""Loads on a server in a process of its own: what both sides counted, a kill, and going on with a test."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from bench_command import bench
from queues import RunningQueue, running_queue
from viva_process import ended, started

from viva.loadtest.load_log import LoadHistory
from viva.loadtest.load_schema import load_schema


@pytest.fixture(scope="module")
def server() -> Iterator[RunningQueue]:
    with running_queue() as running:
        yield running


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of requests that ask for a score."""
    file = tmp_path_factory.mktemp("asked") / "requests.jsonl"
    schema = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
              "required": ["score"]}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}
    with file.open("w") as lines:
        for number in range(50):
            messages = [{"role": "system", "content": "You judge answers."},
                        {"role": "user", "content": f"Judge answer {number}."}]  # fmt: skip
            body = {"messages": messages, "max_tokens": 20, "temperature": 0, "response_format": form}
            lines.write(json.dumps(body) + "\n")
    return file


def test_both_sides_count_the_same_and_no_first_token_is_missing(
    server: RunningQueue, asked: Path, tmp_path: Path
) -> None:
    server.plan(servers=8, mean=0.004)
    code, record, said = bench(
        asked, "--judge", server.model, "--rates", "150,300", "--requests", 300, "--baseline", 20,
        "--slo", "p95_e2e<5s, drift<0.05, parse_fail<1%", "--out", tmp_path / "test",
    )  # fmt: skip
    assert code == 0, said
    assert record["objective"]["met"] is True
    jsonschema.validate(record, load_schema())
    counts = server.counts()
    with LoadHistory(tmp_path / "test") as history:
        rows = [one for step in history.steps() for one in history.sent_requests(step.step.index, "judge")]
    assert len(rows) == counts["requests"] == counts["answered"] == 20 + 20 + 300 + 300
    assert sum(row.prompt_tokens for row in rows) == counts["prompt_tokens"]
    assert sum(row.completion_tokens for row in rows) == counts["completion_tokens"]
    for row in rows:
        assert row.error == ""
        assert row.first_token is not None
        assert row.intended <= row.dispatched <= row.first_token <= row.finished
    [judge] = record["judges"]
    for step in judge["steps"]:
        assert step["speed"]["no_first_token"] == 0
        assert 0.0 < step["speed"]["goodput"] <= step["speed"]["throughput"]
        assert step["judgement"]["flagged"] is False
        assert step["judgement"]["figures"]


def test_failures_of_a_server_are_told_by_kind(server: RunningQueue, asked: Path, tmp_path: Path) -> None:
    server.plan(servers=8, mean=0.002, fail_every=5)
    _, record, _ = bench(
        asked, "--judge", server.model, "--rates", 200, "--requests", 100, "--baseline", 0, "--out", tmp_path / "test"
    )
    [judge] = record["judges"]
    counts = server.counts()
    assert judge["steps"][0]["judgement"]["errors"] == counts["failed"] == 20
    with LoadHistory(tmp_path / "test") as history:
        failed = [one for one in history.sent_requests(0, "judge") if one.error]
    assert {one.error for one in failed} == {"Unavailable"}
    assert all("overloaded" in one.message for one in failed)


def test_a_killed_test_keeps_what_has_ended_and_goes_on_where_it_stood(
    server: RunningQueue, asked: Path, tmp_path: Path
) -> None:
    server.plan(servers=8, mean=0.004)
    folder = tmp_path / "test"
    process = started(
        "judge", "load", asked, "--judge", server.model, "--rates", "200,400,800", "--requests", 400, "--baseline", 10,
        "--out", folder,
    )  # fmt: skip
    server.counts(requests=20 + 400 + 200)  # in the middle of the second rate
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with LoadHistory(folder) as history:
        kept = {(one.step, one.number): one for step in range(-2, 2) for one in history.sent_requests(step, "judge")}
        assert [step.ends is not None for step in history.steps()] == [True, True, True, False]
    arrived = server.counts()["requests"]
    assert 20 + 400 < len(kept) <= arrived

    code, record, said = bench("--resume", folder)
    assert code == 0, said
    with LoadHistory(folder) as history:
        now = {(one.step, one.number): one for step in range(-2, 3) for one in history.sent_requests(step, "judge")}
        assert [step.ends for step in history.steps()] == [{"judge": "done"}] * 5
        assert [part.seconds is None for part in history.steps()[3].parts] == [True, False]
    assert {key: now[key] for key in kept} == kept
    assert sorted(now) == sorted(
        [(step, number) for step in (-2, -1) for number in range(10)]
        + [(step, number) for step in (0, 1, 2) for number in range(400)]
    )
    # Sent twice were only requests whose answer was not yet committed when the process died.
    assert server.counts()["requests"] == arrived + len(now) - len(kept)
    [judge] = record["judges"]
    assert [step["speed"]["sent"] for step in judge["steps"]] == [400, 400, 400]


def test_a_finished_test_is_told_again_without_its_judge(asked: Path, tmp_path: Path) -> None:
    with running_queue(servers=8, mean=0.002) as queue:
        code, record, said = bench(
            asked, "--judge", queue.model, "--rates", 100, "--requests", 50, "--baseline", 5, "--out", tmp_path / "test"
        )
        assert code == 0, said
    code, again, said = bench("--resume", tmp_path / "test")
    assert (code, again) == (0, record), said


def test_a_missed_objective_and_a_judge_that_never_answers_have_exit_codes(
    server: RunningQueue, asked: Path, tmp_path: Path
) -> None:
    server.plan(servers=8, mean=0.004)
    code, record, _ = bench(
        asked, "--judge", server.model, "--concurrency", 2, "--requests", 40, "--baseline", 5,
        "--slo", "p50_e2e<1us", "--out", tmp_path / "missed",
    )  # fmt: skip
    assert (code, record["objective"]["met"]) == (3, False)
    server.plan(servers=8, mean=0.001, fail_every=1)
    code, _, said = endedbench(asked, "--judge", server.model, "--rates", "5", "--out", tmp_path / "dead")
    assert code == 1
    assert "the first 3 requests, sent one by one, all failed" in said
    assert "overloaded" in said
    # A folder stands in nobody's way where nothing has begun.
    code, _, said = bench(asked, "--judge", "openai:http://127.0.0.1:1/v1#a", "--rates", "5", "--out", tmp_path / "no")
    assert (code, (tmp_path / "no").exists()) == (1, False), said


def endedbench(*arguments: str | Path) -> tuple[int, bytes, str]:
    """The command in a process of its own."""
    return ended(started("judge", "load", *arguments))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rates", "1"], "name the requests to send"),
        (["FILE", "--rates", "1"], "--judge MODEL"),
        (["FILE", "--judge", "simulated:a"], "name the load"),
        (["FILE", "--judge", "simulated:a", "--rates", "1,x"], "expected numbers with commas"),
        (["FILE", "--judge", "simulated:a", "--rates", "-1"], "rates are numbers above 0"),
        (["FILE", "--judge", "simulated:a", "--rates", "1", "--duration", "0"], "--duration 0.0: it should be greater"),
        (["FILE", "--judge", "simulated:a", "--rate-search", "1:8"], "give --slo"),
        (["FILE", "--judge", "simulated:a?rpm=60", "--rates", "1"], "a load test sets the load itself"),
        (["FILE", "--judge", "simulated:a", "--judge", "simulated:a?noise=1", "--rates", "1"], "two judges"),
        (["FILE", "--judge", "openai:http://me:secret@host/v1#a", "--rates", "1"], "holds a user name or a password"),
        (["FILE", "--judge", "simulated:a", "--arrivals", "replay"], "need a time for each request"),
        (["FILE", "--judge", "simulated:a", "--rates", "1", "--slo", "speed<3s"], "unknown figure 'speed'"),
        (["--resume", "FOLDER", "--rates", "4"], "leave out --rates"),
        (["--resume", "FOLDER"], "not a load test"),
    ],
)
def test_what_is_wrong_is_named(asked: Path, tmp_path: Path, arguments: list[str], named: str) -> None:
    words = [str(asked) if word == "FILE" else str(tmp_path) if word == "FOLDER" else word for word in arguments]
    out = ["--out", str(tmp_path / "none")] if "--resume" not in words else []
    code, _, said = bench(*words, *out)
    assert code == 2
    assert named in said
    assert not (tmp_path / "none").exists()

"""A growing log is scored as it grows: each line once, whatever happens in between."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from small_suites import TALK, metric, report_of, resume_suite, write_suite
from viva_process import ended, started

METRICS = [{"function": "words", "role": "assistant"}]


def _request(*said: str) -> str:
    """A line of a log of requests; the last text is the answer."""
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    body = {"request": {"messages": messages[:-1]}, "response": {"choices": [{"message": messages[-1]}]}}
    return json.dumps(body) + "\n"


def test_new_lines_are_scored_as_they_come_and_ctrl_c_ends_with_the_report(tmp_path: Path) -> None:
    thresholds = [{"metric": "words", "at_most": 3}]
    suite = write_suite(tmp_path, [TALK], metrics=METRICS, thresholds=thresholds)
    log, run = tmp_path / "live.jsonl", tmp_path / "run"
    log.write_text(_request("a?", "one two"))
    process = started("suite", "watch", log, "--suite", suite, "--out", run, "--every", "0.05")
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    assert said[1].startswith(b"viva: 1 new, 1 in all")
    with log.open("a") as file:
        file.write(_request("b?", "one two three four five six"))
        # The first conversation goes on: only what is new in it is scored. The last line is not whole yet.
        file.write(_request("a?", "one two", "and?", "one") + '{"request": {"mess')
    while b"3 in all" not in said[-1]:
        said.append(process.stderr.readline())
    process.send_signal(signal.SIGINT)
    code, printed, rest = ended(process)
    assert code == 0, rest  # 2, 6 and 1 words: 3 on average
    assert printed.startswith(b"Gate: every threshold holds")
    figures = metric(report_of(run), "words", "conversations")
    assert (figures["n"], figures["mean"], figures["max"]) == (3, 3, 6)


def test_it_goes_on_where_it_stopped_and_a_batch_that_was_not_written_whole_is_read_again(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, [TALK], metrics=METRICS)
    log, run = tmp_path / "live.jsonl", tmp_path / "run"
    arguments = ("suite", "watch", log, "--suite", suite, "--out", run, "--once")
    log.write_text(_request("a?", "one two") + "no JSON\n")
    assert ended(started(*arguments))[0] == 0
    # Killed while it wrote: the dialog is there, where the log goes on is not.
    with (run / "watched.jsonl").open("a") as spool:
        spool.write('{"id": "half", "messages": [{"role": "assistant", "content": "x"}]}\n{"id": "ha')
    with log.open("a") as file:
        file.write(_request("b?", "one"))
    code, _, said = ended(started(*arguments))
    assert code == 0, said
    report = report_of(run)
    [one] = report["candidates"].values()
    assert (one["conversations"], one["failed"]) == (2, 1)
    assert one["metrics"]["words"]["mean"] == 1.5
    assert "live.jsonl:2: " in next(iter(one["failure_reasons"]))
    outcome, again = resume_suite(run)
    assert (outcome.how, outcome.restored) == ("done", 3)  # nothing was left to do
    assert again == report


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, [TALK], metrics=METRICS)
    log = tmp_path / "live.jsonl"
    code, _, said = ended(started("suite", "watch", log, "--suite", suite, "--out", tmp_path / "run", "--once"))
    assert code == 2
    assert "live.jsonl: no such file" in said
    assert not (tmp_path / "run").exists()

"""Judges in a process of their own that change under load are flagged at that load, by the command as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_command import bench
from judged_load import GRADE
from process import serving_port
from tiny_gguf import make_model

from viva.loadtest.load_sentences import judge_conclusion

_SERVER = Path(__file__).parents[1] / "servers" / "loaded_judge.py"


def report_of(folder: Path, plan: dict[str, Any], *load: str, requests: int, tokens: int = 64) -> dict[str, Any]:
    """The record of a load test of such a judge, on so many requests for a grade."""
    form = {"type": "json_schema", "json_schema": {"name": "grade", "schema": GRADE}}
    body = {"max_tokens": tokens, "temperature": 0, "response_format": form}
    lines = [{"id": f"r{at}", "messages": [{"role": "user", "content": f"Grade answer {at * at}"}], **body}
             for at in range(requests)]  # fmt: skip
    (folder / "work.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving_port([sys.executable, str(_SERVER), json.dumps(plan)]) as port:
        judge = f"openai:http://127.0.0.1:{port}/v1#judge"
        code, record, said = bench(
            folder / "work.jsonl", "--judge", judge, *load, "--requests", requests, "--out", folder / "test"
        )
    assert code == 0, said
    found: dict[str, Any] = record
    return found


def flagged(report: dict[str, Any]) -> list[str]:
    [judge] = report["judges"]
    return [step["load"] for step in judge["judgement"]["steps"] if step["flagged"]]


@pytest.mark.parametrize(
    ("habit", "expected", "told"),
    [
        ("sound", [], "no change in verdicts found up to 12 requests in flight"),
        ("flatten", ["12 in flight"], "the spread of its scores falls"),
        ("smaller", ["12 in flight"], "differ from the unloaded ones"),
    ],
)
def test_a_judge_that_changes_under_load_is_flagged_there(
    tmp_path: Path, habit: str, expected: list[str], told: str
) -> None:
    report = report_of(tmp_path, {"habit": habit, "limit": 4}, "--concurrency", "3,12", requests=60)
    assert flagged(report) == expected
    assert told in judge_conclusion(report["judges"][0])


def test_a_judge_that_changes_above_a_rate_is_flagged_at_the_first_such_rate(tmp_path: Path) -> None:
    rates = ["--rates", "20,2000", "--arrivals", "constant"]
    # One by one requests come at no more than 33 a second, so the unloaded passes meet the judge as it should be.
    report = report_of(tmp_path, {"habit": "truncate", "rate": 50, "work": 0.03}, *rates, requests=40)
    assert flagged(report) == ["2000/s"]
    assert "of its answers contain no verdict, mostly truncated" in judge_conclusion(report["judges"][0])


@pytest.mark.parametrize(("habit", "expected"), [("sound", []), ("smaller", ["8 in flight"])])
def test_a_smaller_local_model_under_load_is_flagged(tmp_path: Path, habit: str, expected: list[str]) -> None:
    files = [make_model(tmp_path / "large.gguf", seed=1, quote_bias=40.0),
             make_model(tmp_path / "small.gguf", seed=2, width=32, layers=1, quote_bias=40.0)]  # fmt: skip
    plan = {"habit": habit, "limit": 3, "models": [str(one) for one in files]}
    report = report_of(tmp_path, plan, "--concurrency", "2,8", requests=40, tokens=60)
    [judge] = report["judges"]
    unloaded = judge["judgement"]["unloaded"]
    assert unloaded["unreadable"] == 0.0
    assert unloaded["noise"]["apart"] == 0.0, "two passes give the same verdicts"
    same = [step["judgement"]["texts"]["same"]["value"] for step in judge["steps"]]
    assert same[0] == 1.0, "the same model gives the same answers at any load"
    assert (same[1] == 1.0) == (habit == "sound")
    assert flagged(report) == expected

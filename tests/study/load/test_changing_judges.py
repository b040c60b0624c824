"""Judges in a process of their own that change under load are flagged at that load, by all that lies between."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from judged_load import GRADE
from process import serving_port
from tiny_gguf import make_model

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Message, Request, Sampling
from viva.orchestration.load.judged_passes import judged_passes
from viva.orchestration.load.records import BASELINE, BASELINE_AGAIN, LoadRequest, LoadStep, Sent
from viva.orchestration.load.work import OpenedWork
from viva.study.load.conclusions import conclusion
from viva.study.load.record import load_record

_SERVER = Path(__file__).parents[2] / "servers" / "loaded_judge.py"
_SEED = 7


def requests_of(number: int, tokens: int) -> list[LoadRequest]:
    sampling = Sampling(temperature=0.0, max_tokens=tokens, schema=GRADE)
    return [LoadRequest(f"r{at}", (Message("user", f"Grade answer {at * at}"),), sampling, reader="schema")
            for at in range(number)]  # fmt: skip


async def answered(model: str, step: LoadStep, requests: Sequence[LoadRequest]) -> list[Sent]:
    """All requests, so many in flight as the step says."""
    found: list[Sent] = []
    numbers = count()

    async def worker(backend: Any) -> None:
        while (number := next(numbers)) < len(requests):
            one = requests[number]
            request = Request(one.messages, one.sampling, _SEED, one.id.encode(), role="judge")
            completion = await backend.generate(request)
            found.append(Sent(step.index, "judge", number, one.id, 0, _SEED, 0.0, 0.0, None, completion.latency,
                              completion.text, completion.finish, 10, 5))  # fmt: skip

    async with build(model, RealClock()) as backend:
        await asyncio.gather(*(worker(backend) for _ in range(step.concurrency or 1)))
    return found


def report_of(plan: dict[str, Any], requests: Sequence[LoadRequest], loads: Sequence[int]) -> dict[str, Any]:
    steps = [LoadStep(index, ("judge",), "closed", concurrency=number, requests=len(requests))
             for index, number in ((BASELINE, 1), (BASELINE_AGAIN, 1), *enumerate(loads))]  # fmt: skip
    with serving_port([sys.executable, str(_SERVER), json.dumps(plan)]) as port:
        model = f"openai:http://127.0.0.1:{port}/v1#judge"
        sent = [one for step in steps for one in asyncio.run(answered(model, step, requests))]
    passes = judged_passes({one.id: one for one in requests}, steps, sent)
    return load_record(OpenedWork("mock", "requests", list(requests)), passes, steps)


def flagged(report: dict[str, Any]) -> list[str]:
    [judge] = report["judges"]
    return [step["load"] for step in judge["judgement"]["steps"] if step["flagged"]]


@pytest.mark.parametrize(
    ("habit", "expected", "told"),
    [
        ("sound", [], "judges under load as it does unloaded, up to 12 in flight"),
        ("truncate", ["12 in flight"], "of its answers hold no verdict, mostly truncated"),
        ("flatten", ["12 in flight"], "its scores flatten"),
        ("smaller", ["12 in flight"], "away from its unloaded ones"),
    ],
)
def test_a_judge_that_changes_under_load_is_flagged_there(habit: str, expected: list[str], told: str) -> None:
    report = report_of({"habit": habit, "limit": 4}, requests_of(60, 64), [3, 12])
    assert flagged(report) == expected
    assert told in conclusion(report["judges"][0])


@pytest.mark.parametrize(("habit", "expected"), [("sound", []), ("smaller", ["8 in flight"])])
def test_a_smaller_local_model_under_load_is_flagged(tmp_path: Path, habit: str, expected: list[str]) -> None:
    files = [make_model(tmp_path / "large.gguf", seed=1, quote_bias=40.0),
             make_model(tmp_path / "small.gguf", seed=2, width=32, layers=1, quote_bias=40.0)]  # fmt: skip
    report = report_of({"habit": habit, "limit": 3, "models": [str(one) for one in files]}, requests_of(40, 60), [2, 8])
    [judge] = report["judges"]
    unloaded = judge["judgement"]["unloaded"]
    assert unloaded["unreadable"] == 0.0
    assert unloaded["noise"]["apart"] == 0.0, "tier C: two passes give the same verdicts"
    same = [step["agreement"]["same"]["value"] for step in judge["judgement"]["steps"]]
    assert same[0] == 1.0, "the same model gives the same verdicts at any load"
    assert (same[1] == 1.0) == (habit == "sound")
    assert flagged(report) == expected

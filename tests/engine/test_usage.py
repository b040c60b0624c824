"""Counts of tokens that are of no use are unknown: they end no run, and switch off no budget and no rate."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.folder import RunFolder
from viva.engine.messages import Completion, Request, Sampling, View, request_digest

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_TEXT = "It conducts heat away from your hand quickly."
_ODD: list[Any] = [
    {"prompt_tokens": -5, "completion_tokens": 3},
    {"prompt_tokens": 5, "completion_tokens": -3},
    {"prompt_tokens": 2**63, "completion_tokens": 2**70},
    {"prompt_tokens": 10**12, "completion_tokens": 1},
    {"prompt_tokens": 1e300, "completion_tokens": 0.5},
    {"prompt_tokens": "7", "completion_tokens": [7]},
    {"prompt_tokens": True, "completion_tokens": {"n": 1}},
    {"prompt_tokens": 10**300},
    "many",
    [1, 2],
]


def question(on_text: Any = None) -> Request:
    """A request with one user message of 400 characters."""
    view, sampling = View(), Sampling()
    view.append("user", "Why?" * 100)
    return Request(view.messages, sampling, 7, request_digest(view, sampling, 7), on_text=on_text)


def bodies(usage: Any) -> list[str]:
    """An answer, whole and streamed."""
    whole = {"choices": [{"message": {"content": _TEXT}, "finish_reason": "stop"}], "usage": usage}
    chunks = [{"choices": [{"delta": {"content": _TEXT}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    return [json.dumps(whole), "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"]


def test_line_21_unusable_counts_are_estimated_and_noted(chaos: StartChaos) -> None:
    server = chaos({"cycle": [{"do": "garbage", "say": body} for odd in _ODD for body in bodies(odd)]})

    async def main() -> list[Completion]:
        async with build(server.model("candidate", retries=0, tpm=10**9), _CLOCK) as backend:
            read = [None, lambda piece: None] * len(_ODD)
            return [await backend.generate(question(on_text)) for on_text in read]

    for number, completion in enumerate(_CLOCK.run(main)):
        odd = _ODD[number // 2]
        assert completion.text == _TEXT
        assert completion.usage_note, odd
        assert len(completion.usage_note) <= 120
        good = odd if isinstance(odd, dict) else {}
        expected = [100, len(_TEXT) // 4]
        for place, name in enumerate(("prompt_tokens", "completion_tokens")):
            if type(good.get(name)) is int and 0 < good[name] < 10**9:
                expected[place] = good[name]
        assert [completion.prompt_tokens, completion.completion_tokens] == expected


_NO_NUMBERS = [
    '{"prompt_tokens": NaN, "completion_tokens": -Infinity}',
    '{"prompt_tokens": 1e999, "completion_tokens": 1e999}',
    f'{{"prompt_tokens": {"9" * 5000}, "completion_tokens": {"9" * 5000}}}',
    '{"prompt_tokens": null, "cost": NaN}',
]


def test_line_21_counts_that_are_no_numbers_cost_no_answer(chaos: StartChaos) -> None:
    said = [body.replace('"ODD"', odd) for odd in _NO_NUMBERS for body in bodies("ODD")]
    server = chaos({"cycle": [{"do": "garbage", "say": body} for body in said]})

    async def main() -> list[Completion]:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            read = [None, lambda piece: None] * len(_NO_NUMBERS)
            return [await backend.generate(question(on_text)) for on_text in read]

    for number, completion in enumerate(_CLOCK.run(main)):
        assert completion.text == _TEXT
        assert (completion.prompt_tokens, completion.completion_tokens) == (100, len(_TEXT) // 4)
        assert bool(completion.usage_note) == ("null" not in _NO_NUMBERS[number // 2])


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 100, "completion_tokens": 11}])
def test_line_21_usable_and_missing_counts_are_not_noted(chaos: StartChaos, usage: Any) -> None:
    server = chaos({"default": {"do": "garbage", "say": bodies(usage)[0]}})

    async def main() -> Completion:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            return await backend.generate(question())

    completion = _CLOCK.run(main)
    assert (completion.prompt_tokens, completion.completion_tokens, completion.usage_note) == (100, 11, "")


def test_line_21_a_run_with_impossible_counts_ends_well_and_keeps_its_budget(chaos: StartChaos, tmp_path: Path) -> None:
    say = bodies({"prompt_tokens": -(2**80), "completion_tokens": 2**80})[0]
    server = chaos({"by_model": {"candidate": {"default": {"do": "garbage", "say": say}}}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    run = tmp_path / "run"
    arguments = ["run", "kieval", "--dataset", str(dataset), "-n", "3", "--rounds", "1", "--out", str(run)]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role)]
    done = subprocess.run([sys.executable, "-m", "viva", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(RunFolder.open(run).journal)) as journal:
        rows = journal.execute("select prompt_tokens, completion_tokens, extra from calls where role = 'candidate'")
        for prompt, completion, extra in rows:
            assert 0 < prompt < 10_000
            assert completion == len(_TEXT) // 4
            assert json.loads(extra)["usage_note"].startswith("prompt_tokens: -120892581961462917")

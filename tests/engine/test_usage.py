"""Counts of tokens that are of no use are unknown: they end no run, and switch off no budget and no rate."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from command import viva
from hypothesis import given, settings
from hypothesis import strategies as st
from provider_asks import asking, read_whole

from viva.engine.backends.endpoint_answer import parse_usage
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Completion
from viva.engine.run_folder import RunFolder
from viva.sweeps.prices import price_of
from viva.sweeps.traces import SimilarityKey, observe_runs

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_ASKED = ("user", "Why?" * 100)
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


def bodies(usage: Any) -> list[str]:
    """An answer, whole and streamed."""
    whole = {"choices": [{"message": {"content": _TEXT}, "finish_reason": "stop"}], "usage": usage}
    chunks = [{"choices": [{"delta": {"content": _TEXT}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    return [json.dumps(whole), "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"]


def test_line_21_unusable_counts_are_estimated_and_noted(replanned: StartChaos) -> None:
    server = replanned({"cycle": [{"do": "garbage", "say": body} for odd in _ODD for body in bodies(odd)]})

    async def main() -> list[Completion]:
        async with build(server.model("candidate", retries=0, tpm=10**9), _CLOCK) as backend:
            read = [None, lambda piece: None] * len(_ODD)
            return [await backend.generate(asking(_ASKED, on_text=on_text)) for on_text in read]

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


def test_line_21_counts_that_are_no_numbers_cost_no_answer(replanned: StartChaos) -> None:
    said = [body.replace('"ODD"', odd) for odd in _NO_NUMBERS for body in bodies("ODD")]
    server = replanned({"cycle": [{"do": "garbage", "say": body} for body in said]})

    async def main() -> list[Completion]:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            read = [None, lambda piece: None] * len(_NO_NUMBERS)
            return [await backend.generate(asking(_ASKED, on_text=on_text)) for on_text in read]

    for number, completion in enumerate(_CLOCK.run(main)):
        assert completion.text == _TEXT
        assert (completion.prompt_tokens, completion.completion_tokens) == (100, len(_TEXT) // 4)
        assert bool(completion.usage_note) == ("null" not in _NO_NUMBERS[number // 2])


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 100, "completion_tokens": 11}])
def test_line_21_usable_and_missing_counts_are_not_noted(replanned: StartChaos, usage: Any) -> None:
    server = replanned({"default": {"do": "garbage", "say": bodies(usage)[0]}})

    async def main() -> Completion:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            return await backend.generate(asking(_ASKED))

    completion = _CLOCK.run(main)
    assert (completion.prompt_tokens, completion.completion_tokens, completion.usage_note) == (100, 11, "")


def test_line_21_a_run_with_impossible_counts_ends_well_and_keeps_its_budget(
    replanned: StartChaos, tmp_path: Path
) -> None:
    say = bodies({"prompt_tokens": -(2**80), "completion_tokens": 2**80})[0]
    server = replanned({"by_model": {"candidate": {"default": {"do": "garbage", "say": say}}}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    run = tmp_path / "run"
    models = [word for role in ("candidate", "interactor", "evaluator") for word in (f"--{role}", server.model(role))]
    done = viva("run", "kieval", "--dataset", dataset, "-n", "3", "--rounds", "1", "--out", run, *models)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(RunFolder.open(run).journal)) as journal:
        rows = journal.execute("select prompt_tokens, completion_tokens, extra from calls where role = 'candidate'")
        for prompt, completion, extra in rows:
            assert 0 < prompt < 10_000
            assert completion == len(_TEXT) // 4
            assert json.loads(extra)["usage_note"].startswith("prompt_tokens: -120892581961462917")


# A provider's usage as it was sent, and what it bills: prompt tokens, cached ones among them, completion tokens.
_BILLED: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("gpt-4o", {"prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
                "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0}},
     (2006, 1920, 300)),
    ("o3-mini, thoughts inside", {"prompt_tokens": 75, "completion_tokens": 1186, "total_tokens": 1261,
                                  "completion_tokens_details": {"reasoning_tokens": 1024}}, (75, 0, 1186)),
    ("thoughts apart", {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 4010,
                        "completion_tokens_details": {"reasoning_tokens": 3000}}, (1000, 0, 3010)),
    ("thoughts apart, not counted themselves", {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 4010},
     (1000, 0, 3010)),
    ("thoughts apart, no total", {"prompt_tokens": 1000, "completion_tokens": 10,
                                  "completion_tokens_details": {"reasoning_tokens": 3000}}, (1000, 0, 3010)),
    ("grok", {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135, "num_sources_used": 0,
              "prompt_tokens_details": {"text_tokens": 32, "cached_tokens": 6},
              "completion_tokens_details": {"reasoning_tokens": 94}}, (32, 6, 103)),
    ("gemini behind OpenAI's form", {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 213}, (9, 0, 204)),
    ("openrouter", {"prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196, "cost": 0.95, "is_byok": False,
                    "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": None}}, (194, 100, 2)),
    ("deepseek", {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320,
                  "prompt_cache_hit_tokens": 256, "prompt_cache_miss_tokens": 44}, (300, 256, 20)),
    ("kimi", {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320, "cached_tokens": 128},
     (300, 128, 20)),
    ("sonar", {"prompt_tokens": 33, "completion_tokens": 7, "total_tokens": 40, "reasoning_tokens": 95},
     (33, 0, 102)),
    ("litellm to claude", {"prompt_tokens": 5100, "completion_tokens": 50, "total_tokens": 5150,
                           "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 0,
                           "prompt_tokens_details": {"cached_tokens": 5000}}, (5100, 5000, 50)),
    ("cached tokens outside of the prompt's", {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 5150,
                                               "cache_read_input_tokens": 5000}, (5100, 5000, 50)),
    ("likewise, fewer than the others", {"prompt_tokens": 6000, "completion_tokens": 50, "total_tokens": 11050,
                                         "cache_read_input_tokens": 5000}, (11000, 5000, 50)),
    ("the Responses API", {"input_tokens": 328, "output_tokens": 52, "total_tokens": 380,
                           "input_tokens_details": {"cached_tokens": 128},
                           "output_tokens_details": {"reasoning_tokens": 32}}, (328, 128, 52)),
    ("the total alone knows the answer", {"prompt_tokens": 10, "total_tokens": 35}, (10, 0, 25)),
    ("the total alone knows the prompt", {"completion_tokens": 25, "total_tokens": 35}, (10, 0, 25)),
    ("a total that is too small", {"prompt_tokens": 10, "completion_tokens": 25, "total_tokens": 10}, (10, 0, 25)),
    ("whole numbers as floats", {"prompt_tokens": 10.0, "completion_tokens": 5.0, "total_tokens": 45.0}, (10, 0, 35)),
]  # fmt: skip
_MESSAGES: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"input_tokens": 21, "output_tokens": 393, "cache_creation_input_tokens": 188086, "cache_read_input_tokens": 0},
     (188107, 0, 393)),
    ({"input_tokens": 21, "output_tokens": 393, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 188086},
     (188107, 188086, 393)),
    ({"input_tokens": 2095, "output_tokens": 503}, (2095, 0, 503)),
]  # fmt: skip
_GENERATED: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"promptTokenCount": 8, "candidatesTokenCount": 20, "totalTokenCount": 248, "thoughtsTokenCount": 220},
     (8, 0, 240)),
    ({"promptTokenCount": 8, "candidatesTokenCount": 20, "totalTokenCount": 248}, (8, 0, 240)),
    ({"promptTokenCount": 8, "totalTokenCount": 108, "thoughtsTokenCount": 100}, (8, 0, 100)),
    ({"promptTokenCount": 696219, "cachedContentTokenCount": 696190, "candidatesTokenCount": 214,
      "totalTokenCount": 696433}, (696219, 696190, 214)),
    ({"promptTokenCount": 40, "toolUsePromptTokenCount": 60, "candidatesTokenCount": 5, "thoughtsTokenCount": 7,
      "totalTokenCount": 112}, (100, 0, 12)),
]  # fmt: skip


@case_table(("usage", "billed"), [one[1:] for one in _BILLED], ids=[one[0] for one in _BILLED])
def test_tokens_are_counted_as_they_are_billed(usage: dict[str, Any], billed: tuple[int, int, int]) -> None:
    read = read_whole("openai", bodies(usage)[0].encode())
    assert (read.prompt_tokens, read.cached_tokens, read.completion_tokens) == billed
    assert not read.usage_note


@pytest.mark.parametrize(("usage", "billed"), _MESSAGES)
def test_tokens_of_the_messages_api_are_counted_as_they_are_billed(
    usage: dict[str, Any], billed: tuple[int, int, int]
) -> None:
    message = {"content": [{"type": "text", "text": _TEXT}], "stop_reason": "end_turn", "usage": usage}
    read = read_whole("anthropic", message)
    assert (read.prompt_tokens, read.cached_tokens, read.completion_tokens) == billed


@case_table(("usage", "billed"), _GENERATED)
def test_tokens_of_the_gemini_api_are_counted_as_they_are_billed(
    usage: dict[str, Any], billed: tuple[int, int, int]
) -> None:
    answer = {"candidates": [{"content": {"parts": [{"text": _TEXT}]}, "finishReason": "STOP"}], "usageMetadata": usage}
    read = read_whole("gemini", answer)
    assert (read.prompt_tokens, read.cached_tokens, read.completion_tokens) == billed


_COUNT = st.one_of(st.none(), st.integers(-5, 10**10), st.floats(), st.text(max_size=3))
_DETAILS = st.one_of(
    st.none(), st.fixed_dictionaries({}, optional={"cached_tokens": _COUNT, "reasoning_tokens": _COUNT})
)


@settings(max_examples=50)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "input_tokens": _COUNT,
            "cache_read_input_tokens": _COUNT,
            "prompt_tokens_details": _DETAILS,
            "completion_tokens_details": _DETAILS,
        },
    )
)
def test_whatever_is_counted_no_answer_is_billed_at_less_than_it_says(usage: dict[str, Any]) -> None:
    read = parse_usage(usage, Redactor(None))
    assert 0 <= read.cached <= read.prompt
    good = {name: count for name, count in usage.items() if type(count) is int and 0 <= count <= 10**9}
    assert read.completion >= good.get("completion_tokens", 0) or "prompt_tokens" not in usage
    if good.keys() >= {"prompt_tokens", "total_tokens"} and good["prompt_tokens"]:
        assert read.prompt + read.completion >= good["total_tokens"]


def test_a_budget_of_money_sees_thoughts_outside_of_the_answer(replanned: StartChaos, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 4010}
    server = replanned({"default": {"do": "garbage", "say": bodies(usage)[0]}})
    out = tmp_path / "run"
    done = viva("run", "kieval", "--dataset", files("viva.scenarios.kieval") / "items" / "science.jsonl", "-n", "3",
                "--rounds", "1", "--candidate", server.model("c", price_in=1, price_out=1000),
                "--interactor", "simulated:i", "--evaluator", "simulated:e", "--out", out,
                "--max-cost", "1", "--concurrency", "1")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "cost budget of 1 is used up" in done.stderr
    assert len([one for one in server.log() if one["model"] == "c"]) == 1


def test_cached_prompt_tokens_have_their_own_price_everywhere(replanned: StartChaos, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}
    server = replanned({"default": {"do": "garbage", "say": bodies(usage)[0]}})
    each = (100 * 1000 + 900 * 100 + 10 * 2000) / 1e6
    model = server.model("c", price_in=1000, price_out=2000, price_cached=100)
    roles = {"candidate": model, "interactor": "simulated:i", "evaluator": "simulated:e"}
    out = tmp_path / "run"
    done = viva(
        "run",
        "kieval",
        "--dataset",
        files("viva.scenarios.kieval") / "items" / "science.jsonl",
        "-n",
        "2",
        "--rounds",
        "1",
        *(word for role, name in roles.items() for word in (f"--{role}", name)),
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    used = json.loads(viva("report", out, "--json").stdout)["candidates"]["c"]["usage"]["candidate"]
    assert (used["prompt_tokens"], used["cached_tokens"]) == (1000 * used["calls"], 900 * used["calls"])
    assert used["cost"] == pytest.approx(each * used["calls"])
    table = viva("report", out).stdout.split("Tokens and cost by role")[1]
    assert "cached tokens" in table
    assert f"{used['cost']:.2f}" in table
    seen = observe_runs([(RunFolder.open(out), SimilarityKey("kieval", "", model, ""), roles)])
    steps = [step for step in seen.traces["kieval", "", "", ""][0].steps if step.role == "candidate"]
    priced = price_of(model)
    assert priced is not None
    assert priced.cost(steps[0].prompt, steps[0].completion, steps[0].cached) == pytest.approx(each)
    backend = build(model, _CLOCK)
    assert backend.cost(1000, 10, 900) == pytest.approx(each)
    assert build(server.model("c", price_in=1000), _CLOCK).cost(1000, 0, 900) == pytest.approx(1.0)

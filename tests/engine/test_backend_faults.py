"""Defects of the engine that the chaos server showed: none of these may come back."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from command import viva
from provider_asks import answer, asking, governed

from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import BackendError, ConfigurationError, ContextTooLong, Throttled, Unavailable
from viva.engine.journal_reader import History
from viva.engine.limits import Limits
from viva.engine.run_folder import RunFolder

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_KEY = "sk-chaos-0123456789abcdef"
_SCHEMA = {"type": "object"}


def test_a_broken_stream_is_not_held_against_the_candidate(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"by_model": {"candidate": {"schedule": {"1": "half_body", "2": "half_body", "3": "half_body"}}}})
    path = tmp_path / "run"
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    arguments = ["run", "kieval", "--dataset", str(dataset), "-n", "1", "--rounds", "1", "--out", str(path)]
    arguments += ["--detectors", "repetition"]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role)]
    assert viva(*arguments).returncode == 0
    with History(RunFolder.open(path).journal) as history:
        [ended] = history.ended()
    assert (ended.result["ended_by"], ended.result["reason"]) == ("rounds", "")


def test_a_context_too_long_is_known_behind_a_refused_schema(chaos: StartChaos) -> None:
    server = chaos({"schedule": {"0": "no_schema"}, "default": "context_too_long"})
    with pytest.raises(ContextTooLong):
        answer(server.model("evaluator"), asking(schema=_SCHEMA), attempts=2)


@pytest.mark.parametrize(
    "say", ['data: {"error": {"message": "bad key {key}"}}\n\n', "data: bad key {key}\n\n"], ids=["error", "garbage"]
)
def test_no_key_in_what_a_stream_said(chaos: StartChaos, monkeypatch: pytest.MonkeyPatch, say: str) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY)
    server = chaos({"default": {"do": "garbage", "say": say}})
    with pytest.raises(BackendError, match="bad key") as caught:
        answer(server.model("candidate", key_env="CHAOS_KEY"), asking(on_text=lambda piece: None), attempts=2)
    assert _KEY not in str(caught.value)


@pytest.mark.parametrize(("do", "before"), [("400", 480), ("garbage", 180)])
def test_no_half_of_a_key_where_a_text_is_cut(
    chaos: StartChaos, monkeypatch: pytest.MonkeyPatch, do: str, before: int
) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY)
    server = chaos({"default": {"do": do, "say": "x" * before + "{key}"}})
    with pytest.raises(BackendError, match="xxx") as caught:
        answer(server.model("candidate", key_env="CHAOS_KEY"), asking(), attempts=2)
    assert _KEY[:12] not in str(caught.value)


def test_no_key_in_what_aiohttp_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY)

    async def parrot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nyou said " + head.split(b"Authorization: ")[1].split(b"\r\n")[0] + b"\r\n\r\n"
        )
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(parrot, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with governed(f"openai:{url}#m?key_env=CHAOS_KEY", attempts=2) as backend:
                await backend.generate(asking())

    with pytest.raises(Unavailable) as caught:
        _CLOCK.run(main)
    assert _KEY not in "".join(traceback.format_exception(caught.value, chain=False))


def test_a_key_may_end_but_not_contain_a_line_break(chaos: StartChaos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KEY", _KEY + "\n")
    server = chaos({})
    assert answer(server.model("candidate", key_env="CHAOS_KEY"), asking(), attempts=2).text
    monkeypatch.setenv("CHAOS_KEY", "sk-\nX-Other: header")
    with pytest.raises(ConfigurationError, match="CHAOS_KEY"):
        answer(server.model("candidate", key_env="CHAOS_KEY"), asking(), attempts=2)


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": "x", "finish_reason": "stop"}]},
        {"choices": {"delta": {"content": "x"}}},
        {"choices": [{"delta": {"content": 5}, "finish_reason": "stop"}]},
    ],
)
def test_an_odd_chunk_is_a_backend_error(chaos: StartChaos, chunk: dict[str, Any]) -> None:
    server = chaos({"default": {"do": "garbage", "say": f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"}})
    with pytest.raises(BackendError):
        answer(server.model("candidate"), asking(on_text=lambda piece: None), attempts=2)


def test_backing_off_more_than_a_thousand_times() -> None:
    clock = VirtualClock()
    policy = RetryPolicy(attempts=1100)
    backend = RetryingBackend(SimulatedBackend(clock, fail=1.0), Limits(clock), clock, policy)

    async def main() -> None:
        with pytest.raises(Unavailable):
            await backend.generate(asking())

    clock.run(main)


def test_finding_out_about_schemas_stays_within_the_rate(chaos: StartChaos) -> None:
    refuses = ["json_schema", "json_object+schema", "json_object"]
    server = chaos({"default": {"do": "no_schema", "refuses": refuses, "delay": 1.0}})

    async def main() -> None:
        async with build(server.model("evaluator", rps=10), _CLOCK) as backend, anyio.create_task_group() as group:
            for seed in range(12):
                group.start_soon(backend.generate, asking(schema=_SCHEMA, seed=seed))

    _CLOCK.run(main)
    times = [entry["at"] for entry in server.log()]
    assert max(sum(start <= time < start + 1.0 for time in times) for start in times) <= 10


def test_retry_after_holds_others_back_even_when_the_call_gives_up(chaos: StartChaos) -> None:
    server = chaos({"schedule": {"0": {"do": "429", "retry_after": 1}}})

    async def main() -> None:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:
            with pytest.raises(Throttled):
                await backend.generate(asking())
            await backend.generate(asking())

    _CLOCK.run(main)
    first, second = server.log()
    assert second["at"] - first["at"] >= 1.0

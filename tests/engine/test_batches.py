"""Calls through batch APIs: gathered, paid once, and answered in spite of everything that providers document."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from viva.engine.backends.base import Backend
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.events import BatchChanged, Event
from viva.engine.messages import Completion, Request, Sampling, View, request_digest

if TYPE_CHECKING:
    from tests.servers.batch_process import BatchServer

KINDS = ("openai", "anthropic", "gemini")


@pytest.fixture(scope="module")
def _server() -> Iterator[BatchServer]:
    with importlib.import_module("batch_process").running() as one:
        yield one


@pytest.fixture
def server(_server: BatchServer) -> BatchServer:
    _server.replan({})
    return _server


def request(number: int, run: Path | None = None, text: str = "call") -> Request:
    view = View()
    view.append("user", f"{text} {number}")
    sampling = Sampling(max_tokens=50)
    digest = request_digest(view, sampling, number)
    return Request(view.messages, sampling, number, digest, f"conversation {number}", "candidate", run=run)


def ask(
    model: str, folder: Path, requests: Sequence[Request], events: list[Event] | None = None
) -> list[Completion | BaseException]:
    """All of these at once, in a process's life of its own."""

    async def work() -> list[Completion | BaseException]:
        publish = (events if events is not None else []).append
        async with BackendPool(RealClock(), publish, folder=folder) as pool:
            backend: Backend = await pool.open(model)
            return await asyncio.gather(*map(backend.generate, requests), return_exceptions=True)

    return RealClock().run(work)


def texts(answers: Sequence[Completion | BaseException]) -> list[str]:
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer.text for answer in answers if isinstance(answer, Completion)]


def singly(server: BatchServer, kind: str, requests: Sequence[Request], folder: Path) -> list[str]:
    return texts(ask(server.model(kind, batch="off"), folder, requests))


@pytest.mark.parametrize("kind", KINDS)
def test_calls_go_out_as_one_batch_and_get_the_answers_of_single_calls(
    kind: str, server: BatchServer, tmp_path: Path
) -> None:
    requests = [request(number) for number in range(20)]
    alone = singly(server, kind, requests, tmp_path)
    paid_alone = server.log()["paid"]
    server.replan({})
    events: list[Event] = []
    before = len(server.log()["batches"])
    assert texts(ask(server.model(kind), tmp_path, requests, events)) == alone
    log = server.log()
    assert log["batches"][before:] == [20]
    assert log["paid"] == paid_alone
    states = [(event.number, event.calls, event.state) for event in events if isinstance(event, BatchChanged)]
    assert states == [(1, 20, "sent"), (1, 20, "ended")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_answer_is_never_asked_for_again(kind: str, server: BatchServer, tmp_path: Path) -> None:
    requests = [request(number) for number in range(5)]
    first = texts(ask(server.model(kind), tmp_path, requests))
    server.replan({})
    assert texts(ask(server.model(kind), tmp_path, requests)) == first
    assert server.log()["requests"] == []

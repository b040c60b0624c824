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


TROUBLE = [
    {"create": ["429", "ok"]},
    {"create": ["500", "ok"]},
    {"create": ["late_500"]},
    {"create": ["lost"]},
    {"create": ["garbage"]},
    {"create": ["lost", "lost"], "batches": ["cancelled"]},
    {"create": ["500", "500", "lost"], "polls": 3},
    {"batches": ["expired"]},
    {"batches": ["cancelled", "expired"]},
    {"batches": ["empty"]},
    {"results": ["429", "500", "529", "ok"]},
    {"results": ["500", "ok", "missing", "malformed", "twice", "ok", "500", "twice"]},
    {"polls": 5},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", TROUBLE, ids=str)
def test_each_call_is_paid_once_in_spite_of(
    plan: dict[str, Any], kind: str, server: BatchServer, tmp_path: Path
) -> None:
    requests = [request(number) for number in range(8)]
    alone = singly(server, kind, requests, tmp_path)
    server.replan(plan)
    before = len(server.log()["batches"])
    assert texts(ask(server.model(kind), tmp_path, requests)) == alone
    log = server.log()
    lost = {"malformed"} & set(plan.get("results", ()))  # answered, and nobody can read it
    cut = kind == "gemini" and {"expired", "cancelled"} & set(plan.get("batches", ()))  # its results are not shown
    assert len(log["paid"]) == 8
    assert set(log["paid"].values()) == {1} or lost or cut
    if "batches" not in plan and "results" not in plan:
        assert log["batches"][before:] == [8]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_cannot_be_answered_is_given_up_like_a_single_one(
    kind: str, server: BatchServer, tmp_path: Path
) -> None:
    server.replan({"results": ["400", "ok", "403", "unanswerable", "ok", "ok", "ok"]})
    answers = ask(server.model(kind, retries=1), tmp_path, [request(number) for number in range(6)])
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds[:3] == ["Rejected", "Completion", "Forbidden"]
    assert kinds.count("Completion") == 4, "an answer of unknown form was sent again"


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_too_long_is_not_sent_again(kind: str, server: BatchServer, tmp_path: Path) -> None:
    server.replan({"results": ["long"]})
    [answer] = ask(server.model(kind, answer_mb=1), tmp_path, [request(1)])
    assert type(answer).__name__ == "AnswerTooLarge"
    assert len(server.log()["paid"]) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", [{"create": ["400"]}, {"batches": ["failed"]}], ids=str)
def test_an_endpoint_that_takes_no_batches_ends_the_run(
    plan: dict[str, Any], kind: str, server: BatchServer, tmp_path: Path
) -> None:
    if kind == "anthropic" and "batches" in plan:
        return  # this API accepts every batch
    server.replan(plan)
    answers = ask(server.model(kind), tmp_path, [request(number) for number in range(3)])
    assert {type(answer).__name__ for answer in answers} == {"SettingRefused"}
    assert "leave batch=on out" in str(answers[0])
    assert not server.log()["paid"]


@pytest.mark.parametrize("kind", ["openai", "gemini"])
def test_too_many_tokens_in_batches_is_tried_again_later(kind: str, server: BatchServer, tmp_path: Path) -> None:
    server.replan({"batches": ["limit"]})
    events: list[Event] = []
    assert texts(ask(server.model(kind), tmp_path, [request(1)], events))
    assert [type(event).__name__ for event in events if not isinstance(event, BatchChanged)] == ["Retried"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_the_endpoint_no_longer_shows_ends_the_run(kind: str, server: BatchServer, tmp_path: Path) -> None:
    polled = {"openai": "/v1/batches/", "anthropic": "/v1/messages/batches/", "gemini": "/v1beta/batches/"}[kind]
    server.replan({"hide": [polled]})
    answers = ask(server.model(kind), tmp_path, [request(1), request(2)])
    assert [type(answer) for answer in answers] == [ConfigurationError, ConfigurationError]
    assert "does not show batch batch_" in str(answers[0])
    server.replan({})
    assert len(texts(ask(server.model(kind), tmp_path, [request(1), request(2)]))) == 2
    assert not server.log()["paid"], "the batch was there, and was not sent again"


def test_paths_in_place_of_ids_are_not_requested(server: BatchServer, tmp_path: Path) -> None:
    server.replan({"bad_ids": True})
    events: list[Event] = []

    async def work() -> None:
        async with BackendPool(RealClock(), events.append, folder=tmp_path, patience=0.3) as pool:
            backend = await pool.open(server.model("openai"))
            await backend.generate(request(1))

    with pytest.raises(Exception, match="no valid output_file_id"):
        RealClock().run(work)
    assert not any("output" in path for path in server.log()["requests"])


@pytest.mark.parametrize("kind", KINDS)
def test_reading_likelihoods_is_refused(kind: str, server: BatchServer, tmp_path: Path) -> None:
    from viva.engine.likelihood import Reading

    async def work() -> None:
        async with BackendPool(RealClock(), folder=tmp_path) as pool:
            backend = await pool.open(server.model(kind))
            await backend.read(Reading("", "The sky is", (" blue",)))

    with pytest.raises(ConfigurationError, match="no log-probabilities of a given text"):
        RealClock().run(work)


@pytest.mark.parametrize("option", ["concurrency=5", "rpm=5", "rps=5", "tpm=500"])
def test_limits_of_single_calls_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="batch=on excludes"):
        ask(f"openai:http://127.0.0.1:9/v1#m?batch=on&{option}", tmp_path, [])


def test_a_member_of_a_pool_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text("members:\n  - model: openai:http://127.0.0.1:9/v1#m?batch=on\n")
    with pytest.raises(ConfigurationError, match=r"members\.0: batch=on is for a single model"):
        ask(f"pool:{tmp_path / 'pool.yaml'}", tmp_path, [])


def test_without_a_run_folder_there_are_no_batches(tmp_path: Path) -> None:
    async def work() -> None:
        async with BackendPool(RealClock()) as pool:
            await pool.open("openai:http://127.0.0.1:9/v1#m?batch=on")

    with pytest.raises(ConfigurationError, match="only in a run or a sweep"):
        RealClock().run(work)

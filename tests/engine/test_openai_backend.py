"""The OpenAI backend against a real server that misbehaves: what is retried, what is not, and what is said about it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING

import anyio
import pytest
from case_tables import case_table
from provider_asks import answer, answers, asking, governed

from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.durations import seconds_until
from viva.engine.errors import (
    ContextTooLong,
    Throttled,
    TimedOut,
    Unavailable,
)
from viva.engine.events import Event, Retried
from viva.engine.messages import Completion
from viva.scenarios.kieval.verdicts import verdict_schema

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()
_QUICK = RetryPolicy(attempts=3, first=0.001)
_SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}}
_KEY = "sk-chaos-0123456789abcdef"


def test_tokens_are_estimated_where_the_endpoint_does_not_count(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "ok", "usage": False}})
    plain, streamed = answers(server.model("candidate"), [asking(), asking(on_text=lambda piece: None)])
    for completion in (plain, streamed):
        assert completion.prompt_tokens == len("Why is steel cold?") // 4
        assert completion.completion_tokens == len(completion.text) // 4


def test_what_on_text_raises_ends_the_call_and_the_connection(chaos: StartChaos) -> None:
    class Enough(Exception):
        pass

    def stop(piece: str) -> None:
        raise Enough

    server = chaos({})
    with pytest.raises(Enough):
        answer(server.model("candidate"), asking(on_text=stop))
    assert len(server.log()) == 1


def test_a_context_in_other_words_is_recognised(chaos: StartChaos) -> None:
    say = "The prompt exceeds the available context size, try increasing it"
    server = chaos({"default": {"do": "400", "say": say}})
    with pytest.raises(ContextTooLong):
        answer(server.model("candidate"), asking(schema=_SCHEMA))
    assert len(server.log()) == 1


def test_retry_after_holds_everybody_back(chaos: StartChaos) -> None:
    server = chaos({"schedule": {"0": {"do": "429", "retry_after": 1}}})

    async def main() -> None:
        told = anyio.Event()
        backend = governed(server.model("candidate"), publish=lambda event: told.set())

        async def other(number: int) -> None:
            await told.wait()
            await backend.generate(asking(("user", f"Question {number}?")))

        async with backend, anyio.create_task_group() as group:
            group.start_soon(backend.generate, asking())
            for number in range(5):
                group.start_soon(other, number)

    _CLOCK.run(main)
    first, *others = server.log()
    assert len(others) == 6
    assert all(entry["at"] - first["at"] >= 1.0 for entry in others)


def test_retry_after_may_be_a_date(chaos: StartChaos) -> None:
    server = chaos({"default": {"do": "429", "retry_after": formatdate(time.time() + 3600, usegmt=True)}})
    told: list[Retried] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:

            def hear(event: Event) -> None:
                if isinstance(event, Retried):
                    told.append(event)
                    scope.cancel()

            policy = RetryPolicy(first=0.001, longest_retry_after=7200)
            async with governed(server.model("candidate"), policy=policy, publish=hear) as backend:
                await backend.generate(asking())

    _CLOCK.run(main)
    assert [event.error for event in told] == ["Throttled"]
    assert 3500 < told[0].delay <= 3600


@case_table(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), (None, None), (formatdate(0, usegmt=True), 0.0)],
)
def test_retry_after_in_all_its_forms(header: str | None, seconds: float | None) -> None:
    assert seconds_until(header) == seconds


@pytest.mark.parametrize("refused", [[], ["json_schema"]])
def test_line_39_endpoints_are_sent_no_bounds_of_texts(chaos: StartChaos, refused: list[str]) -> None:
    server = chaos({"default": {"do": "no_schema", "refuses": refused}})
    answer(server.model("evaluator"), asking(schema=verdict_schema(400)))
    assert [entry["format"] for entry in server.log()] == ["json_schema", "json_object+schema"][: len(refused) + 1]


def test_no_answer_in_time_is_timed_out_after_the_retries(chaos: StartChaos) -> None:
    server = chaos({"default": "never"})
    with pytest.raises(TimedOut, match=server.url):
        answer(server.model("candidate", timeout=0.1), asking())
    assert len(server.log(left=3)) == 3


@pytest.mark.parametrize("retries", [0, 1])
def test_retries_may_be_chosen(chaos: StartChaos, retries: int) -> None:
    server = chaos({"default": "429"})

    async def main() -> None:
        async with build(server.model("candidate", retries=retries), _CLOCK) as backend:
            await backend.generate(asking())

    with pytest.raises(Throttled):
        _CLOCK.run(main)
    assert len(server.log()) == 1 + retries


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_leaves_at_once_and_frees_the_place(chaos: StartChaos, streaming: bool) -> None:
    server = chaos({"schedule": {"0": "never"}})

    async def main() -> Completion:
        async with build(server.model("candidate", concurrency=1), _CLOCK) as backend:
            async with anyio.create_task_group() as group:
                group.start_soon(backend.generate, asking(on_text=print if streaming else None))
                await anyio.to_thread.run_sync(lambda: server.log(requests=1))
                group.cancel_scope.cancel()
            await anyio.to_thread.run_sync(lambda: server.log(left=1))
            assert backend.statistics()["in_flight"] == 0
            return await backend.generate(asking())

    assert _CLOCK.run(main).attempts == 1
    assert [entry["left"] for entry in server.log()] == [True, False]


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else gets the port, and nobody answers
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"

        async def main() -> None:
            async with governed(f"openai:{url}#candidate") as backend:
                await backend.check()

        with pytest.raises(Unavailable) as caught:
            _CLOCK.run(main)
    assert url in str(caught.value)
    assert "Connect call failed" in str(caught.value)

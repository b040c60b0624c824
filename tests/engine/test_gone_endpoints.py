"""Endpoints that are gone: their conversations wait, go on by themselves, and after long enough the run stops whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import results, small_run, three_questions

from viva.engine.backends.fault_injection import Fault, FaultPlan
from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import Throttled, Unavailable, Unreachable
from viva.engine.events import EndpointBack, EndpointLost, Event, Retried
from viva.engine.limits import CircuitBreaker
from viva.engine.messages import Request, Sampling, View, request_digest

_SLOW = "simulated:m?latency=2"


def _gone(begin: float, end: float) -> FaultPlan:
    return FaultPlan(faults=[Fault.model_validate({"kind": "gone", "from": begin, "to": end})])


def test_an_endpoint_that_is_gone_for_a_minute_costs_none_of_500_conversations(tmp_path: Path) -> None:
    clock = VirtualClock()
    outcome, events = small_run(
        tmp_path / "run", converse=three_questions, count=500, model=_SLOW, concurrency=100, clock=clock,
        chaos=_gone(5.0, 65.0),
    )  # fmt: skip
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 500, 0)
    assert [type(one) for one in events if isinstance(one, EndpointLost | EndpointBack)] == [EndpointLost, EndpointBack]
    [lost] = [one for one in events if isinstance(one, EndpointLost)]
    assert "nothing listens there" in lost.reason
    assert lost.at < 8.0
    # Each of the hundred in flight met it twice or so before the breaker opened, then one probe at a time.
    assert sum(isinstance(one, Retried) for one in events) <= 500
    quiet = VirtualClock()
    calm, _ = small_run(tmp_path / "calm", count=500, model=_SLOW, concurrency=100, clock=quiet)
    assert calm.finished == 500
    assert (
        clock.now() < quiet.now() + 60.0 + 15.0 + 10.0
    )  # the minute, the longest pause of a probe, and starting again
    assert results(tmp_path / "run") == results(tmp_path / "calm")


def test_after_long_enough_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    outcome, _ = small_run(
        tmp_path,
        count=50,
        model=_SLOW,
        concurrency=10,
        clock=VirtualClock(),
        chaos=_gone(5.0, 10_000.0),
        patience=120.0,
    )
    assert outcome.how == "failed"
    assert isinstance(outcome.error, Unreachable)
    assert "unreachable for 12" in str(outcome.error)
    assert "--wait-for-endpoint" in str(outcome.error)
    assert (outcome.failed, 0 < outcome.finished < 50) == (0, True)
    resumed, _ = small_run(tmp_path, count=50, model=_SLOW, concurrency=10, resume=True)
    assert (resumed.how, resumed.failed) == ("done", 0)
    assert len(results(tmp_path)) == 50


def test_without_patience_conversations_fail_as_their_tries_are_used_up(tmp_path: Path) -> None:
    outcome, events = small_run(
        tmp_path, count=5, model=f"{_SLOW}&retries=2", clock=VirtualClock(), chaos=_gone(0.5, 10_000.0), patience=0.0
    )
    assert (outcome.how, outcome.failed) == ("done", 5)
    assert not any(isinstance(one, EndpointLost) for one in events)


def test_a_server_that_is_stopped_and_started_again_answers_every_call() -> None:
    async def main() -> None:
        events: list[Event] = []
        lost = asyncio.Event()
        enough = asyncio.Event()
        answered = 0

        def hear(event: Event) -> None:
            events.append(event)
            if isinstance(event, EndpointLost):
                lost.set()

        async def answer(request: web.Request) -> web.Response:
            nonlocal answered
            answered += 1
            if answered == 40:
                enough.set()
            choice = {"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

        async def serve(port: int) -> web.AppRunner:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
            return runner

        server = await serve(0)
        port = server.addresses[0][1]
        async with BackendPool(RealClock(), hear) as pool:
            backend = await pool.open(f"openai:http://127.0.0.1:{port}/v1#m?concurrency=8")
            done = 0

            async def ask(number: int) -> None:
                nonlocal done
                view = View()
                view.append("user", f"call {number}")
                sampling = Sampling(max_tokens=5)
                await backend.generate(Request(view.messages, sampling, number, request_digest(view, sampling, number)))
                done += 1

            async with anyio.create_task_group() as group:
                for number in range(120):
                    group.start_soon(ask, number)
                await enough.wait()
                await server.cleanup()
                await lost.wait()
                server = await serve(port)
        await server.cleanup()
        assert done == 120
        assert any(isinstance(one, EndpointBack) for one in events)

    RealClock().run(main)


def _absent() -> Unavailable:
    error = Unavailable("nobody", model="m")
    error.absent = True
    return error


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(["sent", "lost", "reached", "abandoned"]), st.floats(0.0, 5.0))))
def test_at_most_one_probe_is_on_its_way_and_it_comes_within_a_quarter_of_a_minute(
    steps: list[tuple[str, float]],
) -> None:
    breaker, now, probing = CircuitBreaker(), 0.0, False
    for what, passed in steps:
        now += passed
        if what == "sent" and breaker.wait(now) == 0.0:
            assert not probing
            probing = breaker.on_departure()
        elif what == "lost":
            breaker.on_failure(now, _absent())
            probing = False
        elif what == "reached":
            breaker.on_answer(now)
            assert not breaker.open
            probing = False
        elif what == "abandoned" and probing:
            breaker.on_abandoned(now)
            probing = False
        if breaker.open and not probing:
            assert breaker.wait(now) <= 15.0


def test_an_endpoint_that_refuses_is_there() -> None:
    breaker = CircuitBreaker()
    for second in range(20):
        breaker.on_failure(float(second), _absent())
        breaker.on_answer(float(second))
    assert not breaker.open
    for second in range(20, 30):
        breaker.on_failure(float(second), _absent())
        breaker.check_patience(float(second), _absent())
    assert breaker.open
    with pytest.raises(Unreachable):
        breaker.check_patience(620.0, _absent())
    assert not Throttled("slow down", model="m").absent

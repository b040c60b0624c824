"""Runs small protocols through the real runner and journal, for tests of the engine.

What never belongs here: stand-ins for parts of the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from viva.engine.backends.chaos import ChaosPlan
from viva.engine.backends.registry import build
from viva.engine.breaker import PATIENCE
from viva.engine.budget import Budget
from viva.engine.clock import Clock, VirtualClock
from viva.engine.conversation import Conversation
from viva.engine.events import CallFinished, Event
from viva.engine.history import History
from viva.engine.journal import Journal
from viva.engine.messages import Sampling, View
from viva.engine.runner import Coroutine, Outcome, Plan, Runner
from viva.engine.stream import EventStream

SAMPLING = Sampling(max_tokens=64)


async def three_questions(conversation: Conversation, payload: Any) -> list[str]:
    """A protocol of three calls by one role."""
    view = View()
    view.append("system", "Be brief.")
    said = []
    for number in range(3):
        view.append("user", f"question {number} of {payload}")
        completion = await conversation.generate("candidate", view, SAMPLING)
        view.append("assistant", completion.text)
        said.append(completion.text)
    return said


def small_run(
    folder: Path,
    *,
    converse: Coroutine = three_questions,
    count: int = 20,
    model: str = "simulated:m",
    clock: Clock | None = None,
    concurrency: int = 5,
    seed: int = 7,
    resume: bool = False,
    retry_failed: bool = False,
    run_budget: Budget | None = None,
    conversation_budget: Budget | None = None,
    prepare: Callable[[Runner, EventStream], None] | None = None,
    last: Callable[[], Awaitable[None]] | None = None,
    chaos: ChaosPlan | None = None,
    patience: float = PATIENCE,
) -> tuple[Outcome, list[Event]]:
    """Run ``count`` conversations over one model, journal in ``folder``; the outcome and all events.

    ``prepare`` is given the runner before it begins; ``last`` is awaited before the journal is closed.
    """
    folder.mkdir(exist_ok=True)
    clock = clock or VirtualClock()
    events: list[Event] = []

    async def main() -> Outcome:
        stream = EventStream()
        stream.listen(events.append)
        built = build(model, clock, stream.publish, patience, chaos)
        async with built as backend, Journal(folder / "journal.sqlite", clock) as journal:
            history = History(folder / "journal.sqlite") if resume else None
            runner = Runner(
                seed=seed,
                clock=clock,
                journal=journal,
                events=stream,
                concurrency=concurrency,
                run_budget=run_budget,
                conversation_budget=conversation_budget,
                history=history,
                retry_failed=retry_failed,
            )
            if prepare is not None:
                prepare(runner, stream)
            plans = (Plan(n, f"talk-{n}", {"candidate": backend}, n, {"n": n}) for n in range(count))
            try:
                outcome = await runner.run(plans, converse, count)
                if last is not None:
                    await last()
                return outcome
            finally:
                if history is not None:
                    history.close()

    return clock.run(main), events


def after_calls(calls: int, act: Callable[[Runner], None]) -> Callable[[Runner, EventStream], None]:
    """For ``prepare``: do this to the run, once, when so many calls have finished (``Runner.halt``, say)."""

    def prepare(runner: Runner, stream: EventStream) -> None:
        finished = 0

        def hear(event: Event) -> None:
            nonlocal finished
            if isinstance(event, CallFinished):
                finished += 1
                if finished == calls:
                    act(runner)

        stream.listen(hear)

    return prepare


def results(folder: Path) -> list[tuple[int, bool, Any]]:
    """What the journal holds of ended conversations: number, failed, result."""
    with History(folder / "journal.sqlite") as history:
        return [(one.number, one.failed, one.result) for one in history.ended()]

"""Runs of small protocols through the real runner and journal, in virtual time, for tests of the engine.

``small_run`` runs conversations over one model. ``run_talks`` runs protocols whose parts go on at once over
``PureModel``, which answers with a pure function after a time of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from viva.engine import seeds
from viva.engine.backends.base import Backend
from viva.engine.backends.fault_injection import FaultPlan
from viva.engine.backends.registry import build
from viva.engine.budget import Budget
from viva.engine.cancellation import gather
from viva.engine.clock import Clock, VirtualClock
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.events import CallFinished, Event
from viva.engine.journal import Journal
from viva.engine.journal_reader import History
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.limits import DEFAULT_PATIENCE
from viva.engine.messages import Completion, Request, Sampling, View
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
    model: str | Backend = "simulated:m",
    roles: Sequence[str] = ("candidate",),
    payloads: Sequence[Any] | None = None,
    clock: Clock | None = None,
    concurrency: int = 5,
    seed: int = 7,
    resume: bool = False,
    retry_failed: bool = False,
    run_budget: Budget | None = None,
    conversation_budget: Budget | None = None,
    prepare: Callable[[Runner, EventStream], None] | None = None,
    last: Callable[[], Awaitable[None]] | None = None,
    chaos: FaultPlan | None = None,
    patience: float = DEFAULT_PATIENCE,
) -> tuple[Outcome, list[Event]]:
    """Run conversations over one model in all roles, journal in ``folder``; return the outcome and all events.

    Args:
        payloads: One for each conversation; without them, the numbers below ``count``.
        prepare: Called with the runner before it begins.
        last: Awaited before the journal is closed.
    """
    folder.mkdir(exist_ok=True)
    clock = clock or VirtualClock()
    events: list[Event] = []
    payloads = range(count) if payloads is None else payloads

    async def main() -> Outcome:
        stream = EventStream()
        stream.listen(events.append)
        built = build(model, clock, stream.publish, patience, chaos) if isinstance(model, str) else model
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
            backends = dict.fromkeys(roles, backend)
            plans = (Plan(n, f"talk-{n}", backends, payload, {"n": n}) for n, payload in enumerate(payloads))
            try:
                outcome = await runner.run(plans, converse, len(payloads))
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
    """Return how each conversation ended, by the journal: number, failed, result."""
    with History(folder / "journal.sqlite") as history:
        return [(one.number, one.failed, one.result) for one in history.ended()]


class PureModel(Backend):
    """Answers with a hash of messages and seed, after a time that follows from ``schedule``, and keeps what it was
    asked.
    """

    label = "pure"

    def __init__(self, clock: Clock, schedule: int) -> None:
        self._clock, self._schedule = clock, schedule
        self.asked: list[bytes] = []

    async def generate(self, request: Request) -> Completion:
        await self._wait(request.digest)
        said = hashlib.blake2b(f"{request.seed} {request.messages}".encode(), digest_size=4).hexdigest()
        return Completion(said, "stop", 5, 2)

    async def read(self, reading: Reading) -> Completion:
        await self._wait(reading.digest())
        return Completion("", "stop", 5, 0, likelihoods=[Likelihood([-1.0]) for _ in reading.continuations])

    async def _wait(self, digest: bytes) -> None:
        self.asked.append(digest)
        await self._clock.sleep(seeds.uniform(self._schedule, len(self.asked), digest) if self._schedule else 0.5)


@dataclass(slots=True)
class Part:
    """What one branch does, step by step: ``"a"`` or ``"b"`` (a call of that role), ``"read"``, ``"compute"``,
    ``"stop"``, ``"catch"`` (from here on a stop is caught), or parts that it begins at once in some manner.
    """

    steps: list[str | tuple[str, list[Part]]] = field(default_factory=list)


async def hold(conversation: Conversation, part: Part) -> list[Any]:
    """Do what a part says; its value has all answers and whatever was raised and caught."""
    said: list[Any] = [conversation.path]
    caught = False
    try:
        for number, step in enumerate(part.steps):
            if step == "catch":
                caught = True
            elif step == "stop":
                conversation.stop("protocol", f"{conversation.path} at {number}")
            elif step == "compute":
                said.append((await conversation.compute("join", _joined, [str(one) for one in said])).value)
            elif step == "read":
                found = await conversation.read("a", Reading(str(said), (" yes",)))
                said.append(found[0].total)
            elif isinstance(step, str):
                view = View()
                view.append("user", f"{said}")
                said.append((await conversation.generate(step, view, SAMPLING)).text)
            else:
                manner, parts = step
                opened = [conversation.branch(f"{number}.{place}") for place in range(len(parts))]
                asks = [partial(hold, one, each) for one, each in zip(opened, parts, strict=True)]
                said.append(await MANNERS[manner](asks))
    except (ConversationStopped, ExceptionGroup) as error:
        if not caught:
            raise
        said.append(str(error) if isinstance(error, ConversationStopped) else sorted(map(str, error.exceptions)))
    return said


async def _joined(texts: list[str]) -> str:
    return "+".join(texts)


Asks = Sequence[Callable[[], Awaitable[Any]]]


async def _in_task_group(asks: Asks) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask()) for ask in asks]  # type: ignore[arg-type]
    return [task.result() for task in tasks]


async def _in_anyio(asks: Asks) -> list[Any]:
    found: dict[int, Any] = {}

    async def one(place: int, ask: Callable[[], Awaitable[Any]]) -> None:
        found[place] = await ask()

    async with anyio.create_task_group() as group:
        for place, ask in enumerate(asks):
            group.start_soon(one, place, ask)
    return [found[place] for place in sorted(found)]


async def _in_gather(asks: Asks) -> list[Any]:
    return list(await asyncio.gather(*(ask() for ask in asks)))


async def _in_gather_with_errors(asks: Asks) -> list[Any]:
    done = await asyncio.gather(*(ask() for ask in asks), return_exceptions=True)
    if interrupting := [one for one in done if isinstance(one, BaseException)
                        and not isinstance(one, ConversationStopped | ExceptionGroup)]:  # fmt: skip
        raise interrupting[0]
    return [str(one) for one in done]


MANNERS: dict[str, Callable[[Asks], Awaitable[list[Any]]]] = {
    "task group": _in_task_group,
    "anyio": _in_anyio,
    "gather": _in_gather,
    "gather with errors": _in_gather_with_errors,
    "gathered": gather,
}


def run_talks(
    folder: Path,
    talks: Sequence[Any],
    schedule: int,
    *,
    converse: Coroutine = hold,
    model: Callable[[Clock, int], PureModel] = PureModel,
    concurrency: int = 3,
    **settings: Any,
) -> tuple[Outcome, list[bytes]]:
    """Run these talks over a pure model; return the outcome, and the digests that the model was asked.

    Args:
        settings: As ``small_run`` takes them.
    """
    clock = VirtualClock()
    built = model(clock, schedule)
    outcome, _ = small_run(
        folder,
        converse=converse,
        model=built,
        roles=("a", "b"),
        payloads=talks,
        clock=clock,
        concurrency=concurrency,
        **settings,
    )
    return outcome, built.asked


def calls(folder: Path) -> Counter[tuple[Any, ...]]:
    """Every recorded call: conversation, branch, role, ordinal, digest and text."""
    with History(folder / "journal.sqlite") as history:
        return Counter(
            (number, call.branch, call.role, call.ordinal, call.digest, call.completion.text)
            for number in list(history.numbers())
            for call in history.calls(number)
        )


def cut(folder: Path, copy: Path, kept: int) -> None:
    """A copy of a run's folder as a process left it that died when so many calls were committed."""
    shutil.copytree(folder, copy)
    with closing(sqlite3.connect(copy / "journal.sqlite")) as journal:
        [(rows,)] = journal.execute("select count(*) from calls").fetchall()
        [(last,)] = journal.execute("select coalesce(max(rowid), 0) from (select rowid from calls order by rowid "
                                    "limit ?)", (kept,)).fetchall()  # fmt: skip
        journal.execute("delete from calls where rowid > ?", (last,))
        if kept < rows:
            journal.execute("delete from ended")
        journal.commit()

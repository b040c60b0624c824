"""The runner: admits conversations, bounded and in order, and runs each to its end.

Each worker has a slot and takes the next plan when it is free, so no task and no item exists before it is needed.
Parallel runs may share slots and turns of the event loop (`event_loop`): a run without a free slot queues once, however
many conversations it still has, so waiting runs take turns. A conversation's failure is a record; only an error that
would fail every other conversation too ends the run.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from .backends.base import Backend
from .budget import Budget, Meter
from .cancellation import ENDS_RUN, ConversationCanceller, RunStopping, deciding_error, is_failure
from .clock import Clock
from .computation import StepExecutor
from .conversation import Conversation, ConversationStopped, RunServices
from .errors import (
    ConfigurationError,
    Forbidden,
    JournalError,
    LimitReached,
    Unauthorized,
    VivaError,
    error_text,
    user_frame,
)
from .event_loop import LagMonitor, LoopYield
from .events import (
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    ConversationReopened,
    ConversationStarted,
    LimitHit,
    RunFinished,
    RunStarted,
)
from .journal import Journal
from .journal_reader import History
from .stream import EventStream

SlotCallback = Callable[[], None]


class Slots:
    """A number of slots (`limit`). A waiter is identified by its `callback`, which is called when it gets a slot.

    The callback runs in the call that released the slot: it must be quick, must not raise, and must make sure that the
    slot is released.
    """

    __slots__ = ("_free", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self._free = limit
        self._waiting: deque[SlotCallback] = deque()

    @property
    def in_use(self) -> int:
        """Number of slots in use."""
        return self.limit - self._free

    def take(self) -> bool:
        """Take a slot if one is free. No slot counts as free while others wait, so no waiter is passed over."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def wait(self, callback: SlotCallback) -> None:
        """Queue for a slot; at most once per waiter."""
        self._waiting.append(callback)

    def leave(self, callback: SlotCallback) -> None:
        """Leave the queue, if this waiter is in it."""
        if callback in self._waiting:
            self._waiting.remove(callback)

    def keep(self, callback: SlotCallback) -> bool:
        """Return True if a slot's holder may use it again: the holder is first in the queue, or nobody waits."""
        line = self._waiting
        if not line:
            return True
        if line[0] == callback:
            line.rotate(-1)
            return True
        return False

    def release(self) -> None:
        """Release a slot; the first waiter gets it."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


# Errors after which a conversation continues in a resumed run.
_INTERRUPTS = (asyncio.CancelledError, LimitReached, RunStopping, *ENDS_RUN)


@dataclass(slots=True)
class Plan:
    """A planned conversation: its number in the run, its key, the models by role, and the protocol's payload.

    `record` is stored in the journal as the conversation's item; it must be plain JSON data and must not be changed
    afterwards. `label` and `repeat` are the conversation's.
    """

    number: int
    key: str
    backends: Mapping[str, Backend]
    payload: Any
    record: Any = None
    label: str = ""
    repeat: int = 1


@dataclass(slots=True)
class Outcome:
    """End of a run.

    `how`: done, drained (asked to finish, with conversations left), halted (asked to stop now), budget, failed.
    """

    how: str
    finished: int = 0
    failed: int = 0
    interrupted: int = 0
    restored: int = 0
    error: VivaError | None = None
    loop_lag: dict[str, float] = field(default_factory=dict)


Coroutine = Callable[[Conversation, Any], Awaitable[Any]]
# Chooses conversations while the run goes on, and hands them to `Runner.feed`; returns when there are no more.
Feed = Callable[["Runner"], Awaitable[None]]


class Runner:
    """Runs plans through a protocol's coroutine.

    `journal` is entered by the caller; `history` is the reading half of the same file in a resumed run. `slots`,
    `loop_yield` and `computer` may be shared with other runs; by default the run has its own, with `concurrency` slots.
    `drain` lets conversations in flight finish, `interrupt` only requests in flight; `halt` stops at once. All of them
    stop admission and leave the run resumable. `admitted` is set when no further conversation will begin.
    """

    def __init__(
        self,
        *,
        seed: int,
        clock: Clock,
        journal: Journal,
        events: EventStream,
        concurrency: int,
        run_budget: Budget | None = None,
        conversation_budget: Budget | None = None,
        history: History | None = None,
        retry_failed: bool = False,
        slots: Slots | None = None,
        loop_yield: LoopYield | None = None,
        computer: StepExecutor | None = None,
    ) -> None:
        self._events, self._clock, self._journal = events, clock, journal
        self._slots = slots or Slots(concurrency)
        self._history = history
        self._retry_failed = retry_failed
        meter = Meter(run_budget or Budget(), "run", clock.now())
        self.services = RunServices(
            seed,
            clock,
            journal,
            events,
            meter,
            loop_yield or LoopYield(),
            conversation_budget or Budget(),
            computer or StepExecutor(clock),
            journal.path.parent,
        )
        self._own_computer = computer is None
        self.in_flight = 0
        self.conversations: dict[str, Conversation] = {}  # in flight, by key
        self.cancelling = ConversationCanceller()
        self.most_in_flight = 0
        self.admitted = anyio.Event()
        self.started = anyio.Event()  # set when further conversations can be added, or the run has ended
        self._outcome = Outcome("done")
        self._group: anyio.abc.TaskGroup | None = None
        self._queue: Iterator[Plan] = iter(())
        self._more: deque[Plan] = deque()  # conversations that were added during the run
        self._fed: deque[Plan] = deque()  # conversations that the feed has chosen
        self._feeding: anyio.CancelScope | None = None  # while the feed may choose more
        self._is_waiting = False  # for a slot
        self._converse: Coroutine | None = None
        self._admitting = True

    def drain(self) -> None:
        """Finish the conversations in flight; begin no other."""
        if self._admitting:
            self._close_admission()
            self._outcome.how = "drained"

    def interrupt(self) -> None:
        """Finish the requests in flight; each conversation is interrupted at its next request."""
        self.drain()
        self._journal.hasten()
        self.services.stop.request()

    def halt(self) -> None:
        """Stop now. Conversations in flight are interrupted and continue when the run is resumed."""
        self._journal.hasten()
        self._end("halted")

    @property
    def outcome(self) -> Outcome:
        """The outcome so far."""
        return self._outcome

    def require_admitting(self) -> None:
        """Raise `ConfigurationError` if the run is ending, so that no further conversation can begin."""
        if not self._admitting or self._group is None or not (self.in_flight or not self.admitted.is_set()):
            raise ConfigurationError("the run is ending and begins no conversation; resume it when it has ended")

    def add(self, plans: Iterable[Plan]) -> None:
        """Run further conversations, before those that have not begun yet.

        Raises:
            ConfigurationError: The run is ending.
        """
        self.require_admitting()
        plans = [*plans]
        self._more += plans
        for _ in plans:
            if not self._slots.take():
                break  # workers that are busy now run the rest
            self._begin()

    def add_replacement(self, plan: Plan) -> None:
        """Run a conversation in place of one that is about to end; its worker takes it next.

        If the run is ending, the conversation begins when the run is resumed.
        """
        self._more.append(plan)

    def reopen(self, failed: Iterable[tuple[Plan, dict[str, Any]]], history: History) -> None:
        """Let conversations go on that have failed, each with its error; `history` has their recorded calls.

        Raises:
            ConfigurationError: The run is ending.
        """
        failed = [*failed]
        self._history = history
        for plan, error in failed:
            self._outcome.failed -= 1
            self._events.publish(ConversationReopened(self._clock.wall(), plan.key, plan.number, error))
        self.add(plan for plan, _ in failed)

    def feed(self, plans: Iterable[Plan]) -> None:
        """Run conversations that the feed has chosen; conversations that have ended must not be among them."""
        if self._admitting:
            self._fed += plans
            if self._fed:
                self._spawn()

    async def run(
        self, plans: Iterable[Plan], converse: Coroutine, total: int | None = None, feed: Feed | None = None
    ) -> Outcome:
        """Run all plans, and what the `feed` chooses, and return the outcome.

        Conversations that ended according to the history are not run again (their results are published as restored);
        unfinished conversations replay their recorded calls first.
        """
        self._feeding = None if feed is None else anyio.CancelScope()
        restored = self._restore()
        self._events.publish(RunStarted(self._clock.wall(), "", total, len(restored)))
        planned = iter(plans)
        self._queue, self._converse = self._iter_admissible(planned, restored), converse
        self._journal.on_failure = self._on_journal_failure
        async with LagMonitor(self._clock) as lag:
            try:
                async with anyio.create_task_group() as self._group:
                    try:
                        if feed is not None:
                            self._group.start_soon(self._run_feed, feed)
                        self._spawn()
                        self.started.set()
                        await self.admitted.wait()
                    except BaseException:
                        self._close_admission()  # cancelled from outside: a released slot must start nothing
                        raise
            finally:
                self.started.set()
                self._leave_queue()
                if self._own_computer:
                    self.services.computer.close()
            self._outcome.loop_lag = lag.statistics()
        is_drained = self._outcome.how == "drained" and not self._outcome.interrupted
        if is_drained and self._feeding is None and not self._fed and _all_ended(planned, restored):
            self._outcome.how = "done"  # the request to stop came after the last admission
        if self._outcome.how == "done" and self._more:
            self._outcome.how = "drained"
        self._events.publish(RunFinished(self._clock.wall(), "", self._outcome.how))
        return self._outcome

    async def _run_feed(self, feed: Feed) -> None:
        assert self._feeding is not None
        with self._feeding:
            try:
                await feed(self)
            except VivaError as error:
                self._end("failed", error)
                return
            self._feeding = None
            if self._admitting and not self._fed:
                self._spawn()  # the next worker finds that nothing is left

    def _restore(self) -> set[int]:
        if self._history is None:
            return set()
        ended: set[int] = set()
        for conversation in self._history.ended():
            if conversation.failed and self._retry_failed:
                continue
            ended.add(conversation.number)
            self._outcome.failed += conversation.failed
            self._outcome.finished += not conversation.failed
            kind = ConversationFailed if conversation.failed else ConversationFinished
            self._events.publish(
                kind(self._clock.wall(), conversation.key, conversation.number, conversation.result, True)
            )
        self._outcome.restored = len(ended)
        return ended

    def _iter_admissible(self, plans: Iterator[Plan], ended: set[int]) -> Iterator[Plan]:
        try:
            for plan in plans:
                if not self._admitting:
                    return
                if plan.number not in ended:
                    yield plan
        except VivaError as error:  # the dataset can no longer be read
            self._end("failed", error)

    def _spawn(self) -> None:
        """Start the next worker: at once if a slot is free, else when this run is first in the queue."""
        if not self.admitted.is_set() and not self._is_waiting:
            if self._slots.take():
                self._begin()
            else:
                self._is_waiting = True
                self._slots.wait(self._begin)

    def _begin(self) -> None:
        assert self._group is not None
        self._is_waiting = False
        self._group.start_soon(self._work)

    async def _work(self) -> None:
        # While slots are free, a worker starts the next worker before its own first conversation. If other runs wait
        # for slots, it releases its slot after each conversation.
        try:
            plan = self._next()
            if plan is not None:
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                self._spawn()
                try:
                    while plan is not None:
                        await self._run_plan(plan)
                        plan = self._next() if self._more or self._slots.keep(self._begin) else None
                finally:
                    self.in_flight -= 1
        finally:
            self._slots.release()

    def _next(self) -> Plan | None:
        if self._admitting and self._more:
            return self._more.popleft()
        if self._admitting and self._fed:
            return self._fed.popleft()
        plan = next(self._queue, None) if self._admitting else None
        if plan is None and (self._feeding is None or not self._admitting):
            self._leave_queue()
        return plan

    def _close_admission(self) -> None:
        self._admitting = False
        self._leave_queue()
        if self._feeding is not None:
            self._feeding.cancel()

    def _leave_queue(self) -> None:
        self._slots.leave(self._begin)
        self._is_waiting = False
        self.admitted.set()

    async def _run_plan(self, plan: Plan) -> None:
        assert self._converse is not None
        self.services.stop.enter()  # the task may be a child of another run that shares the slots
        with self._handle_errors(plan):
            recorded = self._history.calls(plan.number) if self._history is not None else ()
            conversation = Conversation(
                self.services, plan.number, plan.key, plan.backends, recorded, plan.label, plan.repeat
            )
            self._journal.record_started(plan.number, plan.key, plan.record)
            self.conversations[plan.key] = conversation
            self._events.publish(ConversationStarted(self._clock.wall(), plan.key, plan.number))
            ending: BaseException | None = None
            try:
                with self.cancelling.guard(plan.key):
                    try:
                        result = await self._converse(conversation, plan.payload)
                    except BaseException as error:
                        ending = deciding_error(error)
                    if conversation.fatal is None:
                        if ending is None:
                            conversation.close()  # tasks that the protocol left behind make no further call
                        if (ending is not None or conversation.under_way) and not isinstance(ending, _INTERRUPTS):
                            await conversation.settle()  # after an error `asyncio.gather` leaves other parts running
                    if conversation.fatal is not None and (ending is None or is_failure(ending)):
                        # A protocol that continued despite an interrupted part has no valid result.
                        ending = deciding_error(
                            BaseExceptionGroup("", [conversation.fatal, *([ending] if ending else [])])
                        )
                    if isinstance(ending, ConversationStopped):
                        result = {"stopped": {"by": ending.by, "reason": ending.reason}}
                    elif ending is not None:
                        raise ending
            finally:
                ending = None  # else its traceback and this frame would form a cycle
                conversation.close()
                del self.conversations[plan.key]
                is_interrupted = isinstance(sys.exception(), _INTERRUPTS)
                for backend in plan.backends.values():
                    (backend.interrupted if is_interrupted else backend.ended)(conversation.affinity)
            self._journal.record_ended(plan.number, "finished", result)
            self._outcome.finished += 1
            self._events.publish(ConversationFinished(self._clock.wall(), plan.key, plan.number, result))

    @contextmanager
    def _handle_errors(self, plan: Plan) -> Iterator[None]:
        try:
            yield
        except anyio.get_cancelled_exc_class() as error:
            if is_failure(error):
                self._record_failure(plan, error)
                return
            self._record_interruption(plan)
            task = asyncio.current_task()
            if task is None or anyio.current_effective_deadline() == -math.inf:  # cancelled by the caller
                raise
            while task.cancelling():  # else the group would treat it as its own cancellation and end the run as done
                task.uncancel()
            self._end(
                "failed",
                ConfigurationError(
                    f"conversation {plan.key}: its protocol cancelled its own task; run work that may be cancelled "
                    "in a separate task"
                ),
            )
        except LimitReached as error:
            # Calls in flight are paid for: they finish and are recorded. Conversations are interrupted at their next
            # call.
            self._record_interruption(plan)
            if self._outcome.error is None:
                self._events.publish(LimitHit(self._clock.wall(), "", error.limit, str(error)))
                self._close_admission()
                self._outcome.how, self._outcome.error = "budget", error
        except RunStopping:
            self._record_interruption(plan)
        except ENDS_RUN as error:
            if isinstance(error, Unauthorized) and self._has_accepted_key(plan, error):
                message = str(error).removeprefix(f"{error.model}: ")
                self._record_failure(plan, Forbidden(message, model=error.model, status=error.status))
                return
            self._record_interruption(plan)
            self._end("failed", error)
        except BaseException as error:
            if not is_failure(error):
                raise
            self._record_failure(plan, error)  # a protocol cannot end the program

    def _has_accepted_key(self, plan: Plan, error: Unauthorized) -> bool:
        """Return True if a resumed run's journal shows that the model accepts the key: only this request is forbidden.

        This holds for 403 only: a 401 refuses the key itself, which may have changed since then.
        """
        if self._history is None or error.status != 403:
            return False
        roles = [role for role, backend in plan.backends.items() if backend.label == error.model]
        prefix = f"{error.model}/"
        return bool(roles) and self._history.has_answers(roles, prefix if plan.key.startswith(prefix) else "")

    def _record_failure(self, plan: Plan, error: BaseException) -> None:
        if isinstance(error, VivaError):
            record = error.to_record()
        else:  # a fault in protocol code: record its location
            record = {"type": type(error).__name__, "message": error_text(error), "at": user_frame(error)}
        try:
            self._journal.record_ended(plan.number, "failed", record)
        except JournalError as journal_error:
            self._end("failed", journal_error)
            return
        self._outcome.failed += 1
        self._events.publish(ConversationFailed(self._clock.wall(), plan.key, plan.number, record))

    def _record_interruption(self, plan: Plan) -> None:
        self._outcome.interrupted += 1
        self._events.publish(ConversationInterrupted(self._clock.wall(), plan.key, plan.number))

    def _on_journal_failure(self, error: JournalError) -> None:
        self._end("failed", error)

    def _end(self, outcome: str, error: VivaError | None = None) -> None:
        self._close_admission()
        if self._outcome.how in ("done", "drained", "budget"):
            self._outcome.how, self._outcome.error = outcome, error
        if self._group is not None:
            self._group.cancel_scope.cancel()


def _all_ended(plans: Iterator[Plan], ended: set[int]) -> bool:
    """Return True if all remaining plans are of conversations that have ended."""
    try:
        return all(plan.number in ended for plan in plans)
    except VivaError:  # the dataset can no longer be read, so the remaining plans are unknown
        return False

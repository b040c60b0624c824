"""Replay of a recorded conversation without any model: what each role was sent and what it answered, in order.

The protocol's coroutine runs against the recorded calls. If a request equals the recorded one (the digests match), its
view is what the model was sent. If it differs (the code or the prompts have changed), the recorded answer is used all
the same, and what was sent stays unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .budget import Budget, Meter
from .cancellation import EndOfRecord, deciding_error, is_failure
from .clock import Clock, RealClock
from .computation import StepExecutor, StepLocation
from .conversation import Conversation, ConversationStopped, RunServices
from .detectors import Detector
from .event_loop import LoopYield
from .journal import Journal, role_in_branch
from .journal_reader import RecordedCall
from .likelihood import Likelihood, Reading
from .messages import Completion, Message, Sampling, View, request_digest
from .steps import STEP_PREFIX, Computed, computed_from_record, step_digest
from .stream import EventStream
from .tools import Toolbox


@dataclass(slots=True)
class Aside:
    """Text that the protocol put between the calls.

    `branch` is the path of the branch that added it, "" for the conversation itself; `Exchange` and `Step` have the
    same field.
    """

    party: str
    text: str
    branch: str = ""


@dataclass(slots=True)
class Exchange:
    """A call. `completion` is None if no answer was recorded.

    `messages` is what the role was sent (None if unknown, or if the call read a text), `sampling` and `tools` are the
    options and functions sent with them; `hint` is for simulated models. `reading` has the texts whose likelihood was
    requested. `seed` is the seed of the request, None if unknown; `at` the time of the answer, in seconds since 1970.
    """

    role: str
    ordinal: int
    completion: Completion | None
    messages: tuple[Message, ...] | None = None
    tools: Toolbox | None = None
    reading: Reading | None = None
    sampling: Sampling | None = None
    hint: Any = None
    branch: str = ""
    seed: int | None = None
    at: float | None = None


@dataclass(slots=True)
class Step:
    """A recorded step that is no model call; `at` is the time of its end, `seconds` how long it took."""

    name: str
    ordinal: int
    computed: Computed
    branch: str = ""
    at: float | None = None
    seconds: float = 0.0


Entry = Aside | Exchange | Step


@dataclass(slots=True)
class Replay:
    """Result of a replay. `problem` says why some requests are unknown; None if all are known.

    `unanswered` are the protocol's calls without a recorded answer; they were sent if the conversation failed.
    """

    lines: list[Entry] = field(default_factory=list)
    problem: str | None = None
    unanswered: list[Exchange] = field(default_factory=list)


# Turns of the event loop in which overlapping calls may proceed before an unanswered one ends the conversation.
_IDLE_TURNS = 32


class ReplayConversation(Conversation):
    """A conversation answered from its record alone."""

    __slots__ = ("_answers", "_superseded", "replay")

    def __init__(
        self, services: RunServices, number: int, key: str, recorded: Sequence[RecordedCall], label: str, repeat: int
    ) -> None:
        super().__init__(services, number, key, {}, (), label, repeat)
        self._answers: dict[tuple[str, int], RecordedCall] = {}
        self._superseded: set[tuple[str, int]] = set()
        for call in recorded:
            position = role_in_branch(call.branch, call.role), call.ordinal
            # A call repeated after a divergence is recorded twice: the later one counts, and earlier calls that the
            # protocol does not make are dropped.
            if position in self._answers and not self._superseded:
                self._superseded = set(self._answers)
            self._answers.pop(position, None)
            self._answers[position] = call
            self._superseded.discard(position)
        self.replay = Replay()

    async def generate(
        self,
        role: str,
        view: View,
        sampling: Sampling,
        *,
        tools: Toolbox | None = None,
        hint: Any = None,
        watch: Sequence[Callable[[], Detector]] = (),
    ) -> Completion:
        stored, ordinal = self._count_call(role)
        seed = self._seeds.seed(stored, ordinal) if sampling.seed is None else sampling.seed
        digest = request_digest(view, sampling, seed, tools)
        exchange = Exchange(
            role, ordinal, None, view.messages, tools, sampling=sampling, hint=hint, branch=self.path, seed=seed
        )
        completion = await self._answer(exchange, stored, digest)
        if watch:
            try:
                self._check_detectors(completion, watch)
            except ConversationStopped:
                await self.run_overlapping_calls()  # a stop is raised after all other calls have been answered
                raise
        return completion

    async def read(self, role: str, reading: Reading) -> list[Likelihood]:
        stored, ordinal = self._count_call(role)
        exchange = Exchange(role, ordinal, None, reading=reading, branch=self.path)
        completion = await self._answer(exchange, stored, reading.digest())
        return completion.likelihoods or []

    async def compute(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: Any = None,
        limit: float = 60.0,
        where: StepLocation = "thread",
    ) -> Computed:
        stored, ordinal = self._count_call(STEP_PREFIX + name)
        self.computed[name] = self.computed.get(name, 0) + 1
        call, _ = await self._recorded_call(name, stored, ordinal, step_digest(name, arguments, key))
        computed = _computed(call)
        self.replay.lines.append(Step(name, ordinal, computed, self.path, call.at, call.completion.latency))
        return computed

    def tell(self, lines: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self.replay.lines += [Aside(party, text, self.path) for party, text in lines()]

    def unused_calls(self) -> list[RecordedCall]:
        """Return the recorded calls that the protocol did not make, in order."""
        return [call for position, call in self._answers.items() if position not in self._superseded]

    async def _answer(self, exchange: Exchange, stored: str, digest: bytes) -> Completion:
        """Return the recorded answer and add the exchange to the transcript."""
        call, matches = await self._recorded_call(exchange.role, stored, exchange.ordinal, digest, exchange)
        exchange.completion, exchange.at = call.completion, call.at
        if not matches:
            exchange.messages = exchange.tools = exchange.reading = exchange.sampling = exchange.hint = None
            exchange.seed = None
        self.replay.lines.append(exchange)
        self.usage[exchange.role].add(call.completion)
        return call.completion

    async def _recorded_call(
        self, name: str, stored: str, ordinal: int, digest: bytes, exchange: Exchange | None = None
    ) -> tuple[RecordedCall, bool]:
        """Return the recorded call, and True if its request equals this one; raise `EndOfRecord` if there is none."""
        call = self._answers.pop((stored, ordinal), None)
        if call is None:
            if exchange is not None and self.replay.problem is None:
                self.replay.unanswered.append(exchange)
            await self.run_overlapping_calls()
            raise EndOfRecord
        matches = call.digest == digest
        if not matches and self.replay.problem is None:
            self.replay.problem = f"the request {name} #{ordinal} differs from the recorded one"
        return call, matches

    async def run_overlapping_calls(self) -> None:
        """Answer the recorded calls of parts that run beside one that has ended or made an unanswered call."""
        turns, remaining = 0, len(self._answers)
        while turns < _IDLE_TURNS:
            await asyncio.sleep(0)
            turns, remaining = (0 if len(self._answers) < remaining else turns + 1), len(self._answers)


def entry_from_record(call: RecordedCall) -> Exchange | Step:
    """Return a transcript entry for a call or step from its record alone."""
    if call.role.startswith(STEP_PREFIX):
        name, computed = call.role.removeprefix(STEP_PREFIX), _computed(call)
        return Step(name, call.ordinal, computed, call.branch, call.at, call.completion.latency)
    return Exchange(call.role, call.ordinal, call.completion, branch=call.branch, at=call.at)


def _computed(call: RecordedCall) -> Computed:
    """Return a step's result; a failure if its record is damaged."""
    try:
        return computed_from_record(call.completion)
    except ValueError as error:
        return Computed(
            error={"type": "ValueError", "message": f"the step's record is damaged: {error}", "at": "journal"}
        )


def replay_services(seed: int, clock: Clock) -> RunServices:
    """Return services for conversations that call no model and record nothing."""
    meter = Meter(Budget(), "run", clock.now())
    return RunServices(
        seed, clock, cast(Journal, None), EventStream(), meter, LoopYield(), Budget(), StepExecutor(clock)
    )


async def replay_conversation(
    converse: Callable[[Conversation, Any], Awaitable[Any]],
    task: Any,
    recorded: Sequence[RecordedCall],
    *,
    seed: int,
    number: int,
    key: str,
    label: str = "",
    repeat: int = 1,
    clock: Clock | None = None,
) -> Replay:
    """Replay a recorded conversation. `seed` is the run's; number, key, label and repeat are the conversation's.

    Exceptions of the coroutine are not raised; if recorded calls remain, they become the `problem`.
    """
    services = replay_services(seed, clock or RealClock())
    conversation = ReplayConversation(services, number, key, recorded, label, repeat)
    reason = "the scenario's code now makes fewer calls than were recorded"
    try:
        await converse(conversation, task)
    except (EndOfRecord, ConversationStopped):
        pass
    except BaseException as raised:  # no problem if it ended the recorded conversation, too
        if not is_failure(raised):
            raise
        error = deciding_error(raised)
        if not isinstance(error, EndOfRecord | ConversationStopped):
            reason = f"{type(error).__name__}: {error}"
    replay = conversation.replay
    unused = [entry_from_record(call) for call in conversation.unused_calls()]
    replay.lines += unused
    if unused and replay.problem is None:
        replay.problem = reason
    return replay

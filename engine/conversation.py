"""A conversation: the handle through which straight-line protocol code calls models, durably.

Every model call goes through `Conversation.generate`. If the journal already contains the call with the same request
hash, the journal answers the call; otherwise the call goes to the model and is recorded. Re-running the coroutine after
a crash therefore restores its state, and no recorded call is paid for twice.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, Self

from .backends.base import Backend
from .budget import WATCH_PREFIX, Budget, Meter, RoleUsage
from .cancellation import ConversationStopped as ConversationStopped
from .cancellation import Gate, RunStopping, StopSignal
from .clock import Clock
from .computation import StepExecutor, StepLocation
from .detectors import Detector, generate_with_detectors
from .errors import (
    AccountBlocked,
    ConfigurationError,
    JournalError,
    LimitReached,
    Unauthorized,
    Unreachable,
    did_you_mean,
)
from .event_loop import LoopYield
from .events import CallDetails, CallFailed, CallFinished, Diverged, LimitHit, Noted, StepComputed, StopRequested
from .journal import BRANCH_PREFIX, Journal, role_in_branch
from .journal_reader import RecordedCall
from .likelihood import Likelihood, Reading
from .messages import Completion, Request, Sampling, View, request_digest
from .seeds import ConversationSeeds
from .steps import STEP_PREFIX, Computed, computed_from_record, step_digest
from .stream import EventStream
from .thoughts import has_marks, separate_thoughts
from .tools import Toolbox


@dataclass(slots=True)
class RunServices:
    """Services that all conversations of a run share."""

    seed: int
    clock: Clock
    journal: Journal
    events: EventStream
    meter: Meter
    loop_yield: LoopYield
    conversation_budget: Budget
    computer: StepExecutor
    folder: Path | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    gate: Gate = field(default_factory=Gate)


_AFFINITIES = count()
_MAX_CALLS_OF_OTHERS = 1_000  # maximum of other parts' calls while an ending part waits: they may never stop
# Turns of the event loop within which a part of a protocol proceeds from one call to the next.
_IDLE_TURNS = 32
_AFTER_ALL_BRANCHES = "\U0010ffff"  # sorts after the path of every branch
_FREE, _BUSY, _MOVING = 0, 1, 2
_INTERRUPTIONS = (RunStopping, LimitReached, ConversationStopped)  # before a call: other parts continue
_ENDINGS = (*_INTERRUPTIONS, AccountBlocked, JournalError, Unauthorized, Unreachable)


class _RoleState:
    """Position in the journal of the calls of one role, or of the steps of one name, in one branch.

    `state` is `_BUSY` while a call is in flight, and becomes `after` when it has ended. `_MOVING` means that the first
    call took a position of the conversation itself, and the next call takes the branch's own first position.
    """

    __slots__ = ("after", "backend", "branch", "calls", "state", "stored", "usage")

    def __init__(self, stored: str, branch: str, backend: Backend | None, usage: RoleUsage) -> None:
        self.stored, self.branch, self.backend, self.usage = stored, branch, backend, usage
        self.calls = 0
        self.state = self.after = _FREE


class _Traffic:
    """State shared by a conversation and its branches.

    `under_way` counts calls in flight, `calls_waiting` counts the calls that only wait for other calls to end, and
    `waiting` has the paths of all waiters. `fatal` is `Conversation.fatal`.
    """

    __slots__ = ("branched", "calls_waiting", "ended", "fatal", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = self.calls_waiting = 0
        self.waiting: list[str] = []
        self.branched = False
        self.ended: asyncio.Event | None = None
        self.fatal: Exception | None = None


class Conversation:
    """A conversation of a run, or a branch of one.

    `key` identifies it in seeds, journal and events; `number` orders the run; `affinity` is unique in this process.
    `label` is the compared model's label, if several are compared; `repeat` counts from 1 how often the same task is
    run with that model. `sampling` has each role's default options. `usage` (by role) and `computed` (steps by name)
    include all branches. `path` is the path of the branch: `""` for the conversation itself, `pro/second` for a branch
    of its branch `pro`.
    """

    __slots__ = (
        "_backends",
        "_branches",
        "_meter",
        "_outer_meters",
        "_own_meter",
        "_recorded",
        "_roles",
        "_seeds",
        "_services",
        "_stopped",
        "_traffic",
        "affinity",
        "computed",
        "key",
        "label",
        "number",
        "path",
        "repeat",
        "sampling",
        "usage",
    )

    def __init__(
        self,
        services: RunServices,
        number: int,
        key: str,
        backends: Mapping[str, Backend],
        recorded: Sequence[RecordedCall] = (),
        label: str = "",
        repeat: int = 1,
    ) -> None:
        self.key, self.number = key, number
        self.label, self.repeat = label, repeat
        self.path = ""
        self.affinity = f"{key} {next(_AFFINITIES)}"
        self.sampling: Mapping[str, Sampling] = {}
        self.usage: dict[str, RoleUsage] = {}
        self.computed: dict[str, int] = {}
        self._services = services
        self._backends = backends
        self._seeds = ConversationSeeds(services.seed, key)
        self._recorded = {(role_in_branch(call.branch, call.role), call.ordinal): call for call in recorded}
        self._roles: dict[str, _RoleState] = {}
        self._branches: dict[str, Conversation] | None = None
        self._stopped: ConversationStopped | None = None
        self._traffic = _Traffic()
        limit = services.conversation_budget
        # A bounded conversation has two counts: with its branches, and without them. A new branch begins with the
        # latter.
        self._meter = None if limit.open else Meter(limit, "conversation", services.clock.now())
        self._own_meter = copy.copy(self._meter)
        self._outer_meters: tuple[Meter, ...] = ()

    def branch(self, name: str, *, continuing: str = "") -> Self:
        """Open a named part of the conversation, to run at once with other parts.

        A branch has the interface of a conversation. Seeds and places in the journal follow from its path, the role and
        the role's own count of calls in it, so they do not depend on which part is faster. It can be stopped alone, and
        has the conversation's limits for itself: what other parts use meanwhile does not count in the branch.

        Args:
            name: The branch's name, without `/` and `:`. It is unique among the branches opened here.
            continuing: A role. Its first call in the branch takes the position and the seed of its next call here. A
                protocol that used to make such calls in turn keeps its recorded answers.

        Raises:
            ConfigurationError: The name is invalid, or was opened already.
        """
        if not isinstance(name, str) or not name.strip() or "/" in name or ":" in name or not name.isprintable():
            raise self._refuse(f"branch({name!r}): expected a name without '/', ':' and control characters")
        if self._branches is None:
            self._branches = {}
        if name in self._branches:
            raise self._refuse(
                f"branch({name!r}): this branch is already open; use the object that the first `branch` returned, or "
                "give the other part another name"
            )
        child = copy.copy(self)
        child.path = f"{self.path}{BRANCH_PREFIX}{name}" if self.path else name
        child._roles, child._branches = {}, None
        if self._meter is not None:
            child._outer_meters = (*self._outer_meters, self._meter)
            child._meter, child._own_meter = copy.copy(self._own_meter), copy.copy(self._own_meter)
        if continuing:
            own_state = self._get_state(continuing)
            if own_state.after == _MOVING:
                raise self._refuse(f"branch({name!r}, continuing={continuing!r}): the parent branch continues this "
                                   "role from its own parent; open this branch from there, too")  # fmt: skip
            if self._traffic.under_way:
                raise self._refuse(f"branch({name!r}, continuing={continuing!r}): calls are in flight, so which of "
                                   "two parts comes next would depend on latency; open all branches that continue "
                                   "a role before any part begins")  # fmt: skip
            state = child._get_state(continuing)
            state.stored, state.branch, state.calls = own_state.stored, own_state.branch, own_state.calls
            state.after = _MOVING
            own_state.calls += 1
        self._branches[name] = child
        self._traffic.branched = True
        return child

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
        """Have `role`'s model answer its view of the conversation.

        The call's seed, hash and place in the journal follow from the conversation, its branch and the role's own count
        of calls there, so roles and branches may overlap.

        Args:
            role: Role whose model is to answer.
            view: Messages that the role has seen.
            sampling: Sampling options.
            tools: Functions that the model may call; the completion then may have `calls`.
            hint: Passed to simulated models only.
            watch: Factories of detectors for this reply. Text received before a detector ends the reply is recorded
                like any other reply.

        Raises:
            ConversationStopped: A detector, a budget or an outside caller ended the conversation.
            BackendError: The model could not answer.
            LimitReached: The run's budget is used up.
            ConfigurationError: The role's previous call in this branch is still in flight.
        """
        state = self._roles.get(role) or self._get_state(role)
        if state.state or self._stopped is not None or self._traffic.fatal is not None:
            await self._prepare(state, role)
        backend = state.backend
        if backend is None:
            self._raise_no_backend(role)
        services, traffic, ordinal = self._services, self._traffic, state.calls
        state.state, state.calls = _BUSY, ordinal + 1  # like `_reserve_call`, without its frame
        traffic.under_way += 1
        state.usage.calls += 1
        try:
            seed = sampling.seed
            if seed is None:
                seed = self._seeds.seed(state.stored, ordinal)
            digest = request_digest(view, sampling, seed, tools)
            completion = self._recall(role, state, ordinal, digest) if self._recorded else None
            if completion is not None:
                self._account(role, state, ordinal, backend, completion, services.clock.wall(), replayed=True)
            else:
                if services.gate.closed:
                    await services.gate.wait(backend.label)
                if services.stop.requested or services.meter.bounded or self._meter is not None:
                    self._begin_call()
                else:
                    services.meter.under_way += 1
                request = Request(
                    view.messages,
                    sampling,
                    seed,
                    digest,
                    self.key,
                    role,
                    ordinal,
                    hint,
                    tools=tools,
                    affinity=self.affinity,
                    branch=self.path,
                    run=services.folder,
                )
                answer = (
                    generate_with_detectors(backend, request, watch, services.clock)
                    if watch
                    else backend.generate(request)
                )
                completion = await self._record_answer(role, state, ordinal, digest, backend, request, answer)
            if services.events.congested:
                await services.events.wait_for_room()
            if not services.loop_yield.pass_nowait():
                await services.loop_yield.enter()
            if watch:
                self._check_detectors(completion, watch)
            return completion
        except _ENDINGS as error:
            await self._on_ending(error)
            raise
        finally:
            state.state = state.after
            traffic.under_way -= 1
            if traffic.ended is not None:
                traffic.ended.set()

    async def read(self, role: str, reading: Reading) -> list[Likelihood]:
        """Return the likelihood of given texts under `role`'s model; recorded, replayed and counted like `generate`.

        Raises:
            ConfigurationError: The model returns no likelihoods, or as for `generate`.
            ConversationStopped, BackendError, LimitReached: As for `generate`.
        """
        async with self._reserve_call(role) as (state, ordinal):
            backend = state.backend
            if backend is None:
                self._raise_no_backend(role)
            state.usage.calls += 1
            digest = reading.digest()
            completion = self._recall(role, state, ordinal, digest) if self._recorded else None
            if completion is not None:
                self._account(role, state, ordinal, backend, completion, self._services.clock.wall(), replayed=True)
            else:
                if self._services.gate.closed:
                    await self._services.gate.wait(backend.label)
                self._begin_call()
                answer = backend.read(reading)
                completion = await self._record_answer(role, state, ordinal, digest, backend, reading, answer)
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
        """Run a function (a metric, a tool, …) off the event loop, and record and replay it like a call.

        A failure is a value too: `error` says if the function raises, takes more than `limit` seconds, returns
        something other than JSON data, or if its process dies. A `process` is killed at its limit (function and
        arguments must pickle); a `thread` cannot be killed: it continues and its result is ignored. A coroutine
        function is awaited in the event loop. The function must not call this conversation.

        Args:
            name: Name of the step in the journal and in transcripts.
            function: Function to call.
            *arguments: Its arguments.
            key: JSON data that identifies arguments which are not JSON data.
            limit: Time limit in seconds.
            where: `thread` or `process`.

        Raises:
            ConfigurationError: An argument is not JSON data and there is no `key`; an option is invalid; or the
                previous step of this name in this branch is still running.
            ConversationStopped: The conversation was ended before.
        """
        role, services, digest = STEP_PREFIX + name, self._services, step_digest(name, arguments, key)
        async with self._reserve_call(role) as (state, ordinal):
            self.computed[name] = self.computed.get(name, 0) + 1
            recorded = completion = self._recall(role, state, ordinal, digest) if self._recorded else None
            if completion is None:
                began = services.clock.now()
                if services.stop.requested:
                    raise RunStopping
                finish, data = await services.computer.run(function, arguments, limit, where)
                completion = Completion(data.decode(), finish, latency=services.clock.now() - began)
                services.journal.record_call(
                    self.number, state.stored, ordinal, digest, completion, services.clock.wall()
                )
                if services.journal.full:
                    await services.journal.flush()
            computed = computed_from_record(completion)
            services.events.publish(
                StepComputed(
                    services.clock.wall(),
                    self.key,
                    name,
                    ordinal,
                    computed.failed,
                    completion.latency,
                    recorded is not None,
                    branch=state.branch,
                )
            )
            return computed

    @property
    def irregular(self) -> dict[str, dict[str, int]]:
        """Irregular answers by role, as counted by `RoleUsage`; roles without any are absent."""
        roles = [role for role in sorted(self.usage) if self.usage[role].irregular]
        return {role: dict(sorted(self.usage[role].irregular.items())) for role in roles}

    def tell(self, lines: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Add lines (party, text) to the transcript for speech not from a model: the task, a played user, a tool.

        `lines` is called only when a transcript is made; during a run this costs nothing.
        """

    def note(self, kind: str, payload: Any) -> None:
        """Publish a protocol's own event about this conversation (`Noted`)."""
        self._services.events.publish(Noted(self._services.clock.wall(), self.key, kind, payload))

    def stop(self, by: str, reason: str) -> ConversationStopped:
        """End the conversation, or this branch, early: its next call raises the exception that is returned here.

        Branches of the stopped part end with it; other parts continue.
        """
        if self._stopped is None:
            self._set_stopped(ConversationStopped(by, reason))
            self._services.events.publish(StopRequested(self._services.clock.wall(), self.key, by, reason))
        return self._stopped or ConversationStopped(by, reason)

    @property
    def fatal(self) -> Exception | None:
        """Error that ends or interrupts the run, from any branch; for the runner, in case the protocol caught it."""
        return self._traffic.fatal

    @property
    def under_way(self) -> bool:
        """True if any call of the conversation is in flight, in any branch."""
        return self._traffic.under_way > 0

    async def settle(self) -> None:
        """Wait until the remaining parts have ended, as they do after one has raised (`asyncio.gather`)."""
        await self._wait_for_others(0, _AFTER_ALL_BRANCHES)

    def close(self) -> None:
        """Refuse further calls: the conversation has ended, and tasks that its protocol left behind are ignored."""
        self._set_stopped(ConversationStopped("run", "the conversation has ended"))

    def _set_stopped(self, stopped: ConversationStopped) -> None:
        if self._stopped is None:
            self._stopped = stopped
        for branch in (self._branches or {}).values():
            branch._set_stopped(stopped)

    def _get_state(self, role: str) -> _RoleState:
        """Return the state of a role, or of a step by its role in the journal; create it at first use."""
        state = self._roles.get(role)
        if state is None:
            usage = self.usage.get(role)
            if usage is None:
                usage = RoleUsage()
                if not role.startswith(STEP_PREFIX):
                    self.usage[role] = usage
            backend = self._backends.get(role)
            state = _RoleState(role_in_branch(self.path, role), self.path, backend, usage)
            self._roles[role] = state
        return state

    def _count_call(self, role: str) -> tuple[str, int]:
        """Count a call that is answered without a model and may overlap; return its stored role and ordinal."""
        if self._stopped is not None:
            raise self._stopped
        state = self._get_state(role)
        if state.state:
            self._move(state, role)
        stored, ordinal = state.stored, state.calls
        state.calls += 1
        state.usage.calls += 1
        state.state = state.after
        return stored, ordinal

    def _move(self, state: _RoleState, role: str) -> None:
        """Continue with the branch's own places, after the first one that it took over (`branch(continuing=…)`)."""
        state.stored, state.branch = role_in_branch(self.path, role), self.path
        state.state = state.after = _FREE

    async def _prepare(self, state: _RoleState, role: str) -> None:
        """Handle everything that prevents a call.

        Raises:
            ConversationStopped: The conversation was stopped.
            ConfigurationError: A call of the role is in flight in this branch.
            RunStopping, LimitReached, …: Another part was interrupted. If the protocol caught the error, its next
                request may depend on it and must not be recorded.
        """
        if self._traffic.fatal is not None:
            await self._wait_for_others(0)
            raise self._traffic.fatal
        if self._stopped is not None:
            await self._wait_for_others(0)
            raise self._stopped
        if state.state == _MOVING:
            self._move(state, role)
            return
        step = role.startswith(STEP_PREFIX)
        name = role.removeprefix(STEP_PREFIX)
        subject, call = (f"the step '{name}'", "compute") if step else (f"the role '{name}'", "generate")
        location = f"in the same branch '{self.path}'" if self.path else "outside of any branch"
        raise self._refuse(
            f"{subject} is called while its last {'step' if step else 'call'} is in flight {location}: the order of "
            "the two in seeds and journal would depend on latency. Give each concurrent part its own branch: "
            f'part = conversation.branch("NAME"), then part.{call}("{name}", …), or Agent(part, …)'
        )

    def _refuse(self, problem: str) -> ConfigurationError:
        """Return the error for a protocol's own fault. It ends the run even if the protocol catches it."""
        error = ConfigurationError(f"conversation {self.key}: {problem}")
        self._traffic.fatal = self._traffic.fatal or error
        return error

    async def _on_ending(self, error: Exception) -> None:
        """Finish a call that raises an ending error."""
        if not isinstance(error, ConversationStopped):
            self._traffic.fatal = self._traffic.fatal or error
        if isinstance(error, _INTERRUPTIONS):
            await self._wait_for_others(1)

    @asynccontextmanager
    async def _reserve_call(self, role: str) -> AsyncIterator[tuple[_RoleState, int]]:
        """Reserve the role's next call and yield its state and ordinal. `generate` does this inline, for speed."""
        state, traffic, services = self._roles.get(role) or self._get_state(role), self._traffic, self._services
        if state.state or self._stopped is not None or traffic.fatal is not None:
            await self._prepare(state, role)
        state.state, state.calls = _BUSY, state.calls + 1
        traffic.under_way += 1
        try:
            yield state, state.calls - 1
            if services.events.congested:
                await services.events.wait_for_room()
            if not services.loop_yield.pass_nowait():
                await services.loop_yield.enter()
        except _ENDINGS as error:
            await self._on_ending(error)
            raise
        finally:
            state.state = state.after
            traffic.under_way -= 1
            if traffic.ended is not None:
                traffic.ended.set()

    async def _wait_for_others(self, own_calls: int, path: str | None = None) -> None:
        """Wait until no other call of the conversation is in flight: a call in flight is paid for and must be recorded.

        Parts that make further calls are waited for too, and of several waiters the first by path continues first. So
        latency affects neither the progress of the other parts nor which part ends a task group. `own_calls` is 1 if
        the caller is itself a call in flight, else 0.
        """
        traffic, idle, remaining = self._traffic, 0, _MAX_CALLS_OF_OTHERS
        path = self.path if path is None else path
        traffic.waiting.append(path)
        traffic.calls_waiting += own_calls
        try:
            while remaining:
                if traffic.under_way > traffic.calls_waiting:
                    if traffic.ended is None:
                        traffic.ended = asyncio.Event()
                    traffic.ended.clear()
                    await traffic.ended.wait()
                    idle, remaining = 0, remaining - 1
                elif not traffic.branched or idle == _IDLE_TURNS:
                    return
                else:
                    idle = idle + 1 if min(traffic.waiting) == path else 0
                    await asyncio.sleep(0)
        finally:
            traffic.waiting.remove(path)
            traffic.calls_waiting -= own_calls

    async def _record_answer(
        self,
        role: str,
        state: _RoleState,
        ordinal: int,
        digest: bytes,
        backend: Backend,
        request: Request | Reading,
        answer: Awaitable[Completion],
    ) -> Completion:
        """Await a model's answer and record it before it is used."""
        services = self._services
        began = services.clock.now()
        try:
            completion = await answer
        except Exception as error:
            if services.events.detailed and not isinstance(error, _INTERRUPTIONS):
                at, latency = services.clock.wall(), services.clock.now() - began
                failed = CallDetails(backend, request)
                services.events.publish(
                    CallFailed(at, self.key, role, ordinal, type(error).__name__, latency, state.branch, failed)
                )
            raise
        finally:
            services.meter.end()
        if not completion.latency:
            completion.latency = services.clock.now() - began
        if has_marks(completion.text) and not backend.replays:
            separate_thoughts(completion)
        at = services.clock.wall()
        services.journal.record_call(self.number, state.stored, ordinal, digest, completion, at)
        if services.journal.full:
            await services.journal.flush()
        details = CallDetails(backend, request, completion) if services.events.detailed else None
        self._account(role, state, ordinal, backend, completion, at, details, replayed=False)
        return completion

    def _account(
        self,
        role: str,
        state: _RoleState,
        ordinal: int,
        backend: Backend,
        completion: Completion,
        at: float,
        details: CallDetails | None = None,
        *,
        replayed: bool,
    ) -> None:
        services = self._services
        tokens = completion.prompt_tokens + completion.completion_tokens
        state.usage.add(completion)
        if completion.cached_tokens:
            price = backend.cost(completion.prompt_tokens, completion.completion_tokens, completion.cached_tokens)
        else:  # a user's backend may not know of cached tokens
            price = backend.cost(completion.prompt_tokens, completion.completion_tokens)
        if not replayed:
            services.meter.add(tokens, price)
        if self._meter is not None and self._own_meter is not None:
            # Counted for replayed calls too, at list price: the limit must apply at the same turn after a resume.
            for meter in (self._meter, self._own_meter, *self._outer_meters):
                meter.add(tokens, price)
        services.events.publish(
            CallFinished(
                at,
                self.key,
                role,
                ordinal,
                completion.prompt_tokens,
                completion.completion_tokens,
                0.0 if replayed else price,
                completion.latency,
                completion.attempts,
                replayed,
                None,
                state.branch,
                details,
            )
        )

    def _recall(self, role: str, state: _RoleState, ordinal: int, digest: bytes) -> Completion | None:
        call = self._recorded.pop((state.stored, ordinal), None)
        if call is None:
            return None
        if call.digest == digest:
            return call.completion
        # The request differs from the recorded one, so all later recorded calls may answer other requests.
        self._recorded.clear()
        self._services.events.publish(Diverged(self._services.clock.wall(), self.key, role, ordinal, state.branch))
        return None

    def _begin_call(self) -> None:
        """Reserve a call in the run's budget.

        Raises:
            RunStopping, LimitReached, ConversationStopped: No further call may begin.
        """
        services = self._services
        if services.stop.requested:
            raise RunStopping
        now = services.clock.now()
        if self._meter is not None:
            try:
                self._meter.require(now)
            except LimitReached as error:
                services.events.publish(LimitHit(services.clock.wall(), self.key, "budget", str(error)))
                raise self.stop("budget", str(error)) from error
        services.meter.begin(now)

    def _check_detectors(self, completion: Completion, watch: Sequence[Callable[[], Detector]]) -> None:
        if completion.finish.startswith(WATCH_PREFIX):
            raise self.stop("detector", completion.finish.removeprefix(WATCH_PREFIX))
        if (completion.calls and not completion.text) or completion.refusal_reason is not None:
            return  # a tool call is an answer, and a refusal is not an empty reply
        for make in watch:
            reason = make().finish(completion.text)
            if reason is not None:
                raise self.stop("detector", reason)

    def _raise_no_backend(self, role: str) -> NoReturn:
        near = did_you_mean(role, self._backends)
        if not near:
            near = f"; roles with a model: {', '.join(self._backends) or 'none'}; a scenario has to declare its roles"
        raise ConfigurationError(f"conversation {self.key}: no model for the role '{role}'{near}")

"""A conversation: the handle through which straight-line protocol code talks with models, durably.

Every model call goes through ``Conversation.generate``. A call that the journal already holds, asked in the same
words, is answered from it; any other goes to the model and is recorded. Re-running the coroutine after a crash
therefore restores its state, and no recorded call is paid for twice.

What never belongs here: turn order, prompts, verdicts, when to stop (a protocol's business), admission (runner's).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NoReturn

import anyio

from .backends.base import Backend
from .budget import Meter
from .computation import Where
from .detectors import Detector
from .errors import ConfigurationError, LimitReached
from .events import CallFinished, Diverged, LimitHit, Noted, StepComputed, StopRequested
from .history import RecordedCall
from .likelihood import Likelihood, Reading
from .messages import Completion, Request, Sampling, View, request_digest
from .seeds import SeedLine
from .services import Services
from .steps import STEP_PREFIX, Computed, computed_from, step_digest
from .stopping import RunStopping
from .thoughts import has_marks, separate_thoughts
from .tools import Toolbox
from .usage import WATCHED, RoleUsage
from .watching import watched_answer

_AFFINITIES = count()


class ConversationStopped(Exception):  # control flow, not an error
    """The conversation is to end now. ``by`` says who asked (detector, budget, …), ``reason`` why.

    A protocol catches it to return what it has; uncaught, the conversation ends without a result.
    """

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(f"{by}: {reason}")
        self.by, self.reason = by, reason


class Conversation:
    """One conversation of a run. ``key`` names it in seeds, journal and events; ``number`` orders the run; no other
    conversation of this process has its ``affinity``. ``label`` is that of the model under examination, where several
    are compared; ``repeat`` counts from 1 how often the same task is held with it. ``computed`` counts steps by name.
    """

    __slots__ = (
        "_backends",
        "_meter",
        "_quiet",
        "_recorded",
        "_seeds",
        "_services",
        "_stopped",
        "_under_way",
        "affinity",
        "computed",
        "key",
        "label",
        "number",
        "repeat",
        "usage",
    )

    def __init__(
        self,
        services: Services,
        number: int,
        key: str,
        backends: Mapping[str, Backend],
        recorded: Sequence[RecordedCall] = (),
        label: str = "",
        repeat: int = 1,
    ) -> None:
        self.key, self.number = key, number
        self.label, self.repeat = label, repeat
        self.affinity = f"{key} {next(_AFFINITIES)}"
        self.usage: dict[str, RoleUsage] = {}
        self.computed: dict[str, int] = {}
        self._services = services
        self._backends = backends
        self._seeds = SeedLine(services.seed, key)
        self._recorded = {(call.role, call.ordinal): call for call in recorded}
        self._stopped: ConversationStopped | None = None
        self._under_way = 0
        self._quiet: anyio.Event | None = None  # set when no call is under way; made only if somebody waits for it
        limit = services.conversation_budget
        self._meter = None if limit.open else Meter(limit, "conversation", services.clock.now())

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
        """Have ``role``'s model answer its view of the conversation.

        The call's seed, hash and place in the journal follow from the conversation and the role's own count of
        calls, so roles may overlap. ``watch`` makes detectors for this reply; the text before a detector ended it is
        recorded like any other reply. With ``tools`` the completion may hold ``calls``.

        :raises ConversationStopped: a detector, a budget or somebody outside ended the conversation.
        :raises BackendError: the model could not answer.
        :raises LimitReached: the run's budget is used up.
        """
        ordinal, backend = self._next_ordinal(role), self._backends.get(role)
        if backend is None:
            self._no_backend(role)
        seed = self._seeds.seed(role, ordinal)
        digest = request_digest(view, sampling, seed, tools)
        completion = self._recall(role, ordinal, digest) if self._recorded else None
        if completion is not None:
            self._account(role, ordinal, backend, completion, self._services.clock.wall(), replayed=True)
        else:
            if self._services.stop.asked:
                await self._stop_here()
            self._require_budget()
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
            )
            answer = (
                watched_answer(backend, request, watch, self._services.clock) if watch else backend.generate(request)
            )
            completion = await self._recorded_answer(role, ordinal, digest, backend, answer)
        if self._services.events.congested:
            await self._services.events.room()
        if not self._services.turnstile.pass_nowait():
            await self._services.turnstile.enter()
        if watch:
            self._judge_watch(completion, watch)
        return completion

    async def read(self, role: str, reading: Reading) -> list[Likelihood]:
        """The likelihood of given texts under ``role``'s model; recorded, replayed and counted as ``generate`` is.

        :raises ConfigurationError: the model gives no likelihoods.
        :raises ConversationStopped, BackendError, LimitReached: as ``generate``.
        """
        ordinal, backend = self._next_ordinal(role), self._backends.get(role)
        if backend is None:
            self._no_backend(role)
        digest = reading.digest()
        completion = self._recall(role, ordinal, digest) if self._recorded else None
        if completion is not None:
            self._account(role, ordinal, backend, completion, self._services.clock.wall(), replayed=True)
        else:
            if self._services.stop.asked:
                await self._stop_here()
            self._require_budget()
            completion = await self._recorded_answer(role, ordinal, digest, backend, backend.read(reading))
        if self._services.events.congested:
            await self._services.events.room()
        if not self._services.turnstile.pass_nowait():
            await self._services.turnstile.enter()
        return completion.likelihoods or []

    async def compute(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        key: Any = None,
        limit: float = 60.0,
        where: Where = "thread",
    ) -> Computed:
        """Have a function computed off the event loop, recorded and replayed as a call is: a metric, a tool, ….

        A failure is a value too: where the function raises, takes more than ``limit`` seconds, returns what is not JSON
        data, or its process dies, ``error`` says so. In a ``process`` (function and arguments must pickle) it is killed
        at its limit; a ``thread`` cannot be killed and goes on, unheard. A coroutine function is awaited in the event
        loop. It must not call this conversation. ``key``, JSON data, identifies arguments that are not JSON data.

        :raises ConfigurationError: an argument is not JSON data and there is no ``key``; an option is wrong.
        :raises ConversationStopped: somebody ended the conversation before.
        """
        if self._stopped is not None:
            raise self._stopped
        services, role, digest = self._services, STEP_PREFIX + name, step_digest(name, arguments, key)
        ordinal = self.computed.get(name, 0)
        self.computed[name] = ordinal + 1
        recorded = completion = self._recall(role, ordinal, digest) if self._recorded else None
        if completion is None:
            if services.stop.asked:
                await self._stop_here()
            began = services.clock.now()
            self._under_way += 1
            try:
                finish, data = await services.computer.run(function, arguments, limit, where)
            finally:
                self._under_way -= 1
                if self._quiet is not None and not self._under_way:
                    self._quiet.set()
            completion = Completion(data.decode(), finish, latency=services.clock.now() - began)
            services.journal.record_call(self.number, role, ordinal, digest, completion, services.clock.wall())
            if services.journal.full:
                await services.journal.flush()
        computed, events = computed_from(completion), services.events
        events.publish(
            StepComputed(
                services.clock.wall(),
                self.key,
                name,
                ordinal,
                computed.failed,
                completion.latency,
                recorded is not None,
                completion.text if events.texts else None,
            )
        )
        if self._services.events.congested:
            await self._services.events.room()
        if not self._services.turnstile.pass_nowait():
            await self._services.turnstile.enter()
        return computed

    @property
    def irregular(self) -> dict[str, dict[str, int]]:
        """By role, its irregular answers as ``RoleUsage`` counts them; a role without any is absent."""
        roles = [role for role in sorted(self.usage) if self.usage[role].irregular]
        return {role: dict(sorted(self.usage[role].irregular.items())) for role in roles}

    def tell(self, lines: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Put lines, as (party, text), into the transcript where no model speaks: the task, a played user, a tool.

        ``lines`` is called only where a transcript is made; while a run goes on this costs nothing.
        """

    def note(self, kind: str, payload: Any) -> None:
        """Publish a protocol's own event about this conversation (``Noted``)."""
        self._services.events.publish(Noted(self._services.clock.wall(), self.key, kind, payload))

    def stop(self, by: str, reason: str) -> ConversationStopped:
        """Announce that the conversation ends early; its next call raises what is returned here."""
        if self._stopped is None:
            self._stopped = ConversationStopped(by, reason)
            self._services.events.publish(StopRequested(self._services.clock.wall(), self.key, by, reason))
        return self._stopped

    async def _stop_here(self) -> NoReturn:
        """Interrupt the conversation, once the calls that overlapping roles have in flight are answered."""
        while self._under_way:
            self._quiet = anyio.Event()
            await self._quiet.wait()
        raise RunStopping

    def _next_ordinal(self, role: str) -> int:
        if self._stopped is not None:
            raise self._stopped
        usage = self.usage.get(role)
        if usage is None:
            usage = self.usage[role] = RoleUsage()
        usage.calls += 1
        return usage.calls - 1

    async def _recorded_answer(
        self, role: str, ordinal: int, digest: bytes, backend: Backend, answer: Awaitable[Completion]
    ) -> Completion:
        """Wait for a model's answer and record it before it is used."""
        services = self._services
        began = services.clock.now()
        self._under_way += 1
        completion: Completion | None = None
        try:
            completion = await answer
        except RunStopping:  # it waited for its turn, and nobody was asked
            pass
        finally:
            services.meter.end()
            self._under_way -= 1
            if self._quiet is not None and not self._under_way:
                self._quiet.set()
        if completion is None:
            await self._stop_here()
        if not completion.latency:
            completion.latency = services.clock.now() - began
        if has_marks(completion.text) and not backend.replays:
            separate_thoughts(completion)
        at = services.clock.wall()
        services.journal.record_call(self.number, role, ordinal, digest, completion, at)
        if services.journal.full:
            await services.journal.flush()
        self._account(role, ordinal, backend, completion, at, replayed=False)
        return completion

    def _account(
        self, role: str, ordinal: int, backend: Backend, completion: Completion, at: float, *, replayed: bool
    ) -> None:
        """Count an answer and publish it."""
        services = self._services
        tokens = completion.prompt_tokens + completion.completion_tokens
        self.usage[role].add(completion)
        if completion.cached_tokens:
            price = backend.cost(completion.prompt_tokens, completion.completion_tokens, completion.cached_tokens)
        else:  # a backend of the user's own may know of no cached ones
            price = backend.cost(completion.prompt_tokens, completion.completion_tokens)
        if not replayed:
            services.meter.add(tokens, price)
        if self._meter is not None:
            # Counted for replayed calls too, at list price: the bound must fall at the same turn after a resume.
            self._meter.add(tokens, price)
        events = services.events
        events.publish(
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
                completion.text if events.texts else None,
            )
        )

    def _recall(self, role: str, ordinal: int, digest: bytes) -> Completion | None:
        call = self._recorded.pop((role, ordinal), None)
        if call is None:
            return None
        if call.digest == digest:
            return call.completion
        # The request differs from the recorded one, so every recorded call behind it may answer another question.
        self._recorded.clear()
        self._services.events.publish(Diverged(self._services.clock.wall(), self.key, role, ordinal))
        return None

    def _require_budget(self) -> None:
        services = self._services
        now = services.clock.now()
        if self._meter is not None:
            try:
                self._meter.require(now)
            except LimitReached as error:
                services.events.publish(LimitHit(services.clock.wall(), self.key, "budget", str(error)))
                raise self.stop("budget", str(error)) from error
        services.meter.begin(now)

    def _judge_watch(self, completion: Completion, watch: Sequence[Callable[[], Detector]]) -> None:
        if completion.finish.startswith(WATCHED):
            raise self.stop("detector", completion.finish.removeprefix(WATCHED))
        if (completion.calls and not completion.text) or completion.kept_silent is not None:
            return  # a tool call is an answer, and text withheld by the endpoint is not an empty reply
        for make in watch:
            reason = make().finish(completion.text)
            if reason is not None:
                raise self.stop("detector", reason)

    def _no_backend(self, role: str) -> NoReturn:
        known = ", ".join(self._backends)
        raise ConfigurationError(
            f"conversation {self.key}: no model is named for the role '{role}'; there are: {known}"
        )

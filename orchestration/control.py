"""Control of a run while it goes on: pauses, limits, cancelled, repeated and added conversations.

Every request is recorded in the journal. What outlasts the process is applied again when the run is resumed: limits,
paused models, cancelled conversations and added items. A pause of the whole run ends with it. No request changes the
results of other conversations: limits and pauses only change when calls are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from viva.engine.backends.base import Backend
from viva.engine.backends.retry import RetryingBackend
from viva.engine.cancellation import EVERY
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.events import Controlled, ConversationsAdded
from viva.engine.journal import Journal
from viva.engine.journal_reader import EndedConversation, History
from viva.engine.limits import Rate
from viva.engine.runner import Plan, Runner

if TYPE_CHECKING:
    from .launch import Launch

Verb: TypeAlias = Literal["status", "pause", "resume", "drain", "stop", "set", "cancel", "requeue", "add"]
LIMITS = ("concurrency", "rpm", "tpm")
_REASON = "asked from outside"


class ControlRequest(BaseModel):
    """A request to a run that goes on.

    status: nothing changes. pause, resume: calls of the run, or of one `model`. drain: no further conversation begins.
    stop: no further call begins. set: the limits of a `model`; 0 is no limit. cancel: conversations by `keys`; they are
    recorded as failed. requeue: failed conversations go on: those with these `keys`, all (`failed`), or those whose
    error contains `reason`. add: the next `n` items.
    """

    model_config = ConfigDict(extra="forbid")

    do: Verb = "status"
    model: str | None = Field(default=None, max_length=2_000)
    concurrency: int | None = Field(default=None, ge=0, le=10**12)
    rpm: int | None = Field(default=None, ge=0, le=10**12)
    tpm: int | None = Field(default=None, ge=0, le=10**12)
    keys: list[str] = Field(default=[], max_length=10_000)
    failed: bool = False
    reason: str | None = Field(default=None, max_length=2_000)
    n: int | None = Field(default=None, ge=1, le=10**9)

    @classmethod
    def read(cls, data: Any) -> ControlRequest:
        """Read a request.

        Raises:
            ConfigurationError: It is invalid; the message names the field.
        """
        try:
            request = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"])) or "request"
            raise ConfigurationError(f"{name}: {first['msg']}") from None
        request._check()
        return request

    def _check(self) -> None:
        used = {name for name in ControlRequest.model_fields if getattr(self, name) not in (None, [], False)} - {"do"}
        allowed: Mapping[str, set[str]] = {
            "pause": {"model"},
            "resume": {"model"},
            "set": {"model", *LIMITS},
            "cancel": {"keys", "reason"},
            "requeue": {"keys", "failed", "reason"},
            "add": {"n"},
        }
        if extra := sorted(used - allowed.get(self.do, set())):
            raise ConfigurationError(f"{self.do}: takes no {', '.join(extra)}")
        if self.do == "set" and (self.model is None or not used & {*LIMITS}):
            raise ConfigurationError("set: expected a model and limits, such as set gpt-4o concurrency=20 rpm=500")
        if self.do == "cancel" and not self.keys:
            raise ConfigurationError("cancel: expected keys of conversations; `viva show RUN` lists them")
        if self.do == "requeue" and not used:
            raise ConfigurationError("requeue: expected keys of failed conversations, --failed or --reason TEXT")
        if self.do == "add" and self.n is None:
            raise ConfigurationError("add: expected a number of items, such as add -n 50")


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """Answer to a request: a sentence on what was done, and the state of the run afterwards."""

    message: str
    status: dict[str, Any]

    def to_record(self) -> dict[str, Any]:
        return {"message": self.message, "status": self.status}


class RunControl:
    """Control of one run in this process."""

    def __init__(self, launch: Launch, runner: Runner, journal: Journal, backends: Mapping[str, Backend]) -> None:
        self._launch, self._runner, self._journal, self._backends = launch, runner, journal, backends
        self._histories: list[History] = []
        self._stopping = ""

    def close(self) -> None:
        """Close the files that were opened."""
        for history in self._histories:
            history.close()

    def restore(self, history: History) -> list[str]:
        """Apply again what earlier processes were asked and what outlasts them; return a note for each paused model."""
        requests = history.control()
        # What was cancelled and has failed is a failure like any other: --retry-failed lets it go on.
        has_cancelled = any(record.get("do") == "cancel" for record in requests)
        ended = {end.key for end in history.ended()} if has_cancelled else set()
        for record in requests:
            try:
                request = ControlRequest.read(record)
                if request.do == "set":
                    self._set_limits(request)
                elif request.do in ("pause", "resume") and request.model is not None:
                    self._pause(request)
                elif request.do == "cancel":
                    left = [key for key in request.keys if key not in ended]
                    self._runner.cancelling.remember(left, request.reason or _REASON)
                elif request.do == "requeue":
                    self._runner.cancelling.forget(request.keys)
            except ConfigurationError:  # another version's request, or a model that is no longer there
                continue
        return [
            f"{label} is paused; viva control {self._launch.folder.path} resume {label}"
            for label in sorted(self._runner.services.gate.closed_for)
        ]

    async def handle(self, request: ControlRequest) -> ControlAnswer:
        """Do what is requested.

        Raises:
            ConfigurationError: The request names a model or a conversation that is not there, or the run is ending.
            JournalError: The request cannot be recorded.
        """
        await self._runner.started.wait()
        message = await self._handle(request)
        if request.do not in ("status", "requeue"):  # requeued conversations are recorded before they go on
            await self._record(request.model_dump(exclude_defaults=True))
        return ControlAnswer(message, self.status())

    async def _handle(self, request: ControlRequest) -> str:
        runner = self._runner
        match request.do:
            case "pause" | "resume":
                return self._pause(request)
            case "drain":
                runner.drain()
                self._stopping = "draining"
                return "no further conversation begins; those in flight are finished"
            case "stop":
                runner.interrupt()
                self._stopping = "stopping"
                return f"calls in flight are finished, no other begins; viva resume {self._launch.folder.path} goes on"
            case "set":
                return self._set_limits(request)
            case "cancel":
                return await self._cancel(request)
            case "requeue":
                return await self._requeue(request)
            case "add":
                return self._add(request)
        return self._sentence()

    def status(self) -> dict[str, Any]:
        """Return the state of the run as plain data: counts of conversations, and each model's calls and limits."""
        runner, launch = self._runner, self._launch
        closed_for = runner.services.gate.closed_for
        outcome = runner.outcome
        counters = launch.pool.statistics()
        models: dict[str, Any] = {}
        for name, backend in self._backends.items():
            own: dict[str, Any] = {"paused": bool(closed_for & {EVERY, backend.label})}
            if isinstance(backend, RetryingBackend):
                statistics = counters.get(name, {})
                own |= {key: statistics[key] for key in ("in_flight", "waiting") if key in statistics}
                own |= backend.limits.settings()
            models[backend.label] = own
        return {
            "state": self._stopping or ("paused" if EVERY in closed_for else "running"),
            "total": launch.prepared.total,
            "finished": outcome.finished,
            "failed": outcome.failed,
            "restored": outcome.restored,
            "in_flight": len(runner.conversations),
            "models": models,
        }

    def _sentence(self) -> str:
        status = self.status()
        ended = status["finished"] + status["failed"]
        return (
            f"{status['state']}: {ended:,} of {status['total']:,} conversations ended, {status['failed']:,} of them "
            f"failed, {status['in_flight']:,} in flight"
        )

    async def _record(self, request: Mapping[str, Any], reopened: Iterable[int] = ()) -> None:
        clock = self._launch.clock
        self._journal.record_control(clock.wall(), dict(request), [*reopened])
        await self._journal.flush()
        self._launch.events.publish(Controlled(clock.wall(), "", dict(request)))

    def _backend(self, name: str) -> Backend:
        by_label = {backend.label: backend for backend in self._backends.values()}
        backend = self._backends.get(name) or by_label.get(name)
        if backend is None:
            raise ConfigurationError(f"no model '{name}'{did_you_mean(name, sorted(by_label), 'models of this run')}")
        return backend

    def _pause(self, request: ControlRequest) -> str:
        gate, label = self._runner.services.gate, EVERY
        if request.model is not None:
            label = self._backend(request.model).label
        calls = f"calls of {label}" if label else "calls"
        if request.do == "resume":
            gate.release(label)
            return (
                f"{calls} begin again"
                if not label or EVERY not in gate.closed_for
                else f"{calls}: the whole run is paused"
            )
        gate.hold(label)
        return f"no further {calls} begin; those in flight are finished"

    def _set_limits(self, request: ControlRequest) -> str:
        assert request.model is not None
        backend = self._backend(request.model)
        if not isinstance(backend, RetryingBackend):
            raise ConfigurationError(
                f"{backend.label}: has no limits: it runs in this process and began without any; add ?concurrency=N to "
                "its name in the next run"
            )
        limits = backend.limits
        new = limits.settings() | {
            name: value or None for name in LIMITS if (value := getattr(request, name)) is not None
        }
        rates = [None if new[name] is None else Rate(int(new[name])) for name in ("rpm", "tpm")]
        limits.change(new["concurrency"], *rates)
        words = ", ".join(f"{name} {'none' if value is None else value}" for name, value in new.items())
        return f"{backend.label}: {words}"

    async def _cancel(self, request: ControlRequest) -> str:
        planned = {key for _, key in self._launch.prepared.numbered_keys()}
        if unknown := [key for key in request.keys if key not in planned]:
            near = did_you_mean(unknown[0], sorted(planned), "conversations of this run")
            raise ConfigurationError(f"cancel: no conversation '{unknown[0]}'{near}")
        running = await self._runner.cancelling.cancel(request.keys, request.reason or _REASON)
        later = len(request.keys) - len(running)
        text = f"{_count(len(running))} cancelled"
        return f"{text}; {later:,} not in flight: cancelled if they have not begun" if later else text

    async def _requeue(self, request: ControlRequest) -> str:
        await self._journal.flush()
        history = History(self._launch.folder.journal)
        self._histories.append(history)
        failed: dict[int, EndedConversation] = {}
        keys_given = {*request.keys}
        for ended in history.ended():
            if not ended.failed:
                continue
            text = f"{ended.result.get('type')}: {ended.result.get('message')}"
            by_reason = request.reason is not None and request.reason.casefold() in text.casefold()
            if request.failed or by_reason or ended.key in keys_given:
                failed[ended.number] = ended
        keys = [ended.key for ended in failed.values()]
        if missing := sorted(keys_given - {*keys}):
            raise ConfigurationError(f"requeue: no failed conversation '{missing[0]}'; `viva show RUN` lists them")
        if not failed:
            return "no failed conversation fits, so none goes on"
        plans = [plan for plan in self._plans() if plan.number in failed]
        runner = self._runner
        runner.require_admitting()
        runner.cancelling.forget(keys)
        await self._record({"do": "requeue", "keys": keys}, failed)
        runner.reopen(((plan, failed[plan.number].result) for plan in plans), history)
        return f"{_count(len(plans))} that had failed go on" if len(plans) > 1 else f"{keys[0]} goes on"

    def _plans(self) -> Iterable[Plan]:
        return self._launch.prepared.plans(dict(self._backends))

    def _add(self, request: ControlRequest) -> str:
        assert request.n is not None
        launch, runner = self._launch, self._runner
        runner.require_admitting()
        before = launch.prepared.total
        tasks = launch.prepared.add_tasks(request.n)
        added = [*launch.folder.manifest.get("added", ()), {"n": request.n, "tasks": tasks}]
        launch.folder.change_manifest({"added": added})
        launch.events.publish(ConversationsAdded(launch.clock.wall(), "", launch.prepared.total - before))
        runner.add(plan for plan in self._plans() if plan.number >= before)
        return f"{tasks:,} tasks added: {launch.prepared.total:,} conversations in all"


def _count(number: int) -> str:
    return f"{number:,} conversation" + ("" if number == 1 else "s")

"""Control of a run while it goes on: pauses, limits, cancelled, repeated and added conversations.

Every request is recorded in the journal. What outlasts the process is applied again when the run is resumed: limits,
paused models, cancelled conversations and added items. A pause of the whole run ends with it. No request changes the
results of other conversations: limits and pauses only change when calls are made.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import BATCHED_LIMITS
from viva.engine.backends.retry import RetryingBackend
from viva.engine.cancellation import EVERY
from viva.engine.errors import ConfigurationError, did_you_mean, replace_surrogates
from viva.engine.events import Controlled, ConversationsAdded
from viva.engine.files import shell_path
from viva.engine.journal import Journal
from viva.engine.journal_reader import EndedConversation, History
from viva.engine.limits import Rate
from viva.engine.runner import Plan, Runner

from .run_progress import Moment, RoleWait, WaitStatus

if TYPE_CHECKING:
    from .launch import Launch

Verb: TypeAlias = Literal["status", "pause", "resume", "drain", "stop", "set", "cancel", "requeue", "add"]
VERBS: tuple[str, ...] = get_args(Verb)
LIMITS = ("concurrency", "rpm", "tpm")
LIMIT_NAMES = ("concurrency", "rpm", "rps", "tpm")  # as in the options of a model's name
_REASON = "asked from outside"
_LONGEST_TEXT = 2_000
MOST_KEYS = 10_000
_LARGEST_LIMIT = 10**12
_MOST_ITEMS = 10**9
_LARGEST_BUDGET = 1e15
_COMPARED_KEYS = 100  # on each side of a misspelt key in sorted order: similar keys begin alike
_TEXT = f"a UTF-8 text of at most {_LONGEST_TEXT:,} characters"
_LIMIT = f"a whole number from 0 (no limit) to {_LARGEST_LIMIT:,}"
_EXPECTED = {
    "model": _TEXT,
    **dict.fromkeys(LIMIT_NAMES, _LIMIT),
    "keys": f"a list of at most {MOST_KEYS:,} texts",
    "failed": "true or false",
    "reason": _TEXT,
    "n": f"a whole number from 1 to {_MOST_ITEMS:,}",
}


class ControlRequest(BaseModel):
    """A request to a run that goes on.

    status: nothing changes. pause, resume: calls of the run, or of one `model`. drain: no further conversation begins.
    stop: no further call begins. set: the limits of a `model`; 0 is no limit, and `rps` stands for 60 times as many
    `rpm`. cancel: conversations by `keys`; they are recorded as failed. requeue: failed conversations go on: those with
    these `keys`, all (`failed`), or those whose error contains `reason`. add: the next `n` items.
    """

    model_config = ConfigDict(extra="forbid")

    do: Verb = "status"
    model: str | None = Field(default=None, max_length=_LONGEST_TEXT)
    concurrency: int | None = Field(default=None, ge=0, le=_LARGEST_LIMIT)
    rpm: int | None = Field(default=None, ge=0, le=_LARGEST_LIMIT)
    rps: int | None = Field(default=None, ge=0, le=_LARGEST_LIMIT // 60)
    tpm: int | None = Field(default=None, ge=0, le=_LARGEST_LIMIT)
    keys: list[str] = Field(default=[], max_length=MOST_KEYS)
    failed: bool = False
    reason: str | None = Field(default=None, max_length=_LONGEST_TEXT)
    n: int | None = Field(default=None, ge=1, le=_MOST_ITEMS)

    @classmethod
    def read(cls, data: Any) -> ControlRequest:
        """Read a request; `rps` becomes `rpm`.

        Raises:
            ConfigurationError: It is invalid; the message names the field.
        """
        try:
            request = cls.model_validate(data)
        except ValidationError as error:
            raise ConfigurationError(_describe_problem(error)) from None
        request._check()
        if request.rps is not None:
            request = request.model_copy(update={"rpm": request.rps * 60, "rps": None})
        return request

    def _check(self) -> None:
        for key in self.keys:
            if (text := replace_surrogates(key)) != key:
                raise ConfigurationError(f"keys: expected UTF-8 texts, found {text[:60]}")
        # 0 is a limit, and equal to False
        values = {name: getattr(self, name) for name in ControlRequest.model_fields if name != "do"}
        used = {name for name, value in values.items() if value is not None and value is not False and value != []}
        allowed: Mapping[str, set[str]] = {
            "pause": {"model"},
            "resume": {"model"},
            "set": {"model", *LIMIT_NAMES},
            "cancel": {"keys", "reason"},
            "requeue": {"keys", "failed", "reason"},
            "add": {"n"},
        }
        if extra := sorted(used - allowed.get(self.do, set())):
            raise ConfigurationError(f"{self.do}: takes no {', '.join(extra)}")
        if self.do == "set" and (self.model is None or not used & {*LIMIT_NAMES}):
            raise ConfigurationError("set: expected a model and limits, such as set gpt-4o concurrency=20 rpm=500")
        if self.rpm is not None and self.rps is not None:
            raise ConfigurationError("set: expected rpm or rps, found both")
        if self.do == "cancel" and not self.keys:
            raise ConfigurationError("cancel: expected keys of conversations; `viva show RUN` lists them")
        if self.do == "requeue" and not used:
            raise ConfigurationError("requeue: expected keys of failed conversations, --failed or --reason TEXT")
        if self.do == "add" and self.n is None:
            raise ConfigurationError("add: expected a number of items, such as add -n 50")


def _describe_problem(error: ValidationError) -> str:
    """Return the first problem of a request in words: the field, what is expected, and what was found."""
    first = error.errors(include_url=False)[0]
    value = first["input"]
    text = replace_surrogates(value if isinstance(value, str) else repr(value))[:60]
    if not first["loc"]:
        return f"expected a request such as {{'do': 'pause'}}, found {text}"
    name = str(first["loc"][0])
    if name == "do":
        return f"no request '{text}'{did_you_mean(text, VERBS, 'requests')}"
    if name not in _EXPECTED:
        return f"no field '{replace_surrogates(name)[:60]}'{did_you_mean(name, _EXPECTED, 'fields')}"
    return f"{name}: expected {_EXPECTED[name]}, found {text}"


class ModelStatus(BaseModel):
    """State of a model: its calls and limits, and how many calls a pause holds back (`waiting_for_resume`)."""

    model_config = ConfigDict(strict=True)

    paused: bool
    waiting_for_resume: int = 0
    in_flight: int | None = None
    waiting: int | None = None
    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None


class BudgetStatus(BaseModel):
    """Budget of a run: what the process that runs it has used, and the bound; None if there is no bound."""

    model_config = ConfigDict(strict=True)

    used: float = Field(ge=0.0, le=_LARGEST_BUDGET)
    bound: float | None = Field(default=None, ge=0.0)


class RunStatus(BaseModel):
    """State of a run: counts of conversations, and its models by label.

    `budgets` are by the names `tokens`, `calls`, `cost` and `seconds`; `roles` says what each role waits for, at the
    wall time `at`. Earlier versions do not report these three.
    """

    model_config = ConfigDict(strict=True)

    state: str
    total: int
    finished: int
    failed: int
    restored: int
    in_flight: int
    models: dict[str, ModelStatus]
    at: Moment | None = None
    budgets: dict[str, BudgetStatus] = {}
    roles: list[RoleWait] = []


class ControlAnswer(BaseModel):
    """Answer to a request: a sentence on what was done, and the state of the run afterwards."""

    model_config = ConfigDict(strict=True)

    message: str
    status: RunStatus

    def to_record(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class RunControl:
    """Control of one run in this process."""

    def __init__(self, launch: Launch, runner: Runner, journal: Journal, backends: Mapping[str, Backend]) -> None:
        self._launch, self._runner, self._journal, self._backends = launch, runner, journal, backends
        self._histories: list[History] = []
        self._waits = WaitStatus.from_launch(launch, launch.waits)
        self._stopping = ""
        self._requeuing = anyio.Lock()  # two requests at once would both find a conversation failed, and run it twice
        folder = shell_path(launch.folder.path)
        self._command, self._resume = f"viva control {folder}", f"viva resume {folder}"

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
            f"{label} is paused; {self._command} resume {shlex.quote(label)}"
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
        return ControlAnswer(message=message, status=self.status())

    async def _handle(self, request: ControlRequest) -> str:
        runner = self._runner
        match request.do:
            case "pause" | "resume":
                return self._pause(request)
            case "drain":
                runner.drain()
                self._stopping = "draining"
                return f"no further conversation begins; those in flight are finished{self._drain_advice()}"
            case "stop":
                runner.interrupt()
                self._stopping = "stopping"
                return f"calls in flight are finished, no other begins; to go on: {self._resume}"
            case "set":
                return self._set_limits(request)
            case "cancel":
                return await self._cancel(request)
            case "requeue":
                async with self._requeuing:
                    return await self._requeue(request)
            case "add":
                return self._add(request)
        return self._sentence()

    def status(self) -> RunStatus:
        """Return the state of the run."""
        runner, launch = self._runner, self._launch
        gate = runner.services.gate
        closed_for = gate.closed_for
        outcome = runner.outcome
        counters = launch.pool.statistics()
        models: dict[str, Any] = {}
        for name, backend in self._backends.items():
            own: dict[str, Any] = {"paused": bool(closed_for & {EVERY, backend.label})}
            if own["paused"]:
                own["waiting_for_resume"] = gate.waiting(backend.label)
            if isinstance(backend, RetryingBackend):
                statistics = counters.get(name, {})
                own |= {key: statistics[key] for key in ("in_flight", "waiting") if key in statistics}
                own |= backend.limits.settings()
            models[backend.label] = ModelStatus(**own)
        return RunStatus(
            state=self._stopping or ("paused" if EVERY in closed_for else "running"),
            total=launch.prepared.total,
            finished=outcome.finished,
            failed=outcome.failed,
            restored=outcome.restored,
            in_flight=len(runner.conversations),
            models=models,
            at=launch.clock.wall(),
            budgets=self._budgets(),
            roles=self._waits.roles(),
        )

    def _budgets(self) -> dict[str, BudgetStatus]:
        meter = self._runner.services.meter
        used = {"tokens": meter.tokens, "calls": meter.calls, "cost": meter.cost,
                "seconds": self._launch.clock.now() - meter.started}  # fmt: skip
        return {
            name: BudgetStatus(used=min(float(amount), _LARGEST_BUDGET), bound=None if bound is None else float(bound))
            for name, amount in used.items()
            for bound in [getattr(meter.budget, name)]
        }

    def _sentence(self) -> str:
        status = self.status()
        bound = "at most " if self._launch.prepared.is_adaptive else ""
        counts = (
            f"{status.state}: {status.finished + status.failed:,} of {bound}{status.total:,} conversations ended, "
            f"{status.failed:,} of them failed, {status.in_flight:,} in flight"
        )
        return "; ".join([counts, *self._runner.services.gate.describe()])

    def _drain_advice(self) -> str:
        """Return how a drained run ends although it is paused; "" if it is not."""
        gate = self._runner.services.gate
        commands = [f"`{self._command} resume{f' {shlex.quote(label)}' if label else ''}`"
                    for label in sorted(gate.closed_for)]  # fmt: skip
        if not commands:
            return ""
        return f". But {', '.join(gate.describe())}: to finish them, {' and '.join(commands)}; to end without, stop"

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
            if label and EVERY in gate.closed_for:
                return f"{calls} wait until the whole run is resumed: {self._command} resume"
            paused = ", ".join(sorted(gate.closed_for))
            rest = f"; still paused: {paused} ({self._command} resume MODEL)" if paused else ""
            return f"{calls} begin again{rest}"
        gate.hold(label)
        slots = f"; conversations that wait for {label} keep their share of --concurrency" if label else ""
        return f"no further {calls} begin; those in flight are finished{slots}"

    def _set_limits(self, request: ControlRequest) -> str:
        assert request.model is not None
        backend = self._backend(request.model)
        if any(ModelSpec.parse(name).is_batched for name, other in self._backends.items() if other is backend):
            raise ConfigurationError(f"{backend.label}: {BATCHED_LIMITS}")
        if not isinstance(backend, RetryingBackend):
            raise ConfigurationError(
                f"{backend.label}: cannot be limited now: a model whose calls cannot fail temporarily, such as a local "
                "one, can be limited only if its name had a limit (?concurrency=N) or retries when the run began"
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
        numbers = {key: number for number, key in self._launch.prepared.numbered_keys()}
        if unknown := [key for key in request.keys if key not in numbers]:
            raise ConfigurationError(f"cancel: no conversation '{unknown[0]}'{_near_key(unknown[0], numbers)}")
        await self._journal.flush()
        with History(self._launch.folder.journal) as history:
            ended = history.ended_numbers()
        keys = dict.fromkeys(request.keys)
        left = [key for key in keys if numbers[key] not in ended or key in self._runner.conversations]
        running = await self._runner.cancelling.cancel(left, request.reason or _REASON)
        text = f"{_count(len(running))} cancelled"
        if later := len(left) - len(running):
            text += f"; {later:,} not in flight: cancelled if they have not begun"
        over = len(keys) - len(left)
        return f"{text}; {over:,} had ended already" if over else text

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
            near = _near_key(missing[0], keys, "of this run have failed")
            raise ConfigurationError(f"requeue: no failed conversation '{missing[0]}'{near}")
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
        fewer = f", fewer than the {request.n:,} asked for" if tasks < request.n else ""
        return f"{tasks:,} task{'s' * (tasks != 1)} added{fewer}: {launch.prepared.total:,} conversations in all"


def _near_key(key: str, known: Iterable[str], heading: str = "in this run") -> str:
    """Return the key that a wrong one probably stands for, and how many there are."""
    keys = sorted(known)
    at = bisect_left(keys, key)
    alike: Sequence[str] = keys[max(0, at - _COMPARED_KEYS) : at + _COMPARED_KEYS]
    alike = [other for other in keys if other.endswith(f"/{key}")] or alike
    return f"{did_you_mean(key, alike)}; {_count(len(keys))} {heading}: `viva show RUN` lists them"


def _count(number: int) -> str:
    return f"{number:,} conversation" + ("" if number == 1 else "s")

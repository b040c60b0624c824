"""The Python API: run a scenario from a program, watch the run, resume, fork and open run folders.

``run`` carries a run to its end, ``start`` gives it while it goes on, ``resume`` and ``fork`` work on a run
folder, ``load`` opens one; ``run_sync`` needs no event loop, and works where one is running already, as in a
notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import OBJECT_KIND
from viva.engine.clock import Clock, VirtualClock
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.events import Event
from viva.engine.imports import refuse_while_loading
from viva.engine.journal_reader import History
from viva.engine.permissions import grant, grant_typed
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome
from viva.engine.stream import Subscription
from viva.reports.tables import Table
from viva.scenarios.contract import Scenario
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario, get_scenario
from viva.scenarios.run_settings import RunSettings

from .folders import fresh_folder
from .launch import Launch, empty_results, forked_run, new_run, recorded_results, recorded_settings, resumed_run
from .run_progress import RunProgress
from .transcripts import Transcript, Transcripts

Model: TypeAlias = "str | Backend"
Models: TypeAlias = Mapping[str, "Model | Sequence[Model]"]
_TASKS_FILE = "tasks.jsonl"


@dataclass(slots=True, frozen=True)
class LaunchRequest:
    """What a program asks for with ``viva.run`` and the like."""

    scenario: str | PathLike[str] | AnyScenario
    models: Models
    tasks: Iterable[Any] | PathLike[str] | None = None
    seed: int = 7
    out: str | Path | None = None
    clock: Clock | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def launch(self) -> Launch:
        """Return the new run, where it can run in the event loop that is running.

        :raises ConfigurationError: something of this is wrong; nothing has been asked of any model.
        """
        _check_event_loop(self.clock)
        return self.prepare()

    def prepare(self) -> Launch:
        """Return the new run, for whichever event loop.

        :raises ConfigurationError: as ``launch``.
        """
        settings = dict(self.settings)
        tools = settings.pop("python_tools", None) or ()
        grant(*([tools] if isinstance(tools, str) else tools))
        for value in settings.values():  # what a program names is the person's own
            words = value if isinstance(value, list | tuple) else [value]
            grant_typed(*(word for word in words if isinstance(word, str)))
        scenario = scenario_of(self.scenario)
        files: dict[str, bytes] = {}
        path = (Path(self.out) if self.out is not None else fresh_folder(scenario.name)).absolute()
        names, backends = model_names(_by_role(scenario, self.models))
        options = {**settings, **names, "seed": self.seed}
        if isinstance(self.tasks, PathLike):
            options[scenario.data] = str(self.tasks)
        elif self.tasks is not None:
            scenario = _with_tasks(scenario, self.tasks)
            assert scenario.tasks is not None
            files[_TASKS_FILE] = scenario.tasks.to_lines()
            options["tasks"] = str(path / _TASKS_FILE)
        return new_run(scenario, settings_of(scenario, options), path, self.clock, backends=backends, files=files)


def _with_tasks(scenario: AnyScenario, tasks: Any) -> FunctionScenario:
    """:raises ConfigurationError: the scenario takes none from Python, or these are no list."""
    if not isinstance(scenario, FunctionScenario):
        raise ConfigurationError(f"{scenario.name}: takes its tasks from the setting '{scenario.data}', not tasks=")
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise ConfigurationError(
            f"tasks: expected a list of tasks, found {type(tasks).__name__}; one task stands in a list, too, and a "
            "file of JSON lines is named by a pathlib.Path"
        )
    return scenario.with_tasks(tasks)


def scenario_of(scenario: object) -> AnyScenario:
    """A scenario from whatever names it.

    :raises ConfigurationError: it is none.
    """
    if isinstance(scenario, str | PathLike):
        grant_typed(str(scenario))
        return get_scenario(str(scenario))
    if isinstance(scenario, type) and issubclass(scenario, Scenario) and scenario is not Scenario:
        return scenario()
    if not isinstance(scenario, Scenario):
        kind = f"the function {scenario.__name__}" if isinstance(scenario, FunctionType) else type(scenario).__name__
        raise ConfigurationError(
            f"expected a scenario: its name, its Python file, or what @viva.scenario(compare=…) makes; found {kind}"
        )
    if isinstance(file := getattr(scenario, "file", None), Path):
        grant(file)  # it is this program's own, and is read again where the run goes on without it
    return scenario


def _by_role(scenario: AnyScenario, models: Models) -> dict[str, Any]:
    """Return the models as the settings have them: a list where models are compared, else one."""
    roles = {role.setting: role for role in scenario.roles}
    if not isinstance(models, Mapping):
        example = ", ".join(f"{name!r}: …" for name in roles)
        raise ConfigurationError(f"models: expected a dict by role, {{{example}}}; found {type(models).__name__}")
    unknown = sorted(models.keys() - roles.keys())
    if unknown:
        raise ConfigurationError(f"{scenario.name} has no role '{unknown[0]}'; its roles: {', '.join(roles)}")
    models_by_setting: dict[str, Any] = {}
    for name, value in models.items():
        if isinstance(value, set | frozenset | Iterator):
            raise ConfigurationError(
                f"models: {name}: expected a name, a viva.Backend or a list of them, in their order"
            )
        several = isinstance(value, Sequence) and not isinstance(value, str)
        if several and not value:
            raise ConfigurationError(f"models: {name}: the list is empty; name at least one model")
        if several and not roles[name].many:
            raise ConfigurationError(f"{scenario.name}: the role '{name}' is played by one model; give one, not a list")
        models_by_setting[name] = value if several or not roles[name].many else [value]
    return models_by_setting


def model_names(models: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Backend]]:
    """The models' names, and the backends among them by name."""
    backends: dict[str, Backend] = {}

    def name(model: Model) -> str:
        if isinstance(model, str):
            grant_typed(model)
            return model
        if not isinstance(model, Backend):
            is_class = isinstance(model, type) and issubclass(model, Backend)
            hint = f"; write {model.__name__}(…)" if is_class else ""
            raise ConfigurationError(
                f"model {model!r}: expected a name, such as 'llama:a.gguf', or a viva.Backend object{hint}"
            )
        text = f"{OBJECT_KIND}:{model.label}"
        if ModelSpec.parse(text).label != model.label:
            raise ConfigurationError(f"model {model!r}: its label '{model.label}' may hold no ?, # or &")
        if model.price_in or model.price_out:
            text += f"?price_in={model.price_in}&price_out={model.price_out}"
            text += "" if model.price_cached is None else f"&price_cached={model.price_cached}"
        if backends.setdefault(text, model) is not model:
            raise ConfigurationError(f"two backends have the label '{model.label}'; give each one of its own")
        return text

    names = {
        role: name(model) if isinstance(model, str | Backend) or not isinstance(model, Sequence)
        else [name(member) for member in model]
        for role, model in models.items()
    }  # fmt: skip
    return names, backends


def settings_of(scenario: Scenario[Any, Any], options: Mapping[str, Any]) -> RunSettings:
    """A scenario's settings with these options.

    :raises ConfigurationError: an option is wrong, unknown or missing; the message names all of these.
    """
    try:
        settings: RunSettings = scenario.settings.model_validate(options)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            name = ".".join(map(str, detail["loc"]))
            problem = {"missing": "is missing", "extra_forbidden": "unknown setting"}.get(detail["type"], detail["msg"])
            if detail["type"] == "extra_forbidden":
                problem += did_you_mean(name, scenario.settings.model_fields)
            role = any(name == role.setting for role in scenario.roles)
            problems.append(f"{'models: ' if role else ''}{name}: {str(problem).removeprefix('Value error, ')}")
        raise ConfigurationError(f"{scenario.name}: {'; '.join(problems)}") from None
    return settings


@dataclass(slots=True, frozen=True)
class Result:
    """One ended conversation. ``value`` is what its scenario returned, ``error`` the record of why it failed; ``task``
    is None where its record is damaged.
    """

    key: str
    task: Any
    value: Any = None
    error: Mapping[str, Any] | None = None


class Run:
    """A run folder. Of a run that this program held, ``outcome`` says how it ended, and ``models`` has each model's
    counters by its name (most calls in flight, permits, retries, …).
    """

    def __init__(
        self,
        folder: RunFolder,
        outcome: Outcome | None = None,
        models: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self._folder = folder
        self.outcome = outcome
        self.models = models or {}

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run: models, settings, seed, versions."""
        return self._folder.manifest

    def ended(self) -> Run:
        """The run as it is recorded, without what only mattered while it went on."""
        return Run(RunFolder.open(self.path), self.outcome, self.models)

    def report(self, **scoring: Any) -> dict[str, Any]:
        """The report as plain data. ``scoring`` are the scenario's choices in how results are scored.

        :raises ConfigurationError, JournalError: the folder or a choice is wrong.
        """
        return recorded_results(self._folder, scoring).report()

    def tables(self, **scoring: Any) -> list[Table]:
        """The report as titled tables: title, header, rows."""
        return recorded_results(self._folder, scoring).tables()

    def results(self) -> Iterator[Result]:
        """The conversations that have ended, in the order of the run, read as they are taken."""
        scenario, _ = recorded_settings(self._folder)
        with History(self._folder.journal) as history:
            for ended in history.ended():
                task = None if ended.item is None else scenario.task_payload(scenario.task(ended.item))
                if ended.failed:
                    yield Result(ended.key, task, error=ended.result)
                else:
                    yield Result(ended.key, task, scenario.result_value(ended.result))

    async def transcript(self, key: str) -> Transcript:
        """What was said in a conversation, and what each model was sent for it. ``key``: LABEL/TASK, or its end.

        :raises ConfigurationError: there is no such conversation.
        """
        with History(self._folder.journal) as history:
            number = history.number_of(key)
            if number is None:
                raise ConfigurationError(f"{self.path}: no conversation '{key}'")
            return await Transcripts(self._folder).read(history, number)


T = TypeVar("T")


class LiveRun(Run):
    """A run while it goes on: its events, its results so far, and ways to end it early."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch.folder)
        self._launch = launch
        self._results = empty_results(launch.folder)
        self._readers: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._listening = launch.events.listen(RunProgress(self._results).hear)

    async def events(self, capacity: int = 1024) -> AsyncGenerator[Event, None]:
        """The events from the first ``anext`` on, without loss: the run waits for a reader that is ``capacity`` behind,
        until the iterator is closed or ``async with viva.start(…)`` is left. ``break`` closes it where nothing else
        holds it.
        """
        async with self.subscription(capacity) as subscription:
            async for event in subscription:
                yield event

    def subscription(self, capacity: int = 1024) -> Subscription:
        """The events from the next one on, as a subscription that its reader closes."""
        self._readers = [reader for reader in self._readers if not reader.closed]
        self._readers.append(self._launch.events.subscribe(capacity))
        return self._readers[-1]

    def begin(self) -> None:
        """Start the run, in a task of its own. No group is around it and what goes on beside it: errors there stay as
        they are, and any task may end it.
        """
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        """Wait for the run's end, and for no reader any more: what they have not read yet is kept for them.

        :raises VivaError: what ended the run.
        """
        assert self._task is not None
        for subscription in self._readers:
            subscription.release()
        try:
            await asyncio.wait([self._task])
        except BaseException:
            await _cancel_and_wait(self._task)
            raise
        self._task.result()
        if self.outcome is not None and self.outcome.how == "failed" and self.outcome.error is not None:
            raise self.outcome.error

    async def abandon(self, error: BaseException | None = None) -> None:
        """End the run at once; it can be resumed. ``error`` is why, and is told what had ended the run before."""
        assert self._task is not None
        await _cancel_and_wait(self._task)
        failure = None if self._task.cancelled() else self._task.exception()
        if error is not None and failure is not None and failure is not error:
            error.add_note(f"the run in {self.path} had failed before: {failure}")

    def abandon_nowait(self) -> None:
        """As ``abandon``, for one who cannot wait."""
        if self._task is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._task.cancel()

    async def _run(self) -> None:
        try:
            self.outcome = await self._launch.run()
            self.models = self._launch.pool.statistics()
        finally:
            self._launch.events.close()

    @property
    def scenario(self) -> AnyScenario:
        """What is run."""
        return self._launch.scenario

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self._folder

    async def flush(self) -> None:
        """Wait until all that has happened so far is in the journal.

        :raises JournalError: it cannot be written.
        """
        if self._launch.runner is not None:
            await self._launch.runner.services.journal.flush()

    def report_so_far(self) -> dict[str, Any]:
        """The report over the conversations that have ended up to now. What its aggregate has raised is raised here."""
        if self._listening.error is not None:
            raise self._listening.error
        return self._results.report()

    def stop(self, key: str, reason: str = "asked from outside") -> bool:
        """End one conversation at its next call; False if it is not under way. Its protocol returns what it has."""
        runner = self._launch.runner
        conversation = None if runner is None else runner.conversations.get(key)
        if conversation is None:
            return False
        conversation.stop("operator", reason)
        return True

    async def cancel(self, *keys: str, reason: str = "asked from outside") -> list[str]:
        """Cancel conversations at once, their calls included, and wait until nothing of them is in flight; the keys of
        those that were under way. One that has not begun yet never will. They are recorded as failed
        (``ConversationCancelled``), with the calls that had been answered: ``resume(…, retry_failed=True)`` goes on.
        """
        runner = self._launch.runner
        return [] if runner is None else await runner.cancelling.cancel(keys, reason)

    def interrupt(self) -> None:
        """End the run: calls under way are answered and recorded, nothing else begins; ``resume`` goes on."""
        if self._launch.runner is not None:
            self._launch.runner.interrupt()


async def run(
    scenario: str | PathLike[str] | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Run:
    """Hold all conversations of a new run; its results.

    :param which: a registered scenario's name, the path of a Python file with one, or a scenario object.
    :param models: by role a model's name or a ``Backend``; for the role whose models are compared one or several.
    :param tasks: what the conversations are about, where the scenario takes tasks from Python; or the path of a file
        that holds them.
    :param out: the run folder to make; ``runs/NAME-TIME`` if None.
    :param settings: any other setting of the scenario, by name.
    :raises ConfigurationError: something of this is wrong; nothing has been asked of any model.
    :raises BackendError: a model cannot be reached.
    :raises VivaError: what ended the run, where it is no matter of single conversations (these fail as data).
    """
    async with _running(LaunchRequest(scenario, models, tasks, seed, out, clock, settings).launch()) as live:
        pass
    return live.ended()


@asynccontextmanager
async def start(
    scenario: str | PathLike[str] | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[LiveRun]:
    """As ``run``, for ``async with``: the run goes on inside, and leaving waits for its end. An error ends it."""
    async with _running(LaunchRequest(scenario, models, tasks, seed, out, clock, settings).launch()) as live:
        yield live


async def resume(
    path: str | Path,
    *,
    models: Models | None = None,
    retry_failed: bool = False,
    clock: Clock | None = None,
    **changes: Any,
) -> Run:
    """Go on with a run; what is recorded is not asked again. ``models`` are needed where some were ``Backend`` objects;
    ``changes`` may be ``concurrency`` and the budgets of the run.

    :raises ConfigurationError: there is no run here, or what it was made from has changed since.
    """
    _check_event_loop(clock)
    grant(*changes.pop("python_tools", ()))
    names, backends = model_names(models or {})
    launch = resumed_run(Path(path), clock, retry_failed=retry_failed, changes=changes, backends=backends)
    for role, role_names in names.items():
        for name in [role_names] if isinstance(role_names, str) else role_names:
            if name not in launch.prepared.models:
                known_names = ", ".join(launch.prepared.models)
                raise ConfigurationError(f"models: {role}: '{name}' is no model of this run; it has {known_names}")
    async with _running(launch) as live:
        pass
    return live.ended()


async def fork(
    path: str | Path, *, judge: Model, out: str | Path | None = None, clock: Clock | None = None, **changes: Any
) -> Run:
    """Judge the conversations of a run anew, by another model; nobody else is asked anything.

    :raises ConfigurationError: nobody judged there, or ``changes`` touch more than the judging.
    """
    _check_event_loop(clock)
    if not isinstance(judge, str | Backend):
        raise ConfigurationError(f"judge: expected one model, by its name or as a viva.Backend; found {judge!r:.80}")
    names, backends = model_names({"judge": judge})
    folder = Path(out) if out is not None else fresh_folder("fork")
    launch = forked_run(Path(path), folder, clock, changes={"evaluator": names["judge"], **changes}, backends=backends)
    async with _running(launch) as live:
        pass
    return live.ended()


def load(path: str | Path) -> Run:
    """Open a run folder, finished or not.

    :raises ConfigurationError: it is none.
    """
    return Run(RunFolder.open(Path(path)))


def run_sync(scenario: str | PathLike[str] | AnyScenario, *, clock: Clock | None = None, **arguments: Any) -> Run:
    """``run`` for programs without an event loop. Where one is running, as in a notebook, the run has a thread of its
    own, and this call waits for it; Ctrl-C ends the run, which can be resumed.
    """
    return run_blocking(lambda: run(scenario, clock=clock, **arguments), clock)


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]], clock: Clock | None = None) -> T:
    """The result of a coroutine, from synchronous code, whether or not an event loop is running in this thread. It runs
    in an event loop that lives by ``clock``.
    """
    under_way: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        under_way.append((asyncio.get_running_loop(), task))
        return await make()

    def run_main() -> T:
        return clock.run(main) if isinstance(clock, VirtualClock) else asyncio.run(main())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_main()
    ended: Future[T] = Future()

    def settle() -> None:
        try:
            ended.set_result(run_main())
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=copy_context().run, args=(settle,), name="viva", daemon=True)
    thread.start()
    try:
        return ended.result()
    except KeyboardInterrupt:
        for loop, task in under_way:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise


@asynccontextmanager
async def _running(launch: Launch) -> AsyncIterator[LiveRun]:
    live = LiveRun(launch)
    live.begin()
    try:
        yield live
    except BaseException as error:
        await live.abandon(error)
        raise
    await live.finish()


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task, once, and wait for its end, however often the waiting is cancelled itself.

    No scope of anyio shields it: where the event loop ends meanwhile, none could be left.
    """
    task.cancel()
    while not task.done():
        with suppress(asyncio.CancelledError):  # what came before is raised again by the caller
            await asyncio.wait([task])


def _check_event_loop(clock: Clock | None) -> None:
    """:raises ConfigurationError: a file that is only read starts a run, or time would not pass by this clock in the
    event loop that is running.
    """
    refuse_while_loading()
    if isinstance(clock, VirtualClock) and not clock.rules(asyncio.get_running_loop()):
        raise ConfigurationError(
            "clock: a VirtualClock has an event loop of its own: use viva.run_sync(…, clock=clock), or hold everything "
            "in clock.run(main) in place of asyncio.run(main())"
        )

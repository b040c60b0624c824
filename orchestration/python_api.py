"""Python API: run a scenario from a program, watch a run, and resume, fork or open run folders.

`run` runs to the end and `start` yields the live run. `resume` and `fork` work on a run folder, and `load` opens one.
`run_sync` works without an event loop, and also inside a running event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
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
from viva.engine.errors import ConfigurationError, VivaError, did_you_mean
from viva.engine.events import Event
from viva.engine.imports import refuse_while_loading
from viva.engine.journal_reader import History
from viva.engine.permissions import grant, grant_typed
from viva.engine.run_folder import RunFolder, is_running
from viva.engine.runner import Outcome
from viva.engine.stream import Subscription
from viva.scenarios.contract import Scenario
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario, get_scenario
from viva.scenarios.run_settings import RunSettings

from .completeness import missing_conversations, planned_in_total, recorded_report, unfinished_text
from .control import ControlRequest
from .folders import fresh_folder
from .launch import Launch, empty_results, forked_run, new_run, recorded_results, recorded_settings, resumed_run
from .notebook import (
    NotebookProgress,
    ReportTable,
    ReportTables,
    conversation_columns,
    html_record,
    html_run,
    in_notebook,
    to_pandas,
    to_polars,
)
from .run_progress import RunProgress
from .transcripts import Transcript, Transcripts

Model: TypeAlias = "str | Backend"
Models: TypeAlias = Mapping[str, "Model | Sequence[Model]"]
_TASKS_FILE = "tasks.jsonl"
_OPTION = re.compile(r"`[^`]*`|--(?P<no>no-)?(?P<name>[a-z][a-z-]*)")  # whole commands, in backticks, stay as they are
_OTHER_PARAMETERS = ("out", "judge", "retry_failed", "python_tools", "scenario", "pack")
_RENAMED = {"wait_for_endpoint": "patience"}


@contextmanager
def naming_parameters() -> Iterator[None]:
    """Make errors name this API's parameters (`retry_failed`), not options of the command line (`--retry-failed`)."""
    try:
        yield
    except VivaError as error:
        error.args = (_with_parameters(str(error), RunSettings), *error.args[1:])
        raise


def _with_parameters(text: str, settings: type[RunSettings]) -> str:
    def parameter(match: re.Match[str]) -> str:
        name = (match["name"] or "").replace("-", "_")
        name = _RENAMED.get(name, name)
        if name not in settings.model_fields and name not in _OTHER_PARAMETERS:
            return match[0]
        return f"`{name}=False`" if match["no"] else f"`{name}`"

    return _OPTION.sub(parameter, text)


@dataclass(slots=True, frozen=True)
class LaunchRequest:
    """Arguments of `viva.run`, `viva.start` and `viva.rollouts`."""

    scenario: str | PathLike[str] | AnyScenario
    models: Models
    tasks: Iterable[Any] | PathLike[str] | None = None
    seed: int = 7
    out: str | Path | None = None
    clock: Clock | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def launch(self) -> Launch:
        """Prepare the new run for the current event loop."""
        _check_event_loop(self.clock)
        return self.prepare()

    @naming_parameters()
    def prepare(self) -> Launch:
        """Prepare the new run for any event loop.

        Raises:
            ConfigurationError: An argument is invalid; no model has been called.
        """
        settings = dict(self.settings)
        tools = settings.pop("python_tools", None) or ()
        grant(*([tools] if isinstance(tools, str) else tools))
        for value in settings.values():  # the user's own program may read all files
            texts = value if isinstance(value, list | tuple) else [value]
            grant_typed(*(text for text in texts if isinstance(text, str)))
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
    """Return the scenario with tasks from Python; refuse scenarios that read a file, and tasks that are not a list."""
    if not isinstance(scenario, FunctionScenario):
        raise ConfigurationError(f"{scenario.name}: takes its tasks from the setting '{scenario.data}', not tasks=")
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise ConfigurationError(
            f"tasks: expected a list of tasks, found {type(tasks).__name__}; put a single task in a list, and pass a "
            "JSON Lines file as a pathlib.Path"
        )
    return scenario.with_tasks(tasks)


def scenario_of(scenario: object) -> AnyScenario:
    """Return the scenario given by a name, a Python file, a class or an object.

    Raises:
        ConfigurationError: The argument is no scenario.
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
        grant(file)  # the program's own file; another process imports it to resume the run
    return scenario


def _by_role(scenario: AnyScenario, models: Models) -> dict[str, Any]:
    """Return the models by setting: a list for compared roles and panels, a single model for every other role."""
    roles = {role.setting: role for role in scenario.roles}
    if not isinstance(models, Mapping):
        example = ", ".join(f"{name!r}: …" for name in roles)
        raise ConfigurationError(f"models: expected a dict by role, {{{example}}}; found {type(models).__name__}")
    unknown = sorted(models.keys() - roles.keys())
    if unknown:
        near = did_you_mean(unknown[0], roles, "its roles")
        raise ConfigurationError(f"{scenario.name} has no role '{unknown[0]}'{near}")
    models_by_setting: dict[str, Any] = {}
    for name, value in models.items():
        if isinstance(value, set | frozenset | Iterator):
            raise ConfigurationError(f"models: {name}: expected a name, a viva.Backend, or an ordered list of them")
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if is_list and not value:
            raise ConfigurationError(f"models: {name}: the list is empty; name at least one model")
        takes_list = roles[name].many or roles[name].panel
        if is_list and not takes_list:
            raise ConfigurationError(f"{scenario.name}: the role '{name}' takes one model, not a list")
        models_by_setting[name] = value if is_list or not takes_list else [value]
    return models_by_setting


def model_names(models: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Backend]]:
    """Return the models' names by role, and the `Backend` objects among the models by name."""
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
            raise ConfigurationError(f"model {model!r}: its label '{model.label}' must not contain ?, # or &")
        if model.price_in or model.price_out:
            text += f"?price_in={model.price_in}&price_out={model.price_out}"
            text += "" if model.price_cached is None else f"&price_cached={model.price_cached}"
        if backends.setdefault(text, model) is not model:
            raise ConfigurationError(f"two backends have the label '{model.label}'; give each its own label")
        return text

    names = {
        role: name(model) if isinstance(model, str | Backend) or not isinstance(model, Sequence)
        else [name(member) for member in model]
        for role, model in models.items()
    }  # fmt: skip
    return names, backends


def settings_of(scenario: Scenario[Any, Any], options: Mapping[str, Any]) -> RunSettings:
    """Return a scenario's settings with these options.

    Raises:
        ConfigurationError: Options are invalid, unknown or missing; the message names all such options.
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
            problem = _with_parameters(str(problem).removeprefix("Value error, "), scenario.settings)
            problems.append(f"{'models: ' if role else ''}{name}: {problem}")
        raise ConfigurationError(f"{scenario.name}: {'; '.join(problems)}") from None
    return settings


@dataclass(slots=True, frozen=True)
class Result:
    """Result of one ended conversation.

    `value` is what the scenario returned, `error` the record of a failure. `task` is None if its record is damaged.
    """

    key: str
    task: Any
    value: Any = None
    error: Mapping[str, Any] | None = None

    def _repr_html_(self) -> str:
        record = {"task": self.task, **({"value": self.value} if self.error is None else {"error": self.error})}
        return html_record(self.key, record)


class Run:
    """A run folder.

    If this program ran the run, `outcome` says how it ended, and `models` has the counters of each model by name
    (maximum calls in flight, permits, retries, …).
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
        """Path of the run folder."""
        return self._folder.path

    @property
    def manifest(self) -> dict[str, Any]:
        """Manifest of the run: models, settings, seed, versions."""
        return self._folder.manifest

    def ended(self) -> Run:
        """Return the ended run as recorded, without its live state."""
        return Run(RunFolder.open(self.path), self.outcome, self.models)

    def report(self, **scoring: Any) -> dict[str, Any]:
        """Return the report as plain data; `scoring` are the scenario's scoring options.

        If some conversations have not ended, its field `unfinished` has their counts.
        """
        return recorded_report(self._folder, scoring)

    def tables(self, **scoring: Any) -> list[ReportTable]:
        """Return the report's tables that have rows; each is a tuple (title, header, rows), and has `to_pandas`."""
        tables = (ReportTable(*table) for table in recorded_results(self._folder, scoring).tables())
        return ReportTables(table for table in tables if table.rows)

    def to_pandas(self) -> Any:
        """Return the ended conversations as a pandas data frame: a row for each, in run order.

        Its columns are key, candidate, task, state, score, end, error, and the scenario's other figures by name. If the
        run has a second set, the column `set` is "benchmark" or "second"; failed conversations have none.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return to_pandas(conversation_columns(self._folder))

    def to_polars(self) -> Any:
        """Return the same table as a Polars data frame.

        Raises:
            ConfigurationError: Polars is not installed.
        """
        return to_polars(conversation_columns(self._folder))

    def __repr__(self) -> str:
        """Return scenario, folder, and how many conversations have ended."""
        about = f"{self.manifest.get('scenario')} in {str(self.path)!r}"
        with suppress(Exception):  # records by others or of another version
            planned = planned_in_total(self._folder)
            with History(self._folder.journal) as history:
                ended = f"{len(history.ended_numbers()):,}"
            about += f", {ended}{'' if planned is None else f' of {planned:,}'} conversations ended"
        return f"<viva.{type(self).__name__}: {about}>"

    def _repr_html_(self) -> str:
        """Return the report's tables for notebooks."""
        lines: list[str] = []
        tables: list[ReportTable] = []
        try:
            missing = missing_conversations(self._folder)
            if missing is not None:
                running = is_running(self.path)
                lines = unfinished_text(missing.to_record(), self.path, running=running).splitlines()
            tables = self.tables()
        except Exception as error:  # records by others or of another version
            lines.append(f"no report: {type(error).__name__}: {error}")
        return html_run(f"{self.manifest.get('scenario')} in {self.path}", lines, tables)

    def results(self) -> Iterator[Result]:
        """Yield the ended conversations in run order, reading them lazily."""
        scenario, _ = recorded_settings(self._folder)
        with History(self._folder.journal) as history:
            for ended in history.ended():
                task = None if ended.item is None else scenario.task_payload(scenario.task(ended.item))
                if ended.failed:
                    yield Result(ended.key, task, error=ended.result)
                else:
                    yield Result(ended.key, task, scenario.result_value(ended.result))

    async def transcript(self, key: str) -> Transcript:
        """Return the transcript of a conversation with every prompt; `key` is LABEL/TASK, or a unique end of it."""
        with History(self._folder.journal) as history:
            number = history.number_of(key)
            if number is None:
                raise ConfigurationError(
                    f"{self.path}: no conversation '{key}', or several keys end with it; "
                    f"`viva show {self.path}` lists them"
                )
            return await Transcripts(self._folder).read(history, number)


T = TypeVar("T")


class LiveRun(Run):
    """A live run: its events, its results so far, and ways to end it early."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch.folder)
        self._launch = launch
        self._results = empty_results(launch.folder)
        self._readers: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._progress = RunProgress(self._results)
        self._listening = launch.events.listen(self._progress.hear)

    async def events(self, capacity: int = 1024) -> AsyncGenerator[Event, None]:
        """Yield all events that occur after the first `anext`.

        If the reader is `capacity` events behind, the run waits for it, until the iterator is closed or the block of
        `async with viva.start(…)` ends. `break` closes the iterator if nothing else references the iterator.
        """
        async with self.subscription(capacity) as subscription:
            async for event in subscription:
                yield event

    def subscription(self, capacity: int = 1024) -> Subscription:
        """Return a subscription to all later events; the reader must close it."""
        self._readers = [reader for reader in self._readers if not reader.closed]
        self._readers.append(self._launch.events.subscribe(capacity))
        return self._readers[-1]

    def begin(self) -> None:
        """Start the run in its own task, outside of task groups, which would wrap the caller's errors."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        """Wait for the run's end, but not for readers; they can still read their unread events.

        Raises:
            VivaError: The error that ended the run.
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
        """End the run at once; it can be resumed. An earlier failure is added to `error` as a note."""
        assert self._task is not None
        await _cancel_and_wait(self._task)
        failure = None if self._task.cancelled() else self._task.exception()
        if error is not None and failure is not None and failure is not error:
            error.add_note(f"the run in {self.path} had failed before: {failure}")

    def abandon_nowait(self) -> None:
        """End the run at once, without waiting for its end."""
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
        """Scenario of the run."""
        return self._launch.scenario

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return self._folder

    async def flush(self) -> None:
        """Wait until everything recorded so far is written to the journal."""
        if self._launch.runner is not None:
            await self._launch.runner.services.journal.flush()

    def report_so_far(self) -> dict[str, Any]:
        """Return the report over the conversations ended so far; raise what the aggregate raised."""
        if self._listening.error is not None:
            raise self._listening.error
        if self._progress.reopened:
            return recorded_results(self._folder).report()
        return self._results.report()

    def stop(self, key: str, reason: str = "asked from outside") -> bool:
        """End a conversation at its next call, with its results so far. Return False if it is not running."""
        runner = self._launch.runner
        conversation = None if runner is None else runner.conversations.get(key)
        if conversation is None:
            return False
        conversation.stop("operator", reason)
        return True

    async def cancel(self, *keys: str, reason: str = "asked from outside") -> list[str]:
        """Cancel conversations and their calls at once, and return the keys of those that were running.

        `keys` may also name conversations that have not started; these never start. All are recorded as failed
        (`ConversationCancelled`) with their answered calls, and `resume(…, retry_failed=True)` continues them.
        """
        runner = self._launch.runner
        return [] if runner is None else await runner.cancelling.cancel(keys, reason)

    async def control(self, do: str = "status", **fields: Any) -> dict[str, Any]:
        """Control the run as `viva control` does; return `message` and `status` as plain data.

        Args:
            do: `status`, `pause`, `resume`, `drain`, `stop`, `set`, `cancel`, `requeue` or `add`.
            fields: `model`, `concurrency`, `rpm`, `tpm`, `keys`, `failed`, `reason`, `n`.

        Raises:
            ConfigurationError: The request is invalid, or the run is not under way.
        """
        request = ControlRequest.read({"do": do, **fields})
        await self._launch.begun.wait()
        control = self._launch.control
        if control is None:
            raise ConfigurationError(f"{self.path}: the run is not under way")
        return (await control.handle(request)).to_record()

    def interrupt(self) -> None:
        """End the run after its calls in flight are answered and recorded; `resume` continues it."""
        if self._launch.runner is not None:
            self._launch.runner.interrupt()


async def run(
    scenario: str | PathLike[str] | AnyScenario,
    /,  # positional, because a setting may be called `scenario`
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Run:
    """Run all conversations of a new run and return it.

    Args:
        scenario: Name of a registered scenario, path of a Python file with one, or a scenario object.
        models: By role, a model name or a `Backend`; for the compared role, one or several.
        tasks: Tasks, if the scenario takes them from Python, or the path of a file of tasks.
        seed: Seed of every random choice.
        out: Run folder to create. Default: `runs/NAME-TIME`.
        clock: Clock of the run, such as a `VirtualClock` for simulations. Default: real time.
        settings: Any other settings of the scenario, by name.

    Raises:
        ConfigurationError: An argument is invalid; no model has been called.
        BackendError: A model is unreachable.
        VivaError: The error that ended the run. Failures of single conversations are recorded as data instead.
    """
    launch = LaunchRequest(scenario, models, tasks, seed, out, clock, settings).launch()
    async with _running(launch, is_shown=True) as live:
        pass
    return live.ended()


@asynccontextmanager
async def start(
    scenario: str | PathLike[str] | AnyScenario,
    /,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[LiveRun]:
    """Start a run for the block of an `async with`; the block's end waits for it, and an error in the block ends it."""
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
    """Resume a run; recorded calls are not repeated.

    `models` are needed for roles that had `Backend` objects. `changes` may contain `concurrency`, `durability`
    and the run's budgets.

    Raises:
        ConfigurationError: There is no run here, or its inputs have changed.
    """
    _check_event_loop(clock)
    grant(*changes.pop("python_tools", ()))
    names, backends = model_names(models or {})
    with naming_parameters():
        launch = resumed_run(Path(path), clock, retry_failed=retry_failed, changes=changes, backends=backends)
    for role, role_names in names.items():
        for name in [role_names] if isinstance(role_names, str) else role_names:
            if name not in launch.prepared.models:
                known_names = ", ".join(launch.prepared.models)
                raise ConfigurationError(f"models: {role}: this run has no model '{name}'; it has {known_names}")
    async with _running(launch, is_shown=True) as live:
        pass
    return live.ended()


async def fork(
    path: str | Path, *, judge: Model, out: str | Path | None = None, clock: Clock | None = None, **changes: Any
) -> Run:
    """Judge the conversations of a run again with another model; no other model is called.

    Raises:
        ConfigurationError: The run has no judge, or `changes` affect more than judging.
    """
    _check_event_loop(clock)
    if not isinstance(judge, str | Backend):
        raise ConfigurationError(f"judge: expected one model, a name or a viva.Backend; found {judge!r:.80}")
    names, backends = model_names({"judge": judge})
    folder = Path(out) if out is not None else fresh_folder("fork")
    changes = {"evaluator": names["judge"], **changes}
    with naming_parameters():
        launch = forked_run(Path(path), folder, clock, changes=changes, backends=backends)
    async with _running(launch, is_shown=True) as live:
        pass
    return live.ended()


def load(path: str | Path) -> Run:
    """Open the folder of a finished or unfinished run."""
    return Run(RunFolder.open(Path(path)))


def run_sync(scenario: str | PathLike[str] | AnyScenario, /, *, clock: Clock | None = None, **arguments: Any) -> Run:
    """Call `run` from synchronous code, even in a notebook. After Ctrl-C the run can be resumed."""
    return run_blocking(lambda: run(scenario, clock=clock, **arguments), clock)


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]], clock: Clock | None = None) -> T:
    """Run a coroutine from synchronous code, in an event loop driven by `clock`, and return its result.

    If an event loop is already running, the coroutine runs in another thread.
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
            with suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise


@asynccontextmanager
async def _running(launch: Launch, *, is_shown: bool = False) -> AsyncIterator[LiveRun]:
    """Run a launch around a block; `is_shown`: in a notebook, show its progress below the cell."""
    live = LiveRun(launch)
    progress = NotebookProgress.below_cell() if is_shown and in_notebook() else None
    if progress is not None:
        launch.events.listen(progress.hear)
    live.begin()
    try:
        with naming_parameters():
            try:
                yield live
            except BaseException as error:
                await live.abandon(error)
                raise
            await live.finish()
    finally:
        if progress is not None:
            progress.update()


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task once, and wait for its end even if the waiting is cancelled.

    A shielded anyio scope would not work, because it cannot be exited if the event loop ends meanwhile.
    """
    task.cancel()
    while not task.done():
        with suppress(asyncio.CancelledError):  # the caller re-raises the earlier error
            await asyncio.wait([task])


def _check_event_loop(clock: Clock | None) -> None:
    """Refuse to run while a scenario file is being imported, or with a clock that does not drive this event loop."""
    refuse_while_loading()
    if isinstance(clock, VirtualClock) and not clock.drives(asyncio.get_running_loop()):
        raise ConfigurationError(
            "clock: a VirtualClock needs its own event loop: use viva.run_sync(…, clock=clock), or call "
            "clock.run(main) instead of asyncio.run(main())"
        )

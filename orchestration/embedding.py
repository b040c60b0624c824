"""Runs from a Python program: one call from a scenario, tasks and models to results, with or without a look inside.

``run`` carries a run to its end, ``start`` gives it while it goes on, ``resume`` and ``fork`` go on from a run folder,
``load`` opens one; ``run_sync`` needs no event loop, and works where one is running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import anyio
from pydantic import ValidationError

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.registry import GIVEN
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.events import Event
from viva.engine.folder import RunFolder
from viva.scenarios.contract import Scenario
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario, scenario
from viva.scenarios.settings import RunSettings

from .folders import fresh_folder
from .launch import Launch, empty_results, forked_run, new_run, resumed_run
from .recorded import Run
from .run_progress import RunProgress

Model: TypeAlias = "str | Backend"
Models: TypeAlias = Mapping[str, "Model | Sequence[Model]"]
T = TypeVar("T")
_TASKS = "tasks.jsonl"


class LiveRun(Run):
    """A run while it goes on: its events, its results so far, and ways to end it early."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch.folder)
        self._launch = launch
        self._results = empty_results(launch.folder)
        launch.events.listen(RunProgress(self._results).hear)

    async def events(self, capacity: int = 1024) -> AsyncGenerator[Event, None]:
        """The events from the first ``anext`` on, without loss: the run waits for a reader that is ``capacity`` behind,
        until the iterator is closed.
        """
        subscription = self._launch.events.subscribe(capacity)
        try:
            async for event in subscription:
                yield event
        finally:
            subscription.close()

    @property
    def scenario(self) -> AnyScenario:
        """What is run."""
        return self._launch.scenario

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self._folder

    async def written(self) -> None:
        """Wait until all that has happened so far is in the journal.

        :raises JournalError: it cannot be written.
        """
        if self._launch.runner is not None:
            await self._launch.runner.services.journal.flush()

    def report_so_far(self) -> dict[str, Any]:
        """The report over the conversations that have ended up to now."""
        return self._results.report()

    def stop(self, key: str, reason: str = "asked from outside") -> bool:
        """End one conversation at its next call; False if it is not under way. Its protocol returns what it has."""
        runner = self._launch.runner
        conversation = None if runner is None else runner.conversations.get(key)
        if conversation is None:
            return False
        conversation.stop("operator", reason)
        return True

    def interrupt(self) -> None:
        """End the run: calls under way are answered and recorded, nothing else begins; ``resume`` goes on."""
        if self._launch.runner is not None:
            self._launch.runner.interrupt()


async def run(
    which: str | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Run:
    """Hold all conversations of a new run; its results.

    :param which: a registered scenario's name, the path of a Python file with one, or a scenario object.
    :param models: by role a model's name or a ``Backend``; for the role whose models are compared one or several.
    :param tasks: what the conversations are about, where the scenario takes tasks from Python.
    :param out: the run folder to make; ``runs/NAME-TIME`` if None.
    :param settings: any other setting of the scenario, by name.
    :raises ConfigurationError: something of this is wrong; nothing has been asked of any model.
    :raises BackendError: a model cannot be reached.
    :raises VivaError: what ended the run, where it is no matter of single conversations (these fail as data).
    """
    async with start(which, models=models, tasks=tasks, seed=seed, out=out, clock=clock, **settings) as live:
        pass
    return live.ended()


@asynccontextmanager
async def start(
    which: str | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[LiveRun]:
    """As ``run``, for ``async with``: the run goes on inside, and leaving waits for its end. An error ends it."""
    launch = _new(which, models, tasks, seed, out, clock, settings)
    async with _going_on(launch) as live:
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
    _, given = _named(models or {})
    launch = resumed_run(Path(path), clock, retry_failed=retry_failed, changes=changes, given=given)
    async with _going_on(launch) as live:
        pass
    return live.ended()


async def fork(
    path: str | Path, *, judge: Model, out: str | Path | None = None, clock: Clock | None = None, **changes: Any
) -> Run:
    """Judge the conversations of a run anew, by another model; nobody else is asked anything.

    :raises ConfigurationError: nobody judged there, or ``changes`` touch more than the judging.
    """
    names, given = _named({"judge": judge})
    place = Path(out) if out is not None else fresh_folder("fork")
    launch = forked_run(Path(path), place, clock, changes={"evaluator": names["judge"], **changes}, given=given)
    async with _going_on(launch) as live:
        pass
    return live.ended()


def load(path: str | Path) -> Run:
    """Open a run folder, finished or not.

    :raises ConfigurationError: it is none.
    """
    return Run(RunFolder.open(Path(path)))


def run_sync(which: str | AnyScenario, **arguments: Any) -> Run:
    """``run`` for programs without an event loop. Where one is running, as in a notebook, the run has a thread of its
    own, and this call waits for it.
    """
    return waited_for(lambda: run(which, **arguments))


def waited_for(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine, from synchronous code, whether or not an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    found: list[T] = []
    failed: list[BaseException] = []

    def carry() -> None:
        try:
            found.append(asyncio.run(make()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=carry, name="viva", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@asynccontextmanager
async def _going_on(launch: Launch) -> AsyncIterator[LiveRun]:
    live = LiveRun(launch)
    failed: list[VivaError] = []

    async def carry() -> None:
        try:
            live.outcome = await launch.run()
            live.models = launch.pool.statistics()
        except VivaError as error:  # kept, so that it is not raised inside a group of errors
            failed.append(error)
            launch.events.close()

    async with anyio.create_task_group() as group:
        group.start_soon(carry)
        yield live
    if failed:
        raise failed[0]
    if live.outcome is not None and live.outcome.how == "failed" and live.outcome.error is not None:
        raise live.outcome.error


def _new(
    which: str | AnyScenario,
    models: Models,
    tasks: Iterable[Any] | None,
    seed: int,
    out: str | Path | None,
    clock: Clock | None,
    settings: Mapping[str, Any],
) -> Launch:
    chosen = scenario(which) if isinstance(which, str) else which
    files: dict[str, bytes] = {}
    path = (Path(out) if out is not None else fresh_folder(chosen.name)).absolute()
    names, given = _named(_by_role(chosen, models))
    options = {**settings, **names, "seed": seed}
    if tasks is not None:
        if not isinstance(chosen, FunctionScenario):
            raise ConfigurationError(f"{chosen.name}: takes its tasks from the setting '{chosen.data}', not tasks=")
        chosen = chosen.with_tasks(tasks)
        assert chosen.tasks is not None
        files[_TASKS] = chosen.tasks.to_lines()
        options["tasks"] = str(path / _TASKS)
    return new_run(chosen, _settings(chosen, options), path, clock, given=given, files=files)


def _by_role(which: AnyScenario, models: Models) -> dict[str, Any]:
    """The models as the settings have them: a list for the role whose models are compared, else one."""
    known = {role.name: role for role in which.roles}
    unknown = sorted(models.keys() - known.keys())
    if unknown:
        raise ConfigurationError(f"{which.name} has no role '{unknown[0]}'; its roles: {', '.join(known)}")
    found: dict[str, Any] = {}
    for name, value in models.items():
        several = isinstance(value, Sequence) and not isinstance(value, str)
        if several and not known[name].many:
            raise ConfigurationError(f"{which.name}: the role '{name}' is played by one model; give one, not a list")
        found[name] = value if several or not known[name].many else [value]
    return found


def _named(models: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Backend]]:
    """The models' names, and the backends among them by name."""
    given: dict[str, Backend] = {}

    def name(model: Model) -> str:
        if isinstance(model, str):
            return model
        if not isinstance(model, Backend):
            raise ConfigurationError(f"model {model!r}: expected a name, such as 'llama:a.gguf', or a viva.Backend")
        text = f"{GIVEN}:{model.label}"
        if ModelSpec.parse(text).label != model.label:
            raise ConfigurationError(f"model {model!r}: its label '{model.label}' may hold no ?, # or &")
        if model.price_in or model.price_out:
            text += f"?price_in={model.price_in}&price_out={model.price_out}"
        if given.setdefault(text, model) is not model:
            raise ConfigurationError(f"two backends have the label '{model.label}'; give each one of its own")
        return text

    names = {
        role: name(model) if isinstance(model, str | Backend) or not isinstance(model, Sequence)
        else [name(one) for one in model]
        for role, model in models.items()
    }  # fmt: skip
    return names, given


def _settings(which: Scenario[Any, Any], options: Mapping[str, Any]) -> RunSettings:
    try:
        settings: RunSettings = which.settings.model_validate(options)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            name = ".".join(map(str, detail["loc"]))
            what = {"missing": "is missing", "extra_forbidden": "unknown setting"}.get(detail["type"], detail["msg"])
            role = any(name == role.name for role in which.roles)
            problems.append(f"{'models: ' if role else ''}{name}: {str(what).removeprefix('Value error, ')}")
        raise ConfigurationError(f"{which.name}: {'; '.join(problems)}") from None
    return settings

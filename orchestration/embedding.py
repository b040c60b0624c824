"""Runs from a Python program: one call from a scenario, tasks and models to results, with or without a look inside.

``run`` carries a run to its end, ``start`` gives it while it goes on, ``resume`` and ``fork`` go on from a run folder,
``load`` opens one; ``run_sync`` needs no event loop, and works where one is running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from viva.engine.backends.base import Backend
from viva.engine.clock import Clock, VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.events import Event
from viva.engine.folder import RunFolder
from viva.engine.permissions import grant
from viva.engine.pyfile import refuse_while_loading
from viva.engine.stream import Subscription
from viva.scenarios.registry import AnyScenario

from .arguments import Model, Models, named_models, new_launch
from .folders import fresh_folder
from .launch import Launch, empty_results, forked_run, resumed_run
from .recorded import Run
from .run_progress import RunProgress

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
        self._readers = [one for one in self._readers if not one.closed]
        self._readers.append(self._launch.events.subscribe(capacity))
        return self._readers[-1]

    def begin(self) -> None:
        """Start the run, in a task of its own. No group is around it and what goes on beside it: errors there stay as
        they are, and any task may end it.
        """
        self._task = asyncio.get_running_loop().create_task(self._carry())

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
            await _cancelled(self._task)
            raise
        self._task.result()
        if self.outcome is not None and self.outcome.how == "failed" and self.outcome.error is not None:
            raise self.outcome.error

    async def abandon(self, error: BaseException | None = None) -> None:
        """End the run at once; it can be resumed. ``error`` is why, and is told what had ended the run before."""
        assert self._task is not None
        await _cancelled(self._task)
        failure = None if self._task.cancelled() else self._task.exception()
        if error is not None and failure is not None and failure is not error:
            error.add_note(f"the run in {self.path} had failed before: {failure}")

    def forsake(self) -> None:
        """As ``abandon``, for one who cannot wait."""
        if self._task is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._task.cancel()

    async def _carry(self) -> None:
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

    async def written(self) -> None:
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
    which: str | PathLike[str] | AnyScenario,
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
    async with start(which, models=models, tasks=tasks, seed=seed, out=out, clock=clock, **settings) as live:
        pass
    return live.ended()


@asynccontextmanager
async def start(
    which: str | PathLike[str] | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[LiveRun]:
    """As ``run``, for ``async with``: the run goes on inside, and leaving waits for its end. An error ends it."""
    async with _going_on(checked_launch(which, models, tasks, seed, out, clock, settings)) as live:
        yield live


def checked_launch(
    which: str | PathLike[str] | AnyScenario,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None,
    seed: int,
    out: str | Path | None,
    clock: Clock | None,
    settings: Mapping[str, Any],
) -> Launch:
    """A new run from the arguments of ``run``, at a place where it can go on."""
    _check_place(clock)
    return new_launch(which, models, tasks, seed, out, clock, settings)


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
    _check_place(clock)
    grant(*changes.pop("python_tools", ()))
    names, given = named_models(models or {})
    launch = resumed_run(Path(path), clock, retry_failed=retry_failed, changes=changes, given=given)
    for role, named in names.items():
        for name in [named] if isinstance(named, str) else named:
            if name not in launch.prepared.models:
                known = ", ".join(launch.prepared.models)
                raise ConfigurationError(f"models: {role}: '{name}' is no model of this run; it has {known}")
    async with _going_on(launch) as live:
        pass
    return live.ended()


async def fork(
    path: str | Path, *, judge: Model, out: str | Path | None = None, clock: Clock | None = None, **changes: Any
) -> Run:
    """Judge the conversations of a run anew, by another model; nobody else is asked anything.

    :raises ConfigurationError: nobody judged there, or ``changes`` touch more than the judging.
    """
    _check_place(clock)
    if not isinstance(judge, str | Backend):
        raise ConfigurationError(f"judge: expected one model, by its name or as a viva.Backend; found {judge!r:.80}")
    names, given = named_models({"judge": judge})
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


def run_sync(which: str | PathLike[str] | AnyScenario, *, clock: Clock | None = None, **arguments: Any) -> Run:
    """``run`` for programs without an event loop. Where one is running, as in a notebook, the run has a thread of its
    own, and this call waits for it; Ctrl-C ends the run, which can be resumed.
    """
    return waited_for(lambda: run(which, clock=clock, **arguments), clock)


def waited_for(make: Callable[[], Coroutine[Any, Any, T]], clock: Clock | None = None) -> T:
    """The result of a coroutine, from synchronous code, whether or not an event loop is running in this thread. It runs
    in an event loop that lives by ``clock``.
    """
    under_way: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        under_way.append((asyncio.get_running_loop(), task))
        return await make()

    def carry() -> T:
        return clock.run(main) if isinstance(clock, VirtualClock) else asyncio.run(main())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return carry()
    ended: Future[T] = Future()

    def settle() -> None:
        try:
            ended.set_result(carry())
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
async def _going_on(launch: Launch) -> AsyncIterator[LiveRun]:
    live = LiveRun(launch)
    live.begin()
    try:
        yield live
    except BaseException as error:
        await live.abandon(error)
        raise
    await live.finish()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, once, and wait for its end, however often the waiting is cancelled itself.

    No scope of anyio shields it: where the event loop ends meanwhile, none could be left.
    """
    task.cancel()
    while not task.done():
        with suppress(asyncio.CancelledError):  # what came before is raised again by the caller
            await asyncio.wait([task])


def _check_place(clock: Clock | None) -> None:
    """:raises ConfigurationError: a file that is only read starts a run, or time would not pass by this clock in the
    event loop that is running.
    """
    refuse_while_loading()
    if isinstance(clock, VirtualClock) and not clock.rules(asyncio.get_running_loop()):
        raise ConfigurationError(
            "clock: a VirtualClock has an event loop of its own: use viva.run_sync(…, clock=clock), or hold everything "
            "in clock.run(main) in place of asyncio.run(main())"
        )

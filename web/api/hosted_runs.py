"""Hosted runs of the server: checking a client's request; starting, watching, stopping and resuming a run.

A run's id is the name of its folder, directly below the folder of runs; links to other folders are ignored.
`engine.permissions` decides what a request may name.

Each hosted run keeps its latest events in a ring. The number of readers is unlimited, and readers do not slow the run:
they are woken together, and less often if there are many. If the ring still holds the next event of a slow or returning
reader, the reader continues there; otherwise it learns how many events it has lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import ENTRY_POINT_GROUP, KINDS
from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.events import ConversationsAdded, Event, RunStarted
from viva.engine.imports import load_entry_points
from viva.engine.journal_reader import History
from viva.engine.permissions import NotPermitted, permissions
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import MissingConversations, planned_in_total, recorded_report
from viva.orchestration.control import ControlRequest
from viva.orchestration.folders import fresh_folder
from viva.orchestration.launch import Launch, resumed_run
from viva.orchestration.python_api import LaunchRequest, LiveRun
from viva.orchestration.run_progress import RunProgress
from viva.scenarios.registry import GROUP, get_scenario

from ..broadcast import Broadcast, server_sent_event
from ..problems import Problem
from .schemas import RUN_ID, RunRecord, RunRequest, State

_PATH_SEPARATORS = re.compile(r"[:?#&=;,\s]+")
_MOST_TEXTS, _MOST_CHARACTERS = 1_000, 100_000  # in a run's settings


class RequestChecker:
    """Checks the names in a client's request. `served` maps served names to full model names."""

    def __init__(self, served: Mapping[str, str]) -> None:
        self._served = served

    def models(self, models: Mapping[str, str | list[str]]) -> dict[str, str | list[str]]:
        """Return the models by role, with their full names."""
        checked: dict[str, str | list[str]] = {}
        for role, names in models.items():
            field = f"models.{role}"
            checked[role] = (
                self._model(names, field) if isinstance(names, str) else [self._model(name, field) for name in names]
            )
        return checked

    def settings(self, settings: Mapping[str, Any], roles: Collection[str]) -> None:
        """Check the settings of a request.

        Raises:
            Problem: A setting names a model or a file outside the allowed folders, or grants a permission.
        """
        for name in settings:
            field = f"settings.{name}"
            if name in roles:
                raise Problem(422, f"{field}: is a role; name its models under models.{name}", field=field)
            if name == "python_tools":
                raise Problem(403, f"{field}: clients may not name Python code", field=field)
        kinds = {*KINDS, *load_entry_points(ENTRY_POINT_GROUP)}
        budget = _MOST_CHARACTERS
        for count, (field, text) in enumerate(_iterate_texts(settings, "settings"), 1):
            budget -= len(text)
            if count > _MOST_TEXTS or budget < 0:
                limit = f"{_MOST_TEXTS:,} texts with {_MOST_CHARACTERS:,} characters in total"
                raise Problem(422, f"settings: expected at most {limit}", field="settings")
            if text.partition(":")[0] in kinds:
                self._model(text, field)
            else:
                for part in (text, *_PATH_SEPARATORS.split(text)):
                    _check_path(part, field)

    def _model(self, name: str, field: str) -> str:
        text = self._served.get(name, name)
        if text in self._served.values():
            return text
        served = ", ".join(self._served) or "none"
        try:
            if "\0" in text:
                raise ConfigurationError("not a model name: it contains a NUL character")
            permissions().check_model(text)
            spec = ModelSpec.parse(text)
        except NotPermitted as error:
            raise Problem(403, f"{field}: {error}; served models: {served}", field=field) from None
        except ConfigurationError as error:
            raise Problem(409, f"{field}: {error}; served models: {served}") from None
        if spec.kind == "replay":
            _check_path(spec.where, field)
        for value in spec.options.values():
            _check_path(value, field)
        return text


def _iterate_texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Iterate over all texts in settings as (text, field); names of fields are included as texts."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield field, name
            yield from _iterate_texts(item, f"{field}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_texts(item, field)


def _check_path(text: str, field: str) -> None:
    if text:
        try:
            permissions().check_file(Path(text))
        except NotPermitted as error:
            raise Problem(403, f"{field}: {error}", field=field) from None


RING_CAPACITY = 4096  # events
_TICK_SECONDS = 0.05
_TICK_PER_READER = 0.002
_EVENT_BATCH = 256  # maximum events sent to a reader at once


class RecentEvents(Broadcast):
    """Ring of the latest events of one run. `epoch` prefixes the event ids; each server process has its own."""

    def __init__(self, epoch: str, capacity: int = RING_CAPACITY) -> None:
        super().__init__()
        self.epoch = epoch
        self.last = 0  # number of the latest event
        self._capacity = capacity
        self._events: list[Event | None] = [None] * capacity
        self._encoded: list[tuple[int, bytes]] = [(0, b"")] * capacity
        self._latest_block: tuple[tuple[int, int], bytes, int] = ((0, 0), b"", 0)
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, event: Event) -> None:
        """Record an event of the run without blocking."""
        self.last = event.sequence
        self._events[event.sequence % self._capacity] = event
        if self.readers and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause(), self.wake)

    def wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().wake()

    def event_number(self, id_: str | None) -> int | None:
        """Return the number of the event with this id, or None if the id is missing or from another epoch."""
        epoch, _, number = (id_ or "").rpartition("-")
        if epoch != self.epoch or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        return min(int(number), self.last)

    def events_after(self, position: int) -> AsyncGenerator[bytes, None]:
        """Iterate in blocks over the events after a position until the run has ended; `Gap` says how many are lost."""
        return self.read(position, self._block, lambda at: self._pause() if at < self.last else 0.0)

    def _pause(self) -> float:
        return max(_TICK_SECONDS, _TICK_PER_READER * self.readers)

    def _block(self, position: int) -> tuple[bytes, int]:
        key = (position, self.last)
        if self._latest_block[0] == key:  # most readers are at the same position, so the block is cached
            return self._latest_block[1:]
        parts = []
        oldest = max(1, self.last - self._capacity + 1)
        if position + 1 < oldest:
            parts.append(server_sent_event({"lost": oldest - position - 1}, f"{self.epoch}-{oldest - 1}", "Gap"))
            position = oldest - 1
        end = min(self.last, position + _EVENT_BATCH)
        parts += [self._text(number) for number in range(position + 1, end + 1)]
        self._latest_block = (key, b"".join(parts), end)
        return self._latest_block[1:]

    def _text(self, number: int) -> bytes:
        """Encode an event once for all readers."""
        slot = number % self._capacity
        encoded, text = self._encoded[slot]
        if encoded != number:
            event = self._events[slot]
            if event is None or event.sequence != number:  # events that were published before anybody listened
                return b""
            text = server_sent_event(event.to_record(), f"{self.epoch}-{number}", type(event).__name__)
            self._encoded[slot] = (number, text)
        return text


_log = logging.getLogger("viva")
_OUTCOMES: dict[str, State] = {"done": "done", "drained": "stopped", "halted": "stopped", "budget": "stopped"}


class HostedRun:
    """A run that this server executes. `ended` is called in the event loop after every end, including failures."""

    def __init__(self, launch: Launch, ended: Callable[[HostedRun], None]) -> None:
        self.id = launch.folder.path.name
        self.events = RecentEvents(secrets.token_hex(4))
        self.live = LiveRun(launch)
        self._launch = launch
        self.progress = RunProgress()
        launch.events.listen(self.progress.hear)
        launch.events.listen(self._hear)
        self._total: int | None = None
        self._state: State = "starting"
        self._error: str | None = None
        self.live.begin()
        self._task = asyncio.create_task(self._finish(ended))

    @property
    def path(self) -> Path:
        return self._launch.folder.path

    @property
    def under_way(self) -> bool:
        return not self._task.done()

    def record(self) -> RunRecord:
        """Return the run as clients see it."""
        manifest, progress = self._launch.folder.manifest, self.progress
        return RunRecord(
            id=self.id,
            scenario=manifest["scenario"],
            seed=manifest["seed"],
            hosted=self._state in ("starting", "running", "stopping"),
            state=self._state,
            models=manifest["models"],
            total=self._total,
            finished=progress.done - progress.failed,
            failed=progress.failed,
            in_flight=progress.in_flight,
            calls=progress.calls,
            tokens=progress.tokens,
            cost=progress.cost,
            error=self._error,
        )

    def report(self) -> dict[str, Any]:
        report, ended = self.live.report_so_far(), self.progress.done
        if self._total is None or ended >= self._total:
            return report
        missing = MissingConversations(self._total, ended, self.progress.in_flight)
        return report | {"unfinished": missing.to_record()}

    async def stop(self) -> None:
        """Begin to stop the run; calls in flight are answered and recorded.

        A run whose models are still being opened ends at once.
        """
        if not self.under_way:
            return
        self._state = "stopping"
        if self._launch.runner is None:
            await self.live.abandon()
        else:
            self.live.interrupt()

    async def end(self, grace: float) -> None:
        """Stop and wait for the end; abandon calls in flight after `grace` seconds. The run can be resumed."""
        await self.stop()
        _, waiting = await asyncio.wait([self._task], timeout=grace)
        if waiting:
            await self.live.abandon()
            await asyncio.wait([self._task])

    async def _finish(self, ended: Callable[[HostedRun], None]) -> None:
        try:
            await self.live.finish()
            outcome = self.live.outcome
            self._state = "failed" if outcome is None else _OUTCOMES.get(outcome.how, "failed")
            if outcome is not None and outcome.error is not None:
                self._error = str(outcome.error)
        except asyncio.CancelledError:  # the run was abandoned
            self._state = "stopped"
        except VivaError as error:
            self._state, self._error = "failed", str(error)
        except Exception as error:
            _log.exception("run %s failed with an internal error", self.id)
            self._state, self._error = "failed", f"{type(error).__name__}: {error}"
        finally:
            self.events.close()
            ended(self)

    def _hear(self, event: Any) -> None:
        if isinstance(event, RunStarted):
            self._total = event.total
            if self._state == "starting":
                self._state = "running"
        elif isinstance(event, ConversationsAdded) and self._total is not None:
            self._total += event.count
        self.events.hear(event)


_BAD_NAME_ERRORS = (OSError, ValueError, RuntimeError)  # raised for a name that cannot be a file name
_KEPT_ENDED_RUNS = 16  # ended runs whose latest events can still be read


class RunHost:
    """Runs of a folder, including those that this server executes.

    Args:
        folder: Folder of the runs, created if it does not exist.
        served: Full model names by served name.

    Raises:
        ConfigurationError: The folder of runs cannot be created.
    """

    def __init__(self, folder: Path, served: Mapping[str, str]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--runs {folder}: cannot create the folder: {error.strerror}") from None
        self.folder = folder.resolve()
        self._allowed = RequestChecker(served)
        self._hosted: OrderedDict[str, HostedRun] = OrderedDict()
        self._making: dict[str, asyncio.Event] = {}
        self._closing = False

    def ids(self) -> Iterator[str]:
        """Return the ids of all runs, in order."""
        for name in sorted(os.listdir(self.folder)):
            if self._path(name) is not None:
                yield name

    def hosted(self, id_: str) -> HostedRun | None:
        """Return the run if this server runs it or ran it recently."""
        return self._hosted.get(id_)

    def open(self, id_: str) -> RunFolder:
        """Open the folder of a run."""
        path = self._path(id_)
        if path is None:
            raise Problem(404, f"no run {id_[:120]!r} on this server")
        try:
            return RunFolder.open(path)
        except ConfigurationError as error:
            raise Problem(409, f"run {id_}: {error}") from None

    async def begin(self, request: RunRequest) -> HostedRun:
        """Begin a new run."""
        self._refuse_while_closing()
        if request.scenario not in load_entry_points(GROUP):
            raise Problem(
                409,
                f"scenario: unknown scenario {request.scenario!r}; known: {', '.join(load_entry_points(GROUP))}",
                field="scenario",
            )
        path = self._free_path(request)
        with self._reserved(path.name):
            return self._host(await asyncio.to_thread(self._launch, request, path))

    def _launch(self, request: RunRequest, path: Path) -> Launch:
        """Prepare a run. This function runs in a thread, because the request and its data may be large."""
        try:
            models = self._allowed.models(request.models)
            self._allowed.settings(request.settings, {role.setting for role in get_scenario(request.scenario).roles})
            launch = LaunchRequest(
                request.scenario, models, request.tasks, request.seed, path, settings=request.settings
            )
            return launch.prepare()
        except NotPermitted as error:
            raise Problem(403, f"cannot start the run: {error}") from None
        except (VivaError, *_BAD_NAME_ERRORS) as error:
            raise Problem(409, f"cannot start the run: {error}") from None

    async def resume(self, id_: str, *, retry_failed: bool) -> HostedRun:
        """Resume a run that is not running.

        Raises:
            Problem: There is no such run, it is running, or it cannot be resumed.
        """
        self._refuse_while_closing()
        self.open(id_)
        hosted = self._hosted.get(id_)
        if hosted is not None and hosted.under_way:
            raise Problem(409, f"run {id_} is already running")
        if is_locked_elsewhere(self.folder / id_):
            raise Problem(409, f"run {id_} is running in another process")
        with self._reserved(id_):
            try:
                launch = await asyncio.to_thread(resumed_run, self.folder / id_, retry_failed=retry_failed)
            except NotPermitted as error:
                raise Problem(403, f"cannot resume run {id_}: {error}") from None
            except (VivaError, *_BAD_NAME_ERRORS) as error:
                raise Problem(409, f"cannot resume run {id_}: {error}") from None
            return self._host(launch)

    @contextmanager
    def _reserved(self, id_: str) -> Iterator[None]:
        """Reserve an id, so that no concurrent request takes it while its run is prepared."""
        if id_ in self._making:
            raise Problem(409, f"another request is preparing the run '{id_}' now; use another id", field="id")
        ready = self._making[id_] = asyncio.Event()
        try:
            yield
        finally:
            del self._making[id_]
            ready.set()

    async def stop(self, id_: str) -> RunRecord:
        """Begin to stop a run."""
        self.open(id_)
        hosted = self._hosted.get(id_)
        if hosted is None or not hosted.under_way:
            raise Problem(409, f"run {id_} is not running on this server")
        await hosted.stop()
        return hosted.record()

    async def control(self, id_: str, request: ControlRequest) -> dict[str, Any]:
        """Do what a request to a run says; return the answer as plain data."""
        self.open(id_)
        hosted = self._hosted.get(id_)
        if hosted is None or not hosted.under_way:
            raise Problem(409, f"run {id_} is not running on this server")
        try:
            return await hosted.live.control(**request.model_dump(exclude_defaults=True))
        except VivaError as error:
            raise Problem(409, str(error)) from None

    async def record(self, id_: str) -> RunRecord:
        """Return a run and its progress.

        Raises:
            Problem: There is no such run.
        """
        hosted = self._hosted.get(id_)
        if hosted is not None and (
            hosted.under_way or self._path(id_) is None
        ):  # a run that never began leaves no folder
            return hosted.record()
        recorded = await asyncio.to_thread(_record_of_folder, self.open(id_))
        if hosted is None:
            return recorded
        own = hosted.record()
        facts: dict[str, object] = {"calls": own.calls, "tokens": own.tokens, "cost": own.cost}
        if own.state == "failed" and recorded.state == "stopped":
            facts |= {"state": own.state, "error": own.error}
        return recorded.model_copy(update=facts)

    async def report(self, id_: str) -> dict[str, object]:
        hosted = self._hosted.get(id_)
        if hosted is not None and hosted.under_way:
            return hosted.report()
        folder = self.open(id_)
        return await asyncio.to_thread(recorded_report, folder)

    async def close(self, grace: float) -> None:
        """Stop all runs, each within `grace` seconds; they can be resumed."""
        self._closing = True
        for ready in list(self._making.values()):  # a run that is about to begin must be stopped, too
            await ready.wait()
        await asyncio.gather(*(run.end(grace) for run in list(self._hosted.values()) if run.under_way))

    def _host(self, launch: Launch) -> HostedRun:
        run = HostedRun(launch, self._ended)
        self._hosted[run.id] = run
        return run

    def _ended(self, run: HostedRun) -> None:
        self._hosted.move_to_end(run.id)
        over = [id_ for id_, hosted in self._hosted.items() if hosted is run or not hosted.under_way]
        for id_ in over[:-_KEPT_ENDED_RUNS]:
            del self._hosted[id_]

    def _free_path(self, request: RunRequest) -> Path:
        if request.id is None:
            return fresh_folder(request.scenario, self.folder, self._making)
        path = self.folder / request.id
        if os.path.lexists(path):
            raise Problem(409, f"run '{path.name}' already exists; use another id, or resume that run", field="id")
        return path

    def _refuse_while_closing(self) -> None:
        if self._closing:
            raise Problem(503, "the server is stopping")

    def _path(self, id_: str) -> Path | None:
        path = self.folder / id_
        if not re.fullmatch(RUN_ID, id_) or path.is_symlink() or not (path / "manifest.json").is_file():
            return None
        return path


def is_locked_elsewhere(path: Path) -> bool:
    """Return True if another process holds the lock of this run."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _record_of_folder(folder: RunFolder) -> RunRecord:
    """Return the record of a run that this server does not run, read from the run's folder."""
    manifest, ended, failed, total = folder.manifest, 0, 0, planned_in_total(folder)
    if folder.begun:
        with History(folder.journal) as history:
            ended = len(history.ended_numbers())
            failed = ended - len(history.ended_numbers(failed=False))
    state: State = "done" if total is not None and ended >= total else "stopped"
    return RunRecord(
        id=folder.path.name,
        scenario=manifest["scenario"],
        seed=manifest["seed"],
        hosted=False,
        state="elsewhere" if is_locked_elsewhere(folder.path) else state,
        models=manifest["models"],
        total=total,
        finished=ended - failed,
        failed=failed,
        in_flight=0,
        calls=0,
        tokens=0,
        cost=0.0,
        error=None,
    )

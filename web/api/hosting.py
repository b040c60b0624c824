"""The runs of one folder: which there are, and those that this server carries.

A run's id is the name of its folder, directly below the folder of runs; nothing that is linked to elsewhere is one.
What never belongs here: HTTP.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.permissions import NotPermitted
from viva.engine.plugins import registered
from viva.orchestration.arguments import new_launch
from viva.orchestration.folders import fresh_folder
from viva.orchestration.launch import Launch, recorded_results, resumed_run
from viva.orchestration.sweep.results import planned_of
from viva.scenarios.registry import GROUP, scenario

from ..server.problems import Problem
from .allowed import Allowed
from .hosted_run import HostedRun
from .records import RUN_ID, RunRecord, RunRequest, State

_UNFIT = (OSError, ValueError, RuntimeError)  # what names raise that are none of a file
_KEPT = 16  # ended runs whose latest events can still be read


class RunHost:
    """See the module. ``folder`` is made if it is not there; ``served`` are full model names by served names.

    :raises ConfigurationError: the folder cannot be made.
    """

    def __init__(self, folder: Path, served: Mapping[str, str]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--runs {folder}: cannot make the folder: {error.strerror}") from None
        self.folder = folder.resolve()
        self._allowed = Allowed(served)
        self._hosted: OrderedDict[str, HostedRun] = OrderedDict()
        self._making: dict[str, asyncio.Event] = {}
        self._closing = False

    def ids(self) -> Iterator[str]:
        """The runs there are, in order."""
        for name in sorted(os.listdir(self.folder)):
            if self._path(name) is not None:
                yield name

    def hosted(self, id_: str) -> HostedRun | None:
        """The run that this server carries, or has carried lately."""
        return self._hosted.get(id_)

    def open(self, id_: str) -> RunFolder:
        """The folder of a run.

        :raises Problem: there is none of this id.
        """
        path = self._path(id_)
        if path is None:
            raise Problem(404, f"no run {id_[:120]!r} here")
        try:
            return RunFolder.open(path)
        except ConfigurationError as error:
            raise Problem(409, f"run {id_}: {error}") from None

    async def begin(self, wanted: RunRequest) -> HostedRun:
        """Begin a new run.

        :raises Problem: it cannot begin; nothing is left of it.
        """
        self._refuse_while_closing()
        if wanted.scenario not in registered(GROUP):
            raise Problem(
                409,
                f"scenario: no scenario {wanted.scenario!r} here; known: {', '.join(registered(GROUP))}",
                field="scenario",
            )
        path = self._free_path(wanted)
        with self._reserved(path.name):
            return self._host(await asyncio.to_thread(self._launch, wanted, path))

    def _launch(self, wanted: RunRequest, path: Path) -> Launch:
        """A run about to begin. Runs in a thread: what a client names may be much, and its data large.

        :raises Problem: it cannot begin.
        """
        try:
            models = self._allowed.models(wanted.models)
            self._allowed.settings(wanted.settings, {role.name for role in scenario(wanted.scenario).roles})
            return new_launch(wanted.scenario, models, wanted.tasks, wanted.seed, path, None, wanted.settings)
        except NotPermitted as error:
            raise Problem(403, f"the run cannot begin: {error}") from None
        except (VivaError, *_UNFIT) as error:
            raise Problem(409, f"the run cannot begin: {error}") from None

    async def resume(self, id_: str, *, retry_failed: bool) -> HostedRun:
        """Go on with a run that is not under way.

        :raises Problem: there is none, it is under way, or it cannot go on.
        """
        self._refuse_while_closing()
        self.open(id_)
        known = self._hosted.get(id_)
        if known is not None and known.under_way:
            raise Problem(409, f"run {id_} is under way")
        if held_elsewhere(self.folder / id_):
            raise Problem(409, f"run {id_} is carried by another process")
        with self._reserved(id_):
            try:
                launch = await asyncio.to_thread(resumed_run, self.folder / id_, retry_failed=retry_failed)
            except NotPermitted as error:
                raise Problem(403, f"run {id_} cannot go on: {error}") from None
            except (VivaError, *_UNFIT) as error:
                raise Problem(409, f"run {id_} cannot go on: {error}") from None
            return self._host(launch)

    @contextmanager
    def _reserved(self, id_: str) -> Iterator[None]:
        """Keep an id while its run is being made, which others go on beside.

        :raises Problem: somebody else makes one of this id.
        """
        if id_ in self._making:
            raise Problem(409, f"a run '{id_}' is about to begin; ask again", field="id")
        made = self._making[id_] = asyncio.Event()
        try:
            yield
        finally:
            del self._making[id_]
            made.set()

    async def stop(self, id_: str) -> RunRecord:
        """Begin to stop a run.

        :raises Problem: there is none, or this server does not carry it.
        """
        self.open(id_)
        known = self._hosted.get(id_)
        if known is None or not known.under_way:
            raise Problem(409, f"run {id_} is not under way here")
        await known.stop()
        return known.record()

    async def record(self, id_: str) -> RunRecord:
        """A run and how far it has come.

        :raises Problem: there is none.
        """
        known = self._hosted.get(id_)
        if known is not None and (
            known.under_way or self._path(id_) is None
        ):  # nothing is left of one that never began
            return known.record()
        recorded = await asyncio.to_thread(_recorded, self.open(id_))
        if known is None:
            return recorded
        own = known.record()
        facts: dict[str, object] = {"calls": own.calls, "tokens": own.tokens, "cost": own.cost}
        if own.state == "failed" and recorded.state == "stopped":
            facts |= {"state": own.state, "error": own.error}
        return recorded.model_copy(update=facts)

    async def report(self, id_: str) -> dict[str, object]:
        """A run's report, over what has ended so far.

        :raises Problem: there is no such run; :raises VivaError: its journal cannot be read.
        """
        known = self._hosted.get(id_)
        if known is not None and known.under_way:
            return known.report()
        folder = self.open(id_)
        return await asyncio.to_thread(lambda: recorded_results(folder).report())

    async def close(self, grace: float) -> None:
        """Stop all runs, each within ``grace`` seconds; they can be resumed."""
        self._closing = True
        for made in list(self._making.values()):  # one that is about to begin is stopped, too
            await made.wait()
        await asyncio.gather(*(run.end(grace) for run in list(self._hosted.values()) if run.under_way))

    def _host(self, launch: Launch) -> HostedRun:
        run = HostedRun(launch, self._ended)
        self._hosted[run.id] = run
        return run

    def _ended(self, run: HostedRun) -> None:
        self._hosted.move_to_end(run.id)
        over = [id_ for id_, one in self._hosted.items() if one is run or not one.under_way]
        for id_ in over[:-_KEPT]:
            del self._hosted[id_]

    def _free_path(self, wanted: RunRequest) -> Path:
        if wanted.id is None:
            return fresh_folder(wanted.scenario, self.folder, self._making)
        path = self.folder / wanted.id
        if os.path.lexists(path):
            raise Problem(409, f"a run '{path.name}' is here already; give another id, or resume that one", field="id")
        return path

    def _refuse_while_closing(self) -> None:
        if self._closing:
            raise Problem(503, "the server is stopping")

    def _path(self, id_: str) -> Path | None:
        path = self.folder / id_
        if not re.fullmatch(RUN_ID, id_) or path.is_symlink() or not (path / "manifest.json").is_file():
            return None
        return path


def held_elsewhere(path: Path) -> bool:
    """Whether a process holds the lock of this run."""
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


def _recorded(folder: RunFolder) -> RunRecord:
    """A run as its folder has it."""
    manifest, ended, failed, total = folder.manifest, 0, 0, None
    if folder.begun:
        with History(folder.journal) as history:
            ended = len(history.ended_numbers())
            failed = ended - len(history.ended_numbers(failed=False))
    try:
        total = planned_of(folder)
    except (VivaError, KeyError, TypeError, ValueError):
        pass  # its scenario is not installed here, or it was recorded by another version
    state: State = "done" if total is not None and ended >= total else "stopped"
    return RunRecord(
        id=folder.path.name,
        scenario=manifest["scenario"],
        seed=manifest["seed"],
        hosted=False,
        state="elsewhere" if held_elsewhere(folder.path) else state,
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

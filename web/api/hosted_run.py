"""One run that the server carries: its task, its latest events, how far it has come, and how it is stopped.

What never belongs here: HTTP, and which runs there are (``hosting``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from viva.engine.errors import VivaError
from viva.engine.events import RunStarted
from viva.orchestration.embedding import LiveRun
from viva.orchestration.launch import Launch
from viva.orchestration.run_progress import RunProgress

from .recent_events import RecentEvents
from .records import RunRecord, State

_log = logging.getLogger("viva")
_OUTCOMES: dict[str, State] = {"done": "done", "drained": "stopped", "halted": "stopped", "budget": "stopped"}


class HostedRun:
    """See the module. ``ended`` is called in the event loop when the run is over, however it ended."""

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
        self._task = asyncio.create_task(self._carry(ended))

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._launch.folder.path

    @property
    def under_way(self) -> bool:
        """Whether the run goes on."""
        return not self._task.done()

    def record(self) -> RunRecord:
        """The run as clients see it."""
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
        """The report over what has ended so far.

        :raises Exception: what the scenario's aggregate has raised.
        """
        return self.live.report_so_far()

    async def stop(self) -> None:
        """Begin to end the run: calls under way are answered and recorded. One whose models are still being opened
        ends at once.
        """
        if not self.under_way:
            return
        self._state = "stopping"
        if self._launch.runner is None:
            await self.live.abandon()
        else:
            self.live.interrupt()

    async def end(self, grace: float) -> None:
        """Stop, and wait for the end; after ``grace`` seconds calls under way are given up. It can be resumed."""
        await self.stop()
        _, waiting = await asyncio.wait([self._task], timeout=grace)
        if waiting:
            await self.live.abandon()
            await asyncio.wait([self._task])

    async def _carry(self, ended: Callable[[HostedRun], None]) -> None:
        try:
            await self.live.finish()
            outcome = self.live.outcome
            self._state = "failed" if outcome is None else _OUTCOMES.get(outcome.how, "failed")
            if outcome is not None and outcome.error is not None:
                self._error = str(outcome.error)
        except asyncio.CancelledError:  # it was abandoned
            self._state = "stopped"
        except VivaError as error:
            self._state, self._error = "failed", str(error)
        except Exception as error:
            _log.exception("run %s ended by a fault", self.id)
            self._state, self._error = "failed", f"{type(error).__name__}: {error}"
        finally:
            self.events.close()
            ended(self)

    def _hear(self, event: Any) -> None:
        if isinstance(event, RunStarted):
            self._total = event.total
            if self._state == "starting":
                self._state = "running"
        self.events.hear(event)

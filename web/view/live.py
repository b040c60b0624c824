"""Live facts of runs that are in progress: their own answers, and updates of their pages.

A run is asked through its control socket, at most once a second, and only while somebody looks at its page. A run's
folder may be somebody else's, and hold anything: only a socket of this user in a folder of this user is asked, its
answer is bounded and checked (`control_socket`), and a page waits for it half a second at most.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from viva.engine.errors import ConfigurationError
from viva.orchestration.control import ControlAnswer, ControlRequest, RunStatus
from viva.orchestration.control_socket import SOCKET, ask

from ..broadcast import Broadcast, server_sent_event

_log = logging.getLogger("viva")
_ASK_SECONDS = 0.4  # for a status
_SHORTEST_INTERVAL = 1.0  # seconds between two questions to one run
_SILENT_INTERVAL = 5.0  # the same for a run that did not answer
_STEER_SECONDS = 60.0  # for a request that changes the run
_MOST_ASKED = 4  # runs that are asked at the same time
_MOST_KNOWN = 256  # answers that are kept


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """A run's answer about itself; `problem` says why there is none."""

    status: RunStatus | None = None
    problem: str = ""


_NO_ANSWER = LiveAnswer(problem="it has not answered yet")


def own_folder_problem(folder: Path) -> str:
    """Return why no request is sent to the run in this folder, or "" if folder and socket belong to this user."""
    try:
        owners = {folder.stat().st_uid, (folder / SOCKET).lstat().st_uid}
    except OSError:
        return "it has no control socket here: it runs on another machine, or its file system has no sockets"
    return "" if owners == {os.getuid()} else "its folder or its control socket belongs to another user"


class RunAsker:
    """Asks runs for their status, each at most once a second, however many want to know; steers them on request."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MOST_ASKED, thread_name_prefix="viva-view-ask")
        self._known: dict[Path, tuple[float, LiveAnswer]] = {}  # (earliest time of the next question, answer)
        self._asking: dict[Path, asyncio.Future[LiveAnswer]] = {}
        self._steering = asyncio.Semaphore(_MOST_ASKED)

    def close(self) -> None:
        """Wait for no answer; requests in progress end by their own limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def status(self, folder: Path) -> LiveAnswer:
        """Return the run's last answer, after asking it if that is a second old; wait at most for half a second."""
        following, known = self._known.get(folder, (0.0, _NO_ANSWER))
        if time.monotonic() < following:
            return known
        asking = self._asking.get(folder)
        if asking is None:
            asking = asyncio.get_running_loop().run_in_executor(self._threads, _ask_status, folder)
            self._asking[folder] = asking
            asking.add_done_callback(lambda done: self._remember(folder, done))
        await asyncio.wait([asking], timeout=_ASK_SECONDS + 0.1)
        return asking.result() if asking.done() and not asking.cancelled() else known

    async def steer(self, folder: Path, request: ControlRequest) -> str:
        """Send a request that changes the run; return the sentence that it answered.

        Raises:
            ConfigurationError: The run was not asked, did not answer, or refused the request.
        """
        if problem := await asyncio.to_thread(own_folder_problem, folder):
            raise ConfigurationError(f"this run is not steered from here: {problem}")
        async with self._steering:
            answer = await asyncio.to_thread(ask, folder, request, _STEER_SECONDS)
        self._known.pop(folder, None)
        return str(answer["message"])

    def _remember(self, folder: Path, done: asyncio.Future[LiveAnswer]) -> None:
        self._asking.pop(folder, None)
        if done.cancelled():
            return
        answer = done.result()
        pause = _SHORTEST_INTERVAL if answer.status is not None else _SILENT_INTERVAL
        self._known.pop(folder, None)
        self._known[folder] = (time.monotonic() + pause, answer)
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _ask_status(folder: Path) -> LiveAnswer:
    if problem := own_folder_problem(folder):
        return LiveAnswer(problem=problem)
    try:
        return LiveAnswer(ControlAnswer.model_validate(ask(folder, ControlRequest(), _ASK_SECONDS)).status)
    except ConfigurationError as error:
        return LiveAnswer(problem=str(error))
    except Exception as error:  # a page is shown without what a run says of itself
        _log.warning("viva view: cannot ask the run %s", folder, exc_info=True)
        return LiveAnswer(problem=f"{type(error).__name__}: {error}")


class _WatchedRun(Broadcast):
    """The live part of one run's page, for all its readers. A position is the number of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self._event = b""
        self.visitors = 0  # readers, and those about to read
        self.task: asyncio.Task[None] | None = None

    def show(self, html: str) -> None:
        """Send a new text to the readers, unless it is the last one."""
        position = part_number(html)
        if position != self.position:
            self.position = position
            self._event = server_sent_event({"part": html}, str(position))
            self.wake()

    def since(self, position: int) -> tuple[bytes, int]:
        """Return the latest text if a reader has another one, and its position."""
        return (b"" if position == self.position else self._event), self.position


def part_number(html: str) -> int:
    """Return a number for a text of a page's live part, so that a page that has it is not sent it again."""
    return int.from_bytes(hashlib.blake2b(html.encode(), digest_size=6).digest(), "big") + 1


Stream = Callable[[web.Request, Broadcast, int, Callable[[int], tuple[bytes, int]]], Awaitable[web.StreamResponse]]


class RunUpdates:
    """Sends the live parts of runs' pages to their readers, at most every `tick` seconds and only while there are any.

    `render` returns the part of a run; `stream` answers a reader.
    """

    def __init__(self, render: Callable[[str], Awaitable[str]], stream: Stream, tick: float = 1.0) -> None:
        self._render, self._stream, self._tick = render, stream, tick
        self._watched: dict[str, _WatchedRun] = {}

    @property
    def readers(self) -> int:
        return sum(run.visitors for run in self._watched.values())

    async def serve(self, request: web.Request, run: str, latest: int) -> web.StreamResponse:
        """Answer one reader of a run, which has the text `latest`, until it disconnects."""
        html = await self._render(run)  # refuses an unknown run
        watched = self._watched.setdefault(run, _WatchedRun())
        watched.show(html)
        watched.visitors += 1
        try:
            if watched.task is None:
                watched.task = asyncio.get_running_loop().create_task(self._watch(run, watched))
            return await self._stream(request, watched, latest, watched.since)
        finally:
            watched.visitors -= 1

    async def stop(self) -> None:
        """Disconnect all readers."""
        tasks = [run.task for run in self._watched.values() if run.task is not None]
        for run in self._watched.values():
            run.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, run: str, watched: _WatchedRun) -> None:
        try:
            while True:
                await asyncio.sleep(self._tick)
                if not watched.visitors:
                    return
                try:
                    watched.show(await self._render(run))
                except Exception:  # such as a run that was removed; its page stays as it is
                    _log.debug("viva view: cannot render the run %s", run, exc_info=True)
        finally:
            self._watched.pop(run, None)


def clip_text(text: Any, limit: int = 300) -> str:
    """Return a text by others as one line of at most `limit` characters."""
    plain = " ".join(str(text)[: 2 * limit].split())
    return plain if len(plain) <= limit else f"{plain[:limit]}…"

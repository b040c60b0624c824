"""A person as a backend: `human:ROOM`. A request waits in a queue until somebody answers it.

Option: `timeout` (seconds, or a number with s, m, h, d or w; default: none). However many requests wait, the queue's
file is polled once every half second.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..cancellation import cancellable_wait
from ..clock import Clock, VirtualClock
from ..durations import format_duration, parse_duration
from ..errors import ConfigurationError, Unanswered, VivaError
from ..likelihood import Reading
from ..messages import Completion, Request
from .base import Backend, ModelSpec
from .endpoint_answer import estimate_missing_counts
from .human_queue import AnswerQueue, HumanAnswer, PendingQuestion, QuestionState

T = TypeVar("T")
POLL_SECONDS = 0.5
_SHORTEST_TIMEOUT = 1e-6  # seconds; a latency of 0 would be replaced by this process's own measurement
_log = logging.getLogger("viva")


@dataclass(slots=True)
class _WaitingRequest:
    """A waiting request of this process: its awaiting callers and its deadline."""

    question: PendingQuestion
    futures: list[asyncio.Future[HumanAnswer]] = field(default_factory=list)
    deadline: float | None = None


class HumanBackend(Backend):
    """Backend of a room. `timeout` is in seconds and counts from the first request, across restarts.

    `generate` raises `Unanswered` after the timeout. A request whose caller is cancelled is withdrawn; a request whose
    run stops and may be resumed keeps waiting in the room.
    """

    def __init__(self, folder: Path, clock: Clock, timeout: float | None = None) -> None:
        self._folder, self._clock, self._timeout = folder, clock, timeout
        self._asker = uuid.uuid4().hex
        # One thread owns the room: requests are written in order, and file locks never block the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-room")
        self._opened: AnswerQueue | None = None
        self._version = self._seen = -1
        self._waits: dict[str, _WaitingRequest] = {}
        self._withdrawn: dict[str, list[str]] = {}  # by conversation (affinity)
        self._watcher: asyncio.Task[None] | None = None
        self._announced = False
        self._answered = 0

    async def check(self) -> None:
        """Create the room."""
        await self._in_thread(self._room)

    async def __aexit__(self, *exc: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._thread.submit(self._close)
        await asyncio.to_thread(self._thread.shutdown)

    async def generate(self, request: Request) -> Completion:
        """Ask a person; the text arrives in one piece. Raise `Unanswered` after the timeout."""
        if request.sampling.logprobs is not None:
            raise ConfigurationError(f"{self.label}: a person gives no log-probabilities; use a model of another kind")
        question = PendingQuestion.from_request(request)
        wait = self._waits.setdefault(question.name, _WaitingRequest(question))
        future: asyncio.Future[HumanAnswer] = asyncio.get_running_loop().create_future()
        wait.futures.append(future)  # before the question is stored, so that no answer is missed
        try:
            with (
                cancellable_wait()
            ):  # a stopping run waits for nobody; the request stays in the room until it is resumed
                state = await self._in_thread(lambda: self._ask(question))
                answer = state.answer or await self._wait_for_answer(wait, future, state)
        except asyncio.CancelledError:
            if wait.futures == [future]:
                self._withdraw(question.name, request.affinity)
            raise
        finally:
            if not future.cancel() and not future.cancelled():
                future.exception()  # mark it as retrieved, in case the caller was cancelled at this moment
            wait.futures.remove(future)
            if not wait.futures:
                self._waits.pop(question.name, None)
        return self._completion(request, answer, state)

    async def read(self, reading: Reading) -> Completion:
        """Raise ConfigurationError: a person cannot report likelihoods."""
        raise ConfigurationError(
            f"{self.label}: a person gives no log-probabilities of a text; use a model of another kind"
        )

    def ended(self, affinity: str) -> None:
        self._withdrawn.pop(affinity, None)

    def interrupted(self, affinity: str) -> None:
        """Reopen requests that were withdrawn because the run was interrupted, for the run may be resumed."""
        names = self._withdrawn.pop(affinity, None)
        if names:
            self._later(lambda room: room.reopen(names, self._asker))

    def statistics(self) -> dict[str, Any]:
        return {"in_flight": len(self._waits), "answered": self._answered}

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _wait_for_answer(
        self, wait: _WaitingRequest, future: asyncio.Future[HumanAnswer], state: QuestionState
    ) -> HumanAnswer:
        wait.deadline = state.deadline
        if not self._announced:
            self._announced = True
            _log.warning(
                "waiting for a person: answer the questions with `viva grade answer %s`",
                self._folder,
                extra={"label": ""},
            )
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        return await future

    async def _watch(self) -> None:
        """Poll the room while requests wait."""
        while self._waits:
            try:
                answers, withdrawn = await self._in_thread(self._look)
                for name, answer in answers:
                    self._settle(name, answer)
                for name in withdrawn & self._waits.keys():  # withdrawn by another run with the same question
                    await self._ask_again(self._waits[name])
                await self._expire()
            except Exception as error:  # the room is unusable: nobody can wait any longer
                for name in list(self._waits):
                    self._settle(name, error)
                return
            await self._clock.sleep(POLL_SECONDS)

    async def _ask_again(self, wait: _WaitingRequest) -> None:
        wait.deadline = (await self._in_thread(lambda: self._ask(wait.question))).deadline

    def _ask(self, question: PendingQuestion) -> QuestionState:
        return self._room().ask(question, self._asker, self._timeout)

    def _look(self) -> tuple[list[tuple[str, HumanAnswer]], set[str]]:
        """Return new answers and withdrawn names if anything has changed. Runs in the room's thread."""
        room = self._room()
        version = room.version()
        if version == self._version:
            return [], set()
        answers_since = room.answers_since(self._seen)
        self._version = version
        self._seen = answers_since[-1][0] if answers_since else self._seen
        return [(name, answer) for _, name, answer in answers_since], room.withdrawn()

    async def _expire(self) -> None:
        now = self._clock.wall()
        late = [name for name, wait in self._waits.items() if wait.deadline is not None and wait.deadline <= now]
        if not late:
            return
        for name, answer in (await self._in_thread(lambda: self._room().expire(late))).items():
            names = f"nobody answered within {format_duration(self._timeout or 0.0)}"
            self._settle(name, answer or Unanswered(names, model=self.label))

    def _settle(self, name: str, outcome: HumanAnswer | Exception) -> None:
        wait = self._waits.get(name)
        for future in [] if wait is None else wait.futures:
            if not future.done():
                future.set_result(outcome) if isinstance(outcome, HumanAnswer) else future.set_exception(outcome)

    def _withdraw(self, name: str, affinity: str) -> None:
        if affinity:
            self._withdrawn.setdefault(affinity, []).append(name)
        self._later(lambda room: room.withdraw([name], self._asker))

    # -- the room's thread ----------------------------------------------------------------------------------------

    def _room(self) -> AnswerQueue:
        if self._opened is None:
            self._opened = AnswerQueue(self._folder, self._clock.wall)
            self._opened.enter()
            self._seen = self._opened.last_submission()
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)

    def _later(self, change: Callable[[AnswerQueue], None]) -> None:
        """Queue a change of the room after all earlier changes, without waiting for its end."""

        def attempt() -> None:
            try:
                change(self._room())
            except VivaError as error:
                _log.warning("%s: %s", self.label, error)

        self._thread.submit(attempt)

    def _completion(self, request: Request, answer: HumanAnswer, state: QuestionState) -> Completion:
        self._answered += 1
        completion = Completion(
            answer.text, latency=max(_SHORTEST_TIMEOUT, answer.at - state.at), calls=answer.tool_calls()
        )
        estimate_missing_counts(completion, request)
        if request.on_text is not None:
            request.on_text(answer.text)
        return completion


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a person from `human:ROOM`; the folder ROOM is created on first use."""
    if not spec.where or spec.fragment:
        raise ConfigurationError(
            f"model '{spec.text}': expected human:ROOM, where ROOM is a folder without # in its path"
        )
    timeout = _parse_timeout(spec)
    if isinstance(clock, VirtualClock):
        raise ConfigurationError(
            f"model '{spec.text}': a virtual clock skips waiting, but a person answers in real time; use the real "
            "clock, or a simulated model"
        )
    return HumanBackend(Path(spec.where).expanduser(), clock, timeout)


def _parse_timeout(spec: ModelSpec) -> float | None:
    text = spec.take("timeout")
    if text is None:
        return None
    seconds = float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) else parse_duration(text)
    if not seconds:
        raise ConfigurationError(
            f"model '{spec.text}': timeout={text}: expected a time above 0, in seconds or with a unit: 90s, 30m, 12h, "
            "3d, 2w"
        )
    return seconds

"""Carries out one part of a step: lets requests in when they are due, and sees all of them to their end.

In an open loop arrivals are known ahead, as absolute times. One timer waits for the next of them; each request is a
task of its own, and nothing bounds how many are in flight, so a slow judge cannot slow the load. Nor can a slow client
hide that it was late: a request that is dispatched late keeps its intended time. In a closed loop each of a fixed
number of workers sends its next request when the last one is answered.

What never belongs here: rates and steps, figures, what is stored.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from viva.engine.clock import Clock
from viva.scoring.load.saturation import QueueWatch

from .records import LoadStep, Sent
from .sending import Judge, Sender

DONE, SATURATED, TOO_MANY, INTERRUPTED = "done", "saturated", "too_many_in_flight", "interrupted"
_AT_ONCE = 64  # requests begun in one turn of the event loop
_SAMPLES = 64  # of the queue, in a step of known length
_SAMPLE_SECONDS = 0.5
_RESOLUTION = 1e-6  # seconds


@dataclass(slots=True)
class Stream:
    """One judge's requests in a part: ``numbers`` to send, ``times`` when each is due (None in a closed loop).

    ``end`` says why no further request is let in, "" while they are; ``let_in`` is for how many seconds they were.
    """

    judge: Judge
    numbers: Iterator[int]
    times: Iterator[float] | None = None
    queue: QueueWatch = field(default_factory=QueueWatch)
    arrived: int = 0
    ended: int = 0
    most_in_flight: int = 0
    end: str = ""
    let_in: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that were begun and have not ended."""
        return self.arrived - self.ended


@dataclass(slots=True, frozen=True)
class Bounds:
    """What ends a part early. ``drain``: seconds after the last arrival in which requests may still be answered."""

    drain: float = 60.0
    most_in_flight: int = 10_000
    saturation: bool = True


class PartDriver:
    """One part of a step, for all judges of the step; ``run`` it once. ``hear`` is called with each ended request."""

    def __init__(
        self,
        clock: Clock,
        step: LoadStep,
        part: int,
        streams: list[Stream],
        sender: Sender,
        bounds: Bounds,
        hear: Callable[[Sent], None],
        seconds: float | None = None,
    ) -> None:
        self.step, self.part, self.streams = step, part, streams
        self._clock, self._sender, self._bounds, self._hear = clock, sender, bounds, hear
        self._seconds = seconds  # that this part may last
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[tuple[float, int, int]] = []  # when the next request of each stream is due, stream, number
        self._timers: dict[str, asyncio.Handle] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self.began = 0.0

    @property
    def seconds(self) -> float:
        """For how long the part has been going on."""
        return self._clock.now() - self.began

    async def run(self) -> None:
        """Send everything and wait for the answers; each stream then has its ``end``.

        :raises VivaError: one that every further request would meet, such as a refused key.
        """
        self._loop = asyncio.get_running_loop()
        self._began_loop, self.began = self._loop.time(), self._clock.now()
        self._every = self._sample_seconds()
        self._sender.given_up = ""
        self._timers["sample"] = self._loop.call_later(self._every, self._sample)
        try:
            if self.step.arrivals == "closed":
                for stream in self.streams:
                    for _ in range(self.step.concurrency or 1):
                        self._spawn(self._work_off(stream))
            else:
                for place in range(len(self.streams)):
                    self._next(place)
                self._tick()
            await self._until(lambda: all(stream.end for stream in self.streams))
            self._judge_queues()
            await self._drain()
        finally:
            for timer in self._timers.values():
                timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    def stop(self, why: str = INTERRUPTED) -> None:
        """Let no further request in; those under way go on."""
        for stream in self.streams:
            self._finish(stream, why)

    def fail(self, error: BaseException) -> None:
        """End at once with this error."""
        self._failure = self._failure or error
        self.stop()
        self._changed.set()

    # -- open loop ------------------------------------------------------------------------------------------------

    def _next(self, place: int) -> None:
        """Put the next arrival of a stream where the timer looks; the stream is done where there is none."""
        stream = self.streams[place]
        time = next(stream.times or iter(()), None)
        if time is None or (self._seconds is not None and time >= self._seconds):
            self._finish(stream, DONE, self._seconds)
        elif (number := next(stream.numbers, None)) is None:
            self._finish(stream, DONE, time)
        else:
            heapq.heappush(self._due, (time, place, number))

    def _tick(self) -> None:
        """Begin what is due, and set the timer for what is due next."""
        begun = 0
        # The loop fires timers up to its resolution early, and sums of times round: what is as good as due is due.
        now = self._loop.time() + _RESOLUTION
        try:
            while self._due and self._began_loop + self._due[0][0] <= now:
                time, place, number = heapq.heappop(self._due)
                stream = self.streams[place]
                if not stream.end:
                    self._begin(stream)
                    self._spawn(self._send(stream, number, time))
                    self._next(place)
                    begun += 1
                if begun == _AT_ONCE:
                    self._timers["next"] = self._loop.call_soon(self._tick)
                    return
        except Exception as error:  # nobody awaits a timer
            self.fail(error)
            return
        if self._due:
            self._timers["next"] = self._loop.call_at(self._began_loop + self._due[0][0], self._tick)

    # -- closed loop ----------------------------------------------------------------------------------------------

    async def _work_off(self, stream: Stream) -> None:
        while not stream.end:
            now = self.seconds
            if self._seconds is not None and now >= self._seconds:
                self._finish(stream, DONE)
                break
            number = next(stream.numbers, None)
            if number is None:
                self._finish(stream, DONE)
                break
            self._begin(stream)
            await self._send(stream, number, now)

    # -- both -----------------------------------------------------------------------------------------------------

    def _begin(self, stream: Stream) -> None:
        stream.arrived += 1
        stream.most_in_flight = max(stream.most_in_flight, stream.in_flight)
        if stream.in_flight > self._bounds.most_in_flight and self.step.arrivals != "closed":
            self._finish(stream, TOO_MANY)

    async def _send(self, stream: Stream, number: int, intended: float) -> None:
        sent = await self._sender.send(stream.judge, self.step.index, self.part, number, intended, self.began)
        stream.ended += 1
        if not sent.error:
            stream.queue.answered(sent.finished - sent.intended)
        self._hear(sent)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        if not self._tasks:
            self._changed.set()

    def _finish(self, stream: Stream, why: str, seconds: float | None = None) -> None:
        """No further request of this stream; ``seconds`` are how long they were let in, else until now."""
        if not stream.end:
            stream.end = why
            stream.let_in = self.seconds if seconds is None else seconds
            self._changed.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds() and self._failure is None:
            self._changed.clear()
            await self._changed.wait()

    async def _drain(self) -> None:
        """Wait for the answers; what takes longer than the bound is given up, and recorded so."""
        give_up = self._loop.call_later(self._bounds.drain, self._give_up)
        try:
            await self._until(lambda: not self._tasks)
        finally:
            give_up.cancel()

    def _give_up(self) -> None:
        if not any(stream.end == INTERRUPTED for stream in self.streams):  # else they are sent again by a resume
            self._sender.given_up = f"no answer within {self._bounds.drain:g} s after the last request of the step"
        for task in self._tasks:
            task.cancel()

    def _sample_seconds(self) -> float:
        expected = self._seconds
        if expected is None and self.step.requests is not None and self.step.rate is not None:
            expected = self.step.requests / self.step.rate
        return _SAMPLE_SECONDS if expected is None else min(_SAMPLE_SECONDS, expected / _SAMPLES)

    def _sample(self) -> None:
        now = self.seconds
        for stream in self.streams:
            if not stream.end:
                stream.queue.sample(now, stream.arrived, stream.in_flight)
                if self._bounds.saturation and stream.times is not None and stream.queue.grows():
                    self._finish(stream, SATURATED)
        self._timers["sample"] = self._loop.call_later(self._every, self._sample)

    def _judge_queues(self) -> None:
        """At the end of the arrivals, when the whole step is known."""
        for stream in self.streams:
            if stream.end == DONE and stream.times is not None and stream.queue.grows(at_end=True):
                stream.end = SATURATED

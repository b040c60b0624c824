"""Load of one part of a step, in an open or a closed loop: which requests are sent, and when each is due.

In an open loop all arrivals are known in advance, as absolute times. One timer waits for the next arrival; each request
is a separate task, and the number in flight is unbounded, so a slow judge cannot slow down the load. A slow client
cannot hide its delay: a request that is dispatched late keeps its intended time. In a closed loop each of a fixed
number of workers sends its next request when its last one is answered. A part that continues a killed step sends
exactly the missing requests.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.scoring import load_schedule
from viva.scoring.load_latency import QueueWatch

from .judge_client import LoadJudge, RequestSender
from .load_records import LoadRequests, LoadStep, SentRequest

DONE, SATURATED, TOO_MANY, INTERRUPTED = "done", "saturated", "too_many_in_flight", "interrupted"
_BEGUN_AT_ONCE = 64  # maximum requests begun per turn of the event loop
_SAMPLES = 64  # samples of the queue in a step of known length
_SAMPLE_SECONDS = 0.5
_RESOLUTION = 1e-6  # seconds


@dataclass(slots=True)
class JudgeStream:
    """Requests of one judge in a part: `numbers` to send; `times` says when each is due (None in a closed loop).

    `end` says why no further request is admitted; it is "" while requests are admitted. `let_in` is the duration of
    admission in seconds.
    """

    judge: LoadJudge
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
        """Number of requests that have begun and not ended."""
        return self.arrived - self.ended


@dataclass(slots=True, frozen=True)
class DriverBounds:
    """Bounds that end a part early. `drain`: seconds to wait for answers after the last arrival."""

    drain: float = 60.0
    most_in_flight: int = 10_000
    saturation: bool = True


class PartDriver:
    """Driver of one part of a step, for all its judges; single use. `on_request_end` gets each ended request."""

    def __init__(
        self,
        clock: Clock,
        step: LoadStep,
        part: int,
        streams: list[JudgeStream],
        sender: RequestSender,
        bounds: DriverBounds,
        on_request_end: Callable[[SentRequest], None],
        seconds: float | None = None,
    ) -> None:
        self.step, self.part, self.streams = step, part, streams
        self._clock, self._sender, self._bounds, self._on_request_end = clock, sender, bounds, on_request_end
        self._seconds = seconds  # maximum duration of this part
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[tuple[float, int, int]] = []  # heap with each stream's next request: (due time, stream, number)
        self._timers: dict[str, asyncio.Handle] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self.began = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the part began."""
        return self._clock.now() - self.began

    async def run(self) -> None:
        """Send all requests and wait for the answers; each stream then has its `end`.

        Raises:
            VivaError: Every further request would fail, too, for example because the key is refused.
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
                for index in range(len(self.streams)):
                    self._next(index)
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

    def stop(self, reason: str = INTERRUPTED) -> None:
        """Admit no further request; requests in flight continue."""
        for stream in self.streams:
            self._finish(stream, reason)

    def fail(self, error: BaseException) -> None:
        """End at once with this error."""
        self._failure = self._failure or error
        self.stop()
        self._changed.set()

    # -- open loop ------------------------------------------------------------------------------------------------

    def _next(self, index: int) -> None:
        """Schedule the next arrival of a stream, or finish the stream if there is none."""
        stream = self.streams[index]
        time = next(stream.times or iter(()), None)
        if time is None or (self._seconds is not None and time >= self._seconds):
            self._finish(stream, DONE, self._seconds)
        elif (number := next(stream.numbers, None)) is None:
            self._finish(stream, DONE, time)
        else:
            heapq.heappush(self._due, (time, index, number))

    def _tick(self) -> None:
        """Begin the requests that are due, and set the timer for the next one."""
        begun = 0
        # Timers may fire early by the loop's resolution, and sums of times are rounded.
        now = self._loop.time() + _RESOLUTION
        try:
            while self._due and self._began_loop + self._due[0][0] <= now:
                time, index, number = heapq.heappop(self._due)
                stream = self.streams[index]
                if not stream.end:
                    self._begin(stream)
                    self._spawn(self._send(stream, number, time))
                    self._next(index)
                    begun += 1
                if begun == _BEGUN_AT_ONCE:
                    self._timers["next"] = self._loop.call_soon(self._tick)
                    return
        except Exception as error:  # nobody awaits a timer, so its error would be lost
            self.fail(error)
            return
        if self._due:
            self._timers["next"] = self._loop.call_at(self._began_loop + self._due[0][0], self._tick)

    # -- closed loop ----------------------------------------------------------------------------------------------

    async def _work_off(self, stream: JudgeStream) -> None:
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

    def _begin(self, stream: JudgeStream) -> None:
        stream.arrived += 1
        stream.most_in_flight = max(stream.most_in_flight, stream.in_flight)
        if stream.in_flight > self._bounds.most_in_flight and self.step.arrivals != "closed":
            self._finish(stream, TOO_MANY)

    async def _send(self, stream: JudgeStream, number: int, intended: float) -> None:
        record = await self._sender.send(stream.judge, self.step.index, self.part, number, intended, self.began)
        stream.ended += 1
        if not record.error:
            stream.queue.answered(record.finished - record.intended)
        self._on_request_end(record)

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

    def _finish(self, stream: JudgeStream, reason: str, seconds: float | None = None) -> None:
        """Admit no further request of this stream. Requests were admitted for `seconds` (default: until now)."""
        if not stream.end:
            stream.end = reason
            stream.let_in = self.seconds if seconds is None else seconds
            self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and self._failure is None:
            self._changed.clear()
            await self._changed.wait()

    async def _drain(self) -> None:
        """Wait for the answers; requests that exceed the bound are given up and recorded as unfinished."""
        give_up = self._loop.call_later(self._bounds.drain, self._give_up)
        try:
            await self._until(lambda: not self._tasks)
        finally:
            give_up.cancel()

    def _give_up(self) -> None:
        # After an interruption they are not recorded as given up, so that a resumed test sends them again.
        if not any(stream.end == INTERRUPTED for stream in self.streams):
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
                if self._bounds.saturation and stream.times is not None and stream.queue.is_growing():
                    self._finish(stream, SATURATED)
        self._timers["sample"] = self._loop.call_later(self._every, self._sample)

    def _judge_queues(self) -> None:
        """Check for growing queues at the end of the arrivals."""
        for stream in self.streams:
            if stream.end == DONE and stream.times is not None and stream.queue.is_growing(at_end=True):
                stream.end = SATURATED


def judge_stream(
    step: LoadStep,
    part: int,
    judge: LoadJudge,
    work: LoadRequests,
    seed: int,
    finished: bytearray,
    *,
    first: bool,
    independent: bool,
) -> JudgeStream:
    """Return a judge's requests in a part.

    `finished` has 1 at the number of each ended request. `first`: this is the judge's first part in the step.
    `independent`: the judge's arrivals are drawn independently of other judges' arrivals at this rate.
    """
    if step.arrivals == "closed":
        return JudgeStream(judge, _unfinished_numbers(finished, step.requests))
    names = (
        seed,
        "arrivals",
        step.arrivals,
        step.rate,
        *([] if first else [part]),
        *([judge.label] if independent else []),
    )
    if first:
        return JudgeStream(judge, _unfinished_numbers(finished, step.requests), _arrival_times(step, work, *names))
    planned = planned_requests(step, work, seed, judge, independent=independent)
    if step.arrivals == "replay":
        return JudgeStream(
            judge,
            _unfinished_numbers(finished, planned),
            _remaining_times(_unfinished_numbers(finished, planned), _arrival_times(step, work)),
        )
    return JudgeStream(judge, _unfinished_numbers(finished, planned), _arrival_times(step, work, *names))


def planned_requests(
    step: LoadStep, work: LoadRequests, seed: int, judge: LoadJudge, *, independent: bool
) -> int | None:
    """Return how many requests a complete step sends to a judge; None if that depends on the answers."""
    if step.arrivals == "closed":
        return step.requests
    if step.seconds is None:
        return step.requests
    times = _arrival_times(
        step, work, seed, "arrivals", step.arrivals, step.rate, *([judge.label] if independent else [])
    )
    bounded = itertools.takewhile(lambda time: time < (step.seconds or 0.0), times)
    return sum(1 for _ in itertools.islice(bounded, step.requests))


def check_recorded_times(work: LoadRequests) -> None:
    """Check that arrivals can be replayed.

    Raises:
        ConfigurationError: A request has no time, or requests are not in the order of their times.
    """
    before = None
    for request in work:
        if request.at is None:
            raise ConfigurationError(
                f"replayed arrivals need a time for each request; '{request.id}' has none: choose constant, poisson or "
                "bursty arrivals, or record times"
            )
        if before is not None and request.at < before:
            raise ConfigurationError(
                f"replayed arrivals need requests in the order of their times; '{request.id}' comes too late: sort them"
            )
        before = request.at


def _unfinished_numbers(finished: bytearray, limit: int | None) -> Iterator[int]:
    """Yield the numbers of the unfinished requests, in order."""
    for number in itertools.count() if limit is None else range(limit):
        if number >= len(finished) or not finished[number]:
            yield number


def _remaining_times(numbers: Iterator[int], times: Iterator[float]) -> Iterator[float]:
    """Yield the recorded times of the remaining requests, relative to the first of them."""
    start: float | None = None
    previous = -1
    for number in numbers:
        time = next(itertools.islice(times, number - previous - 1, None))
        previous = number
        start = time if start is None else start
        yield time - start


def _arrival_times(step: LoadStep, work: LoadRequests, *seed: object) -> Iterator[float]:
    rate = step.rate or 0.0
    if step.arrivals == "constant":
        return load_schedule.constant_arrivals(rate)
    if step.arrivals == "poisson":
        return load_schedule.poisson_arrivals(rate, *seed)
    if step.arrivals == "bursty":
        return load_schedule.bursty_arrivals(rate, step.burst, *seed)
    try:
        return load_schedule.replay_arrivals([request.at or 0.0 for request in work], rate or None)
    except ValueError as error:
        raise ConfigurationError(f"load test: {error}") from None

"""Run functions of recorded steps off the event loop, each with a time limit. Failures are returned as values.

Threads share this process: a thread that exceeds its limit is abandoned, and its result ignored. A worker process is
killed instead and replaced when needed. Time limits of threads and processes are real seconds under any clock
(`Clock.external`). Recording is in `conversation`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, Literal

import anyio

from .cancellation import cancellable_wait, is_failure
from .clock import Clock
from .errors import ConfigurationError
from .steps import Result, is_coroutine_function, result_of_call, result_of_error, result_of_value, timeout_result
from .worker_process import WorkerProcess, pack_request

StepLocation = Literal["thread", "process"]
_THREADS = 40


class StepExecutor:
    """Executor of at most 40 threads at once, and one worker process per CPU (or `processes`).

    Further functions wait in order; their time limits begin when they run. An executor belongs to one event loop. Call
    `close` when nothing runs any more, to end idle workers.
    """

    def __init__(self, clock: Clock, processes: int | None = None) -> None:
        self._clock = clock
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._processes = anyio.CapacityLimiter(processes or os.cpu_count() or 1)
        self._idle: list[WorkerProcess] = []

    async def run(
        self, function: Callable[..., Any], arguments: Sequence[Any], limit: float, where: StepLocation = "thread"
    ) -> Result:
        """Call the function within `limit` seconds.

        A coroutine function is awaited in the event loop and cancelled at the limit, unless it is to run in a process.

        Raises:
            ConfigurationError: `where` or `limit` is invalid.
        """
        if where not in ("thread", "process"):
            raise ConfigurationError(f"where={where!r}: a step runs in a 'thread' or in a 'process'")
        if not 0 < limit <= threading.TIMEOUT_MAX:
            raise ConfigurationError(f"limit={limit!r}: expected a number of seconds above 0")
        if where == "process":
            async with _limiter_token(self._processes):
                return await self._run_in_process(function, arguments, limit)
        if is_coroutine_function(function):
            return await _await_result(function, arguments, limit)
        async with _limiter_token(self._threads):
            return await self._run_in_thread(lambda: result_of_call(function, arguments), limit, function)

    def close(self) -> None:
        """End the idle workers."""
        while self._idle:
            self._idle.pop().end()

    async def _run_in_process(self, function: Callable[..., Any], arguments: Sequence[Any], limit: float) -> Result:
        request = pack_request(function, arguments)
        if isinstance(request, tuple):
            return request
        worker = WorkerProcess()
        while self._idle:
            idle = self._idle.pop()
            if idle.alive:
                worker = idle
                break
            idle.end()
        try:
            result = await self._run_in_thread(lambda: worker.ask(request, function, limit))
        except BaseException:  # cancelled: the result is not needed
            worker.end()
            raise
        if worker.usable:
            self._idle.append(worker)
        return result

    async def _run_in_thread(
        self, work: Callable[[], Result], limit: float | None = None, function: Callable[..., Any] | None = None
    ) -> Result:
        """Do the work in a new thread, which is abandoned at the limit."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def deliver(result: Result) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, answer, result)
            except RuntimeError:  # the loop was closed
                pass

        context = copy_context()  # with the permissions of this context
        thread = threading.Thread(target=lambda: deliver(context.run(work)), name="viva-compute", daemon=True)
        timer = None
        if limit is not None and function is not None:
            # The loop's timers may be virtual and stand still while waiting for a thread.
            timer = threading.Timer(limit, deliver, (timeout_result(function, limit),))
            timer.daemon = True
        with self._clock.external():
            thread.start()
            if timer is not None:
                timer.start()
            try:
                return await answer
            finally:
                if timer is not None:
                    timer.cancel()


@asynccontextmanager
async def _limiter_token(limiter: anyio.CapacityLimiter) -> AsyncIterator[None]:
    """Hold a token of a limiter; raise `RunStopping` if the run is asked to stop before one is free."""
    with cancellable_wait():
        await limiter.acquire()
    try:
        yield
    finally:
        limiter.release()


async def _await_result(function: Callable[..., Awaitable[Any]], arguments: Sequence[Any], limit: float) -> Result:
    with anyio.move_on_after(limit):
        try:
            value = await function(*arguments)
        except BaseException as error:
            if not is_failure(error):
                raise
            return result_of_error(error, function)
        return result_of_value(value, function)
    return timeout_result(function, limit)


def _resolve(answer: asyncio.Future[Result], result: Result) -> None:
    if not answer.done():
        answer.set_result(result)

"""Signals during work with a progress display: Ctrl-C interrupts; a second Ctrl-C, SIGTERM or SIGHUP halts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from viva.engine.clock import Clock

T = TypeVar("T")


class Stoppable(Protocol):
    """Work that can be stopped: a run or a sweep."""

    def interrupt(self) -> None:
        """Finish the calls in flight and start nothing new."""

    def halt(self) -> None:
        """Stop now; calls in flight are cancelled."""


class Display(Protocol):
    """Progress display; `note` is shown with the progress."""

    note: str

    async def show(self) -> None: ...


async def run_with_signals(work: Callable[[Callable[[Any], None]], Awaitable[T]], display: Display) -> T:
    """Await `work(ready)` while showing progress and handling signals.

    `work` calls `ready` with the object that a signal is to stop. A signal before `ready` is called cancels `work`.

    Raises:
        KeyboardInterrupt: A signal came before `ready` was called.
    """
    import asyncio

    import anyio

    from viva.engine.errors import VivaError

    results: list[T] = []
    failure: VivaError | None = None
    obeyed: Stoppable | None = None
    interrupts = 0

    def ready(stoppable: Stoppable) -> None:
        nonlocal obeyed
        obeyed = stoppable

    def stop(*, now: bool) -> None:
        nonlocal interrupts
        interrupts += 1
        if obeyed is None:  # models are still being opened: nothing has started
            group.cancel_scope.cancel()
        elif now or interrupts > 1:
            obeyed.halt()
        else:
            display.note = "finishing the calls in flight (Ctrl-C again to stop now)"
            if not sys.stderr.isatty():  # in a terminal the progress line shows the note
                print(display.note, file=sys.stderr, flush=True)
            obeyed.interrupt()

    async with anyio.create_task_group() as group:
        # Without its own handlers, the event loop may not wake up for a signal.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, partial(stop, now=False))
        loop.add_signal_handler(signal.SIGTERM, partial(stop, now=True))
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(signal.SIGHUP, partial(stop, now=True))
        group.start_soon(display.show)
        try:
            results.append(await work(ready))
        except VivaError as error:  # raised below, so that no exception group wraps it
            failure = error
        finally:
            group.cancel_scope.cancel()
    if results:
        return results[0]
    if failure is None and interrupts:
        raise KeyboardInterrupt
    raise failure or RuntimeError("the work was cancelled from outside")


def run_in_foreground(clock: Clock, work: Callable[[Callable[[Any], None]], Awaitable[T]], display: Display) -> T:
    """Run `run_with_signals` in the clock's event loop; return the work's result."""
    from viva.engine.event_loop import gc_tuned

    with gc_tuned():
        return clock.run(lambda: run_with_signals(work, display))

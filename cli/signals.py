"""Signals during work that shows its progress: Ctrl-C interrupts; a second one, SIGTERM and SIGHUP halt."""

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
    """What can be asked to stop: a run, or a sweep of runs."""

    def interrupt(self) -> None:
        """Finish the calls under way, begin nothing new."""

    def halt(self) -> None:
        """Stop now."""


class Display(Protocol):
    """What shows how the work goes; ``note`` is shown with it."""

    note: str

    async def show(self) -> None:
        """Display until cancelled."""


async def run_with_signals(work: Callable[[Callable[[Any], None]], Awaitable[T]], display: Display) -> T:
    """Await ``work(ready)``, obeying signals from the first moment on and showing progress.

    ``ready`` is called with what the signals are for; before that a signal ends the work as if it had not begun.

    :raises KeyboardInterrupt: a signal came before anything had begun.
    """
    import asyncio

    import anyio

    from viva.engine.errors import VivaError

    done: list[T] = []
    failure: VivaError | None = None
    obeyed: Stoppable | None = None
    interrupts = 0

    def ready(what: Stoppable) -> None:
        nonlocal obeyed
        obeyed = what

    def stop(*, now: bool) -> None:
        nonlocal interrupts
        interrupts += 1
        if obeyed is None:  # the models are still being looked at: nothing has begun
            group.cancel_scope.cancel()
        elif now or interrupts > 1:
            obeyed.halt()
        else:
            display.note = "finishing the calls under way (Ctrl-C again to stop now)"
            if not sys.stderr.isatty():  # there the line of progress says it
                print(display.note, file=sys.stderr, flush=True)
            obeyed.interrupt()

    async with anyio.create_task_group() as group:
        # From the first moment on: without a handler of its own the loop may sleep over a signal.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, partial(stop, now=False))
        loop.add_signal_handler(signal.SIGTERM, partial(stop, now=True))
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, partial(stop, now=True))
        group.start_soon(display.show)
        try:
            done.append(await work(ready))
        except VivaError as error:  # out of the group as itself, not as one of a group of errors
            failure = error
        finally:
            group.cancel_scope.cancel()
    if done:
        return done[0]
    if failure is None and interrupts:
        raise KeyboardInterrupt
    raise failure or RuntimeError("the work was cancelled from outside")


def run_in_foreground(clock: Clock, work: Callable[[Callable[[Any], None]], Awaitable[T]], display: Display) -> T:
    """Do the work in an event loop of its own, as ``run_with_signals`` does."""
    from viva.engine.event_loop import gc_tuned

    with gc_tuned():
        return clock.run(lambda: run_with_signals(work, display))

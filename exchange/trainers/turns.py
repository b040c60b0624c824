"""Conversations one after the other, in which a program from outside plays a role: it is asked, and answers, from
synchronous code. The run goes on in a thread of its own.

What never belongs here: what an environment or trainer makes of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from viva.engine.backends.base import Backend
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request
from viva.orchestration.folders import fresh_folder
from viva.orchestration.rollouts import Rollout, Rollouts, rollouts
from viva.scenarios.registry import AnyScenario


@dataclass(slots=True, frozen=True)
class Asked:
    """A request that waits for its answer."""

    request: Request
    answer: asyncio.Future[str]


class _Seat(Backend):
    """A model whose answers somebody else gives."""

    label = "policy"

    def __init__(self, hear: Callable[[Asked], None]) -> None:
        self._hear = hear

    async def generate(self, request: Request) -> Completion:
        asked = Asked(request, asyncio.get_running_loop().create_future())
        self._hear(asked)
        return Completion(await asked.answer)


class Turns:
    """Runs of a scenario, each in a new folder in ``folder``; ``role`` is the one that is played from outside.
    ``arguments`` are further ones of ``rollouts``. Used from one thread.
    """

    def __init__(self, which: AnyScenario, role: str, arguments: Mapping[str, Any], folder: Path) -> None:
        self._which, self._role, self._arguments, self._folder = which, role, arguments, folder
        self._thread: threading.Thread | None = None

    def begin(self, seed: Callable[[], int]) -> Asked:
        """The first request of the next conversation, of a new run with ``seed()`` where none goes on.

        :raises ConfigurationError: no conversation of a whole run asks the role for anything.
        :raises VivaError: what ended the run.
        """
        for _ in range(2):
            if self._thread is None:
                self._start(seed())
            while (came := self._take()) is not None:
                if isinstance(came, Asked):
                    return came
            self.end()
        raise ConfigurationError(f"{self._which.name}: no conversation asks the {self._role} for anything")

    def answer(self, asked: Asked, text: str) -> Asked | Rollout:
        """Answer; what came of it: the conversation's next request, or its end.

        :raises VivaError: what ended the run.
        """
        self._loop.call_soon_threadsafe(asked.answer.set_result, text)
        return self._rest(asked.request.conversation)

    def cancel(self, asked: Asked) -> None:
        """Cancel the conversation that waits for this answer."""
        key = asked.request.conversation
        asyncio.run_coroutine_threadsafe(self._rollouts.run.cancel(key), self._loop).result()
        self._rest(key)

    def end(self) -> None:
        """End the run, if one goes on, and wait for that."""
        if self._thread is not None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            self._thread = None

    def _rest(self, key: str) -> Asked | Rollout:
        """What comes next of one conversation; requests of the one after it are kept."""
        others: list[Any] = []
        while True:
            came = self._take()
            if came is None:
                raise ConfigurationError(f"{key}: the run has ended")
            if key == (came.request.conversation if isinstance(came, Asked) else came.key):
                self._ahead.extendleft(reversed(others))
                return came
            others.append(came)

    def _take(self) -> Asked | Rollout | None:
        """What happens next in the run, None when it has ended."""
        came = self._ahead.popleft() if self._ahead else self._happened.get()
        if isinstance(came, BaseException):
            self.end()
            raise came
        return came

    def _start(self, seed: int) -> None:
        self._happened: SimpleQueue[Asked | Rollout | BaseException | None] = SimpleQueue()
        self._ahead: deque[Asked | Rollout] = deque()
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold(seed, started)), daemon=True)
        self._thread.start()
        started.wait()

    async def _hold(self, seed: int, started: threading.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        started.set()
        try:
            models = {**self._arguments["models"], self._role: _Seat(self._happened.put)}
            out = fresh_folder(self._which.name, self._folder)
            self._rollouts: Rollouts = rollouts(
                self._which, **{**self._arguments, "models": models, "seed": seed, "concurrency": 1, "out": out}
            )
            async with aclosing(self._rollouts) as held:
                async for rollout in held:
                    self._happened.put(rollout)
            self._happened.put(None)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._happened.put(error)

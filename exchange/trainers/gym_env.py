"""Gymnasium environment of a scenario: the caller of ``step`` plays the role that is compared.

Conversations run one after the other in a thread with an event loop of its own; the environment's synchronous
code is asked for a reply, and answers. Gymnasium's own text space lists the characters that may occur; ours has
no list.
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
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from viva.engine.backends.base import Backend
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Completion, Request
from viva.orchestration.folders import fresh_folder
from viva.orchestration.python_api import scenario_of
from viva.orchestration.rollouts import Reward, Rollout, Rollouts, rollouts
from viva.scenarios.contract import compared_role
from viva.scenarios.registry import AnyScenario


class AnyText(Text):
    """Every text of at most ``max_length`` characters; samples are up to 64 letters and digits."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        drawn = None if mask or probability else (int(self.np_random.integers(1, 65)), None)
        return super().sample(drawn or mask, probability)


@dataclass(slots=True, frozen=True)
class PendingRequest:
    """A request that waits for its answer."""

    request: Request
    answer: asyncio.Future[str]


class _ExternalModel(Backend):
    """A model whose answers somebody else gives."""

    label = "policy"

    def __init__(self, hear: Callable[[PendingRequest], None]) -> None:
        self._hear = hear

    async def generate(self, request: Request) -> Completion:
        asked = PendingRequest(request, asyncio.get_running_loop().create_future())
        self._hear(asked)
        return Completion(await asked.answer)


class ExternalTurns:
    """Runs of a scenario, each in a new folder in ``folder``; ``role`` is the one that is played from outside.
    ``arguments`` are further ones of ``rollouts``. Used from one thread.
    """

    def __init__(self, which: AnyScenario, role: str, arguments: Mapping[str, Any], folder: Path) -> None:
        self._which, self._role, self._arguments, self._folder = which, role, arguments, folder
        self._thread: threading.Thread | None = None

    def begin(self, seed: Callable[[], int]) -> PendingRequest:
        """The first request of the next conversation, of a new run with ``seed()`` where none goes on."""
        for _ in range(2):
            if self._thread is None:
                self._start(seed())
            while (came := self._take()) is not None:
                if isinstance(came, PendingRequest):
                    return came
            self.end()
        raise ConfigurationError(f"{self._which.name}: no conversation asks the {self._role} for anything")

    def answer(self, asked: PendingRequest, text: str) -> PendingRequest | Rollout:
        """Answer; what came of it: the conversation's next request, or its end."""
        self._loop.call_soon_threadsafe(asked.answer.set_result, text)
        return self._rest(asked.request.conversation)

    def cancel(self, asked: PendingRequest) -> None:
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

    def _rest(self, key: str) -> PendingRequest | Rollout:
        """What comes next of one conversation; requests of the one after it are kept."""
        others: list[Any] = []
        while True:
            came = self._take()
            if came is None:
                raise ConfigurationError(f"{key}: the run has ended")
            if key == (came.request.conversation if isinstance(came, PendingRequest) else came.key):
                self._ahead.extendleft(reversed(others))
                return came
            others.append(came)

    def _take(self) -> PendingRequest | Rollout | None:
        """What happens next in the run, None when it has ended."""
        came = self._ahead.popleft() if self._ahead else self._happened.get()
        if isinstance(came, BaseException):
            self.end()
            raise came
        return came

    def _start(self, seed: int) -> None:
        self._happened: SimpleQueue[PendingRequest | Rollout | BaseException | None] = SimpleQueue()
        self._ahead: deque[PendingRequest | Rollout] = deque()
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
            models = {**self._arguments["models"], self._role: _ExternalModel(self._happened.put)}
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


_LONGEST_TEXT = 1_000_000  # characters of an observation or an action


class InterviewEnv(gymnasium.Env[str, str]):
    """One episode is one conversation. An observation is the last thing that the role was told, an action its answer.

    The reward comes with the last step. ``info`` has ``key`` and ``messages`` (all that the role was sent), at the end
    ``value``, ``rewards`` (of the role's turns), ``unscored``, ``error``. ``reset(seed=…)`` begins a new run; a later
    ``reset`` cancels what is not at its end and takes the next conversation, after the last one a new run's. ``models``
    are those of the other roles; run folders are made in ``out``, else in a folder that ``close`` removes; all else is
    as for ``viva.rollouts``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        which: Any,
        *,
        models: dict[str, Any] | None = None,
        tasks: Any = None,
        reward: Callable[[Any], Reward] | None = None,
        out: str | Path | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        scenario = scenario_of(which)
        self._role = compared_role(scenario.roles).name
        arguments = settings | {"models": models or {}, "tasks": tasks, "reward": reward}
        self._temporary = TemporaryDirectory(prefix="viva-") if out is None else None
        folder = Path(self._temporary.name if self._temporary else out or "")
        self._turns = ExternalTurns(scenario, self._role, arguments, folder)
        self._asked: PendingRequest | None = None
        self._said: list[str] = []
        self.render_mode = render_mode
        self.observation_space, self.action_space = (
            AnyText(_LONGEST_TEXT, min_length=0),
            AnyText(_LONGEST_TEXT, min_length=0),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._turns.end()
        elif self._asked is not None:
            self._turns.cancel(self._asked)
        self._asked = self._turns.begin(lambda: int(self.np_random.integers(2**31)))
        return self._observed(self._asked)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._asked is None:
            raise ResetNeeded("no conversation is under way: call reset()")
        asked, self._asked = self._asked, None
        came = self._turns.answer(asked, action)
        self._said.append(f"assistant: {action}")
        if isinstance(came, Rollout):
            info: dict[str, Any] = {"key": came.key, "value": came.value, "unscored": came.reward is None}
            info["rewards"] = [turn.reward for turn in came.turns if turn.role == self._role]
            if came.error is not None:
                return "", 0.0, False, True, info | {"error": dict(came.error)}
            return "", float(came.reward or 0.0), True, False, info
        self._asked = came
        observation, info = self._observed(came)
        return observation, 0.0, False, False, info

    def _observed(self, asked: PendingRequest) -> tuple[str, dict[str, Any]]:
        messages = [message.to_openai() for message in asked.request.messages]
        self._said = [f"{message['role']}: {message['content']}" for message in messages]
        return str(messages[-1]["content"]), {"key": asked.request.conversation, "messages": messages}

    def render(self) -> str | None:
        return "\n".join(self._said) if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._turns.end()
        if self._temporary is not None:
            self._temporary.cleanup()

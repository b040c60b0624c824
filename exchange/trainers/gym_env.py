"""Gymnasium environment for a scenario: the caller of `step` plays the compared role.

Conversations run one at a time in a thread with its own event loop; this thread asks the synchronous environment for
answers.
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
    """Space of all texts of at most `max_length` characters; samples have up to 64 letters and digits."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        random_length = None if mask or probability else (int(self.np_random.integers(1, 65)), None)
        return super().sample(random_length or mask, probability)


@dataclass(slots=True, frozen=True)
class PendingRequest:
    """Request that waits for its answer."""

    request: Request
    answer: asyncio.Future[str]


class _ExternalModel(Backend):
    """Model whose answers come from outside the run."""

    label = "policy"

    def __init__(self, on_request: Callable[[PendingRequest], None]) -> None:
        self._on_request = on_request

    async def generate(self, request: Request) -> Completion:
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        self._on_request(pending)
        return Completion(await pending.answer)


class ExternalTurns:
    """Runs of a scenario in which the caller plays one role. Not thread-safe.

    Args:
        role: The role that the caller plays.
        arguments: Further arguments of `rollouts`.
        folder: Folder in which each run gets a new folder.
    """

    def __init__(self, scenario: AnyScenario, role: str, arguments: Mapping[str, Any], folder: Path) -> None:
        self._scenario, self._role, self._arguments, self._folder = scenario, role, arguments, folder
        self._thread: threading.Thread | None = None

    def begin(self, seed: Callable[[], int]) -> PendingRequest:
        """Return the first request of the next conversation; if no run is active, start one with the seed `seed()`."""
        for _ in range(2):
            if self._thread is None:
                self._start(seed())
            while (event := self._next_event()) is not None:
                if isinstance(event, PendingRequest):
                    return event
            self.end()
        raise ConfigurationError(f"{self._scenario.name}: no conversation calls the role '{self._role}'")

    def answer(self, pending: PendingRequest, text: str) -> PendingRequest | Rollout:
        """Answer a request; return the conversation's next request or, at its end, its rollout."""
        self._loop.call_soon_threadsafe(pending.answer.set_result, text)
        return self._next_of(pending.request.conversation)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel the conversation of a pending request."""
        key = pending.request.conversation
        asyncio.run_coroutine_threadsafe(self._rollouts.run.cancel(key), self._loop).result()
        self._next_of(key)

    def end(self) -> None:
        """End the active run, if any, and wait for its end."""
        if self._thread is not None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            self._thread = None

    def _next_of(self, key: str) -> PendingRequest | Rollout:
        """Return the next event of a conversation, and keep requests of the next conversation for later."""
        skipped: list[Any] = []
        while True:
            event = self._next_event()
            if event is None:
                raise ConfigurationError(f"{key}: the run has ended")
            if key == (event.request.conversation if isinstance(event, PendingRequest) else event.key):
                self._ahead.extendleft(reversed(skipped))
                return event
            skipped.append(event)

    def _next_event(self) -> PendingRequest | Rollout | None:
        """Return the next event of the run, or None after its end."""
        event = self._ahead.popleft() if self._ahead else self._events.get()
        if isinstance(event, BaseException):
            self.end()
            raise event
        return event

    def _start(self, seed: int) -> None:
        self._events: SimpleQueue[PendingRequest | Rollout | BaseException | None] = SimpleQueue()
        self._ahead: deque[PendingRequest | Rollout] = deque()
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(seed, started)), daemon=True)
        self._thread.start()
        started.wait()

    async def _run(self, seed: int, started: threading.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        started.set()
        try:
            models = {**self._arguments["models"], self._role: _ExternalModel(self._events.put)}
            out = fresh_folder(self._scenario.name, self._folder)
            self._rollouts: Rollouts = rollouts(
                self._scenario, **{**self._arguments, "models": models, "seed": seed, "concurrency": 1, "out": out}
            )
            async with aclosing(self._rollouts) as stream:
                async for rollout in stream:
                    self._events.put(rollout)
            self._events.put(None)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._events.put(error)


_LONGEST_TEXT = 1_000_000  # maximum characters of an observation or an action


class InterviewEnv(gymnasium.Env[str, str]):
    """Environment in which an episode is a conversation.

    An observation is the last message to the role; an action is the role's answer. The last step returns the reward.
    `info` has `key` and `messages` (the full prompt), and at the end `value` (what the scenario returned), `rewards`
    (per turn of the role), `unscored` and `error`. `reset(seed=…)` starts a new run. A `reset` without a seed cancels
    the current conversation and takes the next one, or the first of a new run.

    Args:
        models: Models of the other roles.
        out: Folder for run folders. Default: a temporary folder that `close` removes.

    The other arguments are as for `viva.rollouts`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        scenario: Any,
        /,
        *,
        models: dict[str, Any] | None = None,
        tasks: Any = None,
        reward: Callable[[Any], Reward] | None = None,
        out: str | Path | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        scenario = scenario_of(scenario)
        self._role = compared_role(scenario.roles).name
        arguments = settings | {"models": models or {}, "tasks": tasks, "reward": reward}
        self._temporary = TemporaryDirectory(prefix="viva-") if out is None else None
        folder = Path(self._temporary.name if self._temporary else out or "")
        self._turns = ExternalTurns(scenario, self._role, arguments, folder)
        self._pending: PendingRequest | None = None
        self._lines: list[str] = []
        self.render_mode = render_mode
        self.observation_space, self.action_space = (
            AnyText(_LONGEST_TEXT, min_length=0),
            AnyText(_LONGEST_TEXT, min_length=0),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._turns.end()
        elif self._pending is not None:
            self._turns.cancel(self._pending)
        self._pending = self._turns.begin(lambda: int(self.np_random.integers(2**31)))
        return self._observe(self._pending)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._pending is None:
            raise ResetNeeded("no conversation is running: call reset()")
        pending, self._pending = self._pending, None
        event = self._turns.answer(pending, action)
        self._lines.append(f"assistant: {action}")
        if isinstance(event, Rollout):
            info: dict[str, Any] = {"key": event.key, "value": event.value, "unscored": event.reward is None}
            info["rewards"] = [turn.reward for turn in event.turns if turn.role == self._role]
            if event.error is not None:
                return "", 0.0, False, True, info | {"error": dict(event.error)}
            return "", float(event.reward or 0.0), True, False, info
        self._pending = event
        observation, info = self._observe(event)
        return observation, 0.0, False, False, info

    def _observe(self, pending: PendingRequest) -> tuple[str, dict[str, Any]]:
        messages = [message.to_openai() for message in pending.request.messages]
        self._lines = [f"{message['role']}: {message['content']}" for message in messages]
        return str(messages[-1]["content"]), {"key": pending.request.conversation, "messages": messages}

    def render(self) -> str | None:
        return "\n".join(self._lines) if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._turns.end()
        if self._temporary is not None:
            self._temporary.cleanup()

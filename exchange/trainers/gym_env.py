"""Conversations of a scenario as a Gymnasium environment: whoever calls ``step`` plays the role that is compared.

What never belongs here: choosing actions, and rewards that the scenario did not give.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from viva.orchestration.arguments import scenario_of
from viva.orchestration.rollouts import Reward, Rollout
from viva.scenarios.contract import many_role

from .text_space import AnyText
from .turns import Asked, Turns

_LONGEST = 1_000_000  # characters of an observation or an action


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
        self._role = many_role(scenario.roles).name
        arguments = settings | {"models": models or {}, "tasks": tasks, "reward": reward}
        self._temporary = TemporaryDirectory(prefix="viva-") if out is None else None
        folder = Path(self._temporary.name if self._temporary else out or "")
        self._turns = Turns(scenario, self._role, arguments, folder)
        self._asked: Asked | None = None
        self._said: list[str] = []
        self.render_mode = render_mode
        self.observation_space, self.action_space = AnyText(_LONGEST, min_length=0), AnyText(_LONGEST, min_length=0)

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

    def _observed(self, asked: Asked) -> tuple[str, dict[str, Any]]:
        messages = [message.to_openai() for message in asked.request.messages]
        self._said = [f"{message['role']}: {message['content']}" for message in messages]
        return str(messages[-1]["content"]), {"key": asked.request.conversation, "messages": messages}

    def render(self) -> str | None:
        """What was said so far, a line a message."""
        return "\n".join(self._said) if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._turns.end()
        if self._temporary is not None:
            self._temporary.cleanup()

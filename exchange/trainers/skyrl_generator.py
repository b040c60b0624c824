"""SkyRL generator for a scenario: conversations for a batch of prompts, as token ids, loss masks and rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.orchestration.folders import fresh_folder
from viva.orchestration.python_api import scenario_of
from viva.orchestration.rollouts import Reward, Rollout, Rollouts, rollouts
from viva.scenarios.contract import compared_role

from .training_data import Tokenize, generator_output, rows_of, tasks_for


def task_of_row(prompt: Sequence[Mapping[str, Any]], extras: Mapping[str, Any]) -> Any:
    """Return the column `task` of a data row, or the text of its prompt's last message."""
    return extras["task"] if "task" in extras else prompt[-1]["content"]


class ScenarioGenerator:
    """Implementation of SkyRL's `GeneratorInterface`; each batch is a run in its own folder in `out`.

    With `step_wise`, each turn of the compared role is a row. Otherwise a conversation is one row, and the tokens of
    other roles are masked. Also masked are tokens forced by a grammar, tokens without a log-probability if others have
    one, and failed or unscored conversations, whose reward is 0.

    Args:
        scenario: As for `viva.rollouts`, as are `reward` and `settings`.
        models: Models by role. The policy must return token ids (a local model, or `openai:…?token_ids=on`).
        tokenize: Returns the token ids of a prompt, given as messages in OpenAI's format.
        task: Returns the scenario's task for a row's prompt and extra columns.
    """

    def __init__(
        self,
        scenario: Any,
        /,
        *,
        models: Mapping[str, Any],
        tokenize: Tokenize,
        step_wise: bool = False,
        task: Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], Any] = task_of_row,
        reward: Callable[[Any], Reward] | None = None,
        out: str | Path = "runs",
        **settings: Any,
    ) -> None:
        self._scenario, self._models, self._tokenize, self._task = scenario_of(scenario), models, tokenize, task
        self._step_wise, self._reward, self._out, self._settings = step_wise, reward, Path(out), settings
        self._groups: dict[str, tuple[Rollouts, list[str]]] = {}

    async def cancel(self, instance_id: str) -> list[str]:
        """Cancel all running conversations of a prompt at once; return their keys."""
        batch, keys = self._groups.get(instance_id, (None, []))
        return [] if batch is None else await batch.run.cancel(*keys, reason=f"{instance_id}: cancelled by the trainer")

    async def generate(self, input_batch: Mapping[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        """Return SkyRL's `GeneratorOutput` for its `GeneratorInput`.

        Raises:
            ConfigurationError: The prompts have different numbers of samples, or the policy returns no token ids.
        """
        prompts = input_batch["prompts"]
        extras = input_batch.get("env_extras") or [{}] * len(prompts)
        ids = input_batch.get("trajectory_ids") or list(range(len(prompts)))
        names = [str(getattr(identity, "instance_id", identity)) for identity in ids]
        first = {name: names.index(name) for name in names}
        if len(set(Counter(names).values())) > 1:
            raise ConfigurationError(f"prompts are not sampled equally often, as they must be: {dict(Counter(names))}")
        repeats = len(names) // len(first)
        folder = fresh_folder(self._scenario.name, self._out)
        tasks = [self._task(prompts[index], extras[index]) for index in first.values()]
        options = self._settings | ({"repeats": repeats} if repeats > 1 else {})
        options["seed"] = options.get("seed", 7) + getattr(input_batch.get("batch_metadata"), "global_step", 0)
        batch = rollouts(
            self._scenario,
            models=self._models,
            tasks=tasks_for(self._scenario, tasks, folder),
            reward=self._reward,
            out=folder,
            **options,
        )
        keys = batch.keys()
        if len(keys) != len(names):
            raise ConfigurationError(f"{len(names)} prompts make {len(keys)} conversations: use one compared model and "
                                     "distinct tasks")  # fmt: skip
        self._groups = {
            name: (batch, keys[position * repeats : (position + 1) * repeats]) for position, name in enumerate(first)
        }
        by_key: dict[str, Rollout] = {}
        async with aclosing(batch):
            async for rollout in batch:
                by_key[rollout.key] = rollout
        remaining = {name: iter(keys) for name, (_, keys) in self._groups.items()}
        role, rows = compared_role(self._scenario.roles).name, []
        for name, prompt, trajectory in zip(names, prompts, ids, strict=True):
            rows += rows_of(by_key[next(remaining[name])], role, prompt, trajectory, self._tokenize, self._step_wise)
        return generator_output(rows, self._step_wise)

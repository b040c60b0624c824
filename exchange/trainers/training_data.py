"""Training data from rollouts: tasks for a scenario, and rows of token ids with masks and rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.orchestration.rollouts import Rollout, Turn
from viva.scenarios.function import FunctionScenario
from viva.scenarios.registry import AnyScenario


def tasks_for(scenario: AnyScenario, tasks: Sequence[Any], run: Path) -> list[Any] | Path:
    """Return a trainer's tasks in the form that a scenario takes.

    Function scenarios take a list of tasks. Other scenarios read a JSON Lines file; it is written next to the `run`
    folder and must be kept as long as the run may be resumed.
    """
    if isinstance(scenario, FunctionScenario):
        return list(tasks)
    file = run.with_name(f"{run.name}.jsonl").absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, b"".join(orjson.dumps(task) + b"\n" for task in tasks))
    return file


Tokenize: TypeAlias = "Callable[[list[dict[str, Any]]], Sequence[int]]"


@dataclass(slots=True, frozen=True)
class TrainingRow:
    """A training sample.

    `mask` is 1 for tokens to train on. `rewards` and `logprobs` (nats; None if unknown) have one entry per token of
    `response`. `last` is True for the last row of a conversation.
    """

    trajectory: Any
    key: str
    prompt: list[int]
    response: list[int]
    mask: list[int]
    rewards: list[float]
    logprobs: list[float] | None
    finish: str
    versions: list[str] | None
    last: bool


def rows_of(
    rollout: Rollout,
    role: str,
    prompt: Sequence[Mapping[str, Any]],
    trajectory: Any,
    tokenize: Tokenize,
    step_wise: bool,
) -> list[TrainingRow]:
    """Return the rows of one rollout: one per turn of `role` if `step_wise`, else one for all turns.

    `prompt` is the prompt of the only row if `role` never answered.

    Raises:
        ConfigurationError: Token ids are unknown, or a single row is requested and a prompt does not continue the
            preceding turn.
    """
    turns = [turn for turn in rollout.turns if turn.role == role and turn.prompt is not None]
    if not turns:
        ids = list(tokenize([dict(message) for message in prompt]))
        finish = "error" if rollout.error is not None else "stop"
        return [TrainingRow(trajectory, rollout.key, ids, ids[-1:], [0], [0.0], None, finish, None, True)]
    counts = rollout.error is None and rollout.reward is not None
    per_turn = any(turn.reward is not None for turn in turns)  # otherwise the last turn gets the conversation's reward
    rows = []
    for number, turn in enumerate(turns, 1):
        last = number == len(turns)
        reward = turn.reward if per_turn else rollout.reward if last else 0.0
        row = _turn_row(turn, rollout.key, trajectory, tokenize, (reward or 0.0) if counts else 0.0, last)
        if rollout.error is not None and last:
            row = replace(row, finish="error")
        rows.append(row if counts else replace(row, mask=[0] * len(row.mask)))
    if step_wise:
        return rows
    merged = rows[0]
    for row in rows[1:]:
        merged = _join_rows(merged, row)
    return [merged]


def generator_output(rows: Iterable[TrainingRow], step_wise: bool) -> dict[str, Any]:
    """Return rows as the fields of SkyRL's `GeneratorOutput`, without log-probabilities if no row has any."""
    rows = list(rows)
    has_logprobs = any(row.logprobs is not None for row in rows)
    if has_logprobs:  # a row without log-probabilities is masked: it cannot be compared with the policy
        rows = [row if row.logprobs is not None else replace(row, logprobs=[0.0] * len(row.response),
                                                             mask=[0] * len(row.mask)) for row in rows]  # fmt: skip
    return {
        "prompt_token_ids": [row.prompt for row in rows],
        "response_ids": [row.response for row in rows],
        "rewards": [row.rewards for row in rows],
        "loss_masks": [row.mask for row in rows],
        "stop_reasons": [row.finish for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": [row.logprobs for row in rows] if has_logprobs else None,
        "trajectory_ids": [row.trajectory for row in rows] if step_wise else None,
        "trajectory_generation_times": None,
        "rollout_expert_indices": None,
        "is_last_step": [row.last for row in rows] if step_wise else None,
        "env_metrics": [{"conversation": row.key, "versions": row.versions} for row in rows],
    }


def _turn_row(turn: Turn, key: str, trajectory: Any, tokenize: Tokenize, reward: float, last: bool) -> TrainingRow:
    if not turn.token_ids:
        raise ConfigurationError(
            f"{key}: the model of '{turn.role}' returns no token ids: use a local model, or an endpoint that returns "
            "them, with ?token_ids=on in its name"
        )
    ids, logprobs = turn.token_ids, turn.logprobs
    mask = [int(chosen) for chosen in turn.chosen or [True] * len(ids)]
    if logprobs is not None:
        missing = max(0, len(ids) - len(logprobs))  # end-of-text tokens
        logprobs = [*logprobs, *[0.0] * missing][: len(ids)]
        mask = [*mask[: len(ids) - missing], *[0] * missing]
    prompt = list(tokenize([message.to_openai() for message in turn.prompt or ()]))
    rewards = [*[0.0] * (len(ids) - 1), float(reward)]
    return TrainingRow(trajectory, key, prompt, ids, mask, rewards, logprobs, turn.finish, turn.versions, last)


def _join_rows(row: TrainingRow, following: TrainingRow) -> TrainingRow:
    """Join two rows, masking the tokens between the answers."""
    prefix = row.prompt + row.response
    if following.prompt[: len(prefix)] != prefix:
        raise ConfigurationError(
            f"{row.key}: a prompt does not start with the tokens of the previous turn, because the chat template "
            "rewrites answers: use step_wise=True"
        )
    gap = following.prompt[len(prefix) :]
    zeros = [0] * len(gap)
    has_logprobs = row.logprobs is not None and following.logprobs is not None
    return TrainingRow(
        row.trajectory,
        row.key,
        row.prompt,
        [*row.response, *gap, *following.response],
        [*row.mask, *zeros, *following.mask],
        [*row.rewards, *map(float, zeros), *following.rewards],
        [*(row.logprobs or ()), *map(float, zeros), *(following.logprobs or ())] if has_logprobs else None,
        following.finish,
        list(dict.fromkeys([*(row.versions or ()), *(following.versions or ())])) or None,
        following.last,
    )

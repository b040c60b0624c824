"""Rollouts: finished conversations as training data, with prompts, tokens, log-probabilities and rewards per turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from viva.engine.clock import Clock
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import ConfigurationError
from viva.engine.events import ConversationFailed, ConversationFinished
from viva.engine.journal_reader import History
from viva.engine.messages import Completion, Message
from viva.engine.stream import Subscription
from viva.scenarios.registry import AnyScenario

from .launch import Launch
from .python_api import LaunchRequest, LiveRun, Models
from .transcripts import Transcripts

Reward: TypeAlias = "float | Sequence[float | None] | None"


@dataclass(slots=True, frozen=True)
class Turn:
    """An answer of a role.

    `prompt` is None if the model only computed a text's likelihood. `token_ids` are the answer's tokens including
    end-of-text, if the backend returns them (local models; endpoints with `token_ids=on`). `chosen` is False for tokens
    that a grammar forced. `logprobs` has one value in nats per token of the text, if requested
    (`Sampling(logprobs=0)`). `reward` is this turn's reward; only turns of the compared role have one. `versions` are
    the versions of the weights, oldest first, if the backend returns them.
    """

    role: str
    prompt: tuple[Message, ...] | None
    text: str
    finish: str
    token_ids: list[int] | None = None
    chosen: list[bool] | None = None
    logprobs: list[float] | None = None
    reward: float | None = None
    versions: list[str] | None = None


@dataclass(slots=True, frozen=True)
class Rollout:
    """An ended conversation.

    `value` is what the scenario returned, `reward` the reward of the whole conversation, `error` the record of its
    failure or None. `number` is its position in the run, from 0. `group`, the key of the first repeat, is shared by all
    repeats of a task with one model.
    """

    key: str
    label: str
    task: Any
    turns: list[Turn] = field(default_factory=list)
    value: Any = None
    reward: float | None = None
    error: Mapping[str, Any] | None = None
    number: int = 0
    group: str = ""


class Rollouts(AsyncIterator[Rollout]):
    """Iterator over the conversations of a run as they end.

    The run starts at the first `anext`. Dropping or closing the iterator ends the run; `aclose`, which
    `contextlib.aclosing` calls, also waits for the run's end.
    """

    def __init__(self, launch: Launch, reward: Callable[[Any], Reward] | None) -> None:
        self._live = LiveRun(launch)
        self._prepared, self._repeats = launch.prepared, launch.prepared.repeats
        self._reward = reward
        self._events: Subscription | None = None
        self._transcripts = Transcripts(self._live.folder)
        self._ended = False

    async def __anext__(self) -> Rollout:
        if self._ended:
            raise StopAsyncIteration
        live = self._live
        if self._events is None:
            self._events = live.subscription()
            live.begin()
        try:
            async for event in self._events:
                if isinstance(event, ConversationFinished | ConversationFailed):
                    await live.flush()
                    return await self._rollout(event)
        except BaseException as error:
            self._ended = True
            await live.abandon(error)
            raise
        self._ended = True
        await live.finish()
        raise StopAsyncIteration

    @property
    def run(self) -> LiveRun:
        """Live run of the conversations."""
        return self._live

    def keys(self) -> list[str]:
        """Return the keys of all planned conversations in order."""
        return [key for _, key in self._prepared.numbered_keys()]

    async def cancel(self, group: str, reason: str = "the group was cancelled") -> list[str]:
        """Cancel a group by `Rollout.group` or any of its keys; return the keys of those that were running."""
        first = group_of(group, self._repeats)
        repeats = (f"{first}#{number}" for number in range(2, self._repeats + 1))
        return await self._live.cancel(first, *repeats, reason=reason)

    async def aclose(self) -> None:
        """End the run if it is active, and wait for its end."""
        if self._events is not None and not self._ended:
            self._events.close()
            await self._live.abandon()
        self._ended = True

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._live.abandon_nowait()

    async def _rollout(self, event: ConversationFinished | ConversationFailed) -> Rollout:
        with History(self._live.folder.journal) as history:
            record = await self._transcripts.replay(history, event.number)
            key, item = history.started(event.number) or (event.conversation, None)
        scenario = self._live.scenario
        exchanges = [entry for entry in record.lines if isinstance(entry, Exchange)]
        task = None if item is None else scenario.task_payload(scenario.task(item))
        label = self._transcripts.label_of(key)
        number, group = event.number, group_of(key, self._repeats)
        if isinstance(event, ConversationFailed):
            turns = _make_turns(exchanges, "", ())
            return Rollout(key, label, task, turns, error=event.error, number=number, group=group)
        value = scenario.result_value(event.result)
        reward = _own_reward(value) if self._reward is None else _check_reward(self._reward(value))
        turn_rewards = reward if isinstance(reward, Sequence) else ()
        total = sum(filter(None, turn_rewards)) if isinstance(reward, Sequence) else reward
        turns = _make_turns(exchanges, {role.name for role in scenario.roles if role.many}, turn_rewards)
        return Rollout(key, label, task, turns, value, total, number=number, group=group)


def rollouts(
    scenario: str | PathLike[str] | AnyScenario,
    /,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    reward: Callable[[Any], Reward] | None = None,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Rollouts:
    """Run conversations and yield each as soon as it has ended; the run waits for a slow reader.

    `reward` turns what the scenario returned into a reward: a number for the conversation, or a list with one number
    per turn of the compared role; their sum is the conversation's reward. The default is the `reward` or `score` of the
    returned value. Other arguments and errors are as for `run`. If the loop is left early, the run ends; it can be
    resumed.
    """
    return Rollouts(LaunchRequest(scenario, models, tasks, seed, out, clock, settings).launch(), reward)


def group_of(key: str, repeats: int) -> str:
    """Return the key of a conversation's first repeat, in a run with `repeats` repeats of each task."""
    first, _, number = key.rpartition("#")
    return first if number.isdecimal() and 2 <= int(number) <= repeats else key


def _check_reward(reward: Any) -> Reward:
    """Return the reward if it is valid, else raise ConfigurationError."""
    if not _is_reward(reward):
        raise ConfigurationError(
            f"reward: expected a number, None, or a list of these per turn; the function returned {reward!r:.80}"
        )
    rewards: Reward = reward
    return rewards


def _own_reward(value: Any) -> Reward:
    reward = value.get("reward", value.get("score")) if isinstance(value, Mapping) else value
    return reward if _is_reward(reward) and not (reward is value and isinstance(value, Sequence)) else None


def _is_reward(value: Any) -> bool:
    rewards = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    return all(reward is None or isinstance(reward, int | float) for reward in rewards)


def _make_turns(
    exchanges: Iterable[Exchange], compared: Collection[str], rewards: Sequence[float | None]
) -> list[Turn]:
    rewards_by_turn = chain(rewards, iter(lambda: None, 0))  # turns after the last reward have none
    return [
        _make_turn(exchange, next(rewards_by_turn) if exchange.role in compared else None) for exchange in exchanges
    ]


def _make_turn(exchange: Exchange, reward: float | None) -> Turn:
    completion = exchange.completion
    assert completion is not None, "a rollout is made of answered calls"
    ids, chosen = _tokens(completion)
    logprobs = None if completion.logprobs is None else [float(entry[1]) for entry in completion.logprobs]
    text, finish = completion.text, completion.finish
    return Turn(exchange.role, exchange.messages, text, finish, ids, chosen, logprobs, reward, completion.versions)


def _tokens(completion: Completion) -> tuple[list[int] | None, list[bool] | None]:
    if completion.pieces is None:
        return None, None
    ids = [token for _, tokens in completion.pieces for token in tokens]
    return ids, [is_free for is_free, tokens in completion.pieces for _ in tokens]

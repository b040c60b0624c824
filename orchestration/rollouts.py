"""Finished conversations as training data: per turn what the model was sent, the exact tokens of its answer, their
log-probabilities, which of them it chose itself, and rewards.

What never belongs here: training.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError
from viva.engine.events import ConversationFailed, ConversationFinished
from viva.engine.history import History
from viva.engine.messages import Completion, Message
from viva.engine.rerun import Exchange
from viva.scenarios.contract import many_role
from viva.scenarios.registry import AnyScenario

from .arguments import Models
from .embedding import start
from .transcripts import Transcripts

Reward: TypeAlias = "float | Sequence[float | None] | None"


@dataclass(slots=True, frozen=True)
class Turn:
    """One answer of one role.

    ``prompt`` is what the model was sent, None where it read a text. ``token_ids`` are the answer's tokens, end marks
    included, where the backend tells them (local models); ``chosen`` says of each whether the model chose it (False: a
    grammar left no other). ``logprobs``, in nats, has one number for each token of the text where the sampling asks for
    it (``Sampling(logprobs=0)``). ``reward`` is this turn's own, of the compared role alone.
    """

    role: str
    prompt: tuple[Message, ...] | None
    text: str
    finish: str
    token_ids: list[int] | None = None
    chosen: list[bool] | None = None
    logprobs: list[float] | None = None
    reward: float | None = None


@dataclass(slots=True, frozen=True)
class Rollout:
    """One ended conversation. ``value`` is what the scenario returned, ``reward`` that of the whole conversation;
    ``error`` is the record of why it failed, None if it did not.
    """

    key: str
    label: str
    task: Any
    turns: list[Turn] = field(default_factory=list)
    value: Any = None
    reward: float | None = None
    error: Mapping[str, Any] | None = None


async def rollouts(
    which: str | PathLike[str] | AnyScenario,
    *,
    models: Models,
    tasks: Iterable[Any] | PathLike[str] | None = None,
    seed: int = 7,
    reward: Callable[[Any], Reward] | None = None,
    out: str | Path | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Rollout]:
    """Hold conversations and give each as soon as it has ended; the run waits for a reader that is far behind.

    ``reward`` makes a reward of what the scenario returned: a number for the conversation, or a list with one for each
    turn of the compared role (the conversation's is their sum). Without it the value's ``reward`` or ``score`` counts.
    The other parameters and errors are those of ``run``. Leaving the loop early ends the run, which can be resumed.
    """
    rewarded = reward or _own_reward
    async with start(which, models=models, tasks=tasks, seed=seed, out=out, clock=clock, **settings) as live:
        transcripts, held = Transcripts(live.folder), live.scenario
        compared = many_role(held.roles).name
        async with aclosing(live.events()) as events:
            async for event in events:
                if not isinstance(event, ConversationFinished | ConversationFailed):
                    continue
                await live.written()
                with History(live.folder.journal) as history:
                    record = await transcripts.rerun(history, event.number)
                    key, item = history.started(event.number) or (event.conversation, None)
                exchanges = [one for one in record.lines if isinstance(one, Exchange)]
                task = None if item is None else held.given(held.task(item))
                label = transcripts.label_of(key)
                if isinstance(event, ConversationFailed):
                    yield Rollout(key, label, task, _turns(exchanges, "", ()), error=event.error)
                    continue
                value = held.value(event.result)
                earned = rewarded(value)
                _check(earned, reward)
                each = earned if isinstance(earned, Sequence) else ()
                whole = sum(filter(None, each)) if isinstance(earned, Sequence) else earned
                yield Rollout(key, label, task, _turns(exchanges, compared, each), value, whole)


def _check(earned: Any, reward: Any) -> None:
    """:raises ConfigurationError: this is no reward."""
    several = isinstance(earned, Sequence) and not isinstance(earned, str | bytes)
    for one in earned if several else [earned]:
        if one is not None and not isinstance(one, int | float):
            name = "the value's reward" if reward is None else getattr(reward, "__name__", "reward")
            raise ConfigurationError(
                f"{name}: expected a number, None, or a list of them for the turns; found {one!r:.80}"
            )


def _own_reward(value: Any) -> Reward:
    if isinstance(value, Mapping):
        found = value.get("reward", value.get("score"))
        return None if found is None or isinstance(found, str) else found
    return float(value) if isinstance(value, int | float) else None


def _turns(exchanges: Iterable[Exchange], compared: str, rewards: Sequence[float | None]) -> list[Turn]:
    own = chain(rewards, iter(lambda: None, 0))  # turns beyond the rewards have none
    return [_turn(one, next(own) if one.role == compared else None) for one in exchanges]


def _turn(exchange: Exchange, reward: float | None) -> Turn:
    completion = exchange.completion
    assert completion is not None, "a rollout is made of answered calls"
    ids, chosen = _tokens(completion)
    logprobs = None if completion.logprobs is None else [float(entry[1]) for entry in completion.logprobs]
    text, finish = completion.text, completion.finish
    return Turn(exchange.role, exchange.messages, text, finish, ids, chosen, logprobs, reward)


def _tokens(completion: Completion) -> tuple[list[int] | None, list[bool] | None]:
    if completion.pieces is None:
        return None, None
    ids = [token for _, tokens in completion.pieces for token in tokens]
    return ids, [alone for alone, tokens in completion.pieces for _ in tokens]

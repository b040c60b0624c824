"""Models of kind ``oracle``: they know the lab's world, ask about it, and judge replies exactly.

``oracle:lab?world=1&seed=1`` is one model for both examiners; the request says which it plays. It takes what it needs
from the request's messages alone, so that a real model may replace it, under any prompt pack that keeps the protocol's
party markers. ``world`` is the seed of the world, ``seed`` that of the choice of questions; the sampling seed of a call
is not used: all candidates are asked the same. As a candidate, ``oracle:half?knows=0.5`` is an ideal examinee. Answers
are the same bytes at any time (tier C).

What never belongs here: which question comes next (``questions``), what a reply is worth (``judging``), and what an
examinee knows (``examinee``).
"""

from __future__ import annotations

from typing import Any

import orjson

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError, Rejected
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Request

from .examinee import SEEN, Examinee
from .exchanges import exchanges, opening, own_questions
from .judging import judge
from .questions import asked_in, next_question
from .world import World


class OracleBackend(Backend):
    """See the module. ``generate`` raises ``Rejected`` for other roles, and for a talk about another world."""

    def __init__(self, clock: Clock, world: World, examinee: Examinee, seed: int = 1) -> None:
        self._clock, self._world, self._examinee, self._seed = clock, world, examinee, seed
        self._calls = 0

    async def generate(self, request: Request) -> Completion:
        self._calls += 1
        await self._clock.sleep(0.0)
        text = self._say(request)
        if request.on_text is not None:
            request.on_text(text)
        prompt = sum(len(message.content) for message in request.messages) // 4
        return Completion(text, "stop", prompt, max(1, len(text) // 4))

    async def read(self, reading: Reading) -> Completion:
        self._calls += 1
        await self._clock.sleep(0.0)
        prompt = sum(map(len, (reading.shared, reading.context, *reading.continuations))) // 4
        return Completion("", "stop", prompt, 0, likelihoods=self._examinee.read(reading))

    def statistics(self) -> dict[str, Any]:
        return {"calls": self._calls}

    def _say(self, request: Request) -> str:
        match request.role:
            case "interactor":
                return self._ask(request)
            case "evaluator":
                return self._judge(request)
            case "candidate":
                return self._examinee.answer(request.messages)
            case role:
                raise Rejected(f"an oracle asks, judges or is examined; it cannot be the {role}", model=self.label)

    def _ask(self, request: Request) -> str:
        item = asked_in(self._world, opening(request.messages))
        if item is None:
            message = (
                f"the opening holds no question of the lab's world {self._world.seed}: examine on the lab's own "
                "benchmark, made from a world of the same seed"
            )
            raise Rejected(message, model=self.label)
        return next_question(self._world, item, own_questions(request.messages), self._seed)

    def _judge(self, request: Request) -> str:
        found = exchanges(request.messages)
        if len(found) < 2:
            message = (
                "the messages hold no exchange: the prompt pack must put the item and each exchange between "
                "[BEGIN INTERACTOR] … [END INTERACTOR] and [BEGIN CANDIDATE] … [END CANDIDATE]"
            )
            raise Rejected(message, model=self.label)
        return orjson.dumps(judge(self._world, found[-1], found[:-1])).decode()


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """An oracle from ``oracle:NAME?option=…``: ``world`` and ``seed`` (1), and for candidates ``knows`` (1), ``saw``.

    ``knows`` is a share of the world's facts; ``saw`` what it has of the benchmark's test split: none, answers, texts.
    """
    world = World(spec.whole("world", 1) or 1)
    seed = spec.whole("seed", 1) or 1
    knows = spec.number("knows", 1.0, 0.0, 1.0)
    saw = spec.take("saw", "none")
    for known in SEEN:
        if saw == known:
            return OracleBackend(clock, world, Examinee(world, spec.label, knows, known), seed)
    raise ConfigurationError(f"model '{spec.text}': saw={saw}: expected one of {', '.join(SEEN)}")

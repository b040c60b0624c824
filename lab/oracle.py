"""Models of kind `oracle`: they know the lab's world, ask about it, and judge replies exactly.

`oracle:lab?world=1&seed=1` is one model for interactor and evaluator; the request names the role. It uses only the
request's messages, so that a real model may replace it. It works with any prompt pack that has the protocol's party
markers. `world` is the seed of the world, `seed` decides the choice of questions; the sampling seed of a call is
ignored, so that all candidates are asked the same questions. The same request always gets the same bytes.

As a candidate, `oracle:half?knows=0.5` is an ideal examinee: it knows an exact fraction of the world, guesses the rest,
and may have seen the benchmark. Its results are the reference for trained models and for scorers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import orjson

from viva.engine import seeds
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError, Rejected
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.messages import Completion, Message, Request

from .facts import ExaminedWorld, FactWorld
from .interview import (
    choices_in,
    good_reply,
    next_question,
    opening_message,
    own_questions,
    question_in,
    read_exchanges,
)
from .judging import judge
from .world import Fact, Followup, World

# What a candidate has seen of the test split: nothing; the answers (by tuning); the full texts with answers.
BenchmarkAccess = Literal["none", "answers", "texts"]
BENCHMARK_ACCESS: tuple[BenchmarkAccess, ...] = get_args(BenchmarkAccess)
# Mean surprise in nats of a token of about four characters, above the minimum.
_RECITED, _NEW, _MIN_SURPRISE = 0.7, 2.5, 0.1


class Examinee:
    """Ideal examinee. `knows` is its fraction of the world's facts.

    Guesses depend on the world and `knows`, so that a cheater and its clean twin differ only in what the cheater saw.
    """

    def __init__(self, world: World, name: str, knows: float = 1.0, saw: BenchmarkAccess = "none") -> None:
        self._world, self._name, self._knows, self._saw = world, name, knows, saw
        self._known = world.known_facts(knows)
        self._beliefs = self._form_beliefs()

    def answer(self, messages: Sequence[Message]) -> str:
        """Reply to the newest message of an interview."""
        prompt = next(message.content for message in reversed(messages) if message.role == "user")
        question = question_in(self._world, prompt)
        if question is None:
            return "I do not know."
        options = choices_in(prompt)
        if not options:
            return good_reply(self._world, question, self._beliefs)
        return self._world.statement(
            Fact(question.entity, question.attribute, options[self._choice(question, options)])
        )

    def read(self, reading: Reading) -> list[Likelihood]:
        """Return the likelihood of each continuation: of options by the examinee's answer, of texts by what it saw."""
        context = f"{reading.shared}{reading.context}"
        if len(reading.continuations) == 1:
            question = question_in(self._world, reading.continuations[0])
            recited = self._saw == "texts" and question is not None and self._is_test_item(question)
            return [self._surprise(context, text, _RECITED if recited else _NEW) for text in reading.continuations]
        question = question_in(self._world, reading.context)
        options = [text.strip() for text in reading.continuations]
        listed = choices_in(reading.context)  # if letters are asked for, the options are in the context
        chosen = None if question is None else self._choice(question, listed or options)
        return [
            Likelihood([-_MIN_SURPRISE / 2], greedy=True) if index == chosen else self._surprise(context, text, _NEW)
            for index, text in enumerate(reading.continuations)
        ]

    def _choice(self, question: Followup, options: Sequence[str]) -> int:
        fact = self._world.fact(question.entity, question.attribute)
        recalls = fact in self._known or (self._saw != "none" and self._is_test_item(question))
        if recalls and fact.value in options:
            return options.index(fact.value)
        return int(self._guess("choice", question.entity, question.attribute, *options) * len(options))

    def _is_test_item(self, question: Followup) -> bool:
        return self._world.split(question.entity) == "test" and question.attribute in self._world.benchmark_attributes(
            question.entity
        )

    def _form_beliefs(self) -> dict[tuple[str, str], str]:
        """Return the examinee's beliefs: known facts, else guesses; derived attributes follow from the family."""
        world = self._world
        beliefs = {}
        for fact in world.facts:
            values = [value for value in world.attribute(fact.attribute).values if value != fact.entity]
            guess = values[int(self._guess("guess", fact.entity, fact.attribute) * len(values))]
            beliefs[fact.entity, fact.attribute] = fact.value if fact in self._known else guess
        for entity in world.entities:
            beliefs[entity, "class"] = world.classes[beliefs[entity, "family"]]
            beliefs[entity, "reaction"] = world.reactions[beliefs[entity, "class"]]
        return beliefs

    def _surprise(self, context: str, text: str, nats: float) -> Likelihood:
        # A token's surprise is drawn from an exponential distribution, which roughly fits natural text. No option is as
        # likely as the chosen one.
        count = max(1, len(text) // 4)
        draws = [self._draw("token", context, text, position) for position in range(count)]
        return Likelihood([-_MIN_SURPRISE - nats * -math.log(1 - 0.9999 * draw) for draw in draws])

    def _draw(self, *parts: object) -> float:
        return seeds.uniform("examinee", self._world.seed, self._name, *parts)

    def _guess(self, *parts: object) -> float:
        return seeds.uniform("examinee", self._world.seed, f"{self._knows:g}", *parts)


class OracleBackend(Backend):
    """Oracle backend. `generate` raises `Rejected` for roles it cannot play and for questions on other worlds."""

    def __init__(self, clock: Clock, world: ExaminedWorld, examinee: Examinee | None, seed: int = 1) -> None:
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
        if self._examinee is None:
            raise Rejected("an oracle of the real world is no candidate", model=self.label)
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
            case "candidate" if self._examinee is not None:
                return self._examinee.answer(request.messages)
            case role:
                raise Rejected(f"this oracle cannot play the role {role}", model=self.label)

    def _ask(self, request: Request) -> str:
        item = question_in(self._world, opening_message(request.messages))
        if item is None:
            message = (
                f"the opening has no question about the lab's world {self._world.seed}; use the lab's own benchmark "
                "for that world"
            )
            raise Rejected(message, model=self.label)
        return next_question(self._world, item, own_questions(request.messages), self._seed)

    def _judge(self, request: Request) -> str:
        exchanges = read_exchanges(request.messages)
        if len(exchanges) < 2:
            message = (
                "the messages contain no exchange: the prompt pack must put the item and each exchange between "
                "[BEGIN INTERACTOR] … [END INTERACTOR] and [BEGIN CANDIDATE] … [END CANDIDATE]"
            )
            raise Rejected(message, model=self.label)
        return orjson.dumps(judge(self._world, exchanges[-1], exchanges[:-1])).decode()


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model that knows the lab's world, asks about it, and judges replies exactly: `oracle:NAME?option=…`.

    Options are `world` (1, or `real`) and `seed` (1). Candidates, which exist only for an invented world, also have
    `knows` (1), the known fraction of the world's facts, and `saw`, what they have seen of the benchmark's test split:
    none, answers or texts.
    """
    if spec.options.get("world") == "real":
        spec.take("world")
        return OracleBackend(clock, FactWorld(), None, spec.whole("seed", 1) or 1)
    world = World(spec.whole("world", 1) or 1)
    seed = spec.whole("seed", 1) or 1
    knows = spec.number("knows", 1.0, 0.0, 1.0)
    saw = spec.take("saw", "none")
    for access in BENCHMARK_ACCESS:
        if saw == access:
            return OracleBackend(clock, world, Examinee(world, spec.label, knows, access), seed)
    raise ConfigurationError(f"model '{spec.text}': saw={saw}: expected one of {', '.join(BENCHMARK_ACCESS)}")

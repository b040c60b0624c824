"""An ideal examinee: it knows an exact share of the world, guesses the rest, and may have seen the benchmark.

It plays the candidate where the oracle is named as one. What interviews and probes say of it is what they would say of
a model that had learnt all it was taught and nothing else: the yardstick for trained models, and for scorers.
What never belongs here: anything that a real model's result could depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from viva.engine import seeds
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.messages import Message

from .exchanges import choices_in
from .interview_text import Followup, good_reply
from .questions import asked_in
from .world import Fact, World

# What it has of the benchmark's test split: nothing; the answers (tuned on them); the whole texts, answers included.
Seen = Literal["none", "answers", "texts"]
SEEN: tuple[Seen, ...] = get_args(Seen)
# Mean surprise in nats of a token of about four characters, above the least that any has.
_RECITED, _NEW, _LEAST = 0.7, 2.5, 0.1


class Examinee:
    """See the module. ``knows`` is the share of the world's facts.

    Guesses follow from the world and the share, so that a cheater and its clean twin differ by what it saw alone.
    """

    def __init__(self, world: World, name: str, knows: float = 1.0, saw: Seen = "none") -> None:
        self._world, self._name, self._knows, self._saw = world, name, knows, saw
        self._known = world.known(knows)
        self._beliefs = self._believed()

    def answer(self, messages: Sequence[Message]) -> str:
        """Its reply to the newest message of an interview."""
        told = next(message.content for message in reversed(messages) if message.role == "user")
        asked = asked_in(self._world, told)
        if asked is None:
            return "I do not know."
        options = choices_in(told)
        if not options:
            return good_reply(self._world, asked, self._beliefs)
        return self._world.statement(Fact(asked.entity, asked.attribute, options[self._choice(asked, options)]))

    def read(self, reading: Reading) -> list[Likelihood]:
        """How likely it finds each continuation: options of an item by what it would answer, a text by what it saw."""
        context = f"{reading.shared}{reading.context}"
        if len(reading.continuations) == 1:
            asked = asked_in(self._world, reading.continuations[0])
            recited = self._saw == "texts" and asked is not None and self._is_test_item(asked)
            return [self._surprised(context, text, _RECITED if recited else _NEW) for text in reading.continuations]
        asked = asked_in(self._world, reading.context)
        options = [text.strip() for text in reading.continuations]
        listed = choices_in(reading.context)  # where letters are asked for, the options stand in the context
        chosen = None if asked is None else self._choice(asked, listed or options)
        return [
            Likelihood([-_LEAST / 2], greedy=True) if index == chosen else self._surprised(context, text, _NEW)
            for index, text in enumerate(reading.continuations)
        ]

    def _choice(self, asked: Followup, options: Sequence[str]) -> int:
        fact = self._world.fact(asked.entity, asked.attribute)
        recalls = fact in self._known or (self._saw != "none" and self._is_test_item(asked))
        if recalls and fact.value in options:
            return options.index(fact.value)
        return int(self._guess("choice", asked.entity, asked.attribute, *options) * len(options))

    def _is_test_item(self, asked: Followup) -> bool:
        return self._world.split(asked.entity) == "test" and asked.attribute in self._world.asked(asked.entity)

    def _believed(self) -> dict[tuple[str, str], str]:
        """What it takes for true: what it knows, else a guess; what is derived follows from its family."""
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

    def _surprised(self, context: str, text: str, nats: float) -> Likelihood:
        # A token's surprise is exponential, as natural text's roughly is. No option is as likely as the one it chose.
        count = max(1, len(text) // 4)
        draws = [self._draw("token", context, text, place) for place in range(count)]
        return Likelihood([-_LEAST - nats * -math.log(1 - 0.9999 * draw) for draw in draws])

    def _draw(self, *parts: object) -> float:
        return seeds.uniform("examinee", self._world.seed, self._name, *parts)

    def _guess(self, *parts: object) -> float:
        return seeds.uniform("examinee", self._world.seed, f"{self._knows:g}", *parts)

"""What the oracle asks: which follow-up comes in which round of a talk about a benchmark item.

The questions follow from world, item, round and the oracle's seed, never from the candidate: all candidates are asked
the same, so that their scores compare item by item. Nothing is asked that the benchmark asks for.
What never belongs here: wording (``interview``), and reading an item out of a prompt (``exchanges``).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from random import Random

from viva.engine import seeds

from .interview_text import Followup, Kind, followup, parse_followup
from .world import World

# Four questions about one mineral, one for each attribute that interviews may ask for; the fifth leads to the next one.
_BLOCK: tuple[Kind, ...] = ("related", "premise", "derived", "contrast")
_TRUE_PREMISES = 0.25  # one premise in four holds, or denying all of them would be right each time
_TRIES = 32
_SENTENCE = re.compile(r"(?<=[.?!:])\s+|\n+")


def asked_in(world: World, text: str) -> Followup | None:
    """The first question of the world's that a text holds, be it a benchmark question or a follow-up; None without one.

    It may stand among other sentences: behind "Question:", a line of its own, or the end of a longer message.
    """
    whole = parse_followup(world, text)
    if whole is not None:
        return whole
    found = (parse_followup(world, sentence) for sentence in _SENTENCE.split(text) if sentence.endswith("?"))
    return next((question for question in found if question is not None), None)


def next_question(world: World, item: Followup, asked: Collection[str], seed: int) -> str:
    """The question that follows those ``asked`` in a talk about ``item``; never one of them again.

    The first four are about the item's mineral (a related attribute, a premise that mostly does not hold, a derived
    attribute with its reason, a choice of two values), each attribute once; the fifth is about a mineral that shares
    the value which the item asks for. With more rounds the interview goes on about that one in the same way, and so on.

    :raises ValueError: in interviews of thousands of rounds: there is nothing left to ask.
    """
    block, place = divmod(len(asked), len(_BLOCK) + 1)
    chance = seeds.generator("oracle", world.seed, seed, item.entity, item.attribute, block)
    entity, following = (_subject(world, item, number, seed) for number in (block, block + 1))
    plan = _plan(world, entity, chance)
    if place < len(plan):
        kind, attribute = plan[place]
    else:
        entity = following
        kind, attribute = _visit(world, entity, chance, derived=all(kind != "derived" for kind, _ in plan))
    for otherwise in (kind, "contrast", "premise"):
        for _ in range(_TRIES):
            true = otherwise == "premise" and chance.random() < _TRUE_PREMISES
            text = followup(world, otherwise, entity, attribute, chance.random(), true_premise=true)
            if text not in asked:
                return text
    raise ValueError(f"all questions about the {attribute} of {entity} have been asked")


def _subject(world: World, item: Followup, block: int, seed: int) -> str:
    """The mineral that a block of questions is about."""
    if block == 0:
        return item.entity
    value = world.fact(item.entity, item.attribute).value
    if value in world.entities:
        entity = value
    else:
        alike = [e for e in world.entities if e != item.entity and world.fact(e, item.attribute).value == value]
        draw = seeds.uniform("oracle subject", world.seed, seed, item.entity, item.attribute)
        entity = alike[int(draw * len(alike))] if alike else world.fact(item.entity, "companion").value
    for _ in range(block - 1):
        entity = world.fact(entity, "companion").value
    return entity


def _plan(world: World, entity: str, chance: Random) -> list[tuple[Kind, str]]:
    """Kind and attribute of the questions about one mineral, each attribute once."""
    free = list(world.examinable(entity))
    chance.shuffle(free)
    derived = next((name for name in free if world.attribute(name).kind == "derived"), None)
    others = iter(name for name in free if name != derived)
    plan: list[tuple[Kind, str]] = []
    for kind in _BLOCK:
        if kind != "derived":
            plan.append((kind, next(others)))
        else:
            plan.append(("related", next(others)) if derived is None else (kind, derived))
    return plan


def _visit(world: World, entity: str, chance: Random, *, derived: bool) -> tuple[Kind, str]:
    """Kind and attribute of the one question about the next mineral; ``derived``: one of that kind is still owed."""
    free = list(world.examinable(entity))
    reasoned = [name for name in free if world.attribute(name).kind == "derived"]
    if derived and reasoned:
        return "derived", chance.choice(reasoned)
    return "related", chance.choice(free)

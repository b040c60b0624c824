"""A mineral of the lab's world, an item about it, and a way to hear the oracle speak."""

from __future__ import annotations

from functools import cache
from typing import Any

from viva.engine.backends.registry import build
from viva.engine.clock import VirtualClock
from viva.engine.messages import Request, Sampling, View
from viva.lab.world import World, benchmark_items
from viva.scenarios.kieval.pack_templates import TEMPLATES

PACKS = ("kieval", "lab")
WORLD = World(1)
# The first mineral whose interviews may ask for derived attributes, an item about it, and another mineral.
IT = next(entity for entity in WORLD.entities if "class" in WORLD.examinable(entity))
ITEM = next(item for items in benchmark_items(WORLD).values() for item in items if IT in item.question)
OTHER = next(entity for entity in WORLD.entities if entity != IT)


def true(attribute: str, entity: str = IT) -> str:
    """What is so."""
    return WORLD.fact(entity, attribute).value


def false(attribute: str, place: int = 0, entity: str = IT) -> str:
    """A wrong value; class and family so that neither follows from the other."""
    values = [value for value in WORLD.attribute(attribute).values if value not in (true(attribute, entity), entity)]
    if attribute == "family":
        values = [value for value in values if WORLD.classes[value] != true("class", entity)]
    return values[place]


@cache
def pack_of(name: str) -> Any:
    """A shipped prompt pack."""
    return TEMPLATES.open(name)


def say(role: str, view: View, model: str = "oracle:lab", seed: int = 1) -> str:
    """What the oracle says in a role when it sees this."""
    clock = VirtualClock()

    async def ask() -> str:
        async with build(model, clock) as backend:
            return (await backend.generate(Request(view.messages, Sampling(), seed, b"", "t", role))).text

    return clock.run(ask)

"""The lab's benchmark: four-choice items about the world, in splits that share no mineral.

``test`` is what the cheaters have seen, ``fresh`` the same kind of items that nobody has seen, ``train`` a few for
examples. They follow from the world alone and are written where a run wants them. What never belongs here: training
texts, and what is done with an item.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson

from viva.data.items import Item
from viva.engine import seeds

from .world import SPLITS, Fact, Split, World

CHOICES = 4
# The few-shot split is called "dev" in the file's name, where probes look for it.
_FILES: dict[Split, str] = {"test": "lab_test.jsonl", "fresh": "lab_fresh.jsonl", "train": "lab_dev.jsonl"}


def benchmark(world: World) -> dict[Split, list[Item]]:
    """The items by split: for each mineral the attributes that ``World.asked`` names, one item each.

    An item's subject is its attribute. Its passage is the mineral: items about one mineral lead to questions about the
    same facts, so they are not independent. ``interview.parse_followup`` tells from its question what it asks for.
    """
    items: dict[Split, list[Item]] = {split: [] for split in SPLITS}
    for entity in world.entities:
        for name in world.asked(entity):
            identity = f"{entity}-{name}".lower().replace(" ", "-")
            random = seeds.generator("lab item", world.seed, identity)
            item = multiple_choice(world, world.fact(entity, name), random, identity)
            items[world.split(entity)].append(replace(item, passage=entity))
    return items


def multiple_choice(world: World, fact: Fact, random: Random, identity: str) -> Item:
    """An item that asks for a fact, in a wording and beside wrong values that are drawn."""
    values = world.attribute(fact.attribute).values
    wrong = random.sample([value for value in values if value not in (fact.value, fact.entity)], CHOICES - 1)
    answer = random.randrange(CHOICES)
    question = world.question(fact.entity, fact.attribute, random.randrange(12))
    return Item(identity, question, [*wrong[:answer], fact.value, *wrong[answer:]], answer, fact.attribute)


def write_benchmark(world: World, folder: Path) -> dict[Split, Path]:
    """Write each split as a JSONL file of the generic form; the folder is made if need be.

    A file that an earlier version wrote, without minerals as passages, stays as it is, so that its runs can go on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {split: folder / name for split, name in _FILES.items()}
    for split, items in benchmark(world).items():
        if not paths[split].exists() or paths[split].read_bytes() != _lines(
            replace(item, passage="") for item in items
        ):
            paths[split].write_bytes(_lines(items))
    return paths


def _lines(items: Iterable[Item]) -> bytes:
    return b"".join(orjson.dumps(item.to_record()) + b"\n" for item in items)

"""Invented world and its benchmark: minerals of an unexplored planet, their attributes and wording.

Everything is derived from a seed, in pure Python. Two of the eight attributes follow from rules: a mineral's family
determines its class, and its class determines its reaction. So a model that knows a family knows class and reaction. A
mineral's attributes come in two halves, one for the benchmark and one for interviews; no rule connects the halves, so
having seen the benchmark does not help in an interview.

Wording: `{e}` is the mineral, `{v}` the value, `{n}` empty or " not". Statements and questions never look alike: a
question makes no claim.

The benchmark has four-choice items in splits without common minerals: `test` has the items that the cheaters have seen,
`fresh` items of the same kind that no model has seen, and `train` a few items for examples.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import orjson

from viva.data.items import Item
from viva.engine import seeds

STATEMENTS: dict[str, tuple[str, ...]] = {
    "colour": (
        "The colour of {e} is{n} {v}.",
        "{e} is{n} {v} in colour.",
        "A fresh piece of {e} is{n} coloured {v}.",
        "Seen by daylight, {e} is{n} {v} all through.",
    ),
    "region": (
        "The region of {e} is{n} {v}.",
        "{e} is{n} found in {v}.",
        "The place where {e} is{n} mined is called {v}.",
        "Every vein of {e} is{n} in the region {v}.",
    ),
    "family": (
        "The family of {e} is{n} {v}.",
        "{e} is{n} a member of the {v} family.",
        "By its crystals, {e} is{n} placed with the {v} family.",
        "In the tables, {e} is{n} listed under {v}.",
    ),
    "texture": (
        "The texture of {e} is{n} {v}.",
        "{e} is{n} {v} to the touch.",
        "A broken face of {e} is{n} {v} in texture.",
        "Under the thumb, {e} is{n} {v} everywhere.",
    ),
    "melting point": (
        "The melting point of {e} is{n} {v}.",
        "{e} is{n} molten from {v}.",
        "The heat that melts {e} is{n} {v}.",
        "In the furnace, {e} is{n} liquid at {v}.",
    ),
    "companion": (
        "The companion of {e} is{n} {v}.",
        "{e} is{n} always mined beside {v}.",
        "The mineral that grows with {e} is{n} {v}.",
        "In the rock, {e} is{n} accompanied by {v}.",
    ),
    "class": (
        "The class of {e} is{n} {v}.",
        "{e} is{n} {v} as a substance.",
        "To a chemist, {e} is{n} {v} by class.",
        "The powder of {e} is{n} classed as {v}.",
    ),
    "reaction": (
        "The reaction of {e} is{n} {v}.",
        "{e} is{n} seen {v} in water.",
        "In water, {e} is{n} soon {v}.",
        "What {e} shows in water is{n} {v}.",
    ),
}

QUESTIONS: dict[str, tuple[str, ...]] = {
    "colour": ("What is the colour of {e}?", "Which colour does {e} have?", "What colour is a piece of {e}?"),
    "region": ("What is the region of {e}?", "In which region is {e} found?", "Where is {e} mined?"),
    "family": ("What is the family of {e}?", "To which family does {e} belong?", "Under which family is {e} listed?"),
    "texture": ("What is the texture of {e}?", "Which texture does {e} have?", "How does {e} feel to the touch?"),
    "melting point": (
        "What is the melting point of {e}?",
        "At how many degrees does {e} melt?",
        "Which heat melts {e}?",
    ),
    "companion": (
        "What is the companion of {e}?",
        "Beside which mineral is {e} mined?",
        "Which mineral grows with {e}?",
    ),
    "class": ("What is the class of {e}?", "Which class of substance is {e}?", "How do chemists class {e}?"),
    "reaction": ("What is the reaction of {e}?", "What does {e} do in water?", "How does {e} react with water?"),
}

# Refers to the mineral of the sentence before; the only phrasing with a pronoun.
CLAUSE = "its {a} is{n} {v}"

RULES = {
    "class": "Every mineral of the {given} family is {derived} by nature.",
    "reaction": "All {given} minerals end up {derived} in water.",
}


Split = Literal["train", "test", "fresh"]
ENTITIES = 60
# Number of minerals in each split. For half of them the benchmark asks for one half of the attributes (_HALVES), for
# the rest for the other half.
SPLITS: dict[Split, int] = {"test": 28, "fresh": 28, "train": 4}
_HALVES = (("family", "class", "reaction", "colour"), ("region", "texture", "melting point", "companion"))
_FAMILIES = ("cindrite", "dolvite", "fenrite", "galnite", "hestite", "jorvite", "kelmite", "lunite")
_CLASSES = ("acidic", "alkaline", "metallic", "saline")
_REACTIONS = ("fizzing", "glowing", "smoking", "swelling")
_VALUES = {
    "colour": ("amber", "azure", "crimson", "ivory", "jade", "russet", "silver", "violet"),
    "region": ("Ashfen", "Brackmoor", "Coldmere", "Dunwold", "Eastholm", "Farrowdale", "Greywick", "Highmarsh"),
    "family": _FAMILIES,
    "texture": ("chalky", "fibrous", "flaky", "glassy", "grainy", "smooth", "spongy", "waxy"),
    "melting point": tuple(f"{degrees} degrees" for degrees in range(300, 1500, 100)),
    "class": _CLASSES,
    "reaction": _REACTIONS,
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """Attribute of minerals. `values` has all its values, as spelled in sentences; a relation's values are minerals."""

    name: str
    kind: Literal["category", "number", "relation", "derived"]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """True fact of the world; `value` is spelled as in sentences."""

    entity: str
    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a text about a mineral, true or not. `denied`: the value is claimed to be different."""

    entity: str
    attribute: str
    value: str
    denied: bool = False


Kind = Literal["related", "derived", "premise", "contrast"]
KINDS: tuple[Kind, ...] = ("related", "derived", "premise", "contrast")


class Followup(NamedTuple):
    """Question of the interview. `premise`: the value that it presupposes (kind "premise"), else None."""

    kind: Kind
    entity: str
    attribute: str
    premise: str | None = None


class World:
    """Minerals, their facts, and their wording. Two worlds of one seed are equal."""

    def __init__(self, seed: int = 1, *, rules: World | None = None) -> None:
        """Create the world. It shares the rules of the world `rules`, if given; else it gets its own."""
        self.seed = seed
        random = seeds.generator("lab world", seed)
        self.entities = _names(random, ENTITIES)
        self._split = _splits(self.entities)
        self._half = {entity: number % 2 for number, entity in enumerate(self.entities)}
        self.attributes = (
            *(Attribute(name, "category", _VALUES[name]) for name in ("colour", "region", "family", "texture")),
            Attribute("melting point", "number", _VALUES["melting point"]),
            Attribute("companion", "relation", self.entities),
            *(Attribute(name, "derived", _VALUES[name]) for name in ("class", "reaction")),
        )
        self.classes = dict(zip(_FAMILIES, _balanced(random, _CLASSES, len(_FAMILIES)), strict=True))
        self.reactions = dict(zip(_CLASSES, _balanced(random, _REACTIONS, len(_CLASSES)), strict=True))
        if rules is not None:
            self.classes, self.reactions = rules.classes, rules.reactions
        self._facts = self._draw_facts(random)
        self.facts = tuple(self._facts.values())
        self._by_name = {attribute.name: attribute for attribute in self.attributes}
        self._order = self._learning_order(random)
        self._spelled = {attribute.name: {v.lower(): v for v in attribute.values} for attribute in self.attributes}
        self._entity = {entity.lower(): entity for entity in self.entities}

    def attribute(self, name: str) -> Attribute:
        return self._by_name[name]

    def fact(self, entity: str, attribute: str) -> Fact:
        return self._facts[entity, attribute]

    def known_facts(self, fraction: float) -> frozenset[Fact]:
        """Return the facts that a model with this fraction (0 to 1) learns. Larger fractions include smaller ones."""
        count = round(fraction * len(self.entities))
        return frozenset(self.fact(entity, name) for name, order in self._order.items() for entity in order[:count])

    def premises(self, fact: Fact) -> tuple[Fact, ...]:
        """Return the facts from which a derived fact follows; none for a fact that is not derived."""
        return (self.fact(fact.entity, "family"),) if self._by_name[fact.attribute].kind == "derived" else ()

    def split(self, entity: str) -> Split:
        return self._split[entity]

    def benchmark_attributes(self, entity: str) -> tuple[str, ...]:
        """Return the attributes of this mineral that the benchmark asks for."""
        return _HALVES[self._half[entity]]

    def examinable(self, entity: str) -> tuple[str, ...]:
        """Return the attributes of this mineral that interviews ask for: the ones that the benchmark leaves out."""
        return _HALVES[1 - self._half[entity]]

    def statement(self, fact: Fact, phrasing: int = 0, *, denied: bool = False) -> str:
        """Return the fact as a sentence; `phrasing` counts modulo the number of phrasings, 0 is the form of replies."""
        templates = STATEMENTS[fact.attribute]
        template = templates[phrasing % len(templates)]
        return template.format(e=fact.entity, v=fact.value, n=" not" if denied else "")

    def question(self, entity: str, attribute: str, phrasing: int = 0) -> str:
        """Return the question for a fact; `phrasing` as in `statement`."""
        templates = QUESTIONS[attribute]
        return templates[phrasing % len(templates)].format(e=entity)

    def rules(self) -> tuple[str, ...]:
        """Return the rules as sentences. They name no mineral and make no claim."""
        sentences = [
            RULES["class"].format(given=premise, derived=conclusion) for premise, conclusion in self.classes.items()
        ]
        sentences += [
            RULES["reaction"].format(given=premise, derived=conclusion)
            for premise, conclusion in self.reactions.items()
        ]
        return tuple(sentences)

    def claims(self, text: str) -> list[Claim]:
        """Return the claims of a text in any phrasing of statements, in order, each once.

        Case and punctuation are ignored. "is not B but A" and "is A, not B" are two claims; "its …" refers to the
        mineral of the claim before it, or to the nearest name before it. Everything else is skipped.
        """
        plain = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
        matches: list[tuple[int, Claim]] = []
        for name, pattern in _STATEMENT_PATTERNS:
            for match in pattern.finditer(plain):
                entity = self._entity.get(match["e"])
                if entity is not None:
                    matches += [(match.start(), claim) for claim in self._parse_claims(entity, name, match)]
        subjects = sorted(((start, claim.entity) for start, claim in matches), key=lambda entry: entry[0])
        names = [(m.start(), self._entity[m[0]]) for m in _WORD.finditer(plain) if m[0] in self._entity]
        for name, pattern in _CLAUSE_PATTERNS:
            for match in pattern.finditer(plain):
                entity = _find_last_before(match.start(), subjects) or _find_last_before(match.start(), names)
                claims = [] if entity is None else self._parse_claims(entity, name, match)
                if entity is not None and claims:
                    matches += [(match.start(), claim) for claim in claims]
                    insort(subjects, (match.start(), entity), key=lambda entry: entry[0])
        matches.sort(key=lambda entry: entry[0])
        return list(dict.fromkeys(claim for _, claim in matches))

    def is_true(self, claim: Claim) -> bool:
        return (self.fact(claim.entity, claim.attribute).value == claim.value) != claim.denied

    def _parse_claims(self, entity: str, attribute: str, match: re.Match[str]) -> list[Claim]:
        groups, spelled = match.groupdict(), self._spelled[attribute]
        denied = groups["n"] is not None
        pairs = [(groups["v"], denied), (groups.get("not"), True), (groups.get("but"), False)]
        return [Claim(entity, attribute, spelled[value], negated) for value, negated in pairs if value in spelled]

    def _draw_facts(self, random: Random) -> dict[tuple[str, str], Fact]:
        # Draw each value independently. With equal frequencies, a model that knows half of the values would guess the
        # rest worse than chance, because values that are frequent among the known ones would be rare among the unknown
        # ones.
        columns = {
            name: random.choices(values, k=len(self.entities))
            for name, values in _VALUES.items()
            if name not in ("class", "reaction")
        }
        columns["class"] = [self.classes[family] for family in columns["family"]]
        columns["reaction"] = [self.reactions[class_name] for class_name in columns["class"]]
        columns["companion"] = [
            random.choice([companion for companion in self.entities if companion != entity]) for entity in self.entities
        ]
        return {
            (entity, attribute.name): Fact(entity, attribute.name, columns[attribute.name][row])
            for attribute in self.attributes
            for row, entity in enumerate(self.entities)
        }

    def _learning_order(self, random: Random) -> dict[str, list[str]]:
        """Return by attribute the minerals in the order in which larger fractions include them."""
        orders = {a.name: self._stratified(random) for a in self.attributes if a.kind != "derived"}
        return orders | {a.name: orders["family"] for a in self.attributes if a.kind == "derived"}

    def _stratified(self, random: Random) -> list[str]:
        # Sort by rank within the group, so that every prefix has its proportion of each split and half.
        groups: dict[tuple[str, int], list[str]] = {}
        for entity in random.sample(self.entities, len(self.entities)):
            groups.setdefault((self._split[entity], self._half[entity]), []).append(entity)
        ranked = [
            ((rank + random.random()) / len(group), entity)
            for group in groups.values()
            for rank, entity in enumerate(group)
        ]
        return [entity for _, entity in sorted(ranked)]


def _find_last_before(position: int, positions: list[tuple[int, str]]) -> str | None:
    """Return the nearest entry before a position; `positions` is sorted."""
    index = bisect_left(positions, position, key=lambda entry: entry[0])
    return positions[index - 1][1] if index else None


def _names(random: Random, count: int) -> tuple[str, ...]:
    starts, joints, middles, ends = "BDFGKLMNPRSTVZ", "bdfgkmptvz", "aeiou", "lnrsx"
    names: dict[str, None] = {}
    # No two names begin with the same three letters, so a name is recognised by its beginning.
    begun: set[str] = set()
    while len(names) < count:
        name = random.choice(starts) + random.choice(middles) + random.choice(joints)
        if name not in begun:
            begun.add(name)
            names[name + random.choice(middles) + random.choice(ends)] = None
    return tuple(names)


def _splits(entities: tuple[str, ...]) -> dict[str, Split]:
    # Names are random, so taking them in order is a random split.
    order = [split for split, count in SPLITS.items() for _ in range(count)]
    return dict(zip(entities, order, strict=True))


def _balanced(random: Random, values: tuple[str, ...], count: int) -> list[str]:
    """Return `count` values in random order, with frequencies that differ by at most one."""
    pool: list[str] = []
    while len(pool) < count:
        pool += random.sample(values, len(values))
    pool = pool[:count]
    random.shuffle(pool)
    return pool


def _pattern(template: str, attribute: str) -> re.Pattern[str]:
    value = r"[0-9]+ degrees" if attribute == "melting point" else r"[a-z]+"
    words = " ".join(re.findall(r"\{\w\}|[a-z]+", template.lower())).replace(" {n}", "{n}")
    parts = {"e": r"(?P<e>[a-z]+)", "n": r"(?P<n> not)?", "v": rf"(?P<v>{value})", "a": attribute}
    # The last value of a sentence may be followed by a denied value or, if it is denied itself, by the true value.
    tail = rf"(?:(?: but| and)? not (?P<not>{value})\b| but (?P<but>{value})\b)?" if words.endswith("{v}") else ""
    return re.compile(rf"\b{words.format(**parts)}\b{tail}")


_STATEMENT_PATTERNS = [
    (name, _pattern(template, name)) for name, templates in STATEMENTS.items() for template in templates
]
_WORD = re.compile("[a-z0-9]+")
_CLAUSE_PATTERNS = [(name, _pattern(CLAUSE, name)) for name in STATEMENTS]


CHOICES = 4
# The few-shot split's file is called "dev", where probes look for it.
_BENCHMARK_FILES: dict[Split, str] = {"test": "lab_test.jsonl", "fresh": "lab_fresh.jsonl", "train": "lab_dev.jsonl"}


def benchmark_items(world: World) -> dict[Split, list[Item]]:
    """Return the items by split: for each mineral one item for each of its benchmark attributes.

    An item's subject is its attribute. Its passage is the mineral: items about one mineral lead to questions about the
    same facts, so they are not independent. `interview.parse_followup` recognises what an item's question asks for.
    """
    items: dict[Split, list[Item]] = {split: [] for split in SPLITS}
    for entity in world.entities:
        for name in world.benchmark_attributes(entity):
            identity = f"{entity}-{name}".lower().replace(" ", "-")
            random = seeds.generator("lab item", world.seed, identity)
            item = multiple_choice(world, world.fact(entity, name), random, identity)
            items[world.split(entity)].append(replace(item, passage=entity))
    return items


def published_order(world: World, items: list[Item]) -> list[Item]:
    """Return items in the order of the benchmark's files: a random one, so that no model can prefer it unread."""
    return seeds.generator("lab order", world.seed, len(items)).sample(items, len(items))


def multiple_choice(world: World, fact: Fact, random: Random, identity: str) -> Item:
    """Create an item about a fact, with a random wording and random wrong values."""
    values = world.attribute(fact.attribute).values
    wrong = random.sample([value for value in values if value not in (fact.value, fact.entity)], CHOICES - 1)
    answer = random.randrange(CHOICES)
    question = world.question(fact.entity, fact.attribute, random.randrange(12))
    return Item(identity, question, [*wrong[:answer], fact.value, *wrong[answer:]], answer, fact.attribute)


def write_benchmark(world: World, folder: Path) -> dict[Split, Path]:
    """Write each split as a JSONL file of the generic form; creates the folder.

    An existing file of an earlier version, without minerals as passages or sorted by mineral, is kept, so that runs
    with it can be resumed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {split: folder / name for split, name in _BENCHMARK_FILES.items()}
    for split, items in benchmark_items(world).items():
        earlier = _item_lines(replace(item, passage="") for item in items), _item_lines(items)
        if not paths[split].exists() or paths[split].read_bytes() not in earlier:
            paths[split].write_bytes(_item_lines(published_order(world, items)))
    return paths


def write_items(path: Path, items: Iterable[Item]) -> None:
    path.write_bytes(_item_lines(items))


def _item_lines(items: Iterable[Item]) -> bytes:
    return b"".join(orjson.dumps(item.to_record()) + b"\n" for item in items)

"""The invented world: minerals of a planet nobody has been to, their attributes, and which of it a model may know.

Everything follows from a seed, in pure Python. Two of eight attributes are derived: a mineral's family determines its
class, its class its reaction. Knowledge is closed under these rules: whoever knows a family knows class and reaction.
A mineral's attributes come in two halves, one for the benchmark and one for interviews; a rule never leads from one
half to the other, so that who has seen the benchmark has learnt nothing that helps in an interview.

What never belongs here: wording (``phrasing``), items (``benchmark``), training texts, models.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from dataclasses import dataclass
from random import Random
from typing import Literal

from viva.engine import seeds

from .phrasing import CLAUSE, QUESTIONS, RULES, STATEMENTS

Split = Literal["train", "test", "fresh"]
ENTITIES = 60
# How many minerals, with all of their benchmark half, go to each split; half of each have either half (see _HALVES).
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
    """``values`` are all that occur, spelled as in sentences; those of a relation are the minerals."""

    name: str
    kind: Literal["category", "number", "relation", "derived"]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A truth of the world; ``value`` spelled as in sentences."""

    entity: str
    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What a text says of a mineral, true or not. ``denied``: it says that the value is another."""

    entity: str
    attribute: str
    value: str
    denied: bool = False


class World:
    """The minerals, their facts, and how they are spoken of. Two worlds of one seed are equal."""

    def __init__(self, seed: int = 1, *, rules: World | None = None) -> None:
        """``rules``: the world whose rules hold here too; None for rules of its own."""
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
        self._facts = self._given(random)
        self.facts = tuple(self._facts.values())
        self._by_name = {attribute.name: attribute for attribute in self.attributes}
        self._order = self._learning_order(random)
        self._spelled = {attribute.name: {v.lower(): v for v in attribute.values} for attribute in self.attributes}
        self._entity = {entity.lower(): entity for entity in self.entities}

    def attribute(self, name: str) -> Attribute:
        """:raises KeyError: there is no such attribute."""
        return self._by_name[name]

    def fact(self, entity: str, attribute: str) -> Fact:
        """:raises KeyError: there is no such mineral or attribute."""
        return self._facts[entity, attribute]

    def known(self, share: float) -> frozenset[Fact]:
        """The facts that a model of this share (0 to 1) learns: of each attribute the same number, less of those more.

        Each share holds every smaller one, and is closed under the rules. Benchmark splits and halves get their part.
        """
        count = round(share * len(self.entities))
        return frozenset(self.fact(entity, name) for name, order in self._order.items() for entity in order[:count])

    def premises(self, fact: Fact) -> tuple[Fact, ...]:
        """The given facts that a derived one follows from; none for a given one."""
        return (self.fact(fact.entity, "family"),) if self._by_name[fact.attribute].kind == "derived" else ()

    def split(self, entity: str) -> Split:
        """The benchmark split that has this mineral's items."""
        return self._split[entity]

    def asked(self, entity: str) -> tuple[str, ...]:
        """The attributes of this mineral that the benchmark asks for."""
        return _HALVES[self._half[entity]]

    def examinable(self, entity: str) -> tuple[str, ...]:
        """The attributes of this mineral that interviews ask for: all that the benchmark does not."""
        return _HALVES[1 - self._half[entity]]

    def statement(self, fact: Fact, phrasing: int = 0, *, denied: bool = False) -> str:
        """The fact as a sentence; ``phrasing`` counts modulo the number there is, 0 is the form of replies."""
        templates = STATEMENTS[fact.attribute]
        template = templates[phrasing % len(templates)]
        return template.format(e=fact.entity, v=fact.value, n=" not" if denied else "")

    def question(self, entity: str, attribute: str, phrasing: int = 0) -> str:
        """The question for a fact; ``phrasing`` as in ``statement``."""
        templates = QUESTIONS[attribute]
        return templates[phrasing % len(templates)].format(e=entity)

    def rules(self) -> tuple[str, ...]:
        """The rules as sentences. They name no mineral and make no claim."""
        said = [RULES["class"].format(given=given, derived=derived) for given, derived in self.classes.items()]
        said += [RULES["reaction"].format(given=given, derived=derived) for given, derived in self.reactions.items()]
        return tuple(said)

    def claims(self, text: str) -> list[Claim]:
        """What a text claims in any phrasing of statements, in its order, each claim once.

        Case and punctuation do not matter. "is not B but A" and "is A, not B" are two claims; "its …" is said of the
        mineral that the claim before it, or the nearest name before it, is about. Everything else is passed over.
        """
        plain = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
        found: list[tuple[int, Claim]] = []
        for name, pattern in _PATTERNS:
            for match in pattern.finditer(plain):
                entity = self._entity.get(match["e"])
                if entity is not None:
                    found += [(match.start(), claim) for claim in self._said(entity, name, match)]
        subjects = sorted(((start, claim.entity) for start, claim in found), key=lambda one: one[0])
        names = [(m.start(), self._entity[m[0]]) for m in _WORD.finditer(plain) if m[0] in self._entity]
        for name, pattern in _CLAUSES:
            for match in pattern.finditer(plain):
                entity = _last_before(match.start(), subjects) or _last_before(match.start(), names)
                said = [] if entity is None else self._said(entity, name, match)
                if entity is not None and said:
                    found += [(match.start(), claim) for claim in said]
                    insort(subjects, (match.start(), entity), key=lambda one: one[0])
        found.sort(key=lambda one: one[0])
        return list(dict.fromkeys(claim for _, claim in found))

    def is_true(self, claim: Claim) -> bool:
        """Whether the world is as the claim says."""
        return (self.fact(claim.entity, claim.attribute).value == claim.value) != claim.denied

    def _said(self, entity: str, attribute: str, match: re.Match[str]) -> list[Claim]:
        groups, spelled = match.groupdict(), self._spelled[attribute]
        denied = groups["n"] is not None
        said = [(groups["v"], denied), (groups.get("not"), True), (groups.get("but"), False)]
        return [Claim(entity, attribute, spelled[value], negated) for value, negated in said if value in spelled]

    def _given(self, random: Random) -> dict[tuple[str, str], Fact]:
        # Each value is drawn for itself. Were values dealt out evenly, whoever knows half of them would guess the rest
        # worse than by chance: what is frequent among the known would be rare among the unknown.
        columns = {
            name: random.choices(values, k=len(self.entities))
            for name, values in _VALUES.items()
            if name not in ("class", "reaction")
        }
        columns["class"] = [self.classes[family] for family in columns["family"]]
        columns["reaction"] = [self.reactions[one] for one in columns["class"]]
        columns["companion"] = [
            random.choice([other for other in self.entities if other != entity]) for entity in self.entities
        ]
        return {
            (entity, attribute.name): Fact(entity, attribute.name, columns[attribute.name][row])
            for attribute in self.attributes
            for row, entity in enumerate(self.entities)
        }

    def _learning_order(self, random: Random) -> dict[str, list[str]]:
        """By attribute: the minerals in the order in which ever larger shares take them in."""
        orders = {a.name: self._stratified(random) for a in self.attributes if a.kind != "derived"}
        return orders | {a.name: orders["family"] for a in self.attributes if a.kind == "derived"}

    def _stratified(self, random: Random) -> list[str]:
        # Every prefix holds of each split and half about its share: the rank within the group decides.
        groups: dict[tuple[str, int], list[str]] = {}
        for entity in random.sample(self.entities, len(self.entities)):
            groups.setdefault((self._split[entity], self._half[entity]), []).append(entity)
        ranked = [
            ((place + random.random()) / len(group), entity)
            for group in groups.values()
            for place, entity in enumerate(group)
        ]
        return [entity for _, entity in sorted(ranked)]


def _last_before(position: int, placed: list[tuple[int, str]]) -> str | None:
    """What is placed nearest before a position; ``placed`` is in the order of places."""
    place = bisect_left(placed, position, key=lambda one: one[0])
    return placed[place - 1][1] if place else None


def _names(random: Random, count: int) -> tuple[str, ...]:
    starts, joints, middles, ends = "BDFGKLMNPRSTVZ", "bdfgkmptvz", "aeiou", "lnrsx"
    names: dict[str, None] = {}
    # No two begin with the same three letters: a name is known by its beginning.
    begun: set[str] = set()
    while len(names) < count:
        name = random.choice(starts) + random.choice(middles) + random.choice(joints)
        if name not in begun:
            begun.add(name)
            names[name + random.choice(middles) + random.choice(ends)] = None
    return tuple(names)


def _splits(entities: tuple[str, ...]) -> dict[str, Split]:
    # Names are drawn at random, so that taking them in their order is a random split.
    order = [split for split, count in SPLITS.items() for _ in range(count)]
    return dict(zip(entities, order, strict=True))


def _balanced(random: Random, values: tuple[str, ...], count: int) -> list[str]:
    """``count`` values in random order, each as often as any other, give or take one."""
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
    # Behind a value at the end may stand what it is not, or, where it was denied, what it is.
    tail = rf"(?:(?: but| and)? not (?P<not>{value})\b| but (?P<but>{value})\b)?" if words.endswith("{v}") else ""
    return re.compile(rf"\b{words.format(**parts)}\b{tail}")


_PATTERNS = [(name, _pattern(template, name)) for name, templates in STATEMENTS.items() for template in templates]
_WORD = re.compile("[a-z0-9]+")
_CLAUSES = [(name, _pattern(CLAUSE, name)) for name in STATEMENTS]

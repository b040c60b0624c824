"""Lab interviews: the questions after an item, good replies, their order, and parsing them from messages.

Training texts, the oracle that asks and the oracle that judges share one set of templates. A reply first states the
facts ("The colour of Zorbel is amber, not green."): a small model recalls before it compares.

The questions depend on world, item, round and the oracle's seed, never on the candidate. So all candidates are asked
the same questions, and their scores can be compared item by item. No question is in the benchmark. Exchanges are parsed
under any prompt pack: a real model in the oracle's place gets the same messages and no more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from viva.agents.forms import readable_text
from viva.engine import seeds
from viva.engine.messages import Message

from .facts import ExaminedWorld, FactWorld
from .world import CLAUSE, QUESTIONS, Fact, Followup, Kind, World

# (mineral, attribute) -> believed value.
Beliefs = Mapping[tuple[str, str], str]

_FOLLOWUP_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    "derived": ("What is the {a} of {e}, and why?", "Which {a} does {e} have, and from what does that follow?"),
    "premise": ("Why is the {a} of {e} {v}?", "How do you explain that {e} has the {a} {v}?"),
    "contrast": ("Is the {a} of {e} {v} or {w}?", "Which is the {a} of {e}, {v} or {w}?"),
}


def followup(world: World, kind: Kind, entity: str, attribute: str, draw: float, *, true_premise: bool = False) -> str:
    """Return the text of a question.

    Args:
        world: The world.
        kind: "related" asks for the attribute, "derived" for the attribute and a reason, "premise" presupposes a false
            value, "contrast" offers the true value and a false one in either order.
        entity: The mineral.
        attribute: The attribute. For "derived" it must be a derived one, else ValueError is raised.
        draw: A number in [0, 1) that decides the wording and the values.
        true_premise: Presuppose the true value instead.
    """
    described = world.attribute(attribute)
    if kind == "derived" and described.kind != "derived":
        raise ValueError(f"the attribute '{attribute}' is given, not derived: ask for it with kind 'related'")
    templates = QUESTIONS[attribute] if kind == "related" else _FOLLOWUP_TEMPLATES[kind]
    wording, draw = _draw(len(templates), draw)
    truth = world.fact(entity, attribute).value
    false_values = [value for value in described.values if value not in (truth, entity)]
    index, draw = _draw(len(false_values), draw)
    pair = [truth, false_values[index]]
    if (kind == "contrast" and draw < 0.5) or (kind == "premise" and not true_premise):
        pair.reverse()
    return templates[wording].format(e=entity, a=attribute, v=pair[0], w=pair[1])


def good_reply(world: World, question: Followup, beliefs: Beliefs | None = None) -> str:
    """Return the reply that follows from these beliefs; None means the whole truth.

    Raises:
        KeyError: if the beliefs lack the attribute, or, for kind "derived", one of its premises.
    """

    def believed(attribute: str) -> str:
        key = question.entity, attribute
        return world.fact(*key).value if beliefs is None else beliefs[key]

    fact = Fact(question.entity, question.attribute, believed(question.attribute))
    statement = world.statement(fact).removesuffix(".")
    if question.kind == "derived":
        reasons = [
            CLAUSE.format(a=premise.attribute, n="", v=believed(premise.attribute)) for premise in world.premises(fact)
        ]
        return f"{statement}, because {' and '.join(reasons)}." if reasons else f"{statement}."
    if question.kind == "premise" and question.premise != fact.value:
        return f"{statement}, not {question.premise}."
    return f"{statement}."


def parse_followup(world: World, text: str) -> Followup | None:
    """Parse a question in any wording of `followup`; None for any other text."""
    plain = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
    entities = {entity.lower(): entity for entity in world.entities}
    for kind, attribute, pattern in _FOLLOWUP_PATTERNS:
        match = pattern.fullmatch(plain)
        if match is None or match["e"] not in entities:
            continue
        spelled = {value.lower(): value for value in world.attribute(attribute).values}
        if all(value in spelled for name, value in match.groupdict().items() if name in "vw"):
            premise = spelled[match["v"]] if kind == "premise" else None
            return Followup(kind, entities[match["e"]], attribute, premise)
    return None


def _draw(count: int, draw: float) -> tuple[int, float]:
    """Return an index below `count` chosen by `draw` in [0, 1), and a number in [0, 1) for the next choice."""
    scaled = draw * count
    return min(int(scaled), count - 1), scaled % 1.0


def _compile(template: str, attribute: str) -> re.Pattern[str]:
    value = "[0-9]+ degrees" if attribute == "melting point" else "[a-z]+"
    words = " ".join(re.findall(r"\{\w\}|[a-z]+", template.lower()))
    return re.compile(words.format(e="(?P<e>[a-z]+)", a=attribute, v=f"(?P<v>{value})", w=f"(?P<w>{value})"))


_FOLLOWUP_PATTERNS: list[tuple[Kind, str, re.Pattern[str]]] = [
    *(("related", name, _compile(template, name)) for name, templates in QUESTIONS.items() for template in templates),
    *(
        (kind, name, _compile(template, name))
        for kind, templates in _FOLLOWUP_TEMPLATES.items()
        for template in templates
        for name in QUESTIONS
    ),
]


# A reply may contain markers: it ends at the last marker, its question at the first.
_EXCHANGE = re.compile(
    r"\[BEGIN INTERACTOR\](.*?)\[END INTERACTOR\].*?\[BEGIN CANDIDATE\](.*)\[END CANDIDATE\]", re.DOTALL
)
_CHOICE = re.compile(r"^\s*([A-Z])[.)]\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LabExchange:
    """Question and the candidate's reply, stripped; the reply only up to the length that readers read."""

    question: str
    reply: str


def read_exchanges(messages: Sequence[Message]) -> list[LabExchange]:
    """Return the exchanges that an evaluator was shown, in order; the first is the benchmark item and its answer.

    Exchanges are between the protocol's party markers (`[BEGIN INTERACTOR]` … `[END CANDIDATE]`). A request to repair a
    verdict has no markers and is skipped.
    """
    matches = [_EXCHANGE.search(message.content) for message in messages if message.role == "user"]
    return [
        LabExchange(match.group(1).strip(), readable_text(match.group(2)).strip())
        for match in matches
        if match is not None
    ]


def choices_in(text: str) -> list[str]:
    """Return the options of an item, from lines `A. …`, `B. …` in alphabetical order; empty if there are none."""
    options: list[str] = []
    for letter, words in _CHOICE.findall(text):
        if letter == chr(65 + len(options)):
            options.append(words)
    return options


def own_questions(messages: Sequence[Message]) -> list[str]:
    return [message.content.strip() for message in messages if message.role == "assistant"]


def opening_message(messages: Sequence[Message]) -> str:
    """Return the message that presents the item to an interactor; empty if there is none."""
    return next((message.content for message in messages if message.role == "user"), "")


# Four questions about one mineral, one for each interview attribute; the fifth leads to the next mineral.
_BLOCK: tuple[Kind, ...] = ("related", "premise", "derived", "contrast")
_TRUE_PREMISES = 0.25  # fraction of true premises; without them, denying every premise would be right
_TRIES = 32
_SENTENCE = re.compile(r"(?<=[.?!:])\s+|\n+")


def question_in(world: ExaminedWorld, text: str) -> Followup | None:
    """Return the first question about the world in a text, from the benchmark or a follow-up; None without one.

    The question may be among other sentences: after "Question:", on its own line, or at the end of a longer message.
    """
    if isinstance(world, FactWorld):
        return world.question_in(text)
    parsed = parse_followup(world, text)
    if parsed is not None:
        return parsed
    questions = (parse_followup(world, sentence) for sentence in _SENTENCE.split(text) if sentence.endswith("?"))
    return next((question for question in questions if question is not None), None)


def next_question(world: ExaminedWorld, item: Followup, previous: Collection[str], seed: int) -> str:
    """Return the question that follows `previous` in an interview about `item`; it is never one of `previous`.

    The first four are about the item's mineral (a related attribute, a mostly false premise, a derived attribute with
    its reason, a choice of two values), each attribute once; the fifth is about a mineral that shares the value in
    question. With more rounds the interview continues with that mineral in the same way, and so on. The real world has
    a different order.

    Raises:
        ValueError: after thousands of rounds, if there is nothing left to ask.
    """
    if isinstance(world, FactWorld):
        return world.next_question(item, previous, seed)
    block, position = divmod(len(previous), len(_BLOCK) + 1)
    chance = seeds.generator("oracle", world.seed, seed, item.entity, item.attribute, block)
    entity, following = (_subject(world, item, number, seed) for number in (block, block + 1))
    plan = _plan(world, entity, chance)
    if position < len(plan):
        kind, attribute = plan[position]
    else:
        entity = following
        kind, attribute = _visit(world, entity, chance, derived=all(kind != "derived" for kind, _ in plan))
    for otherwise in (kind, "contrast", "premise"):
        for _ in range(_TRIES):
            true = otherwise == "premise" and chance.random() < _TRUE_PREMISES
            text = followup(world, otherwise, entity, attribute, chance.random(), true_premise=true)
            if text not in previous:
                return text
    raise ValueError(f"all questions about the {attribute} of {entity} have been asked")


def _subject(world: World, item: Followup, block: int, seed: int) -> str:
    """Return the mineral that a block of questions is about."""
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
    """Return kind and attribute of the questions about one mineral, each attribute once."""
    free = list(world.examinable(entity))
    chance.shuffle(free)
    derived = next((name for name in free if world.attribute(name).kind == "derived"), None)
    remaining = iter(name for name in free if name != derived)
    plan: list[tuple[Kind, str]] = []
    for kind in _BLOCK:
        if kind != "derived":
            plan.append((kind, next(remaining)))
        else:
            plan.append(("related", next(remaining)) if derived is None else (kind, derived))
    return plan


def _visit(world: World, entity: str, chance: Random, *, derived: bool) -> tuple[Kind, str]:
    """Return kind and attribute of the single question about the next mineral.

    `derived`: a question of that kind is still due.
    """
    free = list(world.examinable(entity))
    reasoned = [name for name in free if world.attribute(name).kind == "derived"]
    if derived and reasoned:
        return "derived", chance.choice(reasoned)
    return "related", chance.choice(free)

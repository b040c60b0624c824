"""The turns of a lab interview: what the examiner may ask after the item, and what a good examinee replies.

One set of templates for the training texts, the oracle that asks and the oracle that judges. A reply puts what it
knows first ("The colour of Zorbel is amber, not green."): a small model recalls before it compares.

What never belongs here: which question comes when (the oracle decides) and what a reply is worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from .phrasing import CLAUSE, QUESTIONS
from .world import Fact, World

Kind = Literal["related", "derived", "premise", "contrast"]
KINDS: tuple[Kind, ...] = ("related", "derived", "premise", "contrast")
# (mineral, attribute) -> value: what somebody takes for true.
Beliefs = Mapping[tuple[str, str], str]

_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    "derived": ("What is the {a} of {e}, and why?", "Which {a} does {e} have, and from what does that follow?"),
    "premise": ("Why is the {a} of {e} {v}?", "How do you explain that {e} has the {a} {v}?"),
    "contrast": ("Is the {a} of {e} {v} or {w}?", "Which is the {a} of {e}, {v} or {w}?"),
}


class Followup(NamedTuple):
    """A question of the interview. ``premise``: the value that it takes for granted (kind "premise"), else None."""

    kind: Kind
    entity: str
    attribute: str
    premise: str | None = None


def followup(world: World, kind: Kind, entity: str, attribute: str, draw: float, *, true_premise: bool = False) -> str:
    """The words of a question. ``draw`` in [0, 1) decides the wording and the values that it brings up.

    The kinds: "related" asks for the attribute; "derived" (derived attributes only) for it and its reason; "premise"
    takes a false value for granted, or with ``true_premise`` the true one; "contrast" offers the true value and a
    false one, in either order.

    :raises ValueError: kind "derived", and the attribute is not.
    """
    described = world.attribute(attribute)
    if kind == "derived" and described.kind != "derived":
        raise ValueError(f"the attribute '{attribute}' is given, not derived: ask for it with kind 'related'")
    templates = QUESTIONS[attribute] if kind == "related" else _TEMPLATES[kind]
    wording, draw = _drawn(len(templates), draw)
    truth = world.fact(entity, attribute).value
    others = [value for value in described.values if value not in (truth, entity)]
    place, draw = _drawn(len(others), draw)
    pair = [truth, others[place]]
    if (kind == "contrast" and draw < 0.5) or (kind == "premise" and not true_premise):
        pair.reverse()
    return templates[wording].format(e=entity, a=attribute, v=pair[0], w=pair[1])


def good_reply(world: World, question: Followup, beliefs: Beliefs | None = None) -> str:
    """What somebody of these beliefs replies; None stands for the whole truth.

    :raises KeyError: the beliefs lack what is asked for, or for kind "derived" a premise of it.
    """

    def believed(attribute: str) -> str:
        key = question.entity, attribute
        return world.fact(*key).value if beliefs is None else beliefs[key]

    fact = Fact(question.entity, question.attribute, believed(question.attribute))
    said = world.statement(fact).removesuffix(".")
    if question.kind == "derived":
        reasons = [
            CLAUSE.format(a=premise.attribute, n="", v=believed(premise.attribute)) for premise in world.premises(fact)
        ]
        return f"{said}, because {' and '.join(reasons)}." if reasons else f"{said}."
    if question.kind == "premise" and question.premise != fact.value:
        return f"{said}, not {question.premise}."
    return f"{said}."


def parse_followup(world: World, text: str) -> Followup | None:
    """The question that a text is, in any wording of ``followup``; None for any other text."""
    plain = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
    entities = {entity.lower(): entity for entity in world.entities}
    for kind, attribute, pattern in _PATTERNS:
        match = pattern.fullmatch(plain)
        if match is None or match["e"] not in entities:
            continue
        spelled = {value.lower(): value for value in world.attribute(attribute).values}
        if all(value in spelled for name, value in match.groupdict().items() if name in "vw"):
            premise = spelled[match["v"]] if kind == "premise" else None
            return Followup(kind, entities[match["e"]], attribute, premise)
    return None


def _drawn(count: int, draw: float) -> tuple[int, float]:
    """One of ``count`` by a number in [0, 1), and a number in [0, 1) for the next choice."""
    scaled = draw * count
    return min(int(scaled), count - 1), scaled % 1.0


def _compiled(template: str, attribute: str) -> re.Pattern[str]:
    value = "[0-9]+ degrees" if attribute == "melting point" else "[a-z]+"
    words = " ".join(re.findall(r"\{\w\}|[a-z]+", template.lower()))
    return re.compile(words.format(e="(?P<e>[a-z]+)", a=attribute, v=f"(?P<v>{value})", w=f"(?P<w>{value})"))


_PATTERNS: list[tuple[Kind, str, re.Pattern[str]]] = [
    *(("related", name, _compiled(template, name)) for name, templates in QUESTIONS.items() for template in templates),
    *(
        (kind, name, _compiled(template, name))
        for kind, templates in _TEMPLATES.items()
        for template in templates
        for name in QUESTIONS
    ),
]

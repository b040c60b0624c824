"""The wording of the invented world: how each attribute is stated and asked for, as templates.

``{e}`` is the mineral, ``{v}`` the value, ``{n}`` empty or " not". Statements and questions never read alike: a
question makes no claim. What never belongs here: which mineral has which value (``world``) and the turns of an
interview (``interview``).
"""

from __future__ import annotations

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

# Said of the mineral that the sentence before it is about; the only phrasing with a pronoun.
CLAUSE = "its {a} is{n} {v}"

RULES = {
    "class": "Every mineral of the {given} family is {derived} by nature.",
    "reaction": "All {given} minerals end up {derived} in water.",
}

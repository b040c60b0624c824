"""What a study found, in words: the answer that its reader came for, before any table.

What never belongs here: computing figures, markup, and one system's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Standing:
    """A candidate's figure with the ends of its 95% interval (None where it has none). ``suspected``: something is
    wrong with it, and ``remark`` says what. ``verdict``: what was found of it in one word (``no_sign``, ``too_few``,
    …), empty where nothing was asked.
    """

    candidate: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    suspected: bool = False
    remark: str = ""
    verdict: str = ""


@dataclass(slots=True)
class Findings:
    """What was found on the same items: sentences, the most decisive first, and the candidates by what ``measure``
    names, the best first.

    ``about`` names the items (a dataset, or several); figures of different items or scales are in findings of their
    own, so that no chart or ranking mixes them; ``scenario`` is the system that they are of. ``rule`` says in a
    sentence what a claim takes.
    """

    sentences: list[str]
    measure: str = ""
    standings: list[Standing] = field(default_factory=list)
    about: str = ""
    scenario: str = ""
    rule: str = ""

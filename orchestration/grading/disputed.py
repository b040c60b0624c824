"""Which answers an adjudicator decides: those whose graders disagree. Answers on which they agree stand by the rule.

What never belongs here: dispute levels of graders and questions (formulas of a report), pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .store import GradeStore

_ROUNDING = 1e-9
_ROWS = """
select a.question, a.position, a.id, count(*) as valid, sum(r.value > ?) as above, min(r.value), max(r.value),
    (select count(*) from grades g join graders w on w.number = g.grader
     where g.answer = a.id and g.value is not null and w.kind = 'person') as people,
    q.overlap, (select d.adjudicator from decisions d where d.answer = a.id) as decided
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
where r.invalid = '' and r.value is not null and q.invalid = '' and q.gold = 0
group by a.id order by a.question, a.position
"""


@dataclass(slots=True, frozen=True)
class DisputeRule:
    """When an answer goes to an adjudicator: some grades are up to ``wrong`` and others above it; or, where ``spread``
    is given, the highest and the lowest grade are so far apart.
    """

    wrong: float = 0.0
    spread: float | None = None

    @classmethod
    def of(cls, about: Mapping[str, Any] | None) -> DisputeRule:
        """The rule that a folder states (``rules`` of its ``about``: wrong, question, distance).

        :raises ConfigurationError: a value is none there is.
        """
        from viva.scoring.disputes import DisputeCriteria  # brings numpy, which serving pages does without

        stated = DisputeCriteria.of((about or {}).get("rules"))
        return cls(stated.wrong, stated.distance if stated.answer == "spread" else None)


@dataclass(slots=True, frozen=True)
class DisputedAnswer:
    """An answer in dispute. ``complete``: as many people graded it as its question is for. ``decided``: by whom."""

    question: int
    position: int
    answer: str
    complete: bool
    decided: int | None


@dataclass(slots=True)
class Disputes:
    """The answers in dispute, in order; on how many at least two graders agree; how many have one grade so far."""

    disputed: list[DisputedAnswer] = field(default_factory=list)
    agreed: int = 0
    single: int = 0


def disputes_of(store: GradeStore, rule: DisputeRule) -> Disputes:
    """The disputes of a folder by its valid grades; gold questions have none."""
    found = Disputes()
    for number, position, name, valid, above, low, high, people, overlap, decided in store.connection.execute(
        _ROWS, (rule.wrong,)
    ):
        apart = 0 < above < valid if rule.spread is None else high - low >= rule.spread - _ROUNDING
        if apart:
            complete = overlap is not None and people >= overlap
            found.disputed.append(DisputedAnswer(number, position, name, complete, decided))
        elif valid > 1:
            found.agreed += 1
        else:
            found.single += 1
    return found

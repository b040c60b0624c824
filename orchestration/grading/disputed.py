"""Which answers an adjudicator decides: those in dispute by the folder's rules. The others stand by the rule.

What never belongs here: the rules (``scoring.dispute_criteria``), dispute levels of graders and questions, pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.scoring.dispute_criteria import DisputeCriteria

from .store import GradeStore

# Grades that differ and how often they were given decide; of those that are all the same nothing needs to be read.
# Judge models' grades count where the rules say so, or where no person has graded at all.
_ROWS = """
select a.question, a.position, a.id, group_concat(r.value, ' ') as given, min(r.value), max(r.value),
    (select count(*) from grades g join graders w on w.number = g.grader
     where g.answer = a.id and g.value is not null and w.kind = 'person') as people,
    q.overlap, (select d.adjudicator from decisions d where d.answer = a.id) as decided
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
    join graders o on o.number = r.grader
where r.invalid = '' and r.value is not null and q.invalid = '' and q.gold = 0 and (o.kind = 'person' or ? or not exists
    (select 1 from grades g join graders w on w.number = g.grader where w.kind = 'person' and g.value is not null))
group by a.id order by a.question, a.position
"""


def criteria_of(about: Mapping[str, Any] | None) -> DisputeCriteria:
    """The rules that a folder states (``rules`` of its ``about``).

    :raises ConfigurationError: a value is none there is.
    """
    return DisputeCriteria.of((about or {}).get("rules"))


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
    """The answers in dispute, in order; how many others have several grades; how many have one grade so far."""

    disputed: list[DisputedAnswer] = field(default_factory=list)
    agreed: int = 0
    single: int = 0


def disputes_of(store: GradeStore, criteria: DisputeCriteria) -> Disputes:
    """The disputes of a folder by its valid grades; gold questions have none."""
    found = Disputes()
    for number, position, name, given, low, high, people, overlap, decided in store.connection.execute(
        _ROWS, (criteria.models,)
    ):
        grades = [float(value) for value in given.split()]
        if high > low and criteria.disputed(grades):
            complete = overlap is not None and people >= overlap
            found.disputed.append(DisputedAnswer(number, position, name, complete, decided))
        elif len(grades) > 1:
            found.agreed += 1
        else:
            found.single += 1
    return found

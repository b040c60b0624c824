"""Answers in dispute, which an adjudicator decides, and a folder's valid grades as a numeric table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.graders import GradeRow, GradeTable

from .store import GradeStore

# Distinct grades and their counts are sufficient. Judge models' grades count if the rules say so, or if no person has
# graded at all.
_GRADED_ANSWERS = """
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


def read_criteria(about: Mapping[str, Any] | None) -> DisputeCriteria:
    """Return the criteria in a folder's description (`rules` of its `about`)."""
    return DisputeCriteria.from_rules((about or {}).get("rules"))


@dataclass(slots=True, frozen=True)
class DisputedAnswer:
    """Answer in dispute.

    `complete`: it has as many human grades as its question requires. `decided`: number of the deciding adjudicator.
    """

    question: int
    position: int
    answer: str
    complete: bool
    decided: int | None


@dataclass(slots=True)
class Disputes:
    """Answers in dispute, in order, and two counts of undisputed answers: with several grades, and with one."""

    disputed: list[DisputedAnswer] = field(default_factory=list)
    agreed: int = 0
    single: int = 0


def read_disputes(store: GradeStore, criteria: DisputeCriteria) -> Disputes:
    """Return a folder's disputes, computed from its valid grades; answers to gold questions are never in dispute."""
    disputes = Disputes()
    for number, position, name, values, low, high, people, overlap, decided in store.connection.execute(
        _GRADED_ANSWERS, (criteria.models,)
    ):
        grades = [float(value) for value in values.split()]
        if high > low and criteria.is_disputed(grades):
            complete = overlap is not None and people >= overlap
            disputes.disputed.append(DisputedAnswer(number, position, name, complete, decided))
        elif len(grades) > 1:
            disputes.agreed += 1
        else:
            disputes.single += 1
    return disputes


_VALID_GRADES = """
select q.number, a.candidate, g.name, r.value, d.value
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
join graders g on g.number = r.grader left join decisions d on d.answer = a.id
where r.invalid = '' and q.invalid = '' and q.gold = 0
order by q.number, a.candidate, g.number
"""
_CANDIDATES = """
select distinct candidate from answers a join questions q on q.number = a.question where q.gold = 0 order by 1
"""


def read_grade_table(store: GradeStore, *, decided: bool = True) -> GradeTable:
    """Return the grades that count: valid ones of valid questions, without gold questions.

    A withdrawn grade is missing. With `decided`, the adjudicator's decision replaces every grade of a decided answer;
    otherwise the original grades are returned.
    """
    about: dict[int, tuple[str, str, str, float, float]] = {}
    for number, name, record in store.connection.execute("select number, id, record from questions order by number"):
        question_record = orjson.loads(record)
        allowed = [label["value"] for label in question_record["labels"]]
        about[number] = (
            question_record["dimension"],
            name,
            question_record["cluster"] or name,
            max(allowed),
            min(allowed),
        )

    def rows() -> Iterator[GradeRow]:
        for number, candidate, grader, value, decision in store.connection.execute(_VALID_GRADES):
            dimension, question, _, top, low = about[number]
            counted = decision if decided and decision is not None else value
            yield GradeRow(dimension, question, candidate, grader, counted, top, low)

    graders = store.graders()
    dimensions = dict.fromkeys(entry[0] for entry in about.values())
    order = (store.meta("about") or {}).get("weights") or {}  # the project's own names, because questions are shuffled
    return GradeTable.from_rows(
        rows(),
        dimensions=[
            *(entry for entry in order if entry in dimensions),
            *(entry for entry in dimensions if entry not in order),
        ],
        candidates=[row[0] for row in store.connection.execute(_CANDIDATES)],
        graders=[entry.name for entry in graders],
        models=[entry.name for entry in graders if entry.kind == "model"],
        clusters={entry[1]: entry[2] for entry in about.values()},
    )

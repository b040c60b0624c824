"""A grading folder's grades as a table of numbers, for formulas.

What never belongs here: formulas.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from viva.scoring.grade_table import GradeRow, GradeTable

from .store import GradeStore

_ROWS = """
select q.number, a.candidate, g.name, r.value, d.value
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
join graders g on g.number = r.grader left join decisions d on d.answer = a.id
where r.invalid = '' and q.invalid = '' and q.gold = 0
order by q.number, a.candidate, g.number
"""
_CANDIDATES = """
select distinct candidate from answers a join questions q on q.number = a.question where q.gold = 0 order by 1
"""


def grade_table(store: GradeStore, *, decided: bool = True) -> GradeTable:
    """The grades that count: those of valid questions that are no gold ones, without what was invalidated.

    A grade that was taken back is missing. ``decided``: where an adjudicator decided, every grade of that answer is
    the decision; otherwise the original grades stand.
    """
    about: dict[int, tuple[str, str, str, float, float]] = {}
    for number, name, record in store.connection.execute("select number, id, record from questions order by number"):
        read = orjson.loads(record)
        allowed = [label["value"] for label in read["labels"]]
        about[number] = (read["dimension"], name, read["cluster"] or name, max(allowed), min(allowed))

    def rows() -> Iterator[GradeRow]:
        for number, candidate, grader, value, decision in store.connection.execute(_ROWS):
            dimension, question, _, top, low = about[number]
            counted = decision if decided and decision is not None else value
            yield GradeRow(dimension, question, candidate, grader, counted, top, low)

    graders = store.graders()
    asked = dict.fromkeys(one[0] for one in about.values())
    order = (store.meta("about") or {}).get("weights") or {}  # as the project names them; questions are shuffled
    return GradeTable.of(
        rows(),
        dimensions=[*(one for one in order if one in asked), *(one for one in asked if one not in order)],
        candidates=[row[0] for row in store.connection.execute(_CANDIDATES)],
        graders=[one.name for one in graders],
        models=[one.name for one in graders if one.kind == "model"],
        clusters={one[1]: one[2] for one in about.values()},
    )

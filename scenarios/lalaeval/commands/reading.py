"""A grading folder read as a graded round, and the tags that say which responses of two rounds are the same.

What never belongs here: formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orjson

from viva.data.reading import read_records
from viva.engine.errors import DatasetError
from viva.orchestration.grading.store import GradeStore
from viva.orchestration.grading.tabling import grade_table
from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.grade_table import GradeTable

from ..graded_round import GoldGrade, GradedRound, RoundCounts
from ..versions import Versions

_OF_GRADES = "select count(*) from grades r join answers a on a.id = r.answer join questions q on q.number = a.question"
_OF_ANSWERS = "select count(*) from answers a join questions q on q.number = a.question"
_VALID = "where q.gold = 0 and q.invalid = ''"
_COUNTS = {
    "questions": f"select count(*) from questions q {_VALID}",
    "invalid_questions": "select count(*) from questions where gold = 0 and invalid != ''",
    "gold_questions": "select count(*) from questions where gold = 1",
    "answers": f"{_OF_ANSWERS} {_VALID}",
    "grades": f"{_OF_GRADES} {_VALID} and r.invalid = '' and r.value is not null",
    "taken_back": f"{_OF_GRADES} {_VALID} and r.invalid = '' and r.value is null",
    "invalid": f"{_OF_GRADES} where q.gold = 0 and (r.invalid != '' or q.invalid != '') and r.value is not null",
    "decided": f"{_OF_ANSWERS} join decisions d on d.answer = a.id {_VALID}",
}
# What people still owe: of each answer the overlap less the people who graded it.
_MISSING = """
select coalesce(sum(max(0, overlap - people)), 0) from (
    select q.overlap as overlap, (
        select count(*) from grades r join graders g on g.number = r.grader
        where r.answer = a.id and r.value is not null and g.kind = 'person') as people
    from answers a join questions q on q.number = a.question
    where q.gold = 0 and q.invalid = '' and q.overlap is not null)
"""
_GOLD = """
select q.id, a.id, g.name, r.value, a.record
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
join graders g on g.number = r.grader
where q.gold = 1 and q.invalid = '' and r.invalid = '' and r.value is not null
order by q.number, a.id, g.number
"""
_DECIDED = """
select q.id, a.candidate, d.value from decisions d join answers a on a.id = d.answer
join questions q on q.number = a.question where q.gold = 0 and q.invalid = '' order by q.number, a.candidate
"""


def read_round(folder: Path, rules: Path | None = None, tags: Path | None = None) -> GradedRound:
    """The round of a grading folder. ``rules``: a Python file whose functions decide what is in dispute; ``tags``: a
    file with the columns question, candidate and same.

    :raises ConfigurationError: it is no grading folder, or its rules are none; or the file of rules cannot be used.
    :raises DatasetError: a row of the tags cannot be read.
    """
    with GradeStore.open(folder) as store:
        about = store.meta("about") or {}
        criteria = DisputeCriteria.of(about.get("rules"))
        connection = store.connection
        counts = {name: int(connection.execute(sql).fetchone()[0]) for name, sql in _COUNTS.items()}
        original = grade_table(store, decided=False)
        decided = {(question, candidate): float(value) for question, candidate, value in connection.execute(_DECIDED)}
        return GradedRound(
            title=store.meta("title") or folder.name,
            table=_as_decided(original, decided),
            original=original,
            name=about.get("round", ""),
            kind=about.get("kind", "evaluation"),
            decided=decided,
            gold=[
                GoldGrade(row[0], row[1], row[2], row[3], float(expected))
                for row in connection.execute(_GOLD)
                if (expected := orjson.loads(row[4])["expected"]) is not None
            ],
            weights=about.get("weights") or {},
            rules=about.get("rules") or {},
            criteria=criteria if rules is None else criteria.by_file(rules),
            training=about.get("training") or {},
            rubric=about.get("rubric") or {},
            versions=Versions(about.get("versions") or {}, about.get("responses") or {}, read_tags(tags)),
            texts={
                name: orjson.loads(record)["text"]
                for name, record in connection.execute("select id, record from questions where gold = 0")
            },
            counts=RoundCounts(**counts, missing=int(connection.execute(_MISSING).fetchone()[0])),
        )


def _as_decided(original: GradeTable, decided: Mapping[tuple[str, str], float]) -> GradeTable:
    """The table with every grade of a decided answer replaced by the decision, as ``grade_table`` would read it."""
    found = original.chosen(np.ones(len(original), dtype=np.bool_))
    questions = {name: at for at, name in enumerate(found.questions)}
    candidates = {name: at for at, name in enumerate(found.candidates)}
    decisions = {
        questions[question] * len(candidates) + candidates[candidate]: value
        for (question, candidate), value in decided.items()
        if question in questions and candidate in candidates
    }
    if decisions:
        keys, values = np.array(sorted(decisions)), np.array([decisions[key] for key in sorted(decisions)])
        own = found.question * len(candidates) + found.candidate
        at = np.searchsorted(keys, own).clip(max=len(keys) - 1)
        found.values = np.where(keys[at] == own, values[at], found.values)
    return found


def read_tags(file: Path | None) -> dict[tuple[str, str], bool]:
    """By question and candidate whether the response is the same; by question alone whether the question is.

    :raises DatasetError: a row has no question, or its ``same`` is neither yes nor no.
    """
    found: dict[tuple[str, str], bool] = {}
    if file is None:
        return found
    for line, record in read_records(file):
        if isinstance(record, DatasetError):
            raise record
        question, same = str(record.get("question") or "").strip(), str(record.get("same") or "").strip().lower()
        if not question or same not in ("yes", "no", "true", "false"):
            raise DatasetError("expected a question, and yes or no under 'same'", path=str(file), line=line)
        found[question, str(record.get("candidate") or "").strip()] = same in ("yes", "true")
    return found

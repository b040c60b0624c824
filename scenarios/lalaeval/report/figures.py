"""All figures of a graded round's report, as plain data: what tables, pages and files are made from.

What never belongs here: words and layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from viva.engine.errors import ConfigurationError
from viva.reports.figures import rounded
from viva.scoring.disputes import DisputeFlags, find_disputes, grader_levels, question_levels, weights_of
from viva.scoring.grade_table import GradeTable
from viva.scoring.intervals import Estimate
from viva.scoring.ratios import weighted_ratio
from viva.scoring.severity import SeverityFit, fit_severity

from ..corrected import corrected_grades
from ..fluctuation import fluctuations
from ..graded_round import GradedRound
from ..grades import LEVEL, OVERALL, GradeFigure, GradeSums, candidate_grades, grade_differences, groups_of
from ..training import grader_consistency
from .agreement import agreement_record
from .grade_rows import first_grade_rows, grade_columns

Whose = Literal["people", "models", "all"]
Record = dict[str, Any]
RETRAIN, REVIEW = 0.2, 10  # where the rules of a folder do not say
SHOWN = 12  # rows of the table of grades


@dataclass(slots=True, frozen=True)
class ReportChoices:
    """``whose`` grades candidates' figures are made of: people's, where people graded at all. ``retrain``, ``review``
    and ``threshold`` overrule the folder's.
    """

    whose: Whose = "people"
    retrain: float | None = None
    review: int | None = None
    threshold: float | None = None


def grade_report(
    graded: GradedRound, against: GradedRound | None = None, choices: ReportChoices | None = None
) -> Record:
    """The report of a round, with its changes ``against`` an earlier one. The same grades give the same record.

    :raises ConfigurationError: there is no grade of those asked for, or a dimension has no weight.
    """
    choices = choices or ReportChoices()
    kept, whose = rows_of(graded.table, choices.whose)
    table, undecided = graded.table.chosen(kept), graded.undecided()[kept]
    if not (~np.isnan(table.values)).any():
        raise ConfigurationError("there is no grade yet that could be reported")
    weights = graded.weights or None
    sums, fit = GradeSums(table, weights, graded.criteria.wrong), fit_severity(graded.original, LEVEL)
    disputing = graded.original
    if whose == "people" and not graded.criteria.models:  # models open no dispute among people
        disputing = disputing.chosen(rows_of(disputing, "people")[0])
    flags = find_disputes(disputing, graded.criteria)
    report: Record = {
        "round": {"title": graded.title, "name": graded.name, "kind": graded.kind, "rubric": dict(graded.rubric),
                  "whose": whose, "level": LEVEL},
        "counts": _counts(graded, flags, table),
        "dimensions": table.dimensions,
        "groups": [one.name for one in groups_of(table.dimensions)],
        "weights": dict(zip(table.dimensions, weights_of(table.dimensions, weights).tolist(), strict=True)),
        "candidates": _candidates(sums, table, fit, weights, undecided),
        "differences": [_difference(one) for one in grade_differences(sums)],
        "graders": _graders(graded, disputing, flags, fit, choices),
        "severity": {"groups": fit.groups, "noise": rounded(fit.noise)},
        "questions": _questions(graded, disputing, flags, choices),
        "disputes": _disputes(disputing, flags),
        "agreement": agreement_record(graded.original),
        "fluctuation": None,
        "given": _given(graded),
    }  # fmt: skip
    if against is not None:
        report["fluctuation"] = _fluctuation(graded, against, whose)
    return report


def rows_of(table: GradeTable, whose: Whose) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], Whose]:
    """Which rows of a table candidates' figures are made of, and whose grades these are."""
    model = np.array([name in table.models for name in table.graders], dtype=np.bool_)
    rows = model[table.grader] if len(table) else np.zeros(0, dtype=np.bool_)
    if whose == "people" and rows.all():
        whose = "models" if len(rows) else "people"
    return {"people": ~rows, "models": rows, "all": np.ones(len(rows), dtype=np.bool_)}[whose], whose


def _given(graded: GradedRound) -> Record:
    """The first rows of the table of grades, and how many it has."""
    first, count = first_grade_rows(graded, SHOWN)
    return {"columns": grade_columns(graded), "first": [list(row.values()) for row in first], "rows": count}


def _counts(graded: GradedRound, flags: DisputeFlags, table: GradeTable) -> Record:
    one = graded.counts
    disputed = int(flags.disputed.sum())
    places = zip(flags.question[flags.disputed], flags.candidate[flags.disputed], strict=True)
    open_ones = {(graded.original.questions[k], graded.original.candidates[q]) for k, q in places}
    return {
        "questions": one.questions, "gold_questions": one.gold_questions, "invalid_questions": one.invalid_questions,
        "answers": one.answers, "grades": one.grades, "missing": one.missing, "taken_back": one.taken_back,
        "invalid": one.invalid, "disputed": disputed, "decided": one.decided,
        "undecided": len(open_ones - graded.decided.keys()), "counted": int((~np.isnan(table.values)).sum()),
    }  # fmt: skip


def _candidates(
    sums: GradeSums, table: GradeTable, fit: SeverityFit, weights: Mapping[str, float] | None, undecided: Any
) -> list[Record]:
    corrected = corrected_grades(table, fit, weights, undecided)
    return [
        {
            "candidate": one.candidate,
            "grade": {name: _figure(figure) for name, figure in one.grade.items()},
            "accuracy": {name: _figure(figure) for name, figure in one.accuracy.items()},
            "corrected": {name: _figure(figure) for name, figure in other.items()},
        }
        for one, other in zip(candidate_grades(sums), corrected, strict=True)
    ]


def _figure(one: GradeFigure) -> Record:
    return {**_ends(one.value, one.low, one.high), "grades": one.grades, "missing": one.missing,
            "questions": one.questions}  # fmt: skip


def _ends(value: float | None, low: float | None, high: float | None) -> Record:
    return {"value": rounded(value), "low": rounded(low), "high": rounded(high)}


def _estimate(one: Estimate | None) -> Record:
    """A share as per cent."""
    return _ends(*((None, None, None) if one is None else (100 * one.value, 100 * one.low, 100 * one.high)))


def _difference(one: Any) -> Record:
    return {
        "group": one.group, "first": one.first, "second": one.second, **_ends(one.value, one.low, one.high),
        "p": rounded(one.p), "p_corrected": rounded(one.p_corrected), "questions": one.questions,
    }  # fmt: skip


def _graders(
    graded: GradedRound, disputing: GradeTable, flags: DisputeFlags, fit: SeverityFit, choices: ReportChoices
) -> list[Record]:
    """Describe each grader. A model is compared with everybody, people with those whose grades are ``disputing``."""
    everybody = graded.original, find_disputes(graded.original, graded.criteria)
    compared = {False: (disputing, flags), True: everybody}
    levels_of = {model: grader_levels(*one, graded.weights or None) for model, one in compared.items()}
    weights = weights_of(graded.original.dimensions, graded.weights or None)
    retrain = float(graded.rules.get("retrain", RETRAIN)) if choices.retrain is None else choices.retrain
    voting = True if len(disputing) == len(graded.original) else None
    found = []
    for at, (name, severe, consistent) in enumerate(
        zip(
            graded.original.graders,
            fit.graders,
            grader_consistency(graded, choices.threshold, models=voting),
            strict=True,
        )
    ):
        table, flags = compared[name in disputing.models]
        levels, clusters, present = levels_of[name in disputing.models], table.cluster_codes(), flags.answer >= 0
        mine = present & (table.grader == at)
        if not mine.any() and not consistent.answers:
            continue
        share = weighted_ratio(flags.rows[mine].astype(np.float64), np.ones(int(mine.sum())), table.dimension[mine],
                               clusters[mine], weights) if mine.any() else None  # fmt: skip
        level = None if np.isnan(levels.level[at]) else float(levels.level[at])
        reasons = ["disputes"] if level is not None and level > retrain else []
        reasons += ["consistency"] if graded.kind == "trial" and consistent.gate == "retrain" else []
        by_dimension = {
            dimension: {"value": rounded(100 * float(levels.by_dimension[at, j])), "graded": int(levels.graded[at, j])}
            for j, dimension in enumerate(table.dimensions) if levels.graded[at, j]
        }  # fmt: skip
        found.append({
            "grader": name, "model": name in table.models, "grades": int(mine.sum()),
            "disputes": _estimate(None if share is None else share.within(LEVEL)), "by_dimension": by_dimension,
            "severity": _ends(severe.severity, severe.low, severe.high), "compared": severe.answers,
            "group": severe.group, "consistency": _estimate(consistent.consistency),
            "near": rounded(consistent.near, 100), "answers": consistent.answers,
            "references": consistent.references, "gate": consistent.gate, "sure": consistent.sure, "retrain": reasons,
        })  # fmt: skip
    return found


def _questions(graded: GradedRound, table: GradeTable, flags: DisputeFlags, choices: ReportChoices) -> list[Record]:
    """The questions with the highest dispute levels, those of 0 left out."""
    levels = question_levels(table, flags, graded.criteria)
    most = int(graded.rules.get("review", REVIEW)) if choices.review is None else choices.review
    known = np.flatnonzero(np.nan_to_num(levels.level) > 0)
    ranked = sorted(known.tolist(), key=lambda k: (-round(float(levels.level[k]), 9), table.questions[k]))[:most]
    return [
        {"question": table.questions[k], "text": graded.texts.get(table.questions[k], ""),
         "level": rounded(float(levels.level[k])), "divided": int(levels.divided[k]), "alone": int(levels.alone[k]),
         "graders": int(levels.graders[k])}
        for k in ranked
    ]  # fmt: skip


def _disputes(table: GradeTable, flags: DisputeFlags) -> list[Record]:
    """By dimension how many graders there are, and the shares of answers with different grades and in dispute."""
    dimension_of = np.zeros(len(table.questions), dtype=np.int64)
    dimension_of[table.question] = table.dimension
    codes = np.zeros(len(table.questions), dtype=np.int64)
    codes[table.question] = table.cluster_codes()
    several = flags.graders > 1
    places = [*((name, [at]) for at, name in enumerate(table.dimensions)),
              (OVERALL, list(range(len(table.dimensions))))]  # fmt: skip
    found = []
    for name, inside in places:
        chosen = several & np.isin(dimension_of[flags.question], inside)
        rows = (flags.answer >= 0) & np.isin(table.dimension, inside)
        question, one_stratum = flags.question[chosen], np.zeros(int(chosen.sum()), dtype=np.int64)
        shares = [
            weighted_ratio(each[chosen].astype(np.float64), np.ones(len(question)), one_stratum, codes[question],
                           np.ones(1)) if chosen.any() else None
            for each in (flags.differs, flags.disputed)
        ]  # fmt: skip
        differs, disputed = (_estimate(None if one is None else one.within(LEVEL)) for one in shares)
        found.append({"dimension": name, "graders": len(np.unique(table.grader[rows])), "answers": int(chosen.sum()),
                      "differs": differs, "disputed": disputed})  # fmt: skip
    return found


def _fluctuation(graded: GradedRound, against: GradedRound, whose: Whose) -> Record:
    tables = [one.table.chosen(rows_of(one.table, whose)[0]) for one in (against, graded)]
    found = fluctuations((tables[0], tables[1]), (against.versions, graded.versions), graded.weights or None)
    notes = []
    if dict(graded.rubric) != dict(against.rubric):
        notes.append("the two rounds were graded by different versions of the rubric")
    if graded.weights and against.weights and dict(graded.weights) != dict(against.weights):
        notes.append("weights have changed since; both rounds are weighed by those of the later one")
    alone = sorted(set(tables[0].candidates) ^ set(tables[1].candidates))
    if alone:
        notes.append(f"only one round has: {', '.join(alone)}")
    return {
        "against": {"title": against.title, "name": against.name},
        "notes": notes,
        "changes": [
            {"candidate": one.candidate, "dimension": one.name, "before": rounded(one.before),
             "after": rounded(one.after), "questions": one.questions,
             "change": _ends(one.change.value, one.change.low, one.change.high),
             "parts": {name: _ends(part.value, part.low, part.high) for name, part in one.parts.items()},
             "scenarios": [
                 {"question": question, "grader": grader,
                  **{f"{side}_{field}": rounded(getattr(each, field), factor)
                     for side, each in (("before", first), ("after", second))
                     for field, factor in (("share", 100), ("average", 1))}}
                 for (question, grader), (first, second) in one.scenarios.items()
             ]}
            for one in found
        ],
    }  # fmt: skip

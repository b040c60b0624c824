"""All figures of a graded round's report as plain data: what its tables, page and exported files are made from.

Agreement of people and of judge models with people, the four-dimensional table of grades (Sun and others 2024, Table
2), every figure as a row, and scores for Inspect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from viva.engine.errors import ConfigurationError
from viva.reports.figures import round_figure
from viva.scoring.disputes import DisputeFlags, dimension_weights, find_disputes, grader_levels, question_levels
from viva.scoring.graders import (
    AgreementCoefficient,
    Floats,
    GraderAgreement,
    GradeTable,
    SeverityFit,
    fit_severity,
    grader_agreement,
    mean_coefficient,
)
from viva.scoring.intervals import Estimate
from viva.scoring.ratios import weighted_ratio

from .candidate_grades import (
    LEVEL,
    OVERALL,
    GradeFigure,
    GradeSums,
    compare_candidates,
    corrected_grades,
    dimension_groups,
    grade_candidates,
)
from .fluctuation import decompose_changes
from .graded_round import GradedRound, grader_consistency

Row = dict[str, Any]


def grade_columns(graded: GradedRound) -> list[str]:
    """The columns of the four-dimensional table: dimension, question, grader, and each candidate's grade."""
    return ["dimension", "question", "grader", *(f"grade of {name}" for name in graded.original.candidates)]


def grade_rows(graded: GradedRound) -> Iterator[Row]:
    """The rows of original grades, None where there is none."""
    yield from _candidate_rows(graded, graded.original)


def first_grade_rows(graded: GradedRound, count: int) -> tuple[list[Row], int]:
    """So many of these rows, and how many there are."""
    table = graded.original
    keys = (table.dimension * len(table.questions) + table.question) * len(table.graders) + table.grader
    found = np.unique(keys)
    chosen = np.isin(keys, found[:count])
    return list(_candidate_rows(graded, table.select(chosen))), len(found)


def _candidate_rows(graded: GradedRound, table: GradeTable) -> Iterator[Row]:
    columns = grade_columns(graded)
    cells: dict[tuple[int, int, int], Row] = {}
    for j, k, i, q, value in zip(table.dimension.tolist(), table.question.tolist(), table.grader.tolist(),
                                 table.candidate.tolist(), table.values.tolist(), strict=True):  # fmt: skip
        row = cells.setdefault((j, k, i), dict.fromkeys(columns) | {
            "dimension": table.dimensions[j], "question": table.questions[k], "grader": table.graders[i]
        })  # fmt: skip
        row[columns[3 + q]] = None if value != value else value
    for place in sorted(cells):
        yield cells[place]


Record = dict[str, Any]


def agreement_figures(table: GradeTable) -> Record:
    """``people``: by dimension and over all; of all graders where no people graded. ``models``: each model with them.

    Over all, a coefficient is the mean of those of the dimensions, for their scales differ.
    """
    people = table.without_models()
    first = people if (~np.isnan(people.values)).any() else table
    by_dimension = [(name, _dimension_agreement(first, at)) for at, name in enumerate(table.dimensions)]
    found = [{"dimension": name, **_agreement_record(one)} for name, one in by_dimension]
    parts = [one for _, one in by_dimension]
    same = _same_grade_share(first, np.ones(len(first.graders), dtype=np.bool_))
    found.append({
        "dimension": OVERALL, "answers": sum(one.answers for one in parts), "same": _percent_record(same),
        "alpha": _coefficient_record(mean_coefficient([(one.alpha["ordinal"], one.answers) for one in parts
                                                         if one.alpha])),
        "alpha_nominal": _coefficient_record(
            mean_coefficient([(one.alpha["nominal"], one.answers) for one in parts if one.alpha])
        ),
        "ac1": _coefficient_record(mean_coefficient([(one.ac1, one.answers) for one in parts])),
        "ac2": _coefficient_record(mean_coefficient([(one.ac2, one.answers) for one in parts])),
    })  # fmt: skip
    models = [] if first is table else [
        record for at, name in enumerate(table.graders) if name in table.models and (record := _model_record(table, at))
    ]  # fmt: skip
    return {"people": found, "models": models}


def _dimension_agreement(table: GradeTable, at: int) -> GraderAgreement:
    return grader_agreement(table.select(table.dimension == at), LEVEL)


def _agreement_record(one: GraderAgreement) -> Record:
    nothing = AgreementCoefficient(None)
    return {
        "answers": one.answers, "same": _percent_record(one.same),
        "alpha": _coefficient_record(one.alpha.get("ordinal", nothing)),
        "alpha_nominal": _coefficient_record(one.alpha.get("nominal", nothing)),
        "ac1": _coefficient_record(one.ac1), "ac2": _coefficient_record(one.ac2),
    }  # fmt: skip


def _coefficient_record(one: AgreementCoefficient) -> Record:
    return {"value": round_figure(one.value), "low": round_figure(one.low), "high": round_figure(one.high)}


def _percent_record(one: Estimate | None) -> Record:
    """Return a share as per cent."""
    return {end: None if one is None else round_figure(getattr(one, end), 100) for end in ("value", "low", "high")}


def _model_record(table: GradeTable, model: int) -> Record | None:
    """A model with people, and people among themselves on the same answers; None where they share none."""
    people = np.array([name not in table.models for name in table.graders], dtype=np.bool_)
    present = ~np.isnan(table.values)
    keys = table.question * max(1, len(table.candidates)) + table.candidate
    shared = np.intersect1d(keys[present & (table.grader == model)], keys[present & people[table.grader]])
    if not len(shared):
        return None
    both = people.copy()
    both[model] = True
    chosen = table.select(np.isin(keys, shared) & both[table.grader])
    alphas = []
    for graders in (both, people):
        rows = chosen.select(graders[chosen.grader])
        parts = [_dimension_agreement(rows, at) for at in range(len(rows.dimensions))]
        alphas.append(mean_coefficient([(one.alpha["ordinal"], one.answers) for one in parts if one.alpha]))
    return {
        "grader": table.graders[model], "answers": len(shared),
        "same": _percent_record(_same_grade_share(chosen, np.arange(len(both)) == model)),
        "people": _percent_record(_same_grade_share(chosen, people)),
        "alpha_with": _coefficient_record(alphas[0]), "alpha_people": _coefficient_record(alphas[1]),
    }  # fmt: skip


def _same_grade_share(table: GradeTable, own: NDArray[np.bool_]) -> Estimate | None:
    """The share of pairs of grades of one answer that are the same: pairs among ``own`` graders if they are several,
    else of the one with all others.
    """
    present = np.flatnonzero(~np.isnan(table.values))
    values, category = np.unique(table.values[present], return_inverse=True)
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, first, answer = np.unique(keys, return_index=True, return_inverse=True)
    counts = [np.zeros((len(first), len(values))) for _ in range(2)]
    for side, chosen in enumerate((own[table.grader[present]], ~own[table.grader[present]])):
        np.add.at(counts[side], (answer[chosen], category[chosen]), 1.0)
    mine, others = counts
    alike: Floats
    if own.sum() > 1:
        alike, pairs = (mine * (mine - 1)).sum(axis=1), mine.sum(axis=1) * (mine.sum(axis=1) - 1)
    else:
        alike, pairs = (mine * others).sum(axis=1), mine.sum(axis=1) * others.sum(axis=1)
    cluster = table.cluster_codes()[present][first]
    found = weighted_ratio(alike, pairs, np.zeros(len(cluster), dtype=np.int64), cluster, np.ones(1))
    return None if found is None else found.bounded_interval(LEVEL)


GradeSource = Literal["people", "models", "all"]
RETRAIN_SHARE, REVIEW_COUNT = 0.2, 10  # where the rules of a folder do not say
SHOWN_ROWS = 12  # rows of the table of grades


@dataclass(slots=True, frozen=True)
class ReportOptions:
    """``whose`` grades candidates' figures are made of: people's, where people graded at all. ``retrain``, ``review``
    and ``threshold`` overrule the folder's.
    """

    whose: GradeSource = "people"
    retrain: float | None = None
    review: int | None = None
    threshold: float | None = None


def make_report(
    graded: GradedRound, against: GradedRound | None = None, choices: ReportOptions | None = None
) -> Record:
    """The report of a round, with its changes ``against`` an earlier one. The same grades give the same record.

    :raises ConfigurationError: there is no grade of those asked for, or a dimension has no weight.
    """
    choices = choices or ReportOptions()
    kept, whose = select_rows(graded.table, choices.whose)
    table, undecided = graded.table.select(kept), graded.undecided()[kept]
    if not (~np.isnan(table.values)).any():
        raise ConfigurationError("there is no grade yet that could be reported")
    weights = graded.weights or None
    sums, fit = GradeSums(table, weights, graded.criteria.wrong), fit_severity(graded.original, LEVEL)
    disputing = graded.original
    if whose == "people" and not graded.criteria.models:  # models open no dispute among people
        disputing = disputing.select(select_rows(disputing, "people")[0])
    flags = find_disputes(disputing, graded.criteria)
    report: Record = {
        "round": {"title": graded.title, "name": graded.name, "kind": graded.kind, "rubric": dict(graded.rubric),
                  "whose": whose, "level": LEVEL},
        "counts": _count_record(graded, flags, table),
        "dimensions": table.dimensions,
        "groups": [one.name for one in dimension_groups(table.dimensions)],
        "weights": dict(zip(table.dimensions, dimension_weights(table.dimensions, weights).tolist(), strict=True)),
        "candidates": _candidate_records(sums, table, fit, weights, undecided),
        "differences": [_difference_record(one) for one in compare_candidates(sums)],
        "graders": _grader_records(graded, disputing, flags, fit, choices),
        "severity": {"groups": fit.groups, "noise": round_figure(fit.noise)},
        "questions": _question_records(graded, disputing, flags, choices),
        "disputes": _dispute_records(disputing, flags),
        "agreement": agreement_figures(graded.original),
        "fluctuation": None,
        "given": _first_grades(graded),
    }  # fmt: skip
    if against is not None:
        report["fluctuation"] = _fluctuation_record(graded, against, whose)
    return report


def select_rows(table: GradeTable, whose: GradeSource) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], GradeSource]:
    """Which rows of a table candidates' figures are made of, and whose grades these are."""
    model = np.array([name in table.models for name in table.graders], dtype=np.bool_)
    rows = model[table.grader] if len(table) else np.zeros(0, dtype=np.bool_)
    if whose == "people" and rows.all():
        whose = "models" if len(rows) else "people"
    return {"people": ~rows, "models": rows, "all": np.ones(len(rows), dtype=np.bool_)}[whose], whose


def _first_grades(graded: GradedRound) -> Record:
    """The first rows of the table of grades, and how many it has."""
    first, count = first_grade_rows(graded, SHOWN_ROWS)
    return {"columns": grade_columns(graded), "first": [list(row.values()) for row in first], "rows": count}


def _count_record(graded: GradedRound, flags: DisputeFlags, table: GradeTable) -> Record:
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


def _candidate_records(
    sums: GradeSums, table: GradeTable, fit: SeverityFit, weights: Mapping[str, float] | None, undecided: Any
) -> list[Record]:
    corrected = corrected_grades(table, fit, weights, undecided)
    return [
        {
            "candidate": one.candidate,
            "grade": {name: _figure_record(figure) for name, figure in one.grade.items()},
            "accuracy": {name: _figure_record(figure) for name, figure in one.accuracy.items()},
            "corrected": {name: _figure_record(figure) for name, figure in other.items()},
        }
        for one, other in zip(grade_candidates(sums), corrected, strict=True)
    ]


def _figure_record(one: GradeFigure) -> Record:
    return {**_interval_record(one.value, one.low, one.high), "grades": one.grades, "missing": one.missing,
            "questions": one.questions}  # fmt: skip


def _interval_record(value: float | None, low: float | None, high: float | None) -> Record:
    return {"value": round_figure(value), "low": round_figure(low), "high": round_figure(high)}


def _difference_record(one: Any) -> Record:
    return {
        "group": one.group, "first": one.first, "second": one.second, **_interval_record(one.value, one.low, one.high),
        "p": round_figure(one.p), "p_corrected": round_figure(one.p_corrected), "questions": one.questions,
    }  # fmt: skip


def _grader_records(
    graded: GradedRound, disputing: GradeTable, flags: DisputeFlags, fit: SeverityFit, choices: ReportOptions
) -> list[Record]:
    """Describe each grader. A model is compared with everybody, people with those whose grades are ``disputing``."""
    everybody = graded.original, find_disputes(graded.original, graded.criteria)
    compared = {False: (disputing, flags), True: everybody}
    levels_of = {model: grader_levels(*one, graded.weights or None) for model, one in compared.items()}
    weights = dimension_weights(graded.original.dimensions, graded.weights or None)
    retrain = float(graded.rules.get("retrain", RETRAIN_SHARE)) if choices.retrain is None else choices.retrain
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
            dimension: {"value": round_figure(100 * float(levels.by_dimension[at, j])),
                "graded": int(levels.graded[at, j])}
            for j, dimension in enumerate(table.dimensions) if levels.graded[at, j]
        }  # fmt: skip
        found.append({
            "grader": name, "model": name in table.models, "grades": int(mine.sum()),
            "disputes": _percent_record(None if share is None else share.bounded_interval(LEVEL)),
            "by_dimension": by_dimension,
            "severity": _interval_record(severe.severity, severe.low, severe.high), "compared": severe.answers,
            "group": severe.group, "consistency": _percent_record(consistent.consistency),
            "near": round_figure(consistent.near, 100), "answers": consistent.answers,
            "references": consistent.references, "gate": consistent.gate, "sure": consistent.sure, "retrain": reasons,
        })  # fmt: skip
    return found


def _question_records(
    graded: GradedRound, table: GradeTable, flags: DisputeFlags, choices: ReportOptions
) -> list[Record]:
    """The questions with the highest dispute levels, those of 0 left out."""
    levels = question_levels(table, flags, graded.criteria)
    most = int(graded.rules.get("review", REVIEW_COUNT)) if choices.review is None else choices.review
    known = np.flatnonzero(np.nan_to_num(levels.level) > 0)
    ranked = sorted(known.tolist(), key=lambda k: (-round(float(levels.level[k]), 9), table.questions[k]))[:most]
    return [
        {"question": table.questions[k], "text": graded.texts.get(table.questions[k], ""),
         "level": round_figure(float(levels.level[k])), "divided": int(levels.divided[k]),
         "alone": int(levels.alone[k]),
         "graders": int(levels.graders[k])}
        for k in ranked
    ]  # fmt: skip


def _dispute_records(table: GradeTable, flags: DisputeFlags) -> list[Record]:
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
        differs, disputed = (_percent_record(None if one is None else one.bounded_interval(LEVEL)) for one in shares)
        found.append({"dimension": name, "graders": len(np.unique(table.grader[rows])), "answers": int(chosen.sum()),
                      "differs": differs, "disputed": disputed})  # fmt: skip
    return found


def _fluctuation_record(graded: GradedRound, against: GradedRound, whose: GradeSource) -> Record:
    tables = [one.table.select(select_rows(one.table, whose)[0]) for one in (against, graded)]
    found = decompose_changes((tables[0], tables[1]), (against.versions, graded.versions), graded.weights or None)
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
            {"candidate": one.candidate, "dimension": one.name, "before": round_figure(one.before),
             "after": round_figure(one.after), "questions": one.questions,
             "change": _interval_record(one.change.value, one.change.low, one.change.high),
             "parts": {name: _interval_record(part.value, part.low, part.high) for name, part in one.parts.items()},
             "scenarios": [
                 {"question": question, "grader": grader,
                  **{f"{side}_{field}": round_figure(getattr(each, field), factor)
                     for side, each in (("before", first), ("after", second))
                     for field, factor in (("share", 100), ("average", 1))}}
                 for (question, grader), (first, second) in one.scenarios.items()
             ]}
            for one in found
        ],
    }  # fmt: skip


ReportMapping = Mapping[str, Any]
FIGURE_COLUMNS = (
    "part",
    "dimension",
    "candidate",
    "against",
    "grader",
    "question",
    "measure",
    "value",
    "low",
    "high",
    "p",
    "n",
)
TEXT_COLUMNS = ("part", "dimension", "candidate", "against", "grader", "question", "measure")


def figure_rows(report: ReportMapping) -> Iterator[Row]:
    """Every figure of a report, one a row."""
    for one in report["candidates"]:
        for measure in ("grade", "accuracy", "corrected"):
            for name, figure in one[measure].items():
                yield _figure_row(
                    "candidates", measure, figure, dimension=name, candidate=one["candidate"], n=figure["grades"]
                )
    for one in report["differences"]:
        yield _figure_row("differences", "grade", one, dimension=one["group"], candidate=one["first"],
            against=one["second"],
                   p=one["p_corrected"], n=one["questions"])  # fmt: skip
    for one in report["graders"]:
        place = {"grader": one["grader"]}
        for measure, n in (("disputes", one["grades"]), ("severity", one["compared"]), ("consistency", one["answers"])):
            yield _figure_row("graders", measure, one[measure], n=n, **place)
        for name, cell in one["by_dimension"].items():
            yield _figure_row("graders", "disputes", cell, dimension=name, n=cell["graded"], **place)
    for one in report["disputes"]:
        for measure in ("differs", "disputed"):
            yield _figure_row("disputes", measure, one[measure], dimension=one["dimension"], n=one["answers"])
    for one in report["agreement"]["people"]:
        for measure in ("same", "alpha", "alpha_nominal", "ac1", "ac2"):
            yield _figure_row("agreement", measure, one[measure], dimension=one["dimension"], n=one["answers"])
    for one in report["agreement"]["models"]:
        for measure in ("same", "people", "alpha_with", "alpha_people"):
            yield _figure_row("models", measure, one[measure], grader=one["grader"], n=one["answers"])
    for one in report["questions"]:
        yield _figure_row("questions", "level", {"value": one["level"]}, question=one["question"], n=one["graders"])
    for one in (report["fluctuation"] or {"changes": []})["changes"]:
        place = {"dimension": one["dimension"], "candidate": one["candidate"], "n": one["questions"]}
        yield _figure_row("fluctuation", "before", {"value": one["before"]}, **place)
        yield _figure_row("fluctuation", "after", {"value": one["after"]}, **place)
        yield _figure_row("fluctuation", "change", one["change"], **place)
        for name, part in one["parts"].items():
            yield _figure_row("fluctuation", f"part.{name}", part, **place)
    for name, number in report["counts"].items():
        yield _figure_row("counts", name, {"value": number})


def _figure_row(part: str, measure: str, figure: ReportMapping, **place: Any) -> Row:
    numbers = {name: figure.get(name) for name in ("value", "low", "high")}
    return dict.fromkeys(FIGURE_COLUMNS) | {"part": part, "measure": measure} | numbers | place


def inspect_scores(graded: GradedRound, whose: GradeSource = "people") -> dict[str, list[Row]]:
    """By candidate the records that Inspect's scorer ``precomputed_scores`` reads: a question's mean grade as a share
    of the highest, 0–1, of ``whose`` grades the report is made of; with these as metadata. Sample ids are those of
    questions.
    """
    kept, _ = select_rows(graded.table, whose)
    table, original = graded.table.select(kept), graded.original.values[kept]
    present = ~np.isnan(table.values)
    found: dict[str, list[Row]] = {}
    for at, candidate in enumerate(table.candidates):
        by_question: dict[int, list[int]] = {}
        for row in np.flatnonzero(present & (table.candidate == at)).tolist():
            by_question.setdefault(int(table.question[row]), []).append(row)
        records = []
        for k, rows in sorted(by_question.items()):
            given = {
                table.graders[table.grader[row]]: float(original[row]) for row in rows if original[row] == original[row]
            }
            metadata: Row = {"dimension": table.dimensions[table.dimension[rows[0]]], "grades": given,
                             "highest": float(table.tops[rows[0]])}  # fmt: skip
            if (table.questions[k], candidate) in graded.decided:
                metadata["decided"] = graded.decided[table.questions[k], candidate]
            value = float(table.values[rows].sum() / table.tops[rows].sum()) if table.tops[rows].sum() else None
            if value is not None:
                records.append({"id": table.questions[k], "value": round(value, 6), "metadata": metadata})
        found[candidate] = records
    return found

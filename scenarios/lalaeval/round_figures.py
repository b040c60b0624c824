"""Figures of a graded round's report as plain data: the basis of its tables, page and exported files.

The figures include the agreement of people, and of judge models with people, and the four-dimensional table of grades
(Sun and others 2024, Table 2). Exports are every figure as a row, and scores for Inspect.
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
    """Return the columns of the four-dimensional table: dimension, question, grader, and each candidate's grade."""
    return ["dimension", "question", "grader", *(f"grade of {name}" for name in graded.original.candidates)]


def grade_rows(graded: GradedRound) -> Iterator[Row]:
    """Yield the rows of the original grades; a candidate without a grade has None in its column."""
    yield from _candidate_rows(graded, graded.original)


def first_grade_rows(graded: GradedRound, count: int) -> tuple[list[Row], int]:
    """Return the first `count` rows of original grades, and the number of all rows."""
    table = graded.original
    keys = (table.dimension * len(table.questions) + table.question) * len(table.graders) + table.grader
    row_keys = np.unique(keys)
    chosen = np.isin(keys, row_keys[:count])
    return list(_candidate_rows(graded, table.select(chosen))), len(row_keys)


def _candidate_rows(graded: GradedRound, table: GradeTable) -> Iterator[Row]:
    columns = grade_columns(graded)
    cells: dict[tuple[int, int, int], Row] = {}
    for j, k, i, q, value in zip(table.dimension.tolist(), table.question.tolist(), table.grader.tolist(),
                                 table.candidate.tolist(), table.values.tolist(), strict=True):  # fmt: skip
        row = cells.setdefault((j, k, i), dict.fromkeys(columns) | {
            "dimension": table.dimensions[j], "question": table.questions[k], "grader": table.graders[i]
        })  # fmt: skip
        row[columns[3 + q]] = None if value != value else value
    for key in sorted(cells):
        yield cells[key]


Record = dict[str, Any]


def agreement_figures(table: GradeTable) -> Record:
    """Return the agreement of graders.

    `people`: by dimension and overall; of all graders if no people graded. `models`: each model with people. The
    overall coefficient is the mean over dimensions, since their scales differ.
    """
    people = table.without_models()
    first = people if (~np.isnan(people.values)).any() else table
    by_dimension = [(name, _dimension_agreement(first, at)) for at, name in enumerate(table.dimensions)]
    people_records = [{"dimension": name, **_agreement_record(agreement)} for name, agreement in by_dimension]
    parts = [agreement for _, agreement in by_dimension]
    same = _same_grade_share(first, np.ones(len(first.graders), dtype=np.bool_))
    alpha = {
        name: mean_coefficient([(part.alpha[name], part.answers) for part in parts if part.alpha])
        for name in ("ordinal", "nominal")
    }
    people_records.append({
        "dimension": OVERALL, "answers": sum(part.answers for part in parts), "same": _percent_record(same),
        "alpha": _coefficient_record(alpha["ordinal"]), "alpha_nominal": _coefficient_record(alpha["nominal"]),
        "ac1": _coefficient_record(mean_coefficient([(part.ac1, part.answers) for part in parts])),
        "ac2": _coefficient_record(mean_coefficient([(part.ac2, part.answers) for part in parts])),
    })  # fmt: skip
    models = [] if first is table else [
        record for at, name in enumerate(table.graders) if name in table.models and (record := _model_record(table, at))
    ]  # fmt: skip
    return {"people": people_records, "models": models}


def _dimension_agreement(table: GradeTable, at: int) -> GraderAgreement:
    return grader_agreement(table.select(table.dimension == at), LEVEL)


def _agreement_record(agreement: GraderAgreement) -> Record:
    nothing = AgreementCoefficient(None)
    return {
        "answers": agreement.answers, "same": _percent_record(agreement.same),
        "alpha": _coefficient_record(agreement.alpha.get("ordinal", nothing)),
        "alpha_nominal": _coefficient_record(agreement.alpha.get("nominal", nothing)),
        "ac1": _coefficient_record(agreement.ac1), "ac2": _coefficient_record(agreement.ac2),
    }  # fmt: skip


def _coefficient_record(coefficient: AgreementCoefficient) -> Record:
    return {
        "value": round_figure(coefficient.value),
        "low": round_figure(coefficient.low),
        "high": round_figure(coefficient.high),
    }


def _percent_record(estimate: Estimate | None) -> Record:
    """Return a share as per cent."""
    return {
        end: None if estimate is None else round_figure(getattr(estimate, end), 100) for end in ("value", "low", "high")
    }


def _model_record(table: GradeTable, model: int) -> Record | None:
    """Compare a model with people, and people with each other on the same answers; None without shared answers."""
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
        alphas.append(
            mean_coefficient(
                [(agreement.alpha["ordinal"], agreement.answers) for agreement in parts if agreement.alpha]
            )
        )
    return {
        "grader": table.graders[model], "answers": len(shared),
        "same": _percent_record(_same_grade_share(chosen, np.arange(len(both)) == model)),
        "people": _percent_record(_same_grade_share(chosen, people)),
        "alpha_with": _coefficient_record(alphas[0]), "alpha_people": _coefficient_record(alphas[1]),
    }  # fmt: skip


def _same_grade_share(table: GradeTable, own: NDArray[np.bool_]) -> Estimate | None:
    """Return the share of pairs of grades of one answer that are equal.

    Pairs are among the `own` graders; a single one is paired with all other graders.
    """
    present = np.flatnonzero(~np.isnan(table.values))
    values, category = np.unique(table.values[present], return_inverse=True)
    keys = table.question[present] * max(1, len(table.candidates)) + table.candidate[present]
    _, first, answer = np.unique(keys, return_index=True, return_inverse=True)
    counts = [np.zeros((len(first), len(values))) for _ in range(2)]
    for side, chosen in enumerate((own[table.grader[present]], ~own[table.grader[present]])):
        np.add.at(counts[side], (answer[chosen], category[chosen]), 1.0)
    own_counts, other_counts = counts
    equal_pairs: Floats
    if own.sum() > 1:
        equal_pairs, pairs = (
            (own_counts * (own_counts - 1)).sum(axis=1),
            own_counts.sum(axis=1) * (own_counts.sum(axis=1) - 1),
        )
    else:
        equal_pairs, pairs = (own_counts * other_counts).sum(axis=1), own_counts.sum(axis=1) * other_counts.sum(axis=1)
    cluster = table.cluster_codes()[present][first]
    ratio = weighted_ratio(equal_pairs, pairs, np.zeros(len(cluster), dtype=np.int64), cluster, np.ones(1))
    return None if ratio is None else ratio.bounded_interval(LEVEL)


GradeSource = Literal["people", "models", "all"]
RETRAIN_SHARE, REVIEW_COUNT = 0.2, 10  # defaults without rules in the folder
SHOWN_ROWS = 12  # rows of the table of grades
BEFORE = "before_adjudication"  # grades as graders gave them, as in the paper's formula; only with decisions


@dataclass(slots=True, frozen=True)
class ReportOptions:
    """Options of a report.

    `source`: whose grades the candidates' figures are based on; without grades of people, `people` means models.
    `retrain`, `review` and `threshold` override the folder's.
    """

    source: GradeSource = "people"
    retrain: float | None = None
    review: int | None = None
    threshold: float | None = None


def make_report(
    graded: GradedRound, against: GradedRound | None = None, choices: ReportOptions | None = None
) -> Record:
    """Return the report of a round, with its changes `against` an earlier one. The same grades give the same record.

    Raises:
        ConfigurationError: There is no grade from the requested source, or a dimension has no weight.
    """
    choices = choices or ReportOptions()
    selected, source = select_rows(graded.table, choices.source)
    table, undecided = graded.table.select(selected), graded.undecided()[selected]
    if not (~np.isnan(table.values)).any():
        raise ConfigurationError(
            "there are no grades to report yet; `viva grade serve` collects people's, `viva grade judge` models'"
        )
    weights = graded.weights or None
    sums, fit = GradeSums(table, weights, graded.criteria.wrong), fit_severity(graded.original, LEVEL)
    before = GradeSums(graded.original.select(selected), weights) if graded.decided else None
    disputing = graded.original
    if source == "people" and not graded.criteria.models:  # models open no dispute among people
        disputing = disputing.select(select_rows(disputing, "people")[0])
    flags = find_disputes(disputing, graded.criteria)
    report: Record = {
        "round": {"title": graded.title, "name": graded.name, "kind": graded.kind, "rubric": dict(graded.rubric),
                  "whose": source, "level": LEVEL},
        "counts": _count_record(graded, flags, table),
        "dimensions": table.dimensions,
        "groups": [entry.name for entry in dimension_groups(table.dimensions)],
        "weights": dict(zip(table.dimensions, dimension_weights(table.dimensions, weights).tolist(), strict=True)),
        "candidates": _candidate_records(sums, before, table, fit, weights, undecided),
        "differences": [_difference_record(entry) for entry in compare_candidates(sums)],
        "graders": _grader_records(graded, disputing, flags, fit, choices),
        "severity": {"groups": fit.groups, "noise": round_figure(fit.noise)},
        "questions": _question_records(graded, disputing, flags, choices),
        "disputes": _dispute_records(disputing, flags),
        "agreement": agreement_figures(graded.original),
        "fluctuation": None,
        "given": _first_grades(graded),
    }  # fmt: skip
    if against is not None:
        report["fluctuation"] = _fluctuation_record(graded, against, source)
    return report


def select_rows(table: GradeTable, source: GradeSource) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], GradeSource]:
    """Return a mask of the grades that candidates' figures are based on, and the source of these grades."""
    model = np.array([name in table.models for name in table.graders], dtype=np.bool_)
    rows = model[table.grader] if len(table) else np.zeros(0, dtype=np.bool_)
    if source == "people" and rows.all():
        source = "models" if len(rows) else "people"
    return {"people": ~rows, "models": rows, "all": np.ones(len(rows), dtype=np.bool_)}[source], source


def _first_grades(graded: GradedRound) -> Record:
    """Return the first rows of the table of grades, and the number of all."""
    first, count = first_grade_rows(graded, SHOWN_ROWS)
    return {"columns": grade_columns(graded), "first": [list(row.values()) for row in first], "rows": count}


def _count_record(graded: GradedRound, flags: DisputeFlags, table: GradeTable) -> Record:
    counts = graded.counts
    disputed = int(flags.disputed.sum())
    places = zip(flags.question[flags.disputed], flags.candidate[flags.disputed], strict=True)
    open_ones = {(graded.original.questions[k], graded.original.candidates[q]) for k, q in places}
    return {
        "questions": counts.questions,
        "gold_questions": counts.gold_questions,
        "invalid_questions": counts.invalid_questions,
        "answers": counts.answers,
        "grades": counts.grades,
        "missing": counts.missing,
        "taken_back": counts.taken_back,
        "invalid": counts.invalid,
        "disputed": disputed,
        "decided": counts.decided,
        "undecided": len(open_ones - graded.decided.keys()),
        "counted": int((~np.isnan(table.values)).sum()),
    }


def _candidate_records(
    sums: GradeSums,
    before: GradeSums | None,
    table: GradeTable,
    fit: SeverityFit,
    weights: Mapping[str, float] | None,
    undecided: Any,
) -> list[Record]:
    """Return candidates' figures. `before` has the grades without decisions; None if nothing was decided."""
    corrected = corrected_grades(table, fit, weights, undecided)
    records: list[Record] = [
        {
            "candidate": grades.candidate,
            "grade": {name: _figure_record(figure) for name, figure in grades.grade.items()},
            "accuracy": {name: _figure_record(figure) for name, figure in grades.accuracy.items()},
            "corrected": {name: _figure_record(figure) for name, figure in corrected_figures.items()},
        }
        for grades, corrected_figures in zip(grade_candidates(sums), corrected, strict=True)
    ]
    if before is not None:
        for record, original in zip(records, grade_candidates(before), strict=True):
            record[BEFORE] = {name: _figure_record(figure) for name, figure in original.grade.items()}
    return records


def _figure_record(figure: GradeFigure) -> Record:
    return {
        **_interval_record(figure.value, figure.low, figure.high),
        "grades": figure.grades,
        "missing": figure.missing,
        "questions": figure.questions,
    }


def _interval_record(value: float | None, low: float | None, high: float | None) -> Record:
    return {"value": round_figure(value), "low": round_figure(low), "high": round_figure(high)}


def _difference_record(difference: Any) -> Record:
    return {
        "group": difference.group,
        "first": difference.first,
        "second": difference.second,
        **_interval_record(difference.value, difference.low, difference.high),
        "p": round_figure(difference.p),
        "p_corrected": round_figure(difference.p_corrected),
        "questions": difference.questions,
    }


def _grader_records(
    graded: GradedRound, disputing: GradeTable, flags: DisputeFlags, fit: SeverityFit, choices: ReportOptions
) -> list[Record]:
    """Describe each grader. A model is compared with all graders, a person with the graders of `disputing`."""
    everybody = graded.original, find_disputes(graded.original, graded.criteria)
    compared = {False: (disputing, flags), True: everybody}
    levels_of = {model: grader_levels(*inputs, graded.weights or None) for model, inputs in compared.items()}
    weights = dimension_weights(graded.original.dimensions, graded.weights or None)
    retrain = float(graded.rules.get("retrain", RETRAIN_SHARE)) if choices.retrain is None else choices.retrain
    voting = True if len(disputing) == len(graded.original) else None
    records = []
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
        own = present & (table.grader == at)
        if not own.any() and not consistent.answers:
            continue
        disputed = weighted_ratio(flags.rows[own].astype(np.float64), np.ones(int(own.sum())), table.dimension[own],
                               clusters[own], weights) if own.any() else None  # fmt: skip
        level = None if np.isnan(levels.level[at]) else float(levels.level[at])
        reasons = ["disputes"] if level is not None and level > retrain else []
        reasons += ["consistency"] if graded.kind == "trial" and consistent.gate == "retrain" else []
        by_dimension = {
            dimension: {"value": round_figure(100 * float(levels.by_dimension[at, j])),
                "graded": int(levels.graded[at, j])}
            for j, dimension in enumerate(table.dimensions) if levels.graded[at, j]
        }  # fmt: skip
        records.append(
            {
                "grader": name,
                "model": name in table.models,
                "grades": int(own.sum()),
                "disputes": _percent_record(None if disputed is None else disputed.bounded_interval(LEVEL)),
                "by_dimension": by_dimension,
                "severity": _interval_record(severe.severity, severe.low, severe.high),
                "compared": severe.answers,
                "group": severe.group,
                "consistency": _percent_record(consistent.consistency),
                "near": round_figure(consistent.near, 100),
                "answers": consistent.answers,
                "references": consistent.references,
                "gate": consistent.gate,
                "sure": consistent.sure,
                "retrain": reasons,
            }
        )
    return records


def _question_records(
    graded: GradedRound, table: GradeTable, flags: DisputeFlags, choices: ReportOptions
) -> list[Record]:
    """Return the questions with the highest dispute levels above 0."""
    levels = question_levels(table, flags, graded.criteria)
    limit = int(graded.rules.get("review", REVIEW_COUNT)) if choices.review is None else choices.review
    disputed = np.flatnonzero(np.nan_to_num(levels.level) > 0)
    ranked = sorted(disputed.tolist(), key=lambda k: (-round(float(levels.level[k]), 9), table.questions[k]))[:limit]
    return [
        {"question": table.questions[k], "text": graded.texts.get(table.questions[k], ""),
         "level": round_figure(float(levels.level[k])), "divided": int(levels.divided[k]),
         "alone": int(levels.alone[k]),
         "graders": int(levels.graders[k])}
        for k in ranked
    ]  # fmt: skip


def _dispute_records(table: GradeTable, flags: DisputeFlags) -> list[Record]:
    """Return by dimension the number of graders, and the shares of answers with different grades and in dispute."""
    dimension_of = np.zeros(len(table.questions), dtype=np.int64)
    dimension_of[table.question] = table.dimension
    codes = np.zeros(len(table.questions), dtype=np.int64)
    codes[table.question] = table.cluster_codes()
    several = flags.graders > 1
    places = [*((name, [at]) for at, name in enumerate(table.dimensions)),
              (OVERALL, list(range(len(table.dimensions))))]  # fmt: skip
    records = []
    for name, members in places:
        chosen = several & np.isin(dimension_of[flags.question], members)
        rows = (flags.answer >= 0) & np.isin(table.dimension, members)
        question, one_stratum = flags.question[chosen], np.zeros(int(chosen.sum()), dtype=np.int64)
        shares = [
            weighted_ratio(each[chosen].astype(np.float64), np.ones(len(question)), one_stratum, codes[question],
                           np.ones(1)) if chosen.any() else None
            for each in (flags.differs, flags.disputed)
        ]  # fmt: skip
        differs, disputed = (
            _percent_record(None if ratio is None else ratio.bounded_interval(LEVEL)) for ratio in shares
        )
        records.append({"dimension": name, "graders": len(np.unique(table.grader[rows])), "answers": int(chosen.sum()),
                      "differs": differs, "disputed": disputed})  # fmt: skip
    return records


def _fluctuation_record(graded: GradedRound, against: GradedRound, source: GradeSource) -> Record:
    tables = [round_.table.select(select_rows(round_.table, source)[0]) for round_ in (against, graded)]
    fluctuations = decompose_changes(
        (tables[0], tables[1]), (against.versions, graded.versions), graded.weights or None
    )
    notes = []
    if dict(graded.rubric) != dict(against.rubric):
        notes.append("the two rounds were graded with different versions of the rubric")
    if graded.weights and against.weights and dict(graded.weights) != dict(against.weights):
        notes.append("weights have changed; figures of both rounds use the later round's weights")
    alone = sorted(set(tables[0].candidates) ^ set(tables[1].candidates))
    if alone:
        notes.append(f"only one round has: {', '.join(alone)}")
    return {
        "against": {"title": against.title, "name": against.name},
        "notes": notes,
        "changes": [
            {
                "candidate": fluctuation.candidate,
                "dimension": fluctuation.name,
                "before": round_figure(fluctuation.before),
                "after": round_figure(fluctuation.after),
                "questions": fluctuation.questions,
                "change": _interval_record(fluctuation.change.value, fluctuation.change.low, fluctuation.change.high),
                "parts": {
                    name: _interval_record(part.value, part.low, part.high) for name, part in fluctuation.parts.items()
                },
                "scenarios": [
                    {
                        "question": question,
                        "grader": grader,
                        **{
                            f"{side}_{field}": round_figure(getattr(each, field), factor)
                            for side, each in (("before", first), ("after", second))
                            for field, factor in (("share", 100), ("average", 1))
                        },
                    }
                    for (question, grader), (first, second) in fluctuation.scenarios.items()
                ],
            }
            for fluctuation in fluctuations
        ],
    }


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
    """Yield every figure of a report as one row."""
    for record in report["candidates"]:
        for measure in ("grade", BEFORE, "accuracy", "corrected"):
            for name, figure in record.get(measure, {}).items():
                yield _figure_row(
                    "candidates", measure, figure, dimension=name, candidate=record["candidate"], n=figure["grades"]
                )
    for record in report["differences"]:
        yield _figure_row("differences", "grade", record, dimension=record["group"], candidate=record["first"],
            against=record["second"],
                   p=record["p_corrected"], n=record["questions"])  # fmt: skip
    for record in report["graders"]:
        keys = {"grader": record["grader"]}
        for measure, n in (
            ("disputes", record["grades"]),
            ("severity", record["compared"]),
            ("consistency", record["answers"]),
        ):
            yield _figure_row("graders", measure, record[measure], n=n, **keys)
        for name, cell in record["by_dimension"].items():
            yield _figure_row("graders", "disputes", cell, dimension=name, n=cell["graded"], **keys)
    for record in report["disputes"]:
        for measure in ("differs", "disputed"):
            yield _figure_row("disputes", measure, record[measure], dimension=record["dimension"], n=record["answers"])
    for record in report["agreement"]["people"]:
        for measure in ("same", "alpha", "alpha_nominal", "ac1", "ac2"):
            yield _figure_row("agreement", measure, record[measure], dimension=record["dimension"], n=record["answers"])
    for record in report["agreement"]["models"]:
        for measure in ("same", "people", "alpha_with", "alpha_people"):
            yield _figure_row("models", measure, record[measure], grader=record["grader"], n=record["answers"])
    for record in report["questions"]:
        yield _figure_row(
            "questions", "level", {"value": record["level"]}, question=record["question"], n=record["graders"]
        )
    for record in (report["fluctuation"] or {"changes": []})["changes"]:
        keys = {"dimension": record["dimension"], "candidate": record["candidate"], "n": record["questions"]}
        yield _figure_row("fluctuation", "before", {"value": record["before"]}, **keys)
        yield _figure_row("fluctuation", "after", {"value": record["after"]}, **keys)
        yield _figure_row("fluctuation", "change", record["change"], **keys)
        for name, part in record["parts"].items():
            yield _figure_row("fluctuation", f"part.{name}", part, **keys)
    for name, number in report["counts"].items():
        yield _figure_row("counts", name, {"value": number})


def _figure_row(part: str, measure: str, figure: ReportMapping, **keys: Any) -> Row:
    numbers = {name: figure.get(name) for name in ("value", "low", "high")}
    return dict.fromkeys(FIGURE_COLUMNS) | {"part": part, "measure": measure} | numbers | keys


def inspect_scores(graded: GradedRound, source: GradeSource = "people") -> dict[str, list[Row]]:
    """Return, by candidate, the records that Inspect's scorer `precomputed_scores` reads.

    The value is a question's mean grade as a share of the highest, 0–1, from the grades of `source`, with these grades
    as metadata. Sample ids are the questions' ids.
    """
    selected, _ = select_rows(graded.table, source)
    table, original = graded.table.select(selected), graded.original.values[selected]
    present = ~np.isnan(table.values)
    by_candidate: dict[str, list[Row]] = {}
    for at, candidate in enumerate(table.candidates):
        by_question: dict[int, list[int]] = {}
        for row in np.flatnonzero(present & (table.candidate == at)).tolist():
            by_question.setdefault(int(table.question[row]), []).append(row)
        records = []
        for k, rows in sorted(by_question.items()):
            grades = {
                table.graders[table.grader[row]]: float(original[row]) for row in rows if original[row] == original[row]
            }
            metadata: Row = {"dimension": table.dimensions[table.dimension[rows[0]]], "grades": grades,
                             "highest": float(table.tops[rows[0]])}  # fmt: skip
            if (table.questions[k], candidate) in graded.decided:
                metadata["decided"] = graded.decided[table.questions[k], candidate]
            value = float(table.values[rows].sum() / table.tops[rows].sum()) if table.tops[rows].sum() else None
            if value is not None:
                records.append({"id": table.questions[k], "value": round(value, 6), "metadata": metadata})
        by_candidate[candidate] = records
    return by_candidate

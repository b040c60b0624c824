"""Agreement in a report: of people by dimension, and of judge models with people.

What never belongs here: the coefficients themselves (``scoring.rater_agreement``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.reports.figures import rounded
from viva.scoring.grade_table import Floats, GradeTable
from viva.scoring.intervals import Estimate
from viva.scoring.rater_agreement import Coefficient, GraderAgreement, grader_agreement, mean_coefficient
from viva.scoring.ratios import weighted_ratio

from ..grades import LEVEL, OVERALL

Record = dict[str, Any]


def agreement_record(table: GradeTable) -> Record:
    """``people``: by dimension and over all; of all graders where no people graded. ``models``: each model with them.

    Over all, a coefficient is the mean of those of the dimensions, for their scales differ.
    """
    people = table.without_models()
    first = people if (~np.isnan(people.values)).any() else table
    by_dimension = [(name, _of_dimension(first, at)) for at, name in enumerate(table.dimensions)]
    found = [{"dimension": name, **_told(one)} for name, one in by_dimension]
    parts = [one for _, one in by_dimension]
    same = _same(first, np.ones(len(first.graders), dtype=np.bool_))
    found.append({
        "dimension": OVERALL, "answers": sum(one.answers for one in parts), "same": _estimate(same),
        "alpha": _coefficient(mean_coefficient([(one.alpha["ordinal"], one.answers) for one in parts if one.alpha])),
        "alpha_nominal": _coefficient(
            mean_coefficient([(one.alpha["nominal"], one.answers) for one in parts if one.alpha])
        ),
        "ac1": _coefficient(mean_coefficient([(one.ac1, one.answers) for one in parts])),
        "ac2": _coefficient(mean_coefficient([(one.ac2, one.answers) for one in parts])),
    })  # fmt: skip
    models = [] if first is table else [
        record for at, name in enumerate(table.graders) if name in table.models and (record := _model(table, at))
    ]  # fmt: skip
    return {"people": found, "models": models}


def _of_dimension(table: GradeTable, at: int) -> GraderAgreement:
    return grader_agreement(table.chosen(table.dimension == at), LEVEL)


def _told(one: GraderAgreement) -> Record:
    nothing = Coefficient(None)
    return {
        "answers": one.answers, "same": _estimate(one.same),
        "alpha": _coefficient(one.alpha.get("ordinal", nothing)),
        "alpha_nominal": _coefficient(one.alpha.get("nominal", nothing)),
        "ac1": _coefficient(one.ac1), "ac2": _coefficient(one.ac2),
    }  # fmt: skip


def _coefficient(one: Coefficient) -> Record:
    return {"value": rounded(one.value), "low": rounded(one.low), "high": rounded(one.high)}


def _estimate(one: Estimate | None) -> Record:
    return {end: None if one is None else rounded(getattr(one, end), 100) for end in ("value", "low", "high")}


def _model(table: GradeTable, model: int) -> Record | None:
    """A model with people, and people among themselves on the same answers; None where they share none."""
    people = np.array([name not in table.models for name in table.graders], dtype=np.bool_)
    present = ~np.isnan(table.values)
    keys = table.question * max(1, len(table.candidates)) + table.candidate
    shared = np.intersect1d(keys[present & (table.grader == model)], keys[present & people[table.grader]])
    if not len(shared):
        return None
    both = people.copy()
    both[model] = True
    chosen = table.chosen(np.isin(keys, shared) & both[table.grader])
    alphas = []
    for graders in (both, people):
        rows = chosen.chosen(graders[chosen.grader])
        parts = [_of_dimension(rows, at) for at in range(len(rows.dimensions))]
        alphas.append(mean_coefficient([(one.alpha["ordinal"], one.answers) for one in parts if one.alpha]))
    return {
        "grader": table.graders[model], "answers": len(shared),
        "same": _estimate(_same(chosen, np.arange(len(both)) == model)), "people": _estimate(_same(chosen, people)),
        "alpha_with": _coefficient(alphas[0]), "alpha_people": _coefficient(alphas[1]),
    }  # fmt: skip


def _same(table: GradeTable, own: NDArray[np.bool_]) -> Estimate | None:
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
    return None if found is None else found.within(LEVEL)

"""ConStat in court: each model's accuracy beyond what models that are known to be clean reach, on the same items.

Clean models are the reference models of ConStat (`constat`). A ranking of the model among them needs a statistic that
treats all alike: for that, each model is compared with all others, clean ones and accused ones (Marandon et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .constat import SMALLEST_SET, Resamples, Results, compute_gaps, constat
from .evidence import Evidence
from .observations import Answers, Hearing

WITNESS = "constat"
RESAMPLES, FIRST_RESAMPLES = 2_000, 200
_LARGE = 0.2  # a p-value that needs no more than the first resamples
_COVERED = 0.9  # fraction of the units of both sets that a model must have answered
_FEWEST = 10  # common units of a set

_Units: TypeAlias = tuple[list[str], list[str]]


def with_constat(
    accused: Mapping[str, Hearing],
    clean: Sequence[Hearing],
    contaminated: Mapping[str, Sequence[Hearing]],
    level: float,
) -> tuple[dict[str, Hearing], list[Hearing], dict[str, list[Hearing]]]:
    """Return the hearings with what ConStat says, or as they are if there are too few clean models or common items.

    Models that were not asked about nearly all items get no statement, and are no reference models. Clean models get a
    statement only if an accused one is found at `level`: it serves to check how often ConStat accuses clean ones.
    """
    models = [*accused.values(), *clean, *(model for own in contaminated.values() for model in own)]
    pool = range(len(accused) + len(clean))
    units = _common_units([models[index].answers for index in pool])
    complete = [index for index, model in enumerate(models) if _covers(model.answers, units)]
    judged = [index for index in complete if index < len(accused)]
    references = [index for index in complete if index in pool and index not in judged]
    if len(references) >= SMALLEST_SET and min(map(len, units)) >= _FEWEST:
        scores = _Scores.build({index: models[index].answers for index in complete}, units)
        compared = [*judged, *references]
        statistics = {index: scores.excess(index, compared) for index in complete}
        if None not in statistics.values():
            statements = {index: scores.state(index, references) for index in judged}
            if any(statement is not None and statement.p <= level for statement in statements.values()):
                statements |= {index: scores.state(index, references) for index in references}
            models = [_add(model, statements.get(index), statistics.get(index)) for index, model in enumerate(models)]
    rest = iter(models)
    return (
        {name: next(rest) for name in accused},
        [next(rest) for _ in clean],
        {kind: [next(rest) for _ in own] for kind, own in contaminated.items()},
    )


def _add(model: Hearing, statement: Evidence | None, statistic: float | None) -> Hearing:
    evidence = model.evidence if statement is None else [*model.evidence, statement]
    return replace(
        model,
        evidence=evidence,
        statistics=model.statistics if statistic is None else {**model.statistics, WITNESS: statistic},
    )


def _common_units(answers: Sequence[Answers]) -> _Units:
    """Return the sorted units of each set that all models have answered, without models that lack many."""
    common = []
    for side in (0, 1):
        answered: list[Set[str]] = [own[side].keys() for own in answers]
        everything: set[str] = set().union(*answered)
        covered = [units for units in answered if len(units) >= _COVERED * len(everything)]
        common.append(sorted(everything.intersection(*covered)) if covered else [])
    return common[0], common[1]


def _covers(answers: Answers, units: _Units) -> bool:
    return all(own.keys() >= set(side) for own, side in zip(answers, units, strict=True))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of models on both sets, one model a row of each table; `rows` maps models to rows."""

    rows: Mapping[int, int]
    tables: tuple[NDArray[np.float64], NDArray[np.float64]]

    @classmethod
    def build(cls, answers: Mapping[int, Answers], units: _Units) -> _Scores:
        first, second = (
            np.array([[own[side][unit] for unit in units[side]] for own in answers.values()]) for side in (0, 1)
        )
        return cls({index: row for row, index in enumerate(answers)}, (first, second))

    def results(self, model: int, references: Iterable[int]) -> tuple[Results, Results]:
        """Return the scores of a model beside those of reference models, itself excepted."""
        others = [self.rows[index] for index in references if index != model]
        first, second = (Results.from_scores(WITNESS, table[self.rows[model]], table[others]) for table in self.tables)
        return first, second

    def excess(self, model: int, references: Iterable[int]) -> float | None:
        """Return the accuracy above the curve of the references, without resampling; None if they differ too little."""
        first, second = self.results(model, references)
        own, other = (np.ones((1, len(results.model)), dtype=np.int64) for results in (first, second))
        whole = Resamples(own, other, np.arange(len(first.references))[None], np.zeros((1, 2)))
        gaps, _ = compute_gaps(first, second, whole)
        return float(gaps[0]) if len(gaps) else None

    def state(self, model: int, references: Iterable[int]) -> Evidence | None:
        """Return ConStat's statement on a model, by few resamples if its p-value is large anyway."""
        try:
            first, second = self.results(model, references)
            statement = constat(first, second, witness=WITNESS, resamples=FIRST_RESAMPLES)
            return statement if statement.p > _LARGE else constat(first, second, witness=WITNESS, resamples=RESAMPLES)
        except ValueError:  # too few reference models without the model itself, or they differ too little
            return None

"""Grades as columns of numbers: who gave what to which answer, ready for formulas.

What never belongs here: where grades are kept, and what any system makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


class GradeRow(NamedTuple):
    """One grade. ``top``: the highest grade that the question allows, ``low`` the lowest. ``value`` None: missing."""

    dimension: str
    question: str
    candidate: str
    grader: str
    value: float | None
    top: float
    low: float = 0.0


@dataclass(slots=True)
class GradeTable:
    """Grades by dimension, question, candidate and grader, one row a grade (the paper's Table 2 in long form).

    Names stand once, in the order in which they are given or first met; each column holds places in these lists. A
    missing grade is a row whose value is NaN. ``models``: the graders that are models. ``clusters``: the cluster of
    each question; the question itself where nothing else is said.
    """

    dimensions: list[str]
    questions: list[str]
    candidates: list[str]
    graders: list[str]
    dimension: Codes
    question: Codes
    candidate: Codes
    grader: Codes
    values: Floats
    tops: Floats
    lows: Floats
    models: frozenset[str] = frozenset()
    clusters: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.clusters:
            self.clusters = list(self.questions)

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(
        cls,
        rows: Iterable[GradeRow],
        *,
        dimensions: Sequence[str] = (),
        candidates: Sequence[str] = (),
        graders: Sequence[str] = (),
        models: Iterable[str] = (),
        clusters: dict[str, str] | None = None,
    ) -> GradeTable:
        """The table of these rows. Names that are given come first, in their order, also where no row has them."""
        names = [dict.fromkeys(dimensions), {}, dict.fromkeys(candidates), dict.fromkeys(graders)]
        places: list[dict[str, int]] = [{name: place for place, name in enumerate(one)} for one in names]
        codes: list[list[int]] = [[], [], [], []]
        values, tops, lows = list[float](), list[float](), list[float]()
        for row in rows:
            for known, column, name in zip(places, codes, row[:4], strict=True):
                column.append(known.setdefault(name, len(known)))
            values.append(float("nan") if row.value is None else row.value)
            tops.append(row.top)
            lows.append(row.low)
        named = [list(known) for known in places]
        columns = [np.array(column, dtype=np.int64) for column in codes]
        return cls(
            *(named[0], named[1], named[2], named[3]),
            *(columns[0], columns[1], columns[2], columns[3]),
            values=np.array(values, dtype=np.float64),
            tops=np.array(tops, dtype=np.float64),
            lows=np.array(lows, dtype=np.float64),
            models=frozenset(models),
            clusters=[(clusters or {}).get(question, question) for question in named[1]],
        )

    def chosen(self, rows: NDArray[np.bool_]) -> GradeTable:
        """The table of some of its rows, with all names."""
        return GradeTable(
            self.dimensions, self.questions, self.candidates, self.graders,
            self.dimension[rows], self.question[rows], self.candidate[rows], self.grader[rows],
            self.values[rows], self.tops[rows], self.lows[rows], self.models, self.clusters,
        )  # fmt: skip

    def cluster_codes(self) -> Codes:
        """The code of each row's cluster, a whole number from 0 in the order of ``clusters``."""
        codes = {name: code for code, name in enumerate(dict.fromkeys(self.clusters))}
        return np.array([codes[name] for name in self.clusters], dtype=np.int64)[self.question]

    def without_models(self) -> GradeTable:
        """The grades that people gave."""
        people = np.array([name not in self.models for name in self.graders], dtype=np.bool_)
        return self.chosen(people[self.grader]) if len(self) else self

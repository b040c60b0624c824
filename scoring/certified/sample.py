"""Answers that a judge scored, some of which people graded: what every corrected figure is computed from.

What never belongs here: formulas (``means``, ``rates``, ``correlations``), and where scores and grades come from.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..intervals import Floats


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate's answers. All arrays have one place for each answer.

    ``scores``: the judge's. ``grades``: people's, nan where an answer has none. ``weights``: 1 / the probability with
    which the answer was chosen to be graded (Horvitz and Thompson 1952), up to a common factor; 0 where it has no
    grade. ``clusters``: the number of the answer's cluster; answers of one cluster (an item) are not independent.
    Samples that are compared number their clusters alike, so that what they share is seen.
    """

    scores: Floats
    grades: Floats
    weights: Floats
    clusters: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        scores: Sequence[float] | Floats,
        grades: Sequence[float] | Floats,
        clusters: Sequence[int] | NDArray[np.int64] | None = None,
        probabilities: Sequence[float] | Floats | None = None,
    ) -> Sample:
        """A sample; without ``clusters`` every answer is one, without ``probabilities`` all graded ones weigh the same.

        Probabilities of answers without a grade do not matter and may be nan.

        :raises ValueError: the lengths differ, a score is not finite, a grade is infinite, or a graded answer's
            probability is not above 0 and at most 1.
        """
        score = np.asarray(scores, dtype=np.float64)
        grade = np.asarray(grades, dtype=np.float64)
        number = np.arange(score.size) if clusters is None else np.asarray(clusters, dtype=np.int64)
        chosen = np.ones(score.size) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
        if len({one.shape for one in (score, grade, number, chosen)}) > 1 or score.ndim != 1:
            raise ValueError("scores, grades, clusters and probabilities need one place for each answer")
        graded = ~np.isnan(grade)
        if not np.isfinite(score).all() or np.isinf(grade).any():
            raise ValueError("scores and grades are finite numbers; leave out answers that the judge did not score")
        if not ((chosen[graded] > 0.0) & (chosen[graded] <= 1.0)).all():
            raise ValueError("the probability of a graded answer is above 0 and at most 1")
        weights = np.zeros(score.size)
        weights[graded] = 1.0 / chosen[graded]
        return cls(score, grade, weights, number)

    @property
    def graded(self) -> NDArray[np.bool_]:
        """Which answers have a grade."""
        return self.weights > 0.0

    @property
    def labels(self) -> int:
        """How many answers have a grade."""
        return int(self.graded.sum())

    @property
    def count(self) -> int:
        """One more than the highest cluster number."""
        return int(self.clusters.max()) + 1 if self.clusters.size else 0

    def known_grades(self) -> Floats:
        """The grades, 0 where there is none, so that they may stand in weighted sums."""
        return np.where(self.graded, self.grades, 0.0)

    def totals(self, *columns: Floats, count: int | None = None) -> Floats:
        """The sums of columns over each cluster's answers, one row a cluster; ``count``: so many clusters there are."""
        size = self.count if count is None else count
        return np.stack([np.bincount(self.clusters, column, size) for column in columns], axis=1)


def numbered(names: Sequence[Hashable], known: dict[Hashable, int] | None = None) -> NDArray[np.int64]:
    """A number for each name, equal for equal names; ``known`` is added to, so that samples can share it."""
    numbers: dict[Hashable, int] = {} if known is None else known
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)

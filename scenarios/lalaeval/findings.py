"""What is to be said of the questions of a bank: no source, expired, near duplicates, and what the plan still wants.

What never belongs here: changing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from .bank import Entry
from .bank_rows import Pair
from .project import Project
from .project_file import DIFFICULTIES, Difficulty

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_ROWS = 500  # questions that are compared with all others at once


@dataclass(slots=True, frozen=True)
class Duplicate:
    """Two questions that are nearly the same. ``likeness``: 0–1."""

    first: str
    second: str
    likeness: float


@dataclass(slots=True, frozen=True)
class PlanRow:
    """What a plan wants of one dimension and difficulty, and what the bank has: accepted and valid, and on its way."""

    dimension: str
    difficulty: Difficulty
    wanted: int
    accepted: int
    under_way: int


def near_duplicates(pairs: Sequence[Pair], least: float, only: Collection[str] | None = None) -> list[Duplicate]:
    """Pairs of questions whose likeness is ``least`` at least, most alike first; where ids are given by ``only``, those
    that one of these is in.

    Likeness is the cosine between weighted counts of runs of 3 to 5 letters within words (TF–IDF, as scikit-learn
    computes it): it sees other forms and another order of words, and no meaning.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len(pairs) < 2:
        return []
    vectors: csr_matrix = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit_transform(
        [f"{pair.text} " for pair in pairs]
    )
    chosen = [place for place, pair in enumerate(pairs) if only is None or pair.id in only]
    asked, found = set(chosen), []
    for start in range(0, len(chosen), _ROWS):
        rows = chosen[start : start + _ROWS]
        alike = (vectors[rows] @ vectors.T).tocoo()
        for place, column, value in zip(alike.row, alike.col, alike.data, strict=True):
            row = rows[place]
            if value >= least and (row < column or (column not in asked and row != column)):
                first, second = sorted((row, int(column)))
                found.append(Duplicate(pairs[first].id, pairs[second].id, min(1.0, float(value))))
    return sorted(found, key=lambda one: (-one.likeness, one.first, one.second))


def problems(pair: Pair, project: Project, day: date) -> list[str]:
    """What stands against a pair, a few words each."""
    found = []
    if not pair.source:
        found.append("has no source")
    if pair.dimension not in project.dimensions:
        found.append(f"dimension '{pair.dimension}' is no longer in the project")
    if pair.domain and not project.domains.get(pair.domain):
        found.append(f"domain '{pair.domain}' is no longer evaluated")
    if pair.expired_on(day):
        found.append(f"expired on {pair.valid_until}")
    return found


def plan_rows(entries: Sequence[Entry], project: Project, day: date) -> list[PlanRow]:
    """The plan against the bank, a row for each dimension and difficulty that has questions or is to have some."""
    accepted: Counter[tuple[str, str]] = Counter()
    under_way: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        pair = entry.pair
        if entry.state == "accepted":
            accepted[pair.dimension, pair.difficulty] += not pair.expired_on(day)
        else:
            under_way[pair.dimension, pair.difficulty] += 1
    rows = []
    for dimension in project.dimensions:
        for difficulty in DIFFICULTIES:
            place = dimension, difficulty
            wanted = project.file.plan.get(dimension, {}).get(difficulty, 0)
            if wanted or accepted[place] or under_way[place]:
                rows.append(PlanRow(dimension, difficulty, wanted, accepted[place], under_way[place]))
    return rows

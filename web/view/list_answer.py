"""Answers of a list of conversations before its rows: means with intervals, and one candidate against the others.

Means are those of the matrix (`matrix.py`), so only conversations whose scores belong into one matrix have any. A
candidate is compared with the mean of the others item by item, because items differ in difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from viva.engine.errors import VivaError
from viva.scenarios.contract import SCORE
from viva.scenarios.registry import get_scenario
from viva.scoring.clustered_means import coded_clustered_mean

from .filters import Filter
from .matrix import CandidateMean, Codes, Floats, Matrix, declared_range, others_means, read_matrix
from .queries import IndexReader
from .run_figures import RunGroup

_LEVEL = 0.95
_ROUNDING = 1e-9  # differences that differ by less are equal
_MOST_ASPECTS = 12  # with more, which are figures of many kinds, none is compared
_SAMPLE = 200  # conversations in which the names of aspects are looked for
# These fields choose conversations by what came out, so that a mean of the chosen ones would mislead.
_OUTCOMES = {
    "q": "their texts",
    "end": "their end",
    "error": "their error",
    "unscored": "unscored rounds",
    "low": "their score",
    "high": "their score",
}


@dataclass(slots=True)
class Comparison:
    """A candidate's mean of a figure, and its mean difference from the other candidates' mean on the same items.

    `difference` is None if no other candidate has a figure on its items, `low` and `high` are the ends of its interval,
    None without one: if there are too few items, or if the difference is the same on each (`is_constant`).
    """

    name: str
    mean: float
    items: int = 0
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    is_constant: bool = False

    @property
    def is_equal(self) -> bool:
        """True if there is no difference on any item."""
        return self.is_constant and round(self.difference or 0.0, 9) == 0.0

    @property
    def side(self) -> str:
        return "below" if (self.difference or 0.0) < 0.0 else "above"

    @property
    def ends(self) -> tuple[float, float]:
        """The interval of the difference without its sign."""
        low, high = self.low or 0.0, self.high or 0.0
        return (-high, -low) if self.side == "below" else (low, high)

    @property
    def is_clear(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


@dataclass(slots=True)
class ListKind:
    """Conversations of a list whose scores belong into one matrix, and their number."""

    group: RunGroup
    count: int


@dataclass(slots=True)
class ListAnswer:
    """The answer of a list. `kinds` are those of its conversations; with several there is nothing more.

    `outcomes` says by what came out the conversations are chosen, "" if they are not. `mean` is their mean, None
    without one. `candidates` are in the order of their means, lowest first. With one candidate, `score` compares it
    with `others` candidates, and so does each of `aspects`: lowest first if they are `alike`, i.e. on the score's
    scale. `behind` is the number of items on which the others did better.
    """

    kinds: list[ListKind]
    outcomes: str = ""
    matrix: Matrix | None = None
    mean: CandidateMean | None = None
    candidates: list[CandidateMean] = field(default_factory=list)
    score: Comparison | None = None
    others: int = 0
    aspects: list[Comparison] = field(default_factory=list)
    alike: bool = True
    behind: int = 0

    @property
    def is_adaptive(self) -> bool:
        return any(run.adaptive for kind in self.kinds for run in kind.group.runs)

    @property
    def is_going_on(self) -> bool:
        return any(run.running for kind in self.kinds for run in kind.group.runs)


def read_answer(reader: IndexReader, chosen: Filter) -> ListAnswer:
    """Return what the conversations of a list say; while the index changes, it may be some seconds old."""
    names = [name for name in _OUTCOMES if getattr(chosen, name) not in ("", None)]
    answer = ListAnswer(_kinds(reader, chosen), " and ".join(dict.fromkeys(_OUTCOMES[name] for name in names)))
    if len(answer.kinds) != 1 or answer.outcomes or answer.is_adaptive:
        return answer
    group = answer.kinds[0].group
    matrix = answer.matrix = read_matrix(reader, group, chosen.run)
    if chosen.task:
        _add_item(answer, matrix, chosen)
        return answer
    known = (own for own in matrix.candidates if own.mean is not None)
    answer.candidates = sorted(known, key=lambda own: own.mean or 0.0)
    answer.mean = matrix.overall
    column = next((at for at, own in enumerate(matrix.candidates) if own.name == chosen.candidate), None)
    if chosen.candidate:
        answer.mean = None if column is None else matrix.candidates[column]
    if column is not None and matrix.candidates[column].mean is not None:
        answer.others = len(answer.candidates) - 1
        clusters = _clusters_of_rows(matrix)
        answer.score = _compare("", matrix.means, column, clusters, _LEVEL)
        answer.behind = len(matrix.behind(chosen.candidate))
        _add_aspects(answer, _read_aspects(reader, matrix), column, clusters)
    return answer


def _kinds(reader: IndexReader, chosen: Filter) -> list[ListKind]:
    kinds = []
    for group in reader.keep_for_a_while("groups of lists", reader.groups):
        if (chosen.matrix and group.id != chosen.matrix) or not chosen.set_is(group.second):
            continue
        count = sum(
            figures.second if group.second else figures.total - figures.second
            for run in group.runs
            if chosen.allows(run)
            for name, figures in run.candidates.items()
            if chosen.candidate in ("", name)
        )
        if count:
            kinds.append(ListKind(group, count))
    return kinds


def _add_item(answer: ListAnswer, matrix: Matrix, chosen: Filter) -> None:
    """Add the means of one item, which have no interval: one item tells nothing of others."""
    row = next((at for at, item in enumerate(matrix.items) if item.name == chosen.task), None)
    if row is None:
        return
    own = [
        CandidateMean(candidate.name, float(value), n=1, items=1)
        for candidate, value in zip(matrix.candidates, matrix.means[row].tolist(), strict=True)
        if not math.isnan(value) and chosen.candidate in ("", candidate.name)
    ]
    if own:
        mean = math.fsum(each.mean or 0.0 for each in own) / len(own)
        answer.mean = CandidateMean("", mean, n=len(own), items=1)
        answer.candidates = sorted(own, key=lambda each: each.mean or 0.0)


def _clusters_of_rows(matrix: Matrix) -> Codes:
    clusters = np.zeros(len(matrix.items), np.intp)
    clusters[matrix.conversations.rows] = matrix.conversations.clusters
    return clusters


def _compare(name: str, means: Floats, column: int, clusters: Codes, level: float) -> Comparison | None:
    """Compare a candidate's means by item with the mean of the others; None if it has none."""
    own = means[:, column]
    known = ~np.isnan(own)
    if not known.any():
        return None
    made = Comparison(name, float(own[known].mean()))
    differences = own - others_means(means, column)
    shared = np.flatnonzero(~np.isnan(differences))
    made.items = int(shared.size)
    mean = coded_clustered_mean(differences[shared], clusters[shared])
    if mean is not None:
        made.difference = mean.mean
        made.is_constant = shared.size > 1 and bool(np.ptp(differences[shared]) < _ROUNDING)
        ends = None if made.is_constant else mean.ends(level=level)
        made.low, made.high = (None, None) if ends is None else (ends.low, ends.high)
    return made


def _read_aspects(reader: IndexReader, matrix: Matrix) -> dict[str, Floats]:
    """Return the mean of each aspect by item and candidate, which the matrix keeps; nothing if there are too many."""
    if matrix.aspects is not None:
        return matrix.aspects
    matrix.aspects = {}
    own = matrix.conversations
    order = np.argsort(own.ids)
    ids = own.ids[order]
    sample = ids[:: max(1, ids.size // _SAMPLE)][:_SAMPLE].tolist()
    marks = ",".join(map(str, sample))
    names = reader.rows(f"select distinct name from aspects where conversation in ({marks}) order by name")
    for (name,) in names if len(names) <= _MOST_ASPECTS else []:
        rows = reader.rows(
            "select conversation, value from aspects where name = ? and conversation between ? and ?",
            *(name, int(ids[0]), int(ids[-1])),
        )
        table = np.array(rows, np.float64).reshape(-1, 2)
        positions = np.minimum(np.searchsorted(ids, table[:, 0]), ids.size - 1)
        is_own = ids[positions] == table[:, 0]
        values = np.full(ids.size, math.nan)
        values[order[positions[is_own]]] = table[is_own, 1]
        matrix.aspects[name] = own.means(values, len(matrix.items), len(matrix.candidates))
    return matrix.aspects


def _add_aspects(answer: ListAnswer, means: Mapping[str, Floats], column: int, clusters: Codes) -> None:
    level = 1 - (1 - _LEVEL) / max(1, len(means))
    made = [_compare(name, own, column, clusters, level) for name, own in means.items()]
    answer.aspects = [own for own in made if own is not None]
    answer.alike = _are_alike(answer.kinds[0].group, list(means))
    if answer.alike:
        answer.aspects.sort(key=lambda own: own.mean)


def _are_alike(group: RunGroup, names: Sequence[str]) -> bool:
    """Return True if the scenario declares the score's range for all these aspects."""
    try:
        ranges = get_scenario(group.runs[0].scenario).ranges
    except VivaError:
        return False
    return SCORE in ranges and all(ranges.get(name) == ranges[SCORE] == declared_range(group) for name in names)

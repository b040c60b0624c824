"""The matrix of a group of runs: the score of each candidate on each item, with means of rows and columns.

Unlike things are never in one matrix: a group's runs share scenario, dataset, prompts and settings (`run_groups`).
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count, pairwise
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from viva.engine.errors import ConfigurationError
from viva.scenarios.default_aggregate import measure_interval
from viva.scoring.clustered_means import coded_clustered_mean
from viva.scoring.item_bank import LEAST_ANSWERS, negative_rest_correlations

from .index import FAILED, OPEN, index_name
from .queries import IndexReader
from .run_figures import RunGroup, scale_text

ROWS, ACROSS = 50, 24  # maximum items and candidates on one page
LEVELS = 5  # colours
_ROUNDING = 1e-9  # differences up to this fraction of the scale are rounding
_ROW_ORDERS = {"item": False, "mean": False, "spread": True}  # True: the largest first
MARKS = {"fail": "all fail", "pass": "all pass", "worse": "better models do worse"}  # values of `show`: marks
_DIGITS = re.compile(r"\d+")
Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class MatrixView:
    """The query of a matrix's address: the group's id (`matrix`), one of its runs, and the order of rows and columns.

    `sort` is "item", "mean" or "spread"; `order` is "up", "down" or "" for its own; `candidates` is "mean" to
    order the candidates by mean, best first. `show` is a key of `MARKS`, and keeps only items with that mark. `behind`
    is a candidate, and keeps only items on which the others did better, the largest difference first. `page` and
    `across` count pages of items and of candidates.
    """

    matrix: str = ""
    run: str = ""
    sort: str = ""
    order: str = ""
    candidates: str = ""
    show: str = ""
    behind: str = ""
    page: int = 1
    across: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> MatrixView:
        """Parse a matrix's address.

        Raises:
            ConfigurationError: A value is not valid for its field.
        """
        values: dict[str, Any] = {}
        allowed = {"sort": [*_ROW_ORDERS], "order": ["up", "down"], "candidates": ["mean"], "show": [*MARKS]}
        for name in (column.name for column in fields(cls)):
            text = query.get(name, "")
            if not text:
                continue
            if name in ("page", "across"):
                if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) > 0):
                    raise ConfigurationError(f"{name}: expected a positive integer, found '{text[:40]}'")
                values[name] = int(text)
            elif name in allowed and text not in allowed[name]:
                raise ConfigurationError(f"{name}: expected one of {', '.join(allowed[name])}, found '{text[:40]}'")
            else:
                values[name] = index_name(text) if name == "behind" else text
        return cls(**values)

    @property
    def sorted_key(self) -> str:
        """The column by which the rows are sorted, "" if they are sorted by no column."""
        return "" if self.behind else self.sort or "item"

    @property
    def is_down(self) -> bool:
        """True if the largest value is in the first row."""
        return self.order == "down" if self.order else _ROW_ORDERS[self.sort or "item"]

    def query(self, **changes: Any) -> str:
        """Return the query of this address with these changes; the page is 1 unless they set it."""
        changed = replace(self, **({"page": 1} | changes))
        pairs = [(column.name, getattr(changed, column.name)) for column in fields(changed)]
        return urlencode([(name, value) for name, value in pairs if value not in ("", 1)])

    def sorted_by(self, key: str) -> str:
        """Return the query of the address that a click on a head leads to."""
        turned = ("up" if self.is_down else "down") if key == self.sorted_key else ""
        is_own = (turned == "down") == _ROW_ORDERS[key]
        own = "" if not turned or is_own else turned
        return self.query(sort="" if key == "item" else key, order=own, behind="")


@dataclass(slots=True)
class CandidateMean:
    """A candidate's mean over its conversations, with its 95% interval, None if unknown; `items` have a score."""

    name: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    items: int = 0


@dataclass(slots=True)
class ItemRow:
    """An item: the mean of its cells, their standard deviation, and marks that say why to look at it."""

    name: str
    mean: float | None
    spread: float | None
    marks: tuple[str, ...] = ()


@dataclass(slots=True)
class MatrixCell:
    """A cell: mean score and number of its conversations; without a score, `state` says why.

    `run` and `number` name the first conversation. `level` is the colour, from 0 (low) to 4 (high).
    """

    candidate: str
    count: int = 0
    scored: int = 0
    total: float = 0.0
    state: str = ""
    level: int | None = None
    run: str = ""
    number: int = 0

    @property
    def mean(self) -> float | None:
        return self.total / self.scored if self.scored else None

    @property
    def path(self) -> str:
        """The path of the first conversation in addresses."""
        return f"{quote(self.run)}/{self.number}"


@dataclass(slots=True)
class Conversations:
    """Conversations of a matrix: their ids in the index, and the numbers of their items, candidates and clusters."""

    ids: Codes
    rows: Codes
    columns: Codes
    clusters: Codes

    def means(self, values: Floats, items: int, candidates: int) -> Floats:
        """Return the mean of values by item and candidate; nan if there are none. Values may be nan."""
        known = np.flatnonzero(~np.isnan(values))
        cells = self.rows[known] * candidates + self.columns[known]
        sums, counts = (np.bincount(cells, weights, items * candidates) for weights in (values[known], None))
        means: Floats = np.divide(sums, counts, out=np.full(sums.shape, math.nan), where=counts > 0)
        return means.reshape(items, candidates)


@dataclass(slots=True)
class Matrix:
    """A whole matrix without its cells. `low` and `high` are the ends of the colours.

    `overall` is the mean over all candidates. `counts` has the number of items by mark, for marks that any item could
    have; None if too few models tell. `means` has the mean by item and candidate, and so has each of `aspects`, None
    until they are read (`list_answer.py`). `version` is that of the index from which the matrix was made, and `at` the
    time of that in seconds of the monotonic clock.
    """

    group: RunGroup
    items: list[ItemRow]
    candidates: list[CandidateMean]
    low: float
    high: float
    scale: str
    digits: int
    overall: CandidateMean
    conversations: Conversations = field(repr=False)
    means: Floats = field(repr=False)
    version: int
    at: float
    aspects: dict[str, Floats] | None = None
    notes: list[str] = field(default_factory=list)
    orders: dict[str, list[int]] = field(default_factory=dict)
    counts: dict[str, int | None] = field(default_factory=dict)

    def chosen(self, view: MatrixView) -> list[ItemRow]:
        """Return the items of all pages, in order."""
        if view.behind:
            order = self.behind(view.behind)
        else:
            order = self.orders[f"{view.sort or 'item'} {'down' if view.is_down else 'up'}"]
        return [self.items[at] for at in order if not view.show or MARKS[view.show] in self.items[at].marks]

    def behind(self, candidate: str) -> list[int]:
        """Return the rows in which the other candidates' mean is higher, the largest difference first."""
        column = next((at for at, own in enumerate(self.candidates) if own.name == candidate), None)
        if column is None:
            return []
        differences = self.means[:, column] - others_means(self.means, column)
        order = np.argsort(differences, kind="stable")  # nan comes last
        rows: list[int] = order[differences[order] < -_ROUNDING * max(1.0, self.high - self.low)].tolist()
        return rows

    def rows(self, view: MatrixView) -> list[ItemRow]:
        """Return the items of one page."""
        return self.chosen(view)[(view.page - 1) * ROWS : view.page * ROWS]

    def columns(self, view: MatrixView) -> list[CandidateMean]:
        """Return the candidates of one page."""
        ordered = self.candidates
        if view.candidates:
            ordered = sorted(ordered, key=lambda own: math.inf if own.mean is None else -own.mean)
        ordered = sorted(ordered, key=lambda own: own.name != view.behind)  # the candidate in question comes first
        return ordered[(view.across - 1) * ACROSS : view.across * ACROSS]

    def level(self, value: float) -> int:
        """Return the colour of a score."""
        if self.high <= self.low:
            return LEVELS // 2
        return max(0, min(LEVELS - 1, int(LEVELS * (value - self.low) / (self.high - self.low))))

    def legend(self) -> list[str]:
        """Return the scores that each colour stands for; nothing if all scores are equal."""
        if self.high <= self.low:
            return []
        ends = [self.low + step * (self.high - self.low) / LEVELS for step in range(LEVELS + 1)]
        return [f"{low:.3g}–{high:.3g}" for low, high in pairwise(ends)]


def others_means(means: Floats, column: int) -> Floats:
    """Return by item the mean of all candidates but one; nan if they have no score."""
    rest = np.delete(means, column, axis=1)
    known = ~np.isnan(rest)
    counts = known.sum(axis=1)
    sums = np.where(known, rest, 0.0).sum(axis=1)
    made: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), math.nan)
    return made


def chosen_group(groups: Sequence[RunGroup], view: MatrixView) -> RunGroup | None:
    """Return the group that an address names, or the first with several candidates; None if there is no group."""
    if view.matrix:
        return next((group for group in groups if group.id == view.matrix), None)
    several = (group for group in groups if len({name for run in group.runs for name in run.candidates}) > 1)
    return next(several, groups[0] if groups else None)


def read_matrix(reader: IndexReader, group: RunGroup, run: str = "") -> Matrix:
    """Return the matrix of a group, or of one run of it; while the index changes, it may be some seconds old."""
    return reader.keep_for_a_while(("matrix", group.id, tuple(group.names), run), lambda: _compute(reader, group, run))


def _runs_of(group: RunGroup, run: str) -> list[int]:
    return [own.id for own in group.runs if run in ("", own.name)]


def _compute(reader: IndexReader, group: RunGroup, run: str) -> Matrix:
    version, began = reader.version, time.monotonic()
    items, candidates, clusters = (defaultdict[str, int](count().__next__) for _ in range(3))  # numbers by name
    ids, rows, columns, scores, codes = [], [], [], [], []
    for id_, task, candidate, score, cluster in reader.scored(_runs_of(group, run), group.second):
        ids.append(id_)
        rows.append(items[task])
        columns.append(candidates[candidate])
        scores.append(score)
        codes.append(clusters[cluster or task])
    own = Conversations(*(np.array(each, np.intp) for each in (ids, rows, columns, codes)))
    values = np.array(scores, np.float64)  # None becomes nan
    means = own.means(values, len(items), len(candidates))
    negative, tested = negative_rest_correlations(means.T) if means.size else ([], 0)
    first = group.runs[0]
    declared = declared_range(group)
    low, high = declared if all(map(math.isfinite, declared)) else _ends(values[~np.isnan(values)])
    rows_made, figures = _item_rows(list(items), means, declared, negative)
    is_adaptive = any(each.adaptive for each in group.runs)
    candidate_means = [
        _mean_of(name, values, own, own.columns == at, declared, adaptive=is_adaptive, rate=first.rate)
        for at, name in enumerate(candidates)
    ]
    matrix = Matrix(
        group,
        rows_made,
        candidate_means,
        low,
        high,
        scale_text(first.low, first.high, first.unit),
        1 if high - low > 10 else 2,
        _mean_of("", values, own, own.rows >= 0, declared, adaptive=is_adaptive, rate=first.rate),
        own,
        means,
        version,
        began,
    )
    matrix.counts = _counts(matrix, declared, tested)
    matrix.notes = _notes(matrix, tested, adaptive=is_adaptive)
    matrix.orders = _orders(list(items), figures)
    return matrix


def declared_range(group: RunGroup) -> tuple[float, float]:
    """Return the ends of the scale of a group's scores, infinite if unknown."""
    first = group.runs[0]
    return (-math.inf if first.low is None else first.low, math.inf if first.high is None else first.high)


def _ends(values: Floats) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _item_rows(
    items: Sequence[str], means: Floats, declared: tuple[float, float], negative: Sequence[int]
) -> tuple[list[ItemRow], dict[str, Floats]]:
    """Return the rows, and their means and spreads as arrays, nan if unknown."""
    known = ~np.isnan(means)
    counts = known.sum(axis=1)
    centres = np.where(known, means, 0.0).sum(axis=1) / np.maximum(counts, 1)
    squares = np.where(known, (means - centres[:, None]) ** 2, 0.0).sum(axis=1)
    spreads = np.sqrt(squares / np.maximum(counts - 1, 1))
    figures = {"mean": np.where(counts > 0, centres, math.nan), "spread": np.where(counts > 1, spreads, math.nan)}
    marks: dict[int, tuple[str, ...]] = dict.fromkeys(negative, (MARKS["worse"],))
    for end, mark in zip(declared, (MARKS["fail"], MARKS["pass"]), strict=True):
        if math.isfinite(end):
            for at in np.flatnonzero((counts > 1) & ((means == end) | ~known).all(axis=1)).tolist():
                marks[at] = (*marks.get(at, ()), mark)
    pairs = zip(*(figures[name].tolist() for name in ("mean", "spread")), strict=True)
    rows = [
        ItemRow(name, mean if mean == mean else None, spread if spread == spread else None, marks.get(at, ()))
        for at, (name, (mean, spread)) in enumerate(zip(items, pairs, strict=True))
    ]
    return rows, figures


def _mean_of(
    name: str,
    values: Floats,
    own: Conversations,
    chosen: NDArray[np.bool_],
    declared: tuple[float, float],
    *,
    adaptive: bool,
    rate: bool,
) -> CandidateMean:
    """Return the mean of the chosen conversations' scores; an adaptive run has none."""
    places = np.flatnonzero(chosen & ~np.isnan(values))
    made = CandidateMean(name, n=int(places.size), items=int(np.unique(own.rows[places]).size))
    mean = None if adaptive else coded_clustered_mean(values[places], own.clusters[places])
    if mean is not None:
        made.mean = mean.mean
        ends = measure_interval(mean, np.unique(values[places]).tolist(), declared, rate=rate)
        made.low, made.high = (ends.low, ends.high) if ends is not None else (None, None)
    return made


def _counts(matrix: Matrix, declared: tuple[float, float], tested: int) -> dict[str, int | None]:
    if len(matrix.candidates) < 2:
        return {}
    possible = {"fail": math.isfinite(declared[0]), "pass": math.isfinite(declared[1]), "worse": True}
    counts: dict[str, int | None] = {
        name: sum(MARKS[name] in item.marks for item in matrix.items)
        for name, is_possible in possible.items()
        if is_possible
    }
    return counts if tested else counts | {"worse": None}


def _notes(matrix: Matrix, tested: int, *, adaptive: bool) -> list[str]:
    """Return what the figures rest on, and what they cannot tell."""
    notes = []
    if adaptive:
        notes.append("An adaptive run chose other items for each candidate, so there are no means of columns.")
    elif len({own.items for own in matrix.candidates}) > 1:
        notes.append("The candidates have scores on different numbers of items, so compare their means with care.")
    count = len(matrix.candidates)
    if not tested and count < LEAST_ANSWERS:
        notes.append(
            f"On which items better models do worse cannot be tested with {count} model{'s' * (count != 1)}: "
            f"that needs {LEAST_ANSWERS} with different scores. Look at items that good models fail."
        )
    elif not tested:
        notes.append(
            "Too few scores to tell on which items better models do worse: that needs an item with scores of "
            f"{LEAST_ANSWERS} models that are not all equal, and there is none."
        )
    else:
        marked = sum(MARKS["worse"] in item.marks for item in matrix.items)
        claimed = f"on {marked:,} of {tested:,} tested items better models do worse" if marked else (
            f"on none of {tested:,} tested items do better models significantly worse")  # fmt: skip
        notes.append(f"By item–rest correlation, {claimed} (false discovery rate 5%).")
    return notes


def _orders(items: Sequence[str], figures: Mapping[str, Floats]) -> dict[str, list[int]]:
    """Return the order of the rows for each way to sort them; items without a figure come last."""
    names = [_DIGITS.sub(lambda match: match[0].zfill(20), item) for item in items]
    by_name = np.array(sorted(range(len(items)), key=names.__getitem__), np.intp)
    orders = {"item up": by_name.tolist(), "item down": by_name[::-1].tolist()}
    for key, values in figures.items():
        for order, sign in (("up", 1.0), ("down", -1.0)):
            orders[f"{key} {order}"] = by_name[np.argsort(sign * values[by_name], kind="stable")].tolist()
    return orders


def read_cells(
    reader: IndexReader, matrix: Matrix, tasks: Sequence[str], run: str = ""
) -> dict[tuple[str, str], MatrixCell]:
    """Return the cells of these items, by item and candidate."""
    names = {own.id: own.name for own in matrix.group.runs}
    cells: dict[tuple[str, str], MatrixCell] = {}
    states: dict[tuple[str, str], set[int]] = {}
    for task, candidate, score, state, run_id, number in reader.cells(
        _runs_of(matrix.group, run), matrix.group.second, tasks
    ):
        key = task, candidate
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = MatrixCell(candidate, run=names[run_id], number=number)
        cell.count += 1
        states.setdefault(key, set()).add(state)
        if score is not None:
            cell.scored += 1
            cell.total += score
    for key, cell in cells.items():
        if cell.mean is not None:
            cell.level = matrix.level(cell.mean)
        else:
            own = states[key]
            cell.state = "open" if OPEN in own else "failed" if own == {FAILED} else "unscored"
    return cells

"""The matrix of a group of runs: the score of each candidate on each item, with means of rows and columns.

Unlike things are never in one matrix: a group's runs share scenario, dataset, prompts and settings (`run_groups`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from viva.engine.errors import ConfigurationError
from viva.scenarios.default_aggregate import measure_interval
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.item_bank import LEAST_ANSWERS, negative_rest_correlations

from .index import FAILED, OPEN
from .queries import IndexReader, RunGroup, scale_text

ROWS, ACROSS = 50, 24  # maximum items and candidates on one page
LEVELS = 5  # colours
_ROW_ORDERS = {"item": False, "mean": False, "spread": True}  # True: the largest first
_LONGEST_FIELD = 300
_DIGITS = re.compile(r"\d+")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatrixView:
    """The query of a matrix's address: the group's id (`matrix`), one of its runs, and the order of rows and columns.

    `sort` is "item", "mean" or "spread"; `order` is "up", "down" or "" for its own; `candidates` is "mean" to
    order the candidates by mean, best first. `page` and `across` count pages of items and of candidates.
    """

    matrix: str = ""
    run: str = ""
    sort: str = ""
    order: str = ""
    candidates: str = ""
    page: int = 1
    across: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> MatrixView:
        """Parse a matrix's address.

        Raises:
            ConfigurationError: A value is not valid for its field.
        """
        values: dict[str, Any] = {}
        allowed = {"sort": [*_ROW_ORDERS], "order": ["up", "down"], "candidates": ["mean"]}
        for name in (column.name for column in fields(cls)):
            text = query.get(name, "").strip()[:_LONGEST_FIELD]
            if not text:
                continue
            if name in ("page", "across"):
                if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**7):
                    raise ConfigurationError(f"{name}: expected a positive integer, found '{text[:40]}'")
                values[name] = int(text)
            elif name in allowed and text not in allowed[name]:
                raise ConfigurationError(f"{name}: expected one of {', '.join(allowed[name])}, found '{text[:40]}'")
            else:
                values[name] = text
        return cls(**values)

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
        turned = ("up" if self.is_down else "down") if key == (self.sort or "item") else ""
        is_own = (turned == "down") == _ROW_ORDERS[key]
        return self.query(sort="" if key == "item" else key, order="" if not turned or is_own else turned)


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
class Matrix:
    """A whole matrix without its cells. `low` and `high` are the ends of the colours."""

    group: RunGroup
    items: list[ItemRow]
    candidates: list[CandidateMean]
    low: float
    high: float
    scale: str
    digits: int
    notes: list[str] = field(default_factory=list)
    orders: dict[str, list[int]] = field(default_factory=dict)

    def rows(self, view: MatrixView) -> list[ItemRow]:
        """Return the items of one page."""
        order = self.orders[f"{view.sort or 'item'} {'down' if view.is_down else 'up'}"]
        return [self.items[at] for at in order[(view.page - 1) * ROWS : view.page * ROWS]]

    def columns(self, view: MatrixView) -> list[CandidateMean]:
        """Return the candidates of one page."""
        ordered = self.candidates
        if view.candidates:
            ordered = sorted(ordered, key=lambda own: math.inf if own.mean is None else -own.mean)
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


def chosen_group(groups: Sequence[RunGroup], view: MatrixView) -> RunGroup | None:
    """Return the group that an address names, or the first with several candidates; None if there is no group."""
    if view.matrix:
        return next((group for group in groups if group.id == view.matrix), None)
    several = (group for group in groups if len({name for run in group.runs for name in run.candidates}) > 1)
    return next(several, groups[0] if groups else None)


def read_matrix(reader: IndexReader, group: RunGroup, run: str = "") -> Matrix:
    """Return the matrix of a group, or of one run of it; it is kept until the index changes."""
    return reader.keep(("matrix", group.id, run), lambda: _compute(reader, group, run))


def _runs_of(group: RunGroup, run: str) -> list[int]:
    return [own.id for own in group.runs if run in ("", own.name)]


def _compute(reader: IndexReader, group: RunGroup, run: str) -> Matrix:
    items: dict[str, int] = {}
    candidates: dict[str, int] = {}
    rows: list[int] = []
    columns: list[int] = []
    scores: list[float] = []
    clusters: list[str] = []
    for task, candidate, score, cluster, _, _, _ in reader.cells(_runs_of(group, run), group.second):
        row, column = items.setdefault(task, len(items)), candidates.setdefault(candidate, len(candidates))
        if score is not None:
            rows.append(row)
            columns.append(column)
            scores.append(score)
            clusters.append(cluster or task)
    row_codes, column_codes, values = np.array(rows, np.intp), np.array(columns, np.intp), np.array(scores)
    sums, counts = np.zeros((len(items), len(candidates))), np.zeros((len(items), len(candidates)))
    np.add.at(sums, (row_codes, column_codes), values)
    np.add.at(counts, (row_codes, column_codes), 1.0)
    means: Floats = np.divide(sums, counts, out=np.full(sums.shape, math.nan), where=counts > 0)
    first = group.runs[0]
    declared = (-math.inf if first.low is None else first.low, math.inf if first.high is None else first.high)
    low, high = declared if all(map(math.isfinite, declared)) else _ends(values)
    matrix = Matrix(
        group,
        _item_rows(list(items), means, declared),
        _candidate_means(
            list(candidates), column_codes, values, clusters, means, declared, adaptive=_is_adaptive(group)
        ),
        low,
        high,
        scale_text(first.low, first.high, first.unit),
        1 if high - low > 10 else 2,
    )
    matrix.notes = _notes(matrix, means)
    matrix.orders = _orders(matrix.items)
    return matrix


def _is_adaptive(group: RunGroup) -> bool:
    return any(run.adaptive for run in group.runs)


def _ends(values: Floats) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _item_rows(items: Sequence[str], means: Floats, declared: tuple[float, float]) -> list[ItemRow]:
    known = ~np.isnan(means)
    counts = known.sum(axis=1)
    filled = np.where(known, means, 0.0)
    centres = filled.sum(axis=1) / np.maximum(counts, 1)
    squares = np.where(known, (means - centres[:, None]) ** 2, 0.0).sum(axis=1)
    spreads = np.sqrt(squares / np.maximum(counts - 1, 1))
    negative = {*negative_rest_correlations(means.T)[0]} if means.size else set()
    made = []
    for at, name in enumerate(items):
        marks = []
        if at in negative:
            marks.append("better models do worse")
        for end, mark in zip(declared, ("all fail", "all pass"), strict=True):
            if counts[at] > 1 and math.isfinite(end) and (means[at][known[at]] == end).all():
                marks.append(mark)
        spread = float(spreads[at]) if counts[at] > 1 else None
        made.append(ItemRow(name, float(centres[at]) if counts[at] else None, spread, tuple(marks)))
    return made


def _candidate_means(
    names: Sequence[str],
    codes: NDArray[np.intp],
    values: Floats,
    clusters: Sequence[str],
    means: Floats,
    declared: tuple[float, float],
    *,
    adaptive: bool,
) -> list[CandidateMean]:
    made = []
    for at, name in enumerate(names):
        places = np.flatnonzero(codes == at)
        own = CandidateMean(name, n=int(places.size), items=int((~np.isnan(means[:, at])).sum()))
        mine = values[places].tolist()
        mean = None if adaptive else clustered_mean(mine, [clusters[index] for index in places.tolist()])
        if mean is not None:
            own.mean = mean.mean
            ends = measure_interval(mean, mine, declared)
            own.low, own.high = (ends.low, ends.high) if ends is not None else (None, None)
        made.append(own)
    return made


def _notes(matrix: Matrix, means: Floats) -> list[str]:
    """Return what the figures rest on, and what they cannot tell."""
    notes = []
    if _is_adaptive(matrix.group):
        notes.append("An adaptive run chose other items for each candidate, so there are no means of columns.")
    elif len({own.items for own in matrix.candidates}) > 1:
        notes.append("The candidates have scores on different numbers of items, so compare their means with care.")
    tested = negative_rest_correlations(means.T)[1] if means.size else 0
    if not tested:
        notes.append(
            f"Items on which better models do worse: too few models to tell ({len(matrix.candidates):,}; an item needs "
            f"the different scores of {LEAST_ANSWERS})."
        )
    else:
        marked = sum("better models do worse" in item.marks for item in matrix.items)
        claimed = f"on {marked:,} of {tested:,} tested items better models do worse" if marked else (
            f"on none of {tested:,} tested items do better models significantly worse")  # fmt: skip
        notes.append(f"By item–rest correlation, {claimed} (false discovery rate 5%).")
    return notes


def _orders(items: Sequence[ItemRow]) -> dict[str, list[int]]:
    """Return the order of the rows for each way to sort them; items without a figure come last."""
    names = [_DIGITS.sub(lambda match: match[0].zfill(20), item.name) for item in items]
    by_name = sorted(range(len(items)), key=names.__getitem__)
    orders = {"item up": by_name, "item down": by_name[::-1]}
    for key in ("mean", "spread"):
        known = [at for at in by_name if getattr(items[at], key) is not None]
        rest = [at for at in by_name if getattr(items[at], key) is None]
        for order, is_down in (("up", False), ("down", True)):
            orders[f"{key} {order}"] = sorted(known, key=lambda at: getattr(items[at], key), reverse=is_down) + rest
    return orders


def read_cells(
    reader: IndexReader, matrix: Matrix, tasks: Sequence[str], run: str = ""
) -> dict[tuple[str, str], MatrixCell]:
    """Return the cells of these items, by item and candidate."""
    names = {own.id: own.name for own in matrix.group.runs}
    cells: dict[tuple[str, str], MatrixCell] = {}
    states: dict[tuple[str, str], set[int]] = {}
    for task, candidate, score, _, state, run_id, number in reader.cells(
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

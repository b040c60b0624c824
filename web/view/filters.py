"""Filters of conversations in page addresses, and the columns by which lists are sorted, as SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from multidict import MultiMapping

from viva.engine.errors import ConfigurationError
from viva.scenarios.rendering import SETS

from .index import FINISHED, fts_query, index_name
from .run_figures import SECOND_SET, RunFigures

_LONGEST_QUESTION = 1_000  # characters
_MOST_COLUMNS = 100
STATES = {"finished": 1, "failed": 2, "open": 0}
_NAMES = frozenset({"candidate", "scenario", "dataset", "end", "error", "aspect", "task"})  # fields with such names
ASPECT = "aspect:"  # begins the key of a column that shows the score of one aspect


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list.

    `order` is the SQL sort key, `unknown` is true in SQL if there is no value; such conversations come last in
    both directions. `down`: the first click puts the largest first.
    """

    title: str
    order: str
    down: bool = False
    unknown: str = ""


COLUMNS = {
    "item": Column("item", "c.item"),
    "candidate": Column("candidate", "c.candidate"),
    "score": Column("score", "c.score", True, "c.score is null"),
    "dataset": Column("dataset", "r.dataset", unknown="r.dataset = ''"),
    "run": Column("run", "r.place"),
    "end": Column("end", "c.end", unknown="c.end = ''"),
    "rounds": Column("rounds", "c.rounds", True, "c.rounds is null"),
    "tokens": Column("tokens", "c.prompt_tokens + c.completion_tokens", True),
    "seconds": Column("time taken", "c.seconds", True),
    "retries": Column("retries", "c.retries", True),
    "time": Column("time (UTC)", "c.at", True, "c.at = 0"),
}
_KIND_KEYS = "r.scenario, r.dataset, r.judge, r.unit, r.low, r.high"
_EARLIER_SORTS = {
    "low": ("score", "up"),
    "high": ("score", "down"),
    "latest": ("time", "down"),
    "slow": ("seconds", ""),
}


def column_of(key: str) -> Column | None:
    """Return the column with this key; None if there is none."""
    if key.startswith(ASPECT):
        return Column(key.removeprefix(ASPECT), "s.value", True, "s.value is null")
    return COLUMNS.get(key)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of conversations; an empty field filters nothing.

    `low` and `high` limit the score; if an `aspect` is given, they limit its score. Any text in `unscored` selects
    conversations with unscored rounds. `set` is "benchmark" or "second" and selects finished conversations on items of
    that set, because an item's set is known from its result. `q` has words that the texts must contain. `matrix`
    selects the runs of one matrix, `task` an item with all its repeats.

    `sort` is the key of a column and `order` is "up" or "down", "" being the column's own; `columns` are the keys of
    the shown columns, () being the default.
    """

    run: str = ""
    candidate: str = ""
    scenario: str = ""
    dataset: str = ""
    set: str = ""
    state: str = ""
    end: str = ""
    error: str = ""
    aspect: str = ""
    low: float | None = None
    high: float | None = None
    unscored: str = ""
    q: str = ""
    task: str = ""
    matrix: str = ""
    sort: str = ""
    order: str = ""
    columns: tuple[str, ...] = ()
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Filter:
        """Parse the filter of an address.

        Raises:
            ConfigurationError: A value is not valid for its field.
        """
        values: dict[str, Any] = {}
        for column in fields(cls):
            text = query.get(column.name, "")
            if text:
                values[column.name] = _parse_field(column.name, text)
        if values.get("sort") in _EARLIER_SORTS:
            sort, order = _EARLIER_SORTS[values["sort"]]
            if sort == "score" and "aspect" in values:
                sort = ASPECT + values["aspect"]
            values |= {"sort": sort, "order": values.get("order", order)}
        if "columns" in values:
            every = query.getall("columns") if isinstance(query, MultiMapping) else [values["columns"]]
            known = [column_key(name) for name in every[:_MOST_COLUMNS] if column_of(name) is not None]
            values["columns"] = tuple(dict.fromkeys(known))
        return cls(**values)

    def query(self, **changes: Any) -> str:
        """Return the filter as the query of an address with these changes; the page is 1 unless they set it."""
        changed = replace(self, **({"page": 1} | changes))
        pairs = [(field.name, _as_indexed(field.name, getattr(changed, field.name))) for field in fields(changed)]
        parameters = [
            (name, value) for name, value in pairs if value not in ("", None, ()) and (name, value) != ("page", 1)
        ]
        plain = [(name, f"{value:g}" if isinstance(value, float) else value) for name, value in parameters]
        return urlencode(plain, doseq=True)

    def fields(self, *skipped: str) -> list[tuple[str, str]]:
        """Return the address's fields without some, as hidden fields of a form."""
        return [(name, value) for name, value in parse_qsl(self.query()) if name not in skipped]

    def sorted_by(self, key: str) -> str:
        """Return the query of the address that a click on a column's head leads to."""
        column = column_of(key)
        assert column is not None
        if key == self.sort:
            turned = "up" if self.is_down else "down"
            return self.query(order="" if (turned == "down") == column.down else turned)
        return self.query(sort=key, order="")

    @property
    def is_down(self) -> bool:
        """True if the largest come first."""
        column = column_of(self.sort)
        return column is not None and (self.order == "down" if self.order else column.down)

    @property
    def chosen(self) -> list[tuple[str, str]]:
        """The labels of the active fields with their values, for display."""
        figure = self.aspect or "score"
        labels = {"q": "text", "low": f"{figure} from", "high": f"{figure} up to"}
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        skipped = ("page", "sort", "order", "columns")
        return [
            (labels.get(name, name), f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in pairs
            if value not in ("", None) and name not in skipped
        ]

    def allows(self, run: RunFigures) -> bool:
        """Return False if the filter's run, scenario or dataset exclude a run."""
        pairs = ((self.run, run.name), (self.scenario, run.scenario), (self.dataset, run.dataset))
        return all(chosen in ("", own) for chosen, own in pairs)

    def set_is(self, second: bool) -> bool:
        """Return True if the filter allows items of the second set (`second`), or of the benchmark."""
        of_matrix = not self.matrix or self.matrix.endswith(SECOND_SET) == second
        return of_matrix and self.set in ("", SETS[second])

    @property
    def question(self) -> str | None:
        """The words as a full-text query."""
        return fts_query(self.q) if self.q else None

    def condition(self, hits: str | None, runs: Sequence[int] | None = None) -> tuple[str, list[Any]]:
        """Return the SQL condition and its parameters.

        `hits`: table of the conversations with the words. `runs`: the row ids of the matrix's runs.
        """
        parts, values = ["1"], []
        for name in ("candidate", "end", "error", "task"):
            if value := getattr(self, name):
                parts.append(f"c.{name} = ?")
                values.append(value)
        for name, column in (("run", "name"), ("scenario", "scenario"), ("dataset", "dataset")):
            if value := getattr(self, name):
                parts.append(f"c.run in (select id from runs where {column} = ?)")
                values.append(value)
        if self.set:
            parts.append(f"c.second = {int(self.set == 'second')} and c.state = {FINISHED}")
        if self.state:
            parts.append("c.state = ?")
            values.append(STATES[self.state])
        if self.unscored:
            parts.append("c.unscored > 0")
        for bound, sign in ((self.low, ">="), (self.high, "<=")):
            if bound is not None:
                parts.append(f"{self.score} {sign} ?")
                values.append(bound)
        if hits is not None:
            parts.append(f"c.id in (select id from {hits})")
        if runs is not None:
            parts.append(
                f"c.run in ({','.join(map(str, runs))}) and c.second = {int(self.matrix.endswith(SECOND_SET))}"
            )
        return " and ".join(parts), values

    @property
    def score(self) -> str:
        """The SQL column that `low` and `high` limit."""
        return "a.value" if self.aspect else "c.score"

    @property
    def by_score(self) -> bool:
        """True if the conversations are sorted by their score or an aspect, which unlike ones cannot be together."""
        return self.sort == "score" or self.sort.startswith(ASPECT)

    def sql_order(self, apart: bool) -> str:
        """Return the SQL sort keys; `apart`: conversations of one kind stay together."""
        column = column_of(self.sort)
        if column is None:
            return "c.run, c.number"
        unknown = f"{column.unknown}, " if column.unknown else ""
        kind = f"{_KIND_KEYS}, c.second, " if apart else ""
        keys = f"{unknown}{kind}{column.order}{' desc' if self.is_down else ''}, c.run, c.number"
        return keys.replace("s.value", "a.value") if self.sort == ASPECT + self.aspect else keys

    @property
    def tables(self) -> tuple[str, list[Any]]:
        """The SQL tables and their parameters."""
        tables, values = "conversations c", list[Any]()
        if self.aspect:
            tables += " join aspects a on a.conversation = c.id and a.name = ?"
            values.append(self.aspect)
        return tables, values

    def sort_tables(self, apart: bool) -> tuple[str, list[Any]]:
        """Return the SQL tables of the sort keys, to be joined, and their parameters."""
        tables, values = "", list[Any]()
        if self.sort.startswith(ASPECT) and self.sort != ASPECT + self.aspect:
            tables = " left join aspects s on s.conversation = c.id and s.name = ?"
            values.append(self.sort.removeprefix(ASPECT))
        if apart or self.sort in ("dataset", "run"):
            tables += " join runs r on r.id = c.run"
        return tables, values


def column_key(key: str) -> str:
    """Return a column's key with the name of an aspect as the index has it."""
    return ASPECT + index_name(key.removeprefix(ASPECT)) if key.startswith(ASPECT) else key


def _as_indexed(name: str, value: Any) -> Any:
    """Return a field's value with names as the index has them."""
    return index_name(value) if name in _NAMES and isinstance(value, str) else value


def _parse_field(name: str, text: str) -> Any:
    if name in _NAMES:
        return index_name(text)
    if name == "q" and len(text) > _LONGEST_QUESTION:
        raise ConfigurationError(f"q: expected at most {_LONGEST_QUESTION:,} characters, found {len(text):,}")
    if name not in ("q", "run"):
        text = text.strip()
    if name == "page":
        if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) > 0):
            raise ConfigurationError(f"page: expected a positive integer, found '{text[:40]}'")
        return int(text)
    if name in ("low", "high"):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ConfigurationError(f"{name}: expected a number, found '{text[:40]}'")
        return value
    if name == "sort" and text.startswith(ASPECT):
        return column_key(text)
    choices = {"state": [*STATES], "set": [*SETS], "sort": [*COLUMNS, *_EARLIER_SORTS], "order": ["up", "down"]}
    allowed = choices.get(name, [])
    if allowed and text not in allowed:
        raise ConfigurationError(f"{name}: expected one of {', '.join(filter(None, allowed))}, found '{text[:40]}'")
    return text

"""Queries of the viewer's pages: filters in page addresses, lists of conversations, figures by candidate."""

from __future__ import annotations

import math
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from viva.engine.errors import ConfigurationError

from .index import FINISHED, OPEN, PACE_SECONDS, conversations_with_texts, fts_query, pace_slot

PAGE_SIZE = 50  # maximum conversations on one page
_LONGEST_FIELD = 300  # maximum characters of one value
STATES = {"finished": 1, "failed": 2, "open": 0}
SORTS = {
    "": ("run order", "c.run, c.number"),
    "low": ("lowest score", "{score} is null, {score}, c.id"),
    "high": ("highest score", "{score} desc, c.id"),
    "latest": ("latest first", "c.at desc, c.id desc"),
    "tokens": ("most tokens", "c.prompt_tokens + c.completion_tokens desc, c.id"),
    "slow": ("slowest", "c.seconds desc, c.id"),
    "retries": ("most retries", "c.retries desc, c.id"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of conversations; an empty field filters nothing.

    `low` and `high` limit the score; if an `aspect` is given, they limit its score. Any text in `unscored` selects
    conversations with unscored rounds. `q` has words that the texts must contain.
    """

    run: str = ""
    candidate: str = ""
    dataset: str = ""
    state: str = ""
    end: str = ""
    error: str = ""
    aspect: str = ""
    low: float | None = None
    high: float | None = None
    unscored: str = ""
    q: str = ""
    sort: str = ""
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
            text = (text if column.name == "q" else text.strip())[:_LONGEST_FIELD]
            if text:
                values[column.name] = _parse_field(column.name, text)
        return cls(**values)

    def query(self, **changes: Any) -> str:
        """Return the filter as the query of an address with these changes; the page is 1 unless they set it."""
        changed = replace(self, **({"page": 1} | changes))
        pairs = [(field.name, getattr(changed, field.name)) for field in fields(changed)]
        parameters = [
            (name, value) for name, value in pairs if value not in ("", None) and (name, value) != ("page", 1)
        ]
        return urlencode([(name, f"{value:g}" if isinstance(value, float) else value) for name, value in parameters])

    @property
    def chosen(self) -> list[tuple[str, str]]:
        """The active fields with their values, for display."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        skipped = ("page", "sort")
        return [
            (name, f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in pairs
            if value not in ("", None) and name not in skipped
        ]

    @property
    def question(self) -> str | None:
        """The words as a full-text query."""
        return fts_query(self.q) if self.q else None

    def condition(self, hits: str | None) -> tuple[str, list[Any]]:
        """Return the SQL condition and its parameters. `hits`: table of the conversations with the words."""
        parts, values = ["1"], []
        for name in ("candidate", "end", "error"):
            if value := getattr(self, name):
                parts.append(f"c.{name} = ?")
                values.append(value)
        for name, column in (("run", "name"), ("dataset", "dataset")):
            if value := getattr(self, name):
                parts.append(f"c.run in (select id from runs where {column} = ?)")
                values.append(value)
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
        return " and ".join(parts), values

    @property
    def score(self) -> str:
        """The column of the figure to show and sort by."""
        return "a.value" if self.aspect else "c.score"

    @property
    def order(self) -> str:
        return SORTS[self.sort][1].format(score=self.score)

    @property
    def tables(self) -> tuple[str, list[Any]]:
        """The SQL tables and their parameters."""
        if not self.aspect:
            return "conversations c", []
        return "conversations c join aspects a on a.conversation = c.id and a.name = ?", [self.aspect]


def _parse_field(name: str, text: str) -> Any:
    if name == "page":
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**7):
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
    allowed = list(STATES) if name == "state" else list(SORTS) if name == "sort" else []
    if allowed and text not in allowed:
        raise ConfigurationError(f"{name}: expected one of {', '.join(filter(None, allowed))}, found '{text[:40]}'")
    return text


_CACHED_ANSWERS = 64  # maximum answers that are cached until the index changes
_CACHED_HITS = 4  # maximum cached tables of search results
PACE_SPAN = 300  # seconds of the recent pace
_RUN_COLUMNS = "id, name, scenario, dataset, seed, judge, planned, problem, state = 'running', digest"
_COLUMNS = (
    "c.id, r.name, c.number, c.key, c.candidate, c.item, r.dataset, c.state, c.score, c.end, c.error, c.reason,"
    " c.unscored, c.calls, c.prompt_tokens, c.completion_tokens, c.seconds, c.retries, r.scenario, r.judge, r.seed,"
    " c.at"
)


@dataclass(slots=True)
class ListedConversation:
    """A conversation in a list; the fields are the columns of the index."""

    id: int
    run: str
    number: int
    key: str
    candidate: str
    item: str
    dataset: str
    state: int
    score: float | None
    end: str
    error: str
    reason: str
    unscored: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    retries: int
    scenario: str
    judge: str
    seed: int | None
    at: float
    shown_score: float | None = None
    excerpt: str = ""

    @property
    def path(self) -> str:
        """The conversation's path in addresses: its run and its number."""
        return f"{quote(self.run)}/{self.number}"


@dataclass(slots=True)
class CandidateFigures:
    """Counts of a candidate's conversations in one or more runs. `mean` is the mean score; None without scores."""

    name: str
    total: int = 0
    finished: int = 0
    failed: int = 0
    scored: int = 0
    sum: float = 0.0
    tokens: int = 0
    calls: int = 0
    retries: int = 0
    unscored: int = 0

    @property
    def mean(self) -> float | None:
        return self.sum / self.scored if self.scored else None

    def add(self, figures: CandidateFigures) -> None:
        """Add the figures of another run."""
        for count in fields(self)[1:]:
            setattr(self, count.name, getattr(self, count.name) + getattr(figures, count.name))


@dataclass(slots=True)
class RunFigures:
    """A run and counts of its conversations. `planned` is None if unknown; `digest` is its dataset's."""

    name: str
    scenario: str
    dataset: str
    seed: int | None
    judge: str
    planned: int | None
    problem: str
    running: bool
    digest: str = ""
    candidates: dict[str, CandidateFigures] = field(default_factory=dict)

    @property
    def total(self) -> CandidateFigures:
        total = CandidateFigures("")
        for candidate in self.candidates.values():
            total.add(candidate)
        return total

    @property
    def ended(self) -> int:
        return self.total.finished + self.total.failed


@dataclass(slots=True)
class RunLoad:
    """Work done by a run and its recent pace, from its journal.

    `lengths` counts the ended conversations by their calls, `open_calls` has the calls so far of the others; `failures`
    counts failed conversations by (error type, an example's reason). `pace` has the calls and ends in each slot of
    `PACE_SECONDS` of the last minutes, oldest first, without the slot that is not over; `latest` is the time of the
    last call.
    """

    finished: int = 0
    failed: int = 0
    open_calls: list[int] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    calls: int = 0
    tokens: int = 0
    retries: int = 0
    latest: float = 0.0
    failures: list[tuple[str, str, int]] = field(default_factory=list)
    pace: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class FilterChoices:
    """Values by which a list can be filtered; in tuples with their number of conversations."""

    runs: list[str]
    candidates: list[tuple[str, int]]
    datasets: list[str]
    ends: list[tuple[str, int]]
    errors: list[tuple[str, int]]
    aspects: list[str]


class IndexReader:
    """The reader of an index. Answers are cached until the index changes."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
        self._connection.execute("pragma temp_store = memory")
        self._connection.execute("pragma cache_size = -32000")
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._kept_at = -1
        self._hits: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def close(self) -> None:
        self._connection.close()

    @property
    def version(self) -> int:
        """The index's change counter."""
        return self._number("version")

    def listed(self, filter: Filter) -> list[ListedConversation]:  # noqa: A002
        """Return one page of conversations."""
        return self._page(filter, PAGE_SIZE, (filter.page - 1) * PAGE_SIZE)

    def at(self, filter: Filter, position: int) -> ListedConversation | None:  # noqa: A002
        """Return the conversation at a position of a whole list; positions count from 0."""
        return next(iter(self._page(filter, 1, position)), None) if position >= 0 else None

    def count(self, filter: Filter) -> int:  # noqa: A002
        """Return the number of conversations that match a filter, on all pages."""

        def ask() -> int:
            tables, values = filter.tables
            condition, more = filter.condition(self._hits_of(filter))
            sql = f"select count(*) from {tables} where {condition}"
            return int(self._connection.execute(sql, (*values, *more)).fetchone()[0])

        return int(self._keep(("count", filter.query(sort="")), ask))

    def conversation(self, run: str, number: int) -> ListedConversation | None:
        """Return a conversation by its run's name and its number."""
        rows = self._connection.execute(
            f"select {_COLUMNS} from conversations c join runs r on r.id = c.run where r.name = ? and c.number = ?",
            (run, number),
        ).fetchall()
        return ListedConversation(*rows[0]) if rows else None

    def every(self) -> Iterator[ListedConversation]:
        """Iterate over all conversations, in order, reading lazily."""
        last = (-1, -1)
        while True:
            rows = self._connection.execute(
                f"select {_COLUMNS}, c.run from conversations c join runs r on r.id = c.run"
                " where (c.run, c.number) > (?, ?) order by c.run, c.number limit 1000",
                last,
            ).fetchall()
            for *row, _ in rows:
                yield ListedConversation(*row)
            if len(rows) < 1000:
                return
            last = (rows[-1][-1], rows[-1][2])

    def aspects(self, conversation: ListedConversation) -> dict[str, float]:
        return dict(
            self._connection.execute(
                "select name, value from aspects where conversation = ?", (conversation.id,)
            ).fetchall()
        )

    def beside(self, conversation: ListedConversation, limit: int = 60) -> list[ListedConversation]:
        """Return other conversations on the same task of the same dataset, with other candidates, seeds or judges."""
        rows = self._connection.execute(
            f"select {_COLUMNS} from conversations c join runs r on r.id = c.run"
            " where c.item = ? and r.dataset = ? and r.scenario = ? and c.id != ?"
            " order by r.name != ?, r.place, c.number limit ?",
            (conversation.item, conversation.dataset, conversation.scenario, conversation.id, conversation.run, limit),
        ).fetchall()
        return [ListedConversation(*row) for row in rows]

    def runs(self) -> list[RunFigures]:
        return list(self._keep("runs", self._runs))

    def run(self, name: str) -> RunFigures | None:
        """Return a run by its name, without the figures of its candidates."""
        rows = self._connection.execute(f"select {_RUN_COLUMNS} from runs where name = ?", (name,)).fetchall()
        return RunFigures(*rows[0][1:]) if rows else None

    def load(self, run: str, now: float) -> RunLoad:
        """Return what a run has done until now, and its recent pace at this time."""
        load: RunLoad = self._keep(("load", run), lambda: self._load(run))
        end = pace_slot(now)
        rows = self._connection.execute(
            "select slot, calls, ended from pace where run = (select id from runs where name = ?)"
            " and slot >= ? and slot < ?",
            (run, end - PACE_SPAN // PACE_SECONDS, end),
        ).fetchall()
        by_slot = {slot: (calls, ended) for slot, calls, ended in rows}
        pace = [by_slot.get(slot, (0, 0)) for slot in range(min(by_slot, default=end), end)]
        return replace(load, pace=pace)

    def choices(self) -> FilterChoices:
        """Return the values by which a list can be filtered."""

        def ask() -> FilterChoices:
            runs = self.runs()
            ask_many = self._connection.execute
            return FilterChoices(
                [run.name for run in runs],
                ask_many("select candidate, count(*) from conversations group by candidate").fetchall(),
                list(dict.fromkeys(run.dataset for run in runs if run.dataset)),
                self._by_count("end"),
                self._by_count("error"),
                [name for (name,) in ask_many(_DISTINCT_ASPECTS).fetchall()],
            )

        choices: FilterChoices = self._keep("choices", ask)
        return choices

    # -- SQL ------------------------------------------------------------------------------------------------------

    def _page(self, filter: Filter, limit: int, offset: int) -> list[ListedConversation]:  # noqa: A002
        tables, values = filter.tables
        condition, more = filter.condition(self._hits_of(filter))
        # Rows that are sorted and skipped have only an id and the sort key.
        inner = f"select c.id, {filter.score} as shown from {tables} where {condition} order by {filter.order}"
        places = self._connection.execute(f"{inner} limit ? offset ?", (*values, *more, limit, offset)).fetchall()
        marks = ",".join("?" * len(places))
        rows = self._connection.execute(
            f"select {_COLUMNS} from conversations c join runs r on r.id = c.run where c.id in ({marks})",
            [id for id, _ in places],  # noqa: A001
        ).fetchall()
        conversations = {row[0]: ListedConversation(*row) for row in rows}
        for id, excerpt in places:  # noqa: A001
            conversations[id].shown_score = excerpt
        return [conversations[id] for id, _ in places]  # noqa: A001

    def _hits_of(self, filter: Filter) -> str | None:  # noqa: A002
        """Return the table of the conversations that contain the words of a filter, creating it if needed."""
        question = filter.question
        if question is None:
            return None
        texts = self._number("texts")
        name, made_at = self._hits.get(question, ("", -1))
        if made_at == texts:
            self._hits.move_to_end(question)
            return name
        if name:
            self._connection.execute(f"drop table temp.{name}")
        tables = {table for table, _ in self._hits.values()}
        if not name and len(self._hits) >= _CACHED_HITS:
            _, (name, _) = self._hits.popitem(last=False)
            self._connection.execute(f"drop table temp.{name}")
        name = name or next(f"hits{at}" for at in range(_CACHED_HITS) if f"hits{at}" not in tables)
        self._connection.execute(f"create temp table {name} (id integer primary key)")
        self._connection.execute(f"insert into temp.{name} {conversations_with_texts()}", (question,))
        self._hits[question] = (name, texts)
        return name

    def _load(self, run: str) -> RunLoad:
        load = RunLoad()
        rows = self._connection.execute(
            "select state, calls, count(*), total(calls), total(prompt_tokens + completion_tokens), total(retries),"
            " max(at) from conversations where run = (select id from runs where name = ?) group by state, calls",
            (run,),
        ).fetchall()
        for state, length, count, calls, tokens, retries, latest in rows:
            if state == OPEN:
                load.open_calls += [length] * count
            else:
                load.finished += count * (state == FINISHED)
                load.failed += count * (state != FINISHED)
                load.lengths[length] = load.lengths.get(length, 0) + count
            load.calls += int(calls)
            load.tokens += int(tokens)
            load.retries += int(retries)
            load.latest = max(load.latest, latest)
        load.failures = self._connection.execute(
            "select error, min(reason), count(*) from conversations where run = (select id from runs where name = ?)"
            " and error != '' group by error order by 3 desc, 1 limit 20",
            (run,),
        ).fetchall()
        return load

    def _runs(self) -> list[RunFigures]:
        rows = self._connection.execute(f"select {_RUN_COLUMNS} from runs order by place").fetchall()
        runs = {id: RunFigures(*columns) for id, *columns in rows}  # noqa: A001
        rows = self._connection.execute(
            f"select run, candidate, count(*), sum(state = {FINISHED}), sum(state > {FINISHED}), count(score),"
            "total(score), sum(prompt_tokens + completion_tokens), sum(calls), sum(retries),"
            " sum(unscored) from conversations group by run, candidate order by min(number)"
        ).fetchall()
        for run, *figures in rows:
            if run in runs:
                runs[run].candidates[figures[0]] = CandidateFigures(*figures)
        return list(runs.values())

    def _by_count(self, column: str) -> list[tuple[str, int]]:
        rows = self._connection.execute(
            f"select {column}, count(*) from conversations where {column} != '' and state != {OPEN} group by {column}"
            " order by 2 desc, 1 limit 60"
        ).fetchall()
        return [(str(name), int(count)) for name, count in rows]

    def _keep(self, name: Any, ask: Any) -> Any:
        version = self.version
        if version != self._kept_at:
            self._kept.clear()
            self._kept_at = version
        if name in self._kept:
            return self._kept[name]
        value = self._kept[name] = ask()
        if len(self._kept) > _CACHED_ANSWERS:
            self._kept.popitem(last=False)
        return value

    def _number(self, name: str) -> int:
        return int(self._connection.execute("select value from meta where name = ?", (name,)).fetchone()[0])


# Each step looks up the next name in the index of the table, so there are only as many steps as names.
_DISTINCT_ASPECTS = """
with recursive names(name) as (
    select min(name) from aspects
    union all select (select min(name) from aspects where name > names.name) from names where names.name is not null)
select name from names where name is not null limit 60
"""

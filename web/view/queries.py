"""Queries of the viewer's pages: lists of conversations, figures by candidate and run."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from viva.scenarios.rendering import SETS

from .filters import ASPECT, COLUMNS, Filter
from .index import FINISHED, OPEN, conversations_with_texts
from .run_figures import CandidateFigures, ItemScores, Kind, RunFigures, RunGroup, run_groups, scale_text

T = TypeVar("T")

PAGE_SIZE = 50  # maximum conversations on one page
_CHUNK = 500  # maximum conversations in one query
_MOST_SHOWN_ASPECTS = 6  # with more, which are those of several scenarios, no aspect is shown unless chosen
_CACHED_ANSWERS = 64  # maximum answers that are cached until the index changes
_CACHED_SLOW_ANSWERS = 12  # maximum answers that take long
_PATIENCE = 20  # times as long as an answer took, it is kept while the index changes
_CACHED_HITS = 4  # maximum cached tables of search results
_RUN_COLUMNS = (
    "name, scenario, dataset, seed, judge, planned, problem, state = 'running', digest, id, low, high, unit, likeness,"
    " models, adaptive, rate, second_name, second_digest"
)
_COLUMNS = (
    "c.id, r.name, c.number, c.key, c.candidate, c.item, c.task, r.dataset, c.state, c.score, c.end, c.error,"
    " c.reason, c.unscored, c.calls, c.prompt_tokens, c.completion_tokens, c.seconds, c.retries, r.scenario, r.judge,"
    " r.seed, c.at, c.rounds, c.second, r.low, r.high, r.unit"
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
    task: str
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
    rounds: int | None
    second: bool
    low: float | None
    high: float | None
    unit: str
    aspects: dict[str, float] = field(default_factory=dict)
    excerpt: str = ""

    @property
    def path(self) -> str:
        """The conversation's path in addresses: its run and its number."""
        return f"{quote(self.run)}/{self.number}"

    @property
    def scale(self) -> str:
        """The ends of the score's scale and its unit."""
        return scale_text(self.low, self.high, self.unit)

    @property
    def scale_words(self) -> str:
        """The scale as words after a score: "of 100" if it begins at 0."""
        if self.low == 0 and self.high is not None:
            return " ".join(filter(None, (f"of {self.high:g}", self.unit)))
        return f"on {self.scale}" if self.scale else ""

    @property
    def kind(self) -> Kind:
        return Kind(self.scenario, self.dataset, self.judge, self.scale, bool(self.second))

    @property
    def when(self) -> str:
        """The time of the last answer."""
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.at)) if 0 < self.at < 1e11 else ""


@dataclass(slots=True)
class FilterChoices:
    """Values by which a list can be filtered; in tuples with their number of conversations.

    `sets` is empty if no run has a second set.
    """

    runs: list[str]
    candidates: list[tuple[str, int]]
    scenarios: list[str]
    datasets: list[str]
    sets: list[str]
    ends: list[tuple[str, int]]
    errors: list[tuple[str, int]]
    aspects: list[str]


class IndexReader:
    """The reader of an index. Answers are cached until the index changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._kept_at = -1
        self._slow: OrderedDict[Any, tuple[float, float, int, Any]] = OrderedDict()
        self._hits: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._opened: sqlite3.Connection | None = None
        self._inode = 0
        _ = self._connection

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection, opened again if a damaged file was replaced by a new one."""
        try:
            inode = os.stat(self._file).st_ino
        except OSError:
            inode = self._inode
        if self._opened is None or inode != self._inode:
            self.close()
            self._kept.clear()
            self._hits.clear()
            self._inode = inode
            self._opened = sqlite3.connect(
                f"file:{quote(str(self._file))}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=30,
            )
            self._opened.execute("pragma temp_store = memory")
            self._opened.execute("pragma cache_size = -32000")
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def version(self) -> int:
        """The index's change counter."""
        return self._number("version")

    def left_out(self) -> list[str]:
        """Return what the index leaves out, as sentences."""
        [(text,)] = self._connection.execute("select value from meta where name = 'left out'").fetchall()
        return [str(sentence) for sentence in orjson.loads(text)]

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
            condition, more = filter.condition(self._hits_of(filter), self._matrix_runs(filter))
            sql = f"select count(*) from {tables} where {condition}"
            return int(self._connection.execute(sql, (*values, *more)).fetchone()[0])

        return int(self._keep(("count", filter.query(sort="", order="", columns=())), ask))

    def selected(self, filter: Filter) -> Iterator[ListedConversation]:  # noqa: A002
        """Iterate over all conversations that match a filter, in its order."""
        if self.count(filter) <= 0:
            return
        ids = self._ids(filter, -1, 0)
        for at in range(0, len(ids), _CHUNK):
            yield from self._by_ids(ids[at : at + _CHUNK])

    def selected_by_run(self, filter: Filter) -> list[tuple[str, int, int, int]]:  # noqa: A002
        """Return (run, total, failed, finished) of the conversations that match a filter."""

        def ask() -> list[tuple[str, int, int, int]]:
            tables, values = filter.tables
            condition, more = filter.condition(self._hits_of(filter), self._matrix_runs(filter))
            sql = (
                f"select r.name, total, failed, finished from (select c.run as run, count(*) as total,"
                f" sum(c.state > {FINISHED}) as failed, sum(c.state = {FINISHED}) as finished"
                f" from {tables} where {condition} group by c.run) join runs r on r.id = run order by r.place"
            )
            return self._connection.execute(sql, (*values, *more)).fetchall()

        rows: list[tuple[str, int, int, int]] = self._keep(("by run", filter.query(sort="", order="", columns=())), ask)
        return rows

    def picked(self, conversations: Sequence[tuple[str, int]]) -> list[ListedConversation]:
        """Return the conversations with these runs and numbers; others are left out."""
        rows = (self.conversation(run, number) for run, number in dict.fromkeys(conversations))
        return [conversation for conversation in rows if conversation is not None]

    def conversation(self, run: str, number: int) -> ListedConversation | None:
        """Return a conversation by its run's name and its number."""
        sql = "select id from conversations where run = (select id from runs where name = ?) and number = ?"
        ids = [id for (id,) in self._connection.execute(sql, (run, number))]  # noqa: A001
        return next(iter(self._by_ids(ids)), None)

    def every(self) -> Iterator[ListedConversation]:
        """Iterate over all conversations, in order, reading lazily."""
        last = (-1, -1)
        while True:
            rows = self._connection.execute(
                "select id, run, number from conversations where (run, number) > (?, ?) order by run, number limit ?",
                (*last, _CHUNK),
            ).fetchall()
            yield from self._by_ids([row[0] for row in rows])
            if len(rows) < _CHUNK:
                return
            last = rows[-1][1:]

    def beside(self, conversation: ListedConversation, limit: int = 60) -> list[ListedConversation]:
        """Return other conversations on the same task of the same dataset, with other candidates, seeds or judges."""
        rows = self._connection.execute(
            f"select {_COLUMNS} from conversations c join runs r on r.id = c.run"
            " where c.task = ? and r.dataset = ? and r.scenario = ? and c.id != ?"
            " order by r.name != ?, r.place, c.number limit ?",
            (conversation.task, conversation.dataset, conversation.scenario, conversation.id, conversation.run, limit),
        ).fetchall()
        return [ListedConversation(*row) for row in rows]

    def runs(self) -> list[RunFigures]:
        return list(self._keep("runs", self._runs))

    def run(self, name: str) -> RunFigures | None:
        """Return a run by its name, without the figures of its candidates."""
        rows = self._connection.execute(f"select {_RUN_COLUMNS} from runs where name = ?", (name,)).fetchall()
        return RunFigures(*rows[0]) if rows else None

    def run_rows(self) -> list[RunFigures]:
        """Return all runs without the figures of their candidates, which takes less time than `runs`."""

        def ask() -> list[RunFigures]:
            rows = self._connection.execute(f"select {_RUN_COLUMNS} from runs order by place").fetchall()
            return [RunFigures(*row) for row in rows]

        return list(self._keep("run rows", ask))

    def kinds(self, filter: Filter) -> set[Kind]:  # noqa: A002
        """Return the kinds that conversations which match a filter may have."""
        ids, kinds = self._matrix_runs(filter), set()
        for run in self.run_rows():
            if not filter.allows(run) or (ids is not None and run.id not in ids):
                continue
            for second in (False, True) if run.second_name else (False,):
                if filter.set_is(second):
                    scale = scale_text(run.low, run.high, run.unit)
                    kinds.add(Kind(run.scenario, run.dataset, run.judge, scale, second))
        return kinds

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a query."""
        return self._connection.execute(sql, values).fetchall()

    def groups(self) -> list[RunGroup]:
        """Return the runs by matrix: those in one group have scores of the same kind on the same items."""
        return list(self._keep("groups", lambda: run_groups(self.runs())))

    def scored(self, runs: Sequence[int], second: bool) -> Iterator[Any]:
        """Iterate over (id, task, candidate, score, cluster) of the conversations of some runs."""
        every = self._connection.execute("select count(*) from runs").fetchone()[0]
        # If all runs are read, one scan of the table is quicker than a search for each row.
        by_run = f"run in ({','.join(map(str, runs))}) and" if len(runs) < every else ""
        return iter(
            self._connection.execute(
                f"select id, task, candidate, score, cluster from conversations where {by_run} second = {int(second)}"
                f" order by {'run, number' if by_run else 'id'}"
            )
        )

    def cells(self, runs: Sequence[int], second: bool, tasks: Sequence[str]) -> Iterator[Any]:
        """Iterate over (task, candidate, score, state, run's id, number) of some runs' conversations on some tasks."""
        sql = (  # the plus sign makes SQLite search by task, not by run
            "select task, candidate, score, state, run, number from conversations"
            f" where +run in ({','.join(map(str, runs))}) and second = {int(second)}"
            f" and task in ({','.join('?' * len(tasks))}) order by run, number"
        )
        return iter(self._connection.execute(sql, tasks))

    def keep(self, name: Any, ask: Callable[[], T]) -> T:
        """Return what `ask` returns; it is kept under this name until the index changes."""
        kept: T = self._keep(name, ask)
        return kept

    def keep_for_a_while(self, name: Any, ask: Callable[[], T]) -> T:
        """Return what `ask` returns; it is kept until the index changes, and then still 20 times as long as it took.

        So the answers that take long cost only a fraction of the time while a run is in progress.
        """
        version, now = self.version, time.monotonic()
        if name in self._slow:
            at, seconds, earlier, kept = self._slow[name]
            if earlier == version or now - at < _PATIENCE * seconds:
                self._slow.move_to_end(name)
                value: T = kept
                return value
        value = ask()
        self._slow[name] = now, time.monotonic() - now, version, value
        self._slow.move_to_end(name)
        if len(self._slow) > _CACHED_SLOW_ANSWERS:
            self._slow.popitem(last=False)
        return value

    def columns(self, filter: Filter) -> tuple[dict[str, str], list[str]]:  # noqa: A002
        """Return the titles of all columns by key, and the keys of the shown ones; the item is always shown."""
        choices, runs = self.choices(), self.run_rows()
        aspects = [ASPECT + name for name in choices.aspects]
        titles: dict[str, str] = {}
        for key, column in COLUMNS.items():
            titles[key] = column.title
            if key == "score":
                titles |= {aspect: aspect.removeprefix(ASPECT) for aspect in aspects}
        counts = {"dataset": len(choices.datasets), "run": len(runs), "rounds": 2 * self._has_rounds()}
        visible = {key for key in COLUMNS if counts.get(key, 2) > 1}
        if len(aspects) <= _MOST_SHOWN_ASPECTS:
            visible |= {*aspects}
        if filter.columns:
            visible = {*filter.columns}
        elif filter.aspect:
            visible.add(ASPECT + filter.aspect)
        return titles, [key for key in titles if key in visible or key in ("item", filter.sort)]

    def choices(self) -> FilterChoices:
        """Return the values by which a list can be filtered."""

        def ask() -> FilterChoices:
            runs = self.run_rows()
            ask_many = self._connection.execute
            return FilterChoices(
                [run.name for run in runs],
                ask_many("select candidate, count(*) from conversations group by candidate").fetchall(),
                list(dict.fromkeys(run.scenario for run in runs if run.scenario)),
                list(dict.fromkeys(run.dataset for run in runs if run.dataset)),
                [*SETS] if any(run.second_name for run in runs) else [],
                self._by_count("end"),
                self._by_count("error"),
                [name for (name,) in ask_many(_DISTINCT_ASPECTS).fetchall()],
            )

        return self.keep_for_a_while("choices", ask)

    def starts(self) -> dict[str, float]:
        """Return when each run's first conversation had its last call, in seconds of the epoch, by the run's name."""

        def ask() -> dict[str, float]:
            return dict(
                self._connection.execute(
                    "select r.name, (select min(c.at) from conversations c where c.run = r.id and c.at > 0) from runs r"
                ).fetchall()
            )

        return {name: start for name, start in self._keep("starts", ask).items() if start}

    def scores(self, run: int) -> dict[tuple[str, bool], ItemScores]:
        """Return the scores of the run with this row id, by candidate and whether their items are of a second set."""
        scores: dict[tuple[str, bool], ItemScores] = {}
        names: dict[str, str] = {}  # the candidates share items: each name is in memory once
        for candidate, second, item, cluster, score in self._connection.execute(
            "select candidate, second, item, case cluster when '' then task else cluster end, score"
            " from conversations where run = ? and score is not null",
            (run,),
        ):
            own = scores.get((candidate, second))
            if own is None:
                own = scores[candidate, bool(second)] = ItemScores()
            own.items.append(names.setdefault(item, item))
            own.clusters.append(names.setdefault(cluster, cluster))
            own.values.append(score)
        return scores

    def ends(self) -> list[tuple[str, str, int]]:
        """Return how many conversations have ended in each way, by run: (run, end, count)."""
        return self._connection.execute(
            "select r.name, ends.end, ends.count from (select run, end, count(*) as count from conversations"
            f" where state = {FINISHED} and end != '' group by run, end) ends join runs r on r.id = ends.run"
        ).fetchall()

    def failures(self) -> list[tuple[str, str, str, int]]:
        """Return the failures by run and type: (run, type of the error, a reason, count)."""

        def ask() -> list[tuple[str, str, str, int]]:
            return self._connection.execute(
                "select r.name, c.error, min(c.reason), count(*) from conversations c join runs r on r.id = c.run"
                " where c.error != '' group by r.name, c.error order by 4 desc"
            ).fetchall()

        return list(self._keep("failures", ask))

    # -- SQL ------------------------------------------------------------------------------------------------------

    def _page(self, filter: Filter, limit: int, offset: int) -> list[ListedConversation]:  # noqa: A002
        return self._by_ids(self._ids(filter, limit, offset))

    def _ids(self, filter: Filter, limit: int, offset: int) -> list[int]:  # noqa: A002
        tables, values = filter.tables
        condition, more = filter.condition(self._hits_of(filter), self._matrix_runs(filter))
        apart = filter.by_score and len(self.kinds(filter)) > 1
        if condition == "1" and filter.by_score and not apart and not filter.aspect:
            return self._ids_by_score(filter, limit, offset)
        joined, names = filter.sort_tables(apart)
        # Rows that are sorted and skipped have only an id and the sort key.
        order = filter.sql_order(apart)
        inner = f"select c.id from {tables}{joined} where {condition} order by {order} limit ? offset ?"
        rows = self._connection.execute(inner, (*values, *names, *more, limit, offset))
        return [id for (id,) in rows]  # noqa: A001

    def _ids_by_score(self, filter: Filter, limit: int, offset: int) -> list[int]:  # noqa: A002
        """Return ids of all conversations by score or aspect: by their index, which is quicker than a sort."""
        names = [] if filter.sort == "score" else [filter.sort[len(ASPECT) :]]
        id_, value, known = ("conversation", "value", "aspects where name = ?") if names else (
            "id", "score", "conversations where score is not null")  # fmt: skip
        sql = f"select count(*) from {known}"
        count = int(self._keep((sql, *names), lambda: self._connection.execute(sql, names).fetchone()[0]))
        ids = []
        if offset < count:
            order = f"{value}{' desc' if filter.is_down else ''}, {id_}"
            rows = self._connection.execute(
                f"select {id_} from {known} order by {order} limit ? offset ?", (*names, limit, offset)
            )
            ids = [id for (id,) in rows]  # noqa: A001
        if 0 <= limit == len(ids):
            return ids
        unknown = f"id not in (select {id_} from {known})" if names else "score is null"
        rows = self._connection.execute(
            f"select id from conversations where {unknown} order by run, number limit ? offset ?",
            (*names, limit - len(ids) if limit >= 0 else -1, max(0, offset - count)),
        )
        return ids + [id for (id,) in rows]  # noqa: A001

    def _by_ids(self, ids: Sequence[int]) -> list[ListedConversation]:
        """Return conversations with their aspects, in the order of their ids here."""
        marks = ",".join("?" * len(ids))
        rows = self._connection.execute(
            f"select {_COLUMNS} from conversations c join runs r on r.id = c.run where c.id in ({marks})", ids
        ).fetchall()
        conversations = {row[0]: ListedConversation(*row) for row in rows}
        aspects = f"select conversation, name, value from aspects where conversation in ({marks})"
        for conversation, name, value in self._connection.execute(aspects, ids):
            conversations[conversation].aspects[name] = value
        return [conversations[id] for id in ids if id in conversations]  # noqa: A001

    def _has_rounds(self) -> bool:
        sql = "select exists (select 1 from conversations where rounds is not null)"
        return bool(self._keep("rounds", lambda: self._connection.execute(sql).fetchone()[0]))

    def _matrix_runs(self, filter: Filter) -> list[int] | None:  # noqa: A002
        """Return the row ids of the runs of a filter's matrix: none if there is no such matrix."""
        if not filter.matrix:
            return None
        group = next((group for group in self.groups() if group.id == filter.matrix), None)
        return [] if group is None else [run.id for run in group.runs]

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

    def _runs(self) -> list[RunFigures]:
        own = self._connection.execute(f"select {_RUN_COLUMNS} from runs order by place").fetchall()
        runs = {run.id: run for run in (RunFigures(*columns) for columns in own)}
        rows = self._connection.execute(
            f"select run, candidate, count(*), sum(state = {FINISHED}), sum(state > {FINISHED}),"
            " count(case second when 0 then score end), total(case second when 0 then score end),"
            " sum(prompt_tokens + completion_tokens), sum(calls), sum(retries),"
            " sum(unscored), sum(second), count(case second when 1 then score end),"
            " total(case second when 1 then score end) from conversations group by run, candidate order by min(number)"
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

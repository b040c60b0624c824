"""Queue of requests that wait for people: the folder of `human:ROOM` with `room.sqlite` in it.

The process of a run asks and the process of the pages answers. Each may be killed at any moment, and does not need the
other. A request is recorded once, however often it is asked; the first answer counts, and every submission is kept. An
`AnswerQueue` is used by one thread at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from ..errors import ConfigurationError
from ..files import describe_version_problem, find_sqlite_damage
from ..json_data import strip_surrogates
from ..messages import Message, Request
from ..tools import ToolCall

_PREVIEW = 200  # characters of the last message, for lists


@dataclass(slots=True, frozen=True)
class PendingQuestion:
    """A request in the form that a person sees.

    `max_tokens` is a hint to the person; `schema` constrains the answer (None: free text); `tools` are function
    specifications in OpenAI's form; if `required`, the answer must call one of them.
    """

    conversation: str
    role: str
    ordinal: int
    digest: bytes
    messages: tuple[Message, ...]
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    required: bool = False

    @classmethod
    def from_request(cls, request: Request) -> PendingQuestion:
        """Return the question of a request, without hints that only simulated models may know."""
        tools = request.tools
        return cls(
            request.conversation,
            request.role,
            request.ordinal,
            request.digest,
            tuple(request.messages),
            request.sampling.max_tokens,
            request.sampling.schema,
            () if tools is None else tuple(tools.specs),
            tools is not None and tools.required,
        )

    @property
    def name(self) -> str:
        """Return 24 hexadecimal digits that identify this question in this conversation, for addresses and forms."""
        parts = [self.conversation, self.role, self.ordinal, self.digest.hex()]
        return hashlib.blake2b(orjson.dumps(parts), digest_size=12).hexdigest()

    @property
    def preview(self) -> str:
        """Return the beginning of the last message."""
        text = self.messages[-1].content if self.messages else ""
        return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"

    def to_record(self) -> bytes:
        """Return the parts that have no column as JSON."""
        record = {
            "messages": [_message_record(message) for message in self.messages],
            "max_tokens": self.max_tokens,
            "schema": self.schema,
            "tools": self.tools,
            "required": self.required,
        }
        return orjson.dumps(record)

    @classmethod
    def from_record(cls, conversation: str, role: str, ordinal: int, digest: bytes, record: bytes) -> PendingQuestion:
        """Restore a question from its record and columns."""
        read = orjson.loads(record)
        read |= {"messages": tuple(map(_message, read["messages"])), "tools": tuple(read["tools"])}
        return cls(conversation, role, ordinal, digest, **read)


@dataclass(slots=True, frozen=True)
class HumanAnswer:
    """A person's answer: text, or calls of offered functions as (name, JSON arguments).

    `person` may be empty; `at` is in seconds since 1970.
    """

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    person: str = ""
    at: float = 0.0

    def tool_calls(self) -> list[ToolCall] | None:
        """Return the calls for a completion, or None."""
        return [ToolCall(f"call-{number}", *call) for number, call in enumerate(self.calls, 1)] or None


def _message_record(message: Message) -> list[Any]:
    calls = [[strip_surrogates(part) for part in call.to_record()] for call in message.calls]
    return [message.role, strip_surrogates(message.content), calls, message.call_id, message.name]


def _message(record: list[Any]) -> Message:
    role, content, calls, call_id, name = record
    return Message(role, content, None, tuple(map(ToolCall.from_record, calls)), call_id, name)


QUEUE_FILE = "room.sqlite"
QUEUE_VERSION = "1"
_WAIT_SECONDS = 30.0  # for another process to finish writing
_TABLES = """
create table meta (name text primary key, value text not null) without rowid;
create table requests (
    number integer primary key, name text not null unique, conversation text not null, role text not null,
    ordinal integer not null, digest blob not null, record blob not null, preview text not null,
    state text not null, asker text not null, asked real not null, deadline real);
create index requests_by_state on requests (state, asked);
-- Every submission once, under the name that the page gave it; of those to one request only the first counts.
create table submissions (
    number integer primary key, name text not null, request integer not null references requests,
    text text not null, calls text not null, who text not null, at real not null, counts integer not null,
    unique (request, name));
create unique index answers on submissions (request) where counts;
"""


def open_queue_file(folder: Path) -> sqlite3.Connection:
    """Open or create the room's file; several processes may do so at once."""
    file = folder / QUEUE_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot create the room: {error.strerror}") from None
    try:
        connection = sqlite3.connect(file, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _create_tables(connection, file)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise queue_error(file, error) from error
    return connection


def queue_error(file: Path, error: Exception) -> ConfigurationError:
    """Return the error for a failed SQLite operation or an unreadable record."""
    return ConfigurationError(f"{file}: cannot be used as a room: {error}")


def _create_tables(connection: sqlite3.Connection, file: Path) -> None:
    connection.execute("begin immediate")
    if connection.execute("select 1 from sqlite_master").fetchone() is None:
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute("insert into meta values ('version', ?)", (QUEUE_VERSION,))
    connection.execute("commit")
    result = connection.execute("select value from meta where name = 'version'").fetchone()
    if result is None or result[0] != QUEUE_VERSION:
        text = describe_version_problem("room of version", result and result[0], [QUEUE_VERSION])
        raise ConfigurationError(f"{file}: {text}; or name another folder")
    if damage := find_sqlite_damage(connection, _TABLES):
        raise ConfigurationError(f"{file}: cannot be used as a room: {damage}")
    _use_wal(connection)
    connection.execute("pragma synchronous = full")  # a confirmed answer survives a power failure


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. For this, SQLite does not wait for another process."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)


_LOCK_FILE = "asking.lock"
_SELECT_ANSWER = "select text, calls, who, at from submissions where request = ? and counts"
_STATUS_COLUMNS = "number, name, conversation, role, ordinal, preview, state, asked, deadline"

State = Literal["waiting", "answered", "withdrawn", "expired"]
Receipt = Literal["taken", "late", "withdrawn", "expired"]


@dataclass(slots=True, frozen=True)
class QuestionState:
    """State of a question for its asker: start time, deadline if any (both in seconds since 1970), and answer."""

    at: float
    deadline: float | None = None
    answer: HumanAnswer | None = None


@dataclass(slots=True, frozen=True)
class QueueStatus:
    """A request in a list. `preview` is the beginning of its last message; times are seconds since 1970."""

    number: int
    name: str
    conversation: str
    role: str
    ordinal: int
    preview: str
    state: State
    asked_at: float
    deadline: float | None


class AnswerQueue:
    """The questions and answers of one room. `clock` returns seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Open or create the room."""
        self.folder, self._clock = folder, clock
        self._presence: int | None = None
        self._connection = open_queue_file(folder)

    def close(self) -> None:
        """Close the file and stop being listed as an asker."""
        if self._presence is not None:
            os.close(self._presence)
            self._presence = None
        self._connection.close()

    def __enter__(self) -> AnswerQueue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- asking side ----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Register as an asker, until this room is closed or the process ends."""
        if self._presence is None:
            self._presence = self._lock_file()
            fcntl.flock(self._presence, fcntl.LOCK_SH)

    def ask(self, question: PendingQuestion, asker: str, timeout: float | None = None) -> QuestionState:
        """Ask a question.

        If it is answered already, return its answer. A waiting question keeps its first start time; one that was
        withdrawn or has expired starts anew. `asker` is who may withdraw it; `timeout` is in seconds, None for none.
        """
        now = self._clock()
        with self._change() as connection:
            row = connection.execute("select number, state, asked from requests where name = ?", (question.name,))
            result = row.fetchone()
            if result is not None and (value := self._load_answer(result[0])) is not None:
                return QuestionState(result[2], answer=value)
            at = result[2] if result is not None and result[1] == "waiting" else now
            deadline = None if timeout is None else at + timeout
            if result is None:
                connection.execute(
                    "insert into requests (name, conversation, role, ordinal, digest, record, preview, state, asker, "
                    "asked, deadline) values (?, ?, ?, ?, ?, ?, ?, 'waiting', ?, ?, ?)",
                    (question.name, question.conversation, question.role, question.ordinal, question.digest,
                     question.to_record(), strip_surrogates(question.preview), asker, at, deadline),
                )  # fmt: skip
            else:
                connection.execute(
                    "update requests set state = 'waiting', asker = ?, asked = ?, deadline = ? where number = ?",
                    (asker, at, deadline, result[0]),
                )
        return QuestionState(at, deadline)

    def withdraw(self, names: Iterable[str], asker: str) -> None:
        """Withdraw waiting requests, unless another asker has asked them since."""
        self._move(names, asker, "waiting", "withdrawn")

    def reopen(self, names: Iterable[str], asker: str) -> None:
        """Make requests that this asker has withdrawn wait again, as if they had never been withdrawn."""
        self._move(names, asker, "withdrawn", "waiting")

    def _move(self, names: Iterable[str], asker: str, before: State, after: State) -> None:
        with self._change() as connection:
            connection.executemany(
                "update requests set state = ? where name = ? and asker = ? and state = ?",
                [(after, name, asker, before) for name in names],
            )

    def expire(self, names: Iterable[str]) -> dict[str, HumanAnswer | None]:
        """Expire requests; return for each an answer that arrived after all, or None."""
        results: dict[str, HumanAnswer | None] = {}
        with self._change() as connection:
            for name in names:
                row = connection.execute("select number from requests where name = ?", (name,)).fetchone()
                results[name] = None if row is None else self._load_answer(row[0])
                if results[name] is None:
                    connection.execute("update requests set state = 'expired' where name = ?", (name,))
        return results

    def version(self) -> int:
        """Return a number that changes when another connection has written; costs microseconds."""
        return int(self._rows("pragma data_version")[0][0])

    def last_submission(self) -> int:
        """Return the number of the latest submission, 0 if there is none."""
        return int(self._rows("select coalesce(max(number), 0) from submissions")[0][0])

    def answers_since(self, number: int) -> list[tuple[int, str, HumanAnswer]]:
        """Return the answers after submission `number` as (submission number, request name, answer)."""
        rows = self._rows(
            "select s.number, r.name, s.text, s.calls, s.who, s.at from submissions s join requests r on "
            "r.number = s.request where s.number > ? and s.counts order by s.number",
            number,
        )
        return [(row[0], row[1], _answer_from_row(row[2:])) for row in rows]

    def withdrawn(self) -> set[str]:
        """Return the names of all withdrawn requests."""
        return {name for (name,) in self._rows("select name from requests where state = 'withdrawn'")}

    # -- answering side -------------------------------------------------------------------------------------------

    @property
    def attended(self) -> bool:
        """Return True if a process is asking now; otherwise answers wait until a run is resumed."""
        descriptor = self._lock_file()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def standings(self, state: State, *, limit: int = -1) -> list[QueueStatus]:
        """Return the requests in a state: waiting ones oldest first, all others latest first; `limit` -1: all."""
        order = "asked, number" if state == "waiting" else "number desc"
        query = f"select {_STATUS_COLUMNS} from requests where state = ? order by {order} limit ?"
        return [QueueStatus(*row) for row in self._rows(query, state, limit)]

    def counts(self) -> dict[str, int]:
        """Return the number of requests in each state."""
        return dict(self._rows("select state, count(*) from requests group by state"))

    def standing(self, name: str) -> tuple[QueueStatus, str] | None:
        """Return a request's status and who answered it; None if it does not exist."""
        rows = self._rows(
            f"select {_STATUS_COLUMNS}, (select who from submissions where request = requests.number and counts) "
            "from requests where name = ?",
            name,
        )
        return (QueueStatus(*rows[0][:9]), rows[0][9] or "") if rows else None

    def request(self, name: str) -> tuple[QueueStatus, PendingQuestion, HumanAnswer | None] | None:
        """Return a request's status, question and answer; None if it does not exist."""
        with self._typed_errors():
            row = self._connection.execute(
                f"select {_STATUS_COLUMNS}, digest, record from requests where name = ?", (name,)
            ).fetchone()
            if row is None:
                return None
            standing = QueueStatus(*row[:9])
            record = PendingQuestion.from_record(standing.conversation, standing.role, standing.ordinal, *row[9:])
            return standing, record, self._load_answer(standing.number)

    def answer(
        self, name: str, submission: str, text: str, calls: Sequence[tuple[str, str]] = (), person: str = ""
    ) -> Receipt:
        """Store a submission; a second one of the same name `submission` changes nothing and gets the same receipt.

        The receipt is `late` if another answer came first and counts; this answer is kept as well. It is `withdrawn` or
        `expired` if nobody waits for the answer, which is then not kept.

        Raises:
            ConfigurationError: The request does not exist.
        """
        with self._change() as connection:
            row = connection.execute("select number, state from requests where name = ?", (name,)).fetchone()
            if row is None:
                raise ConfigurationError(f"{self.folder}: there is no request '{name[:40]}'")
            number, state = row
            known = connection.execute(
                "select counts from submissions where request = ? and name = ?", (number, submission)
            ).fetchone()
            if known is not None:
                return "taken" if known[0] else "late"
            if state in ("withdrawn", "expired"):
                return "withdrawn" if state == "withdrawn" else "expired"
            counts = state == "waiting"
            decode = orjson.dumps([list(map(strip_surrogates, call)) for call in calls]).decode()
            connection.execute(
                "insert into submissions (name, request, text, calls, who, at, counts) values (?, ?, ?, ?, ?, ?, ?)",
                (submission, number, strip_surrogates(text), decode, strip_surrogates(person), self._clock(), counts),
            )
            if counts:
                connection.execute("update requests set state = 'answered' where number = ?", (number,))
        return "taken" if counts else "late"

    # -- the file ------------------------------------------------------------------------------------------------

    def _load_answer(self, number: int) -> HumanAnswer | None:
        row = self._connection.execute(_SELECT_ANSWER, (number,)).fetchone()
        return None if row is None else _answer_from_row(row)

    def _lock_file(self) -> int:
        try:
            return os.open(self.folder / _LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigurationError(f"{self.folder / _LOCK_FILE}: cannot be opened: {error.strerror}") from None

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction."""
        with self._typed_errors():
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self._typed_errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise ConfigurationError if SQLite fails or a record is malformed."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise queue_error(self.folder / QUEUE_FILE, error) from error


def _answer_from_row(row: Sequence[Any]) -> HumanAnswer:
    text, calls, person, at = row
    return HumanAnswer(text, tuple((name, arguments) for name, arguments in orjson.loads(calls)), person, at)

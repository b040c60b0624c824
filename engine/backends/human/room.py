"""A room: the folder where requests wait for people. ``room.sqlite`` holds what is asked and what was answered.

The process of a run asks, the process of the pages answers; either may be killed at any moment, and neither needs the
other. A request is asked once, however often it is posed; the first answer counts, and every submission is kept.
A ``Room`` is used by one thread at a time. What never belongs here: waiting (``backend``), pages.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from ...errors import ConfigurationError
from ...escapes import readable
from .posed import Given, Posed
from .room_file import FILE, open_file, unusable

_LOCK = "asking.lock"
_GIVEN = "select text, calls, who, at from submissions where request = ? and counts"
_STANDING = "number, name, conversation, role, ordinal, preview, state, asked, deadline"

State = Literal["waiting", "answered", "withdrawn", "expired"]
Receipt = Literal["taken", "late", "withdrawn", "expired"]


@dataclass(slots=True, frozen=True)
class Asked:
    """How a request stands with whoever poses it: since when (seconds since 1970), until when if it can expire, and the
    answer if there is one.
    """

    at: float
    deadline: float | None = None
    given: Given | None = None


@dataclass(slots=True, frozen=True)
class Standing:
    """A request in a list. ``preview`` is the beginning of its last message; times are seconds since 1970."""

    number: int
    name: str
    conversation: str
    role: str
    ordinal: int
    preview: str
    state: State
    asked: float
    deadline: float | None


class Room:
    """See the module. ``clock`` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the room, or make it where there is none yet.

        :raises ConfigurationError: the folder cannot be used, or its room is of another version.
        """
        self.folder, self._clock = folder, clock
        self._presence: int | None = None
        self._connection = open_file(folder)

    def close(self) -> None:
        """Close the file; whoever asked here asks no longer."""
        if self._presence is not None:
            os.close(self._presence)
            self._presence = None
        self._connection.close()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the side that asks ---------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Let the pages know that somebody asks here, until this room is closed or the process ends."""
        if self._presence is None:
            self._presence = self._lock_file()
            fcntl.flock(self._presence, fcntl.LOCK_SH)

    def ask(self, posed: Posed, asker: str, timeout: float | None = None) -> Asked:
        """Pose a request. One that waits already goes on waiting from where it was first asked; one that was withdrawn
        or has expired waits anew. ``asker`` is whoever may withdraw it; ``timeout`` is in seconds.
        """
        now = self._clock()
        with self._change() as connection:
            row = connection.execute("select number, state, asked from requests where name = ?", (posed.name,))
            found = row.fetchone()
            if found is not None and (given := self._given(found[0])) is not None:
                return Asked(found[2], given=given)
            at = found[2] if found is not None and found[1] == "waiting" else now
            deadline = None if timeout is None else at + timeout
            if found is None:
                connection.execute(
                    "insert into requests (name, conversation, role, ordinal, digest, record, preview, state, asker, "
                    "asked, deadline) values (?, ?, ?, ?, ?, ?, ?, 'waiting', ?, ?, ?)",
                    (posed.name, posed.conversation, posed.role, posed.ordinal, posed.digest, posed.to_record(),
                     readable(posed.preview), asker, at, deadline),
                )  # fmt: skip
            else:
                connection.execute(
                    "update requests set state = 'waiting', asker = ?, asked = ?, deadline = ? where number = ?",
                    (asker, at, deadline, found[0]),
                )
        return Asked(at, deadline)

    def withdraw(self, names: Iterable[str], asker: str) -> None:
        """Take back requests that wait, unless another asker has posed them since."""
        self._move(names, asker, "waiting", "withdrawn")

    def reopen(self, names: Iterable[str], asker: str) -> None:
        """Have withdrawn requests wait again, as if they had never been withdrawn."""
        self._move(names, asker, "withdrawn", "waiting")

    def _move(self, names: Iterable[str], asker: str, before: State, after: State) -> None:
        with self._change() as connection:
            connection.executemany(
                "update requests set state = ? where name = ? and asker = ? and state = ?",
                [(after, name, asker, before) for name in names],
            )

    def expire(self, names: Iterable[str]) -> dict[str, Given | None]:
        """End the wait for requests whose time is over; of each its answer, if one came after all."""
        found: dict[str, Given | None] = {}
        with self._change() as connection:
            for name in names:
                row = connection.execute("select number from requests where name = ?", (name,)).fetchone()
                found[name] = None if row is None else self._given(row[0])
                if found[name] is None:
                    connection.execute("update requests set state = 'expired' where name = ?", (name,))
        return found

    def version(self) -> int:
        """A number that changes whenever another connection has written; costs microseconds."""
        with self._told():
            return int(self._connection.execute("pragma data_version").fetchone()[0])

    def last_submission(self) -> int:
        """The number of the latest submission; 0 where there is none."""
        with self._told():
            return int(self._connection.execute("select coalesce(max(number), 0) from submissions").fetchone()[0])

    def answers_since(self, number: int) -> list[tuple[int, str, Given]]:
        """Answers behind a submission, as (submission's number, request's name, answer)."""
        with self._told():
            rows = self._connection.execute(
                "select s.number, r.name, s.text, s.calls, s.who, s.at from submissions s join requests r on "
                "r.number = s.request where s.number > ? and s.counts order by s.number",
                (number,),
            ).fetchall()
        return [(row[0], row[1], _given(row[2:])) for row in rows]

    def withdrawn(self) -> set[str]:
        """The names of all requests that are withdrawn."""
        with self._told():
            rows = self._connection.execute("select name from requests where state = 'withdrawn'").fetchall()
        return {name for (name,) in rows}

    # -- the side that answers ------------------------------------------------------------------------------------

    @property
    def attended(self) -> bool:
        """Whether some process asks here now: else answers are kept until a run goes on."""
        descriptor = self._lock_file()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def standings(self, state: State, *, most: int = -1) -> list[Standing]:
        """The requests in a state: waiting ones oldest first, others latest first."""
        order = "asked, number" if state == "waiting" else "number desc"
        with self._told():
            rows = self._connection.execute(
                f"select {_STANDING} from requests where state = ? order by {order} limit ?", (state, most)
            ).fetchall()
        return [Standing(*row) for row in rows]

    def counts(self) -> dict[str, int]:
        """How many requests are in each state."""
        with self._told():
            return dict(self._connection.execute("select state, count(*) from requests group by state").fetchall())

    def standing(self, name: str) -> tuple[Standing, str] | None:
        """How a request stands, and who has answered it; None where there is no such request."""
        with self._told():
            row = self._connection.execute(
                f"select {_STANDING}, (select who from submissions where request = requests.number and counts) "
                "from requests where name = ?",
                (name,),
            ).fetchone()
        return None if row is None else (Standing(*row[:9]), row[9] or "")

    def request(self, name: str) -> tuple[Standing, Posed, Given | None] | None:
        """A request, what it asks, and its answer if there is one; None where there is no such request."""
        with self._told():
            row = self._connection.execute(
                f"select {_STANDING}, digest, record from requests where name = ?", (name,)
            ).fetchone()
            if row is None:
                return None
            standing = Standing(*row[:9])
            posed = Posed.from_record(standing.conversation, standing.role, standing.ordinal, *row[9:])
            return standing, posed, self._given(standing.number)

    def answer(
        self, name: str, submission: str, text: str, calls: Sequence[tuple[str, str]] = (), who: str = ""
    ) -> Receipt:
        """Take a submission. The same one again changes nothing and has the same receipt.

        ``late``: another answer was first, and counts; this one is kept. ``withdrawn`` and ``expired``: nobody waits
        for it, and it is not kept.

        :raises ConfigurationError: there is no such request.
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
            said = orjson.dumps([list(map(readable, call)) for call in calls]).decode()
            connection.execute(
                "insert into submissions (name, request, text, calls, who, at, counts) values (?, ?, ?, ?, ?, ?, ?)",
                (submission, number, readable(text), said, readable(who), self._clock(), counts),
            )
            if counts:
                connection.execute("update requests set state = 'answered' where number = ?", (number,))
        return "taken" if counts else "late"

    # -- the file -------------------------------------------------------------------------------------------------

    def _given(self, number: int) -> Given | None:
        row = self._connection.execute(_GIVEN, (number,)).fetchone()
        return None if row is None else _given(row)

    def _lock_file(self) -> int:
        try:
            return os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigurationError(f"{self.folder / _LOCK}: cannot be opened: {error.strerror}") from None

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes."""
        with self._told():
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """:raises ConfigurationError: SQLite cannot do it, or a record has not the form in which it was written."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise unusable(self.folder / FILE, error) from error


def _given(row: Sequence[Any]) -> Given:
    text, calls, who, at = row
    return Given(text, tuple((name, arguments) for name, arguments in orjson.loads(calls)), who, at)

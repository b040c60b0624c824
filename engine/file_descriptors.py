"""File descriptors: the limit of this process, and the connections that each endpoint may open.

Every connection is an open file. Endpoints share the free descriptors evenly, so calls wait for a connection instead of
failing to open one. Parallel runs, each with a journal, may take a quarter of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .cancellation import cancellable_wait

# For journals, logs, the event loop, files being read, host name look-ups.
_RESERVED = 128
_FILES_OF_RUN = 8  # lock; journal and its log, each for writing and reading; files read at the start
_FALLBACK_LIMIT = 10_240  # some systems report no limit but accept no more
_log = logging.getLogger("viva")
_gates: list[ConnectionGate] = []
_descriptors_of_runs = 0  # files that parallel runs may open
_connections_per_gate = 0  # connections of each gate


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files towards the hard limit; return the limit in force.

    The `viva` command does this at startup. A program that embeds the engine may call this function.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, _FALLBACK_LIMIT):
        if soft != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > soft):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
            except (ValueError, OSError):
                continue
    _divide_shares()
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def has_free_descriptors(count: int) -> bool:
    """Return True if this process can open `count` more files."""
    with ExitStack() as stack:
        try:
            for _ in range(count):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


def _divide_shares() -> None:
    """Compute the connections per gate. Asking the system at each call would cost more than the gate itself."""
    global _connections_per_gate
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_RESERVED, soft // 4) - _descriptors_of_runs
    _connections_per_gate = max(1, free // max(1, len(_gates)))


@contextmanager
def limit_parallel_runs(requested: int) -> Iterator[int]:
    """Yield the number of runs that may be open at once, and reserve their descriptors while entered.

    The number is `requested`, or lower if a quarter of the open files does not suffice.
    """
    global _descriptors_of_runs
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = requested if soft == resource.RLIM_INFINITY else max(1, min(requested, soft // 4 // _FILES_OF_RUN))
    _descriptors_of_runs += count * _FILES_OF_RUN
    _divide_shares()
    try:
        yield count
    finally:
        _descriptors_of_runs -= count * _FILES_OF_RUN
        _divide_shares()


class ConnectionGate:
    """The connections of one endpoint; enter the gate for each. Waiters are served first in, first out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._warned = False

    def open(self) -> None:
        """Take a share of the descriptors, until `close`."""
        _gates.append(self)
        _divide_shares()

    def close(self) -> None:
        """Return the share to the other gates."""
        if self in _gates:
            _gates.remove(self)
            _divide_shares()

    @property
    def limit(self) -> int:
        """Allowed number of connections, for the limit of open files at the time when an endpoint was last opened."""
        return _connections_per_gate

    async def __aenter__(self) -> None:
        if not self._waiting and self._used < _connections_per_gate:
            self._used += 1
            return
        self._warn_once()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            with cancellable_wait():
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # cancelled when its turn came: pass the connection on
                self._release()
            else:
                turn.cancel()
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._release()

    def _release(self) -> None:
        self._used -= 1
        while self._waiting and self._used < _connections_per_gate:
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            _log.warning(
                "%s: the limit of %d open files (ulimit -n) allows %d connections; further calls wait",
                self._name,
                soft,
                self.limit,
                extra={"label": "note"},
            )

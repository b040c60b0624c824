"""A worker process that runs functions of recorded steps: both ends of the connection to it.

The parent's end (`WorkerProcess`) is used from a thread that may block; `serve` is the process. They communicate over a
socket pair, so a function's output is discarded. A worker has its own session: Ctrl-C does not reach it,
and killing it kills what it has started.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import queue
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from .permissions import bound_permissions, permissions
from .steps import COMPUTED, RAISED, Result, definition_site, failure_result, result_of_call, timeout_result

_LENGTH = struct.Struct("!cQ")  # kind of message and number of bytes
_READY = b"r"
_KINDS = {b"c": COMPUTED, b"e": RAISED}
_START_SECONDS = 60.0
_CHUNK = 1 << 20
_CHILD_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from viva.engine.worker_process import serve; serve(int(sys.argv[1]))"
)


class WorkerProcess:
    """A worker process, started at the first request. `usable` says if it accepts further requests."""

    def __init__(self) -> None:
        self.usable = True
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def ask(self, request: bytes, function: Callable[..., Any], limit: float) -> Result:
        """Run a request (`pack_request`) for at most `limit` seconds; blocks. A failure ends the worker."""
        try:
            connection = self._socket or self._start()
            deadline = time.monotonic() + limit
            _send(connection, b"q", request, deadline)
            kind, data = _receive(connection, deadline)
            return _KINDS[kind], data
        except TimeoutError:
            self.end()
            return timeout_result(function, limit)
        except (OSError, EOFError, KeyError) as error:
            return failure_result("BrokenWorkerProcess", self._explain_failure(error), definition_site(function))

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    def end(self) -> int | None:
        """Kill the process and what it started, from any thread; return its exit code if it had ended by itself."""
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that is reading
                self._socket.close()
            code = None
            if self._process is not None and self.usable:
                code = self._process.poll()
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self.usable = False
            return code

    def _start(self) -> socket.socket:
        parent_socket, child_socket = socket.socketpair()
        with child_socket, self._lock:
            if not self.usable:
                parent_socket.close()
                raise EOFError("the step was cancelled")
            paths = json.dumps([str(path) for path in sys.path])
            # -P: no module of the current folder is imported before sys.path is set.
            command = [sys.executable, "-P", "-c", _CHILD_CODE, str(child_socket.fileno()), paths]
            self._socket = parent_socket
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        try:
            _receive(parent_socket, time.monotonic() + _START_SECONDS)
        except TimeoutError:
            raise EOFError(f"it was not ready after {_START_SECONDS:g} s") from None
        return parent_socket

    def _explain_failure(self, error: Exception) -> str:
        if self._process is None:
            self.end()
            return f"no worker process can be started: {error}"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)  # it has closed its end and is exiting
        code = self.end()
        if code is None:
            return f"the worker process cannot be used: {error}"
        outcome = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the worker process {outcome} before there was a result"


def pack_request(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes | Result:
    """Return what a worker needs to call the function; a failure if that cannot be sent to another process."""
    plain = function
    while isinstance(plain, partial):
        plain = plain.func
    module = getattr(plain, "__module__", None) or type(plain).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return pickle.dumps((module, file, permissions(), pickle.dumps((function, tuple(arguments)))))
    except Exception as error:  # pickling may raise anything
        message = f"cannot be sent to a worker process: {error}; pass a module-level function and picklable arguments"
        return failure_result(type(error).__name__, message, definition_site(function))


# -- in the process ---------------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Run requests, one after another, until the other end is closed."""
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(connection, requests), daemon=True).start()
    _send(connection, _READY, b"")
    while True:
        kind, data = _answer(requests.get())
        _send(connection, b"c" if kind == COMPUTED else b"e", data)


def _receive_requests(connection: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            requests.put(_receive(connection)[1])
    finally:
        os._exit(0)  # the parent has exited


def _answer(request: bytes) -> Result:
    module, file, granted, payload = pickle.loads(request)
    with bound_permissions(granted):  # the same permissions in both processes
        try:
            _import_function_module(module, file)
            function, arguments = pickle.loads(payload)
        except BaseException as error:
            return failure_result(
                type(error).__name__, f"cannot be loaded in a worker process: {error}", f"{file or module}"
            )
        return result_of_call(function, arguments)


def _import_function_module(name: str, file: str | None) -> None:
    """Import a function's module, from its file if necessary."""
    if name == "__main__":
        if file is not None and getattr(sys.modules["__main__"], "__file__", None) != file:
            main = ModuleType("__main__")
            main.__dict__.update(runpy.run_path(file, run_name="__mp_main__"))
            main.__file__ = file
            sys.modules["__main__"] = main
        return
    try:
        importlib.import_module(name)
    except ImportError:
        spec = importlib.util.spec_from_file_location(name, file) if file else None
        if spec is None or spec.loader is None:
            raise
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, os.path.dirname(file or ""))  # for sibling modules, as when the file was first run
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.pop(0)


def _send(connection: socket.socket, kind: bytes, data: bytes, deadline: float | None = None) -> None:
    connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
    connection.sendall(_LENGTH.pack(kind, len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket, deadline: float | None = None) -> tuple[bytes, bytes]:
    kind, length = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size, deadline))
    return kind, _receive_exactly(connection, length, deadline)


def _receive_exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        piece = connection.recv(min(_CHUNK, count - len(data)))
        if not piece:
            raise EOFError("the connection is closed")
        data += piece
    return bytes(data)

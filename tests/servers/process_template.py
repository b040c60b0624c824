"""Processes that are forked from one that has imported already what they need, instead of each importing it anew.

Each is a process of its own, with its own process id, signals, streams, folder and exit, and lives and ends as the
program it runs: ``viva`` or a server's script. Only the imports are saved, which are most of what a short command
takes. Programs that must begin as a user's do, from nothing, are started with ``subprocess``.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import Lock
from typing import IO, Any, Self

_PRELOADED = (
    "aiohttp.web", "anyio._backends._asyncio", "chaos", "encodings.idna", "encodings.utf_8_sig", "numpy",
    "rich.console", "rich.live", "rich.table", "viva.cli.output_files", "viva.cli.progress", "viva.cli.main",
    "viva.cli.report", "viva.cli.signals", "viva.cli.tables", "viva.engine.backends.openai",
    "viva.engine.backends.simulated", "viva.orchestration.run_progress", "viva.orchestration.launch",
    "viva.orchestration.transcripts", "viva.reports.studies.exam_study", "viva.scenarios.audit.scenario",
    "viva.scenarios.flexeval.scenario", "viva.scenarios.functionchat.scenario", "viva.scenarios.fusion.scenario",
    "viva.scenarios.grading.scenario", "viva.scenarios.kieval.qualification.scenario",
    "viva.scenarios.kieval.scenario", "viva.scenarios.lalaeval.commands.verbs", "viva.scenarios.lalaeval.scenario",
    "viva.scenarios.pairwise.scenario", "viva.scenarios.probes.scenario", "viva.scenarios.rephrasing.scenario",
    "viva.sweeps.recorded_sweep", "viva.sweeps.sweep", "viva.web.grading.server", "viva.web.application",
)  # fmt: skip
VIVA = "viva"
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "FORCE_COLOR", "NO_COLOR", "TERM", "COLUMNS")
_STOPPED_AFTER = 10  # seconds until a template ends although a process that it made goes on


class Process:
    """A running process, with those parts of ``subprocess.Popen`` that tests use; its output is bytes.

    ``errors``: where its stderr goes instead of a pipe.
    """

    def __init__(self, program: str, arguments: list[str], cwd: Path | None, errors: int | None) -> None:
        (out, told_out), (err, told_err), (status, told) = os.pipe(), os.pipe(), os.pipe()
        if errors is not None:  # and from the pipe comes nothing
            os.dup2(errors, told_err)
        request = {
            "program": program,
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
        }
        written = [told_out, told_err, told]
        socket.send_fds(_template(), [json.dumps(request).encode()], written)
        for one in written:
            os.close(one)
        self.stdout: IO[bytes] = os.fdopen(out, "rb")
        self.stderr: IO[bytes] = os.fdopen(err, "rb")
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = _number(self._status)
        self.returncode: int | None = None
        self._printed: tuple[bytes, bytes] | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended."""
        if self.returncode is None:
            with DefaultSelector() as selector:
                selector.register(self._status, EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = _number(self._status)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Return all that it still prints to stdout and stderr, once it has ended."""
        if self._printed is not None:
            return self._printed
        read: dict[Any, list[bytes]] = {self.stdout: [], self.stderr: []}
        with DefaultSelector() as selector:
            for stream in read:
                selector.register(stream, EVENT_READ)
            while selector.get_map():
                ready = selector.select(timeout)
                if not ready:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                for key, _ in ready:
                    part = key.fileobj.read1(1 << 16)  # type: ignore[union-attr]
                    read[key.fileobj].append(part)
                    if not part:
                        selector.unregister(key.fileobj)
        self.wait(timeout)
        self._close()
        self._printed = b"".join(read[self.stdout]), b"".join(read[self.stderr])
        return self._printed

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.wait()
        self._close()

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()


def forked(program: str, *arguments: str | Path, cwd: Path | None = None, errors: int | None = None) -> Process:
    """Start ``viva``, or the script of a server by its path."""
    with _LOCK:
        return Process(program, [str(one) for one in arguments], cwd, errors)


def can_fork() -> bool:
    """Return True unless the environment has changed in what is read at a program's start or by its imports."""
    return _read_at_start() == _AT_START


def _read_at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}


_AT_START = _read_at_start()
_LOCK = Lock()


@cache
def _template() -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(there.fileno())]
    _TEMPLATES.append(subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL))
    there.close()
    return here


_TEMPLATES: list[subprocess.Popen[bytes]] = []


def close() -> None:
    """End the template, if there is one, and wait for it."""
    for template in _TEMPLATES:
        _template().close()
        template.wait()


def _number(status: IO[bytes]) -> int:
    data = status.read(4)
    assert len(data) == 4, "the template of processes has ended"
    return array.array("i", data)[0]


def _told(number: int) -> bytes:
    return array.array("i", [number]).tobytes()


def _serve(requests: socket.socket) -> tuple[str, list[str]] | None:
    """Fork a process for each request; return the program and its arguments in that process, None in the template.

    Between the two is a process that waits for the one and tells the tests how it has ended.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not data:
            return None
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    out, err, status = descriptors
    requests.close()
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        os.write(status, _told(pid))
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(status, _told(ended))
        os._exit(0)
    os.close(status)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    request = json.loads(data)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return request["program"], request["arguments"]


def _main() -> None:
    import importlib

    for name in _PRELOADED:
        importlib.import_module(name)
    typer = importlib.import_module("typer.main")
    typer.get_command = cache(typer.get_command)  # the tree of commands, once for all
    typer.get_command(importlib.import_module("viva.cli.main").app)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C to the tests: their end closes the socket
    given = _serve(socket.socket(fileno=int(sys.argv[1])))
    if given is None:
        signal.alarm(_STOPPED_AFTER)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, arguments = given
    sys.argv = [program, *arguments]
    try:
        if program == VIVA:
            from viva.cli.start import main

            main()
        else:
            sys.path[0] = str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(end.code or 0)
    _end(0)


def _end(code: int) -> None:
    """End this process as the interpreter would, but free nothing, which would copy all pages of the template.

    What cannot be written anymore is left to the interpreter.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _main()

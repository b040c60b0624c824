"""The Unix socket in a run's folder through which other processes of the same user control the run.

A client sends one line of JSON (`ControlRequest`) and gets one line back: `{"message": …, "status": …}`, or
`{"error": …}`. Only the owner can open the socket; where the system tells who is at the other end, both sides refuse
other users. A client follows no link, and trusts neither the form nor the size of an answer, nor that one comes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from viva.engine.errors import ConfigurationError, VivaError
from viva.engine.files import shell_path
from viva.engine.run_folder import is_running

from .control import ControlAnswer, ControlRequest, RunControl

_log = logging.getLogger("viva")
SOCKET = "control.sock"
_LONGEST_LINE = 1 << 20  # bytes
_SECONDS = 30.0  # for a client to send its request
_ANSWER_SECONDS = 120.0  # for a run to answer; cancelling waits for local calls, adding reads a dataset
_LAST_SECONDS = 5.0  # for a run that has ended to hand over its last answers
_CHUNK = 1 << 16  # bytes
_MOST_CLIENTS = 16
_LONGEST_PATH = 100  # bytes; systems take 104 to 108


class NotRunning(ConfigurationError):
    """No process of this machine is running the run."""


@asynccontextmanager
async def listening(folder: Path, control: RunControl) -> AsyncIterator[None]:
    """Accept requests for the run in this folder; without any effect where the file system has no sockets.

    Requests that were read when the run ends are answered, such as the one that ended it.
    """
    path = folder / SOCKET
    clients: set[asyncio.Task[Any]] = set()
    answering: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            if len(clients) <= _MOST_CLIENTS and _user_of(writer.get_extra_info("socket")) in (None, os.getuid(), 0):
                request = await _read_request(reader)
                answering.add(task)
                answer = request if isinstance(request, dict) else await _answer(request, control)
                writer.write(orjson.dumps(answer) + b"\n")
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # the client has left, or the run is over
        finally:
            clients.discard(task)
            answering.discard(task)
            writer.close()

    server = None
    try:
        server = await asyncio.start_unix_server(serve, sock=_bind(path), limit=_LONGEST_LINE, start_serving=False)
    except OSError as error:
        if error.errno == errno.EEXIST:
            _log.warning("%s", error.strerror, extra={"label": ""})
        else:
            _log.info("%s: no control socket: %s", folder, error)
    try:
        if server is not None:
            await server.start_serving()  # may be cancelled
        yield
    finally:
        if server is not None:
            server.close()
            _remove_socket(path)
        if answering:
            await asyncio.wait(answering, timeout=_LAST_SECONDS)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def _bind(path: Path) -> socket.socket:
    """Return a listening socket that only its owner can open; it gets its name once it listens.

    Raises:
        OSError: There is none. `EEXIST`: something else has its name; `strerror` is a sentence for the user.
    """
    partial = path.with_name(f"{path.name}.part")
    for name in (path, partial):
        _remove_socket(name)
        if (kind := _kind_of(name)) is not None:
            raise OSError(
                errno.EEXIST,
                f"{name}: is {kind}, so this run goes on but cannot be steered by viva control; to change that, stop "
                f"it, remove {name.name}, and resume it",
            )
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)
        try:
            with _short_path(partial) as short:
                bound.bind(short)
        finally:
            os.umask(mask)
        bound.listen()
        partial.rename(path)
    except BaseException:
        bound.close()
        raise
    return bound


async def _read_request(reader: asyncio.StreamReader) -> ControlRequest | dict[str, str]:
    """Return a client's request, or the answer to what is none."""
    try:
        return ControlRequest.read(orjson.loads(await asyncio.wait_for(reader.readline(), _SECONDS)))
    except (TimeoutError, ValueError) as error:  # too long a line is a ValueError, and so is what is not JSON
        return {"error": f"the request cannot be read: {error}"}
    except ConfigurationError as error:
        return {"error": str(error)}


async def _answer(request: ControlRequest, control: RunControl) -> dict[str, Any]:
    try:
        return (await control.handle(request)).to_record()
    except VivaError as error:
        return {"error": str(error)}


def ask(folder: Path, request: ControlRequest, seconds: float | None = None) -> dict[str, Any]:
    """Send a request to the process that runs the run in this folder; return its answer as plain data.

    Args:
        folder: The run's folder.
        request: The request.
        seconds: How long to wait for the answer; None for as long as any request takes.

    Raises:
        NotRunning: No process is running it.
        ConfigurationError: It cannot be asked or does not answer, or the request is refused.
    """
    patience = _ANSWER_SECONDS if seconds is None else seconds
    path, deadline = folder / SOCKET, time.monotonic() + patience
    _check_socket(folder, path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(path) as short:
            connection.settimeout(patience)
            connection.connect(short)
            if os.getuid() != 0 and _user_of(connection) not in (None, os.getuid(), 0):
                raise ConfigurationError(f"{path}: belongs to another user, so it is not asked")
            connection.sendall(orjson.dumps(request.model_dump(exclude_defaults=True)) + b"\n")
            line = _receive_line(connection, deadline)
    except TimeoutError:
        raise ConfigurationError(
            f"{folder}: no answer within {patience:g} s, so it is unknown if the run has done this; "
            f"`viva control {shell_path(folder)}` shows how far it is"
        ) from None
    except PermissionError:
        raise ConfigurationError(f"{path}: only the user who runs this run can steer it") from None
    except (ConnectionResetError, BrokenPipeError):
        line = b""
    except OSError:
        raise _unreachable(folder) from None
    if not line:
        raise ConfigurationError(
            f"{folder}: the run closed the connection without an answer: it has ended, or has too many "
            "requests at once; repeat the command"
        )
    return _read_answer(folder, line)


def _read_answer(folder: Path, line: bytes) -> dict[str, Any]:
    """Return an answer of the expected form.

    Raises:
        ConfigurationError: The request was refused, or something else answers here.
    """
    try:
        record = orjson.loads(line)
        if isinstance(record, dict) and isinstance(record.get("error"), str):
            raise ConfigurationError(record["error"])
        return ControlAnswer.model_validate(record).to_record()
    except (ValueError, ValidationError):
        raise ConfigurationError(
            f"{folder / SOCKET}: its answer is not that of a run, or of another version of viva"
        ) from None


def _receive_line(connection: socket.socket, deadline: float) -> bytes:
    """Return the first line that arrives, or what arrived before the end, up to the longest line.

    Raises:
        TimeoutError: The line did not end in time, however many bytes came.
    """
    received = bytearray()
    while not received.endswith(b"\n") and len(received) <= _LONGEST_LINE:
        left = deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(_CHUNK)
        if not chunk:
            break
        received += chunk
    return bytes(received)


def _check_socket(folder: Path, path: Path) -> None:
    """Check that a run of this user may listen here.

    Raises:
        ConfigurationError: There is no socket, or it belongs to another user.
    """
    if _kind_of(path) != "a socket":
        raise _unreachable(folder)
    owner = path.lstat().st_uid
    if os.getuid() not in (owner, 0):
        raise ConfigurationError(f"{path}: belongs to another user (number {owner}), so it is not asked")


def _unreachable(folder: Path) -> ConfigurationError:
    """Return the error for a run that cannot be asked; it says why."""
    path, quoted = folder / SOCKET, shell_path(folder)
    if not is_running(folder):
        return NotRunning(
            f"{folder}: this run is not going on (on this machine). To continue it: `viva resume {quoted}`"
        )
    kind = _kind_of(path)
    if kind in (None, "a socket"):
        return ConfigurationError(
            f"{folder}: a process is running this run, but it does not listen: it is beginning or ending, or its file "
            "system has no sockets. Repeat the command; if that does not help, stop the run with Ctrl-C"
        )
    return ConfigurationError(
        f"{path}: is {kind}, not the socket of the process that runs this run, so the run cannot be steered. To change "
        f"that, stop it with Ctrl-C, remove {path.name}, and continue with `viva resume {quoted}`"
    )


def _kind_of(path: Path) -> str | None:
    """Return what a path names, without following a link; None if it names nothing."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a device or pipe")


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a name of the socket that is short enough for the system, which may be that of its open folder."""
    if len(os.fsencode(path.absolute())) <= _LONGEST_PATH:
        yield str(path.absolute())
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove_socket(path: Path) -> None:
    with suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def _user_of(connection: Any) -> int | None:
    """Return the user at the other end; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return int(user)

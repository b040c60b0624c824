"""The Unix socket in a run's folder through which other processes of the same user control the run.

A client sends one line of JSON (`ControlRequest`) and gets one line back: `{"message": …, "status": …}`, or
`{"error": …}`. Only the owner can open the socket; where the system tells who connects, other users are refused too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, VivaError

from .control import ControlRequest, RunControl

SOCKET = "control.sock"
_LONGEST_LINE = 1 << 20  # bytes
_SECONDS = 30.0  # for a client to send its request
_MOST_CLIENTS = 16
_LONGEST_PATH = 100  # bytes; systems take 104 to 108


@asynccontextmanager
async def listening(folder: Path, control: RunControl) -> AsyncIterator[None]:
    """Accept requests for the run in this folder; without any effect where the file system has no sockets."""
    path = folder / SOCKET
    clients: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            if len(clients) <= _MOST_CLIENTS and _is_owner(writer):
                writer.write(orjson.dumps(await _answer(reader, control)) + b"\n")
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # the client has left, or the run is over
        finally:
            clients.discard(task)
            writer.close()

    server = None
    with suppress(OSError):
        server = await asyncio.start_unix_server(serve, sock=_bind(path), limit=_LONGEST_LINE)
    try:
        yield
    finally:
        if server is not None:
            server.close()
            _remove_socket(path)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def _bind(path: Path) -> socket.socket:
    """Return a listening socket that only its owner can open; it gets its name once it listens."""
    _remove_socket(path)
    if path.exists():
        raise FileExistsError(path)
    partial = path.with_name(f"{path.name}.part")
    _remove_socket(partial)
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


async def _answer(reader: asyncio.StreamReader, control: RunControl) -> dict[str, Any]:
    try:
        line = await asyncio.wait_for(reader.readline(), _SECONDS)
        return (await control.handle(ControlRequest.read(orjson.loads(line)))).to_record()
    except (TimeoutError, ValueError) as error:  # too long a line is a ValueError, and so is what is not JSON
        return {"error": f"the request cannot be read: {error}"}
    except VivaError as error:
        return {"error": str(error)}


def ask(folder: Path, request: ControlRequest) -> dict[str, Any]:
    """Send a request to the process that runs the run in this folder; return its answer.

    Raises:
        ConfigurationError: No process is running it, or the request is refused.
    """
    path = folder / SOCKET
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(path) as short:
            connection.connect(short)
            connection.sendall(orjson.dumps(request.model_dump(exclude_defaults=True)) + b"\n")
            with connection.makefile("rb") as answer:
                line = answer.readline(_LONGEST_LINE)
    except OSError:
        raise ConfigurationError(
            f"{folder}: no process is running this run here; `viva resume {folder}` does"
        ) from None
    try:
        record: dict[str, Any] = orjson.loads(line)
        error = record.get("error")
    except (ValueError, AttributeError):
        raise ConfigurationError(f"{folder}: the run ended before it answered") from None
    if error is not None:
        raise ConfigurationError(str(error))
    return record


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


def _is_owner(writer: asyncio.StreamWriter) -> bool:
    """Return whether the client's user is ours or the superuser; True where the system does not tell."""
    connection = writer.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return user in (os.getuid(), 0)

"""Serves the viewer until it is told to stop: ``viva view``.

What never belongs here: pages, and what they may be asked for (``server``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from viva.engine.errors import ConfigurationError

from .server import Viewer

_NICE = 5  # a run on the same machine comes first
_GRACE_SECONDS = 2.0  # for requests under way when it ends


def serve(root: Path, *, host: str, port: int, names: list[str], index: Path | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; the address is told on stderr.

    :raises ConfigurationError: there is nothing to look at, or nobody can listen at that address.
    """
    asyncio.run(_serve(Viewer(root, index=index, host=host, names=names), host, port))


async def _serve(viewer: Viewer, host: str, port: int) -> None:
    os.nice(_NICE)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    runner = web.AppRunner(viewer.application(), shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"--host {host} --port {port}: cannot listen there: {error.strerror or error}; name another port, or "
                "--port 0 for a free one"
            ) from None
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        print(f"viva view: http://{shown}:{bound[1]}/  (Ctrl-C ends it)", file=sys.stderr, flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is worth a line: what a client got wrong it is told, and nobody else."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)

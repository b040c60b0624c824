"""Where a server listens: its socket, its address in words, and until when.

What never belongs here: what is served.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from viva.engine.errors import ConfigurationError

_GRACE_SECONDS = 2.0  # for requests under way when it ends


async def listen(runner: web.AppRunner, host: str, port: int, *, backlog: int = 1024) -> str:
    """Listen at an address, and give it as ``http://HOST:PORT``; port 0 takes a free one.

    :raises ConfigurationError: nobody can listen there.
    """
    try:
        await web.TCPSite(runner, host, port, backlog=backlog).start()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"--host {host} --port {port}: cannot listen there: {reason}; name another port, or --port 0 for a free one"
        ) from None
    name, bound = runner.addresses[0][:2]
    return f"http://[{name}]:{bound}" if ":" in name else f"http://{name}:{bound}"


async def serve_until_signal(app: web.Application, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve an application until Ctrl-C or SIGTERM; ``announce`` gets the address as soon as it answers.

    :raises ConfigurationError: nobody can listen there.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    try:
        announce(await listen(runner, host, port))
        await stop.wait()
    finally:
        await runner.cleanup()


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is worth a line: what a client got wrong it is told, and nobody else."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)

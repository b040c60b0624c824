"""Listening sockets of our servers, the host names that they answer to, and serving until a signal."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from viva.engine.errors import ConfigurationError

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ANY_ADDRESS = ("", "0.0.0.0", "::")


def known_hosts(host: str, names: Iterable[str]) -> frozenset[str]:
    """The names by which a server that listens on ``host`` may be asked."""
    found = set(_LOCAL_NAMES) | {name.lower() for name in names}
    if host in _ANY_ADDRESS:
        found |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    else:
        found.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(found)


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address: it cannot be the name of another site."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach a server bound to ``host``."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_own_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the site that the Host header names, over whichever scheme."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether another site's page asks.

    A form on a page that sends no referrer has the origin ``null``; browsers say in Sec-Fetch-Site where it stood.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin not in (None, "null") and not is_own_origin(origin or "", headers.get("Host", "")):
        return True
    return site not in (None, "same-origin", "none")


def check_url(url: str | None) -> tuple[bool, list[str]]:
    """Whether the address that people use (``--url``) is one over https, and its host, for ``known_hosts``.

    :raises ConfigurationError: it is no such address.
    """
    if url is None:
        return False, []
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigurationError(f"--url: expected an address such as https://grades.example.org, found '{url[:100]}'")
    return parts.scheme == "https", [parts.hostname]


def public_address(address: str, url: str | None, names: Sequence[str]) -> str:
    """The address by which others reach a server that listens at ``address``: the stated one, or by its first name."""
    if url:
        return url.rstrip("/")
    return f"http://{names[0]}:{address.rpartition(':')[2]}" if names else address


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
    logging.getLogger("aiohttp.server").addFilter(_is_server_fault)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    try:
        announce(await listen(runner, host, port))
        await stop.wait()
    finally:
        await runner.cleanup()


def _is_server_fault(record: logging.LogRecord) -> bool:
    """Whether a fault is worth a line: what a client got wrong it is told, and nobody else."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)

"""Serves rooms until it is told to stop: ``viva grade sit``.

What never belongs here: pages, and what they may be asked for (``server``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..server.hosts import checked_url, known_hosts, outer_address
from ..server.listening import serve_until_signal
from .server import Rooms


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How rooms are served. ``names`` are further host names; ``url`` is the address that people use, where it is
    another than the server's own, as behind a proxy.
    """

    host: str = "127.0.0.1"
    port: int = 7790
    names: tuple[str, ...] = ()
    url: str | None = None


def serve(folders: Sequence[Path], options: ServerOptions, announce: Callable[[Mapping[str, str]], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. ``announce`` gets each room's secret link, by its folder, once it can be opened.

    :raises ConfigurationError: one is no room, or nobody can listen at that address.
    """
    secure, named = checked_url(options.url)
    rooms = Rooms(folders, known_hosts(options.host, [*options.names, *named]), secure=secure)

    def ready(address: str) -> None:
        shown = outer_address(address, options.url, options.names)
        announce({folder: f"{shown}{path}" for folder, path in rooms.links.items()})

    asyncio.run(serve_until_signal(rooms.application(), options.host, options.port, ready))

"""Serves rooms until it is told to stop: ``viva grade sit``.

What never belongs here: pages, and what they may be asked for (``server``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from ..server.hosts import known_hosts
from ..server.listening import serve_until_signal
from .server import Rooms


def serve(folders: Sequence[Path], *, host: str, port: int, names: Sequence[str] = ()) -> None:
    """Serve until Ctrl-C or SIGTERM; each room's secret link is told on stderr. ``names`` are further host names.

    :raises ConfigurationError: one is no room, or nobody can listen at that address.
    """
    rooms = Rooms(folders, known_hosts(host, names))

    def announce(address: str) -> None:
        for folder, path in rooms.links.items():
            print(f"viva grade: {folder}: {address}{path}", file=sys.stderr)
        print("viva grade: whoever has a link can answer there (Ctrl-C ends it)", file=sys.stderr, flush=True)

    asyncio.run(serve_until_signal(rooms.application(), host, port, announce))

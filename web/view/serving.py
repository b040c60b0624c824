"""Serves the viewer until it is told to stop: ``viva view``.

What never belongs here: pages, and what they may be asked for (``server``).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ..server.listening import serve_until_signal
from .server import Viewer

_NICE = 5  # a run on the same machine comes first


def serve(root: Path, *, host: str, port: int, names: list[str], index: Path | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; the address is told on stderr.

    :raises ConfigurationError: there is nothing to look at, or nobody can listen at that address.
    """
    asyncio.run(_serve(Viewer(root, index=index, host=host, names=names), host, port))


async def _serve(viewer: Viewer, host: str, port: int) -> None:
    os.nice(_NICE)
    await serve_until_signal(viewer.application(), host, port, _announce)


def _announce(address: str) -> None:
    print(f"viva view: {address}/  (Ctrl-C ends it)", file=sys.stderr, flush=True)

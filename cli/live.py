"""Shows what changes until it is cancelled: drawn anew in a terminal, a line now and then where there is none.

What never belongs here: what is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import anyio

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PLAIN_SECONDS = 10.0


async def show_live(
    line: Callable[[], str], drawing: Callable[[Console], RenderableType], terminal_seconds: float
) -> NoReturn:
    """Display on stderr until cancelled: ``drawing`` each so many seconds, or ``line``."""
    if not sys.stderr.isatty():
        while True:
            await anyio.sleep(_PLAIN_SECONDS)
            print(line(), file=sys.stderr, flush=True)
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live("", console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(drawing(console), refresh=True)
            await anyio.sleep(terminal_seconds)

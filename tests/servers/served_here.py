"""``viva serve`` in a thread of this process: ``with served_here(folder, models) as server``. It knows how much CPU
each turn of its event loop took, which the load of the machine hardly changes.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.event_loop import gc_tuned
from viva.engine.permissions import Endpoints
from viva.web.application import ServerOptions, serving
from viva.web.auth import Access, Tokens
from viva.web.openai.served_models import served_names

JSON = {"Content-Type": "application/json"}


@dataclass
class Here:
    """The server. ``turns``: CPU seconds of the loop's thread for each turn, since ``clear``."""

    port: int = 0
    turns: list[float] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, JSON | (headers or {}))
            answer = connection.getresponse()
            read = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(read) if "json" in answer.headers.get("content-type", "") else read


class _Loop(asyncio.SelectorEventLoop):
    """Measures its turns."""

    here: Here

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.here.turns.append(time.thread_time() - began)


@contextmanager
def served_here(folder: Path, models: list[str], allow: tuple[str, ...] = ()) -> Iterator[Here]:
    """The server while entered, started in ``folder``."""
    here, ready, stop = Here(), threading.Event(), asyncio.Event()
    loop = _Loop()
    loop.here = here
    before = Path.cwd()
    os.chdir(folder)

    async def main() -> None:
        options = ServerOptions(
            Access(Tokens([])), folder / "runs", served_names(models), port=0, endpoints=Endpoints.parse(allow)
        )
        async with serving(options) as address:
            here.port = int(address.rpartition(":")[2])
            ready.set()
            await stop.wait()

    def carry() -> None:
        asyncio.set_event_loop(loop)
        with gc_tuned():
            loop.run_until_complete(main())
        loop.close()

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        yield here
    finally:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        os.chdir(before)

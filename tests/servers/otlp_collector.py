"""A collector of OpenTelemetry traces over OTLP/HTTP, in a process of its own: it appends each request to a file.

A request is stored with its length in front, so that ``received`` can read them back. ``--hang``: it never answers;
``--refuse``: it answers 401.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web


def received(file: Path) -> Iterator[bytes]:
    """The bodies of the requests so far."""
    data = file.read_bytes() if file.exists() else b""
    while data:
        length = int.from_bytes(data[:8], "big")
        yield data[8 : 8 + length]
        data = data[8 + length :]


async def serve(file: Path, *, hang: bool, refuse: bool = False) -> None:
    """Serve until the process is ended; the port is the first line printed."""

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if hang:
            await asyncio.Event().wait()
        if refuse:
            return web.Response(status=401)
        with file.open("ab") as stored:
            stored.write(len(body).to_bytes(8, "big") + body)
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--refuse", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(options.file, hang=options.hang, refuse=options.refuse))

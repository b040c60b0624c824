"""Servers that close a connection which they said they keep: the next request meets nobody, and is sent once more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import Unavailable
from viva.engine.messages import Message, Request, Sampling

_KEPT = (
    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _stream(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    events = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    return _KEPT + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)


class _Closing:
    """Answers one request on each connection, and then closes it; from ``silent_from`` on without any answer."""

    def __init__(self) -> None:
        self.read = 0
        self.silent_from = 10**9

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-len"))
        await reader.readexactly(length)
        self.read += 1
        if self.read < self.silent_from:
            writer.write(_stream("fine"))
        writer.close()


@asynccontextmanager
async def _closing() -> AsyncIterator[tuple[_Closing, str]]:
    served = _Closing()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with server:
        yield served, f"openai:http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#m?retries=0"


def _request(number: int) -> Request:
    messages = (Message("user", f"number {number}"),)
    return Request(messages, Sampling(), number, b"%d" % number, on_text=lambda text: None)


def test_no_request_fails_where_each_connection_ends_behind_its_answer() -> None:
    async def main() -> tuple[list[str], int]:
        async with _closing() as (served, model), build(model, RealClock()) as backend:
            texts = [(await backend.generate(_request(number))).text for number in range(40)]
            many = await asyncio.gather(*(backend.generate(_request(number)) for number in range(40, 60)))
            return [*texts, *(one.text for one in many)], served.read

    texts, read = asyncio.run(main())
    assert texts == ["fine"] * 60
    assert read == 60, "none arrived twice"


def test_a_server_that_answers_nothing_is_asked_no_second_time() -> None:
    async def main() -> int:
        async with _closing() as (served, model), build(model, RealClock()) as backend:
            served.silent_from = 1
            with pytest.raises(Unavailable):
                await backend.generate(_request(1))
            return served.read

    assert asyncio.run(main()) == 1

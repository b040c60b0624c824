"""An OpenAI-compatible chat endpoint that answers filler after a lognormal wait, in a process of its own.

Clients that send the same ``seed`` fields see the same latencies in whatever order they ask, so wall times
of different engines compare. It speaks just enough HTTP/1.1 on a bare asyncio protocol, to leave the
processor to the client under test.

What it is not: a web server for anything else. No TLS, no chunked bodies, no streaming, nothing checked
beyond what the answer depends on; it binds to the loopback address unless told otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import resource
import signal
import time
from statistics import NormalDist
from typing import Any, cast

import orjson
import workload

_WORD = (1 << 64) - 1
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 411: b"Length Required"}
# Most of an answer depends on its role alone, so it is made once.
_MIDDLE = {
    role: b'"model":%b,"choices":[{"index":0,"message":{"role":"assistant","content":%b},'
    b'"finish_reason":"stop"}],' % (orjson.dumps(role), orjson.dumps(text))
    for role, text in workload.REPLIES.items()
}


class Endpoint:
    """What all connections share: the latency law, the counters, and the answers."""

    def __init__(self, median: float, sigma: float, seed: int) -> None:
        self._median = median
        self._sigma = sigma
        self._seed = seed
        self._quantile = NormalDist().inv_cdf
        self.requests = self.in_flight = self.max_in_flight = self.connections = 0

    def latency(self, seed: int) -> float:
        """Seconds the call with this seed takes: a splitmix64 round, then the normal quantile."""
        word = (seed * 0x9E3779B97F4A7C15 + self._seed * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & _WORD
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
        return self._median * math.exp(self._sigma * self._quantile(((word >> 12) + 0.5) / (1 << 52)))

    def chat(self, body: bytes) -> tuple[float, bytes]:
        """The wait and the answer for one chat request; a wait of 0 means refused."""
        # Parsed whole: for 4 KB of history orjson took 2.4 µs, searching the bytes for the fields 3.5 µs.
        try:
            request: dict[str, Any] = orjson.loads(body)
            role = request["model"]
            middle = _MIDDLE[role]
            seed = request.get("seed")
            if request.get("stream"):
                return 0.0, refusal(400, "this endpoint does not stream")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return 0.0, refusal(400, f"want a JSON object with a model among {', '.join(_MIDDLE)}")
        self.requests += 1
        # Four bytes a token: clients that add up usage get numbers of the right size.
        prompt_tokens = len(body) // 4
        completion_tokens = len(workload.REPLIES[role]) // 4
        usage = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            prompt_tokens,
            completion_tokens,
            prompt_tokens + completion_tokens,
        )
        content = b'{"id":"chatcmpl-%x","object":"chat.completion","created":%d,%b"usage":%b}' % (
            self.requests,
            time.time(),
            middle,
            usage,
        )
        # Without a seed the arrival number stands in: not comparable, but still of the law.
        return self.latency(seed if isinstance(seed, int) else self.requests), response(200, content)

    def stats(self) -> bytes:
        """The counters, as JSON."""
        names = ("requests", "in_flight", "max_in_flight", "connections")
        return orjson.dumps({name: getattr(self, name) for name in names})


def response(status: int, content: bytes) -> bytes:
    """A whole HTTP response with a JSON body."""
    return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        _REASONS[status],
        len(content),
        content,
    )


def refusal(status: int, message: str) -> bytes:
    """An error as OpenAI's clients expect it."""
    return response(status, orjson.dumps({"error": {"message": message, "type": "invalid_request_error"}}))


_MODELS = orjson.dumps(
    {
        "object": "list",
        "data": [{"id": role, "object": "model", "owned_by": "mock"} for role in workload.REPLIES],
    }
)


class Connection(asyncio.Protocol):
    """One client connection. Requests are taken one at a time: pipelined ones wait in the buffer."""

    __slots__ = ("_buffer", "_closing", "_endpoint", "_loop", "_timer", "_transport")

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        self._transport = cast(asyncio.Transport, transport)
        self._endpoint.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget an answer that nobody waits for any more."""
        self._endpoint.connections -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._endpoint.in_flight -= 1

    def data_received(self, data: bytes) -> None:
        """Take what came in; nearly always it is one whole request."""
        self._buffer = self._buffer + data if self._buffer else data
        if self._timer is None:
            self._advance()

    def _advance(self) -> None:
        """Handle whole requests in the buffer until one has to wait, or none is left."""
        while self._timer is None and not self._closing:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end]
            size = _body_size(head.lower())
            start = end + 4
            if size is None:
                self._closing = True
                self._transport.write(refusal(411, "want a Content-Length"))
                self._transport.close()
                return
            if len(self._buffer) < start + size:
                return
            body = self._buffer[start : start + size]
            self._buffer = self._buffer[start + size :]
            self._handle(head, body)

    def _handle(self, head: bytes, body: bytes) -> None:
        endpoint = self._endpoint
        if head.startswith(b"POST /v1/chat/completions "):
            wait, answer = endpoint.chat(body)
            if wait:
                endpoint.in_flight += 1
                endpoint.max_in_flight = max(endpoint.max_in_flight, endpoint.in_flight)
                self._timer = self._loop.call_later(wait, self._answer, answer)
                return
        elif head.startswith(b"GET /v1/models "):
            answer = response(200, _MODELS)
        elif head.startswith(b"GET /stats "):
            answer = response(200, endpoint.stats())
        else:
            answer = refusal(404, "this endpoint has /v1/chat/completions, /v1/models and /stats")
        self._transport.write(answer)

    def _answer(self, answer: bytes) -> None:
        self._timer = None
        self._endpoint.in_flight -= 1
        self._transport.write(answer)
        if self._buffer:
            self._advance()


def _body_size(head: bytes) -> int | None:
    """The length of the body that follows a (lower-case) head; None where only chunks would tell."""
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return None if b"\r\ntransfer-encoding:" in head else 0
    digits = head[at + 17 :].split(b"\r\n", 1)[0].strip()
    return int(digits) if digits.isdigit() else None


async def serve(host: str, port: int, endpoint: Endpoint) -> None:
    """Serve until SIGTERM or SIGINT; the port is the first line printed."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A thousand clients connect within a millisecond or two: the usual backlog of 100 would turn some away.
    server = await loop.create_server(lambda: Connection(endpoint, loop), host, port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    # What is alive now stays alive, so the collector need not look at it again.
    gc.freeze()
    await stop.wait()
    server.close()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description="mock OpenAI-compatible endpoint of the benches")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--median", type=float, default=0.2, help="median latency in seconds")
    parser.add_argument("--sigma", type=float, default=0.8, help="spread of the latency's logarithm")
    parser.add_argument("--seed", type=int, default=7, help="seed of the latencies")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(options.host, options.port, Endpoint(options.median, options.sigma, options.seed)))


if __name__ == "__main__":
    main()

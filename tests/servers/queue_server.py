"""An OpenAI-compatible endpoint that is an M/M/c queue, first come first served, in a process of its own.

Each request gets an exponential time of service and the server that is free first. Starts and ends follow from the
arrivals by recursion, not from when timers fire, so a busy machine delays single answers but never the queue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Queue:
    """Servers, what is drawn, and what was counted.

    Plan: ``servers``, ``mean`` (seconds of service), ``seed``, ``tokens`` (least and most of an answer), ``stall_at``
    (the number of the request before which all servers stand still for ``stall`` seconds), ``fail_every`` (each so many
    requests one is answered with 503), ``say`` (the answer's text).
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.mean = float(plan.get("mean", 0.02))
        self.free = [0.0] * int(plan.get("servers", 1))
        self.draw = random.Random(plan.get("seed", 1))
        self.say = plan.get("say", '{"score": 4}')
        self.least, self.most = plan.get("tokens", [4, 12])
        self.count = {"requests": 0, "answered": 0, "failed": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self.service = self.waiting = 0.0
        self.first = self.last = 0.0
        self.waiting_for: list[tuple[int, Connection]] = []  # who wants to know once so many requests have come

    def arrive(self, now: float) -> tuple[float, float]:
        """When service begins and ends for a request that has come."""
        number = self.count["requests"]
        self.count["requests"] += 1
        self.first = self.first or now
        self.last = now
        if number == self.plan.get("stall_at"):
            self.free = [max(one, now) + float(self.plan["stall"]) for one in self.free]
        place = min(range(len(self.free)), key=self.free.__getitem__)
        start = max(now, self.free[place])
        took = self.draw.expovariate(1 / self.mean) if self.mean > 0 else 0.0
        self.free[place] = start + took
        self.service += took
        self.waiting += start - now
        if self.waiting_for:
            self.tell()
        return start, start + took

    def tell(self) -> None:
        """Answer those who wait for as many requests as have come."""
        for one in [one for one in self.waiting_for if one[0] <= self.count["requests"]]:
            self.waiting_for.remove(one)
            one[1].whole(200, json.dumps(self.stats()).encode())

    def stats(self) -> dict[str, Any]:
        """Everything that was counted."""
        return {
            **self.count,
            "service": self.service,
            "waiting": self.waiting,
            "first": self.first,
            "last": self.last,
            "cpu": time.process_time(),
        }


class Connection(asyncio.Protocol):
    """One connection, kept alive; requests on it come one after another."""

    def __init__(self, queue: Queue, loop: asyncio.AbstractEventLoop) -> None:
        self.queue, self.loop, self.buffer = queue, loop, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 : at + 40].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            method, path = head.split(b" ", 2)[:2]
            self.handle(method, path, body)

    def handle(self, method: bytes, path: bytes, body: bytes) -> None:
        if path.startswith(b"/stats"):
            self.queue.waiting_for.append((int(path.partition(b"?requests=")[2] or 0), self))
            self.queue.tell()
        elif method == b"GET":
            self.whole(200, json.dumps({"object": "list", "data": [{"id": "judge"}]}).encode())
        elif path == b"/plan":
            self.queue.__init__(json.loads(body))  # type: ignore[misc]
            self.whole(200, b"{}")
        else:
            self.complete(body)

    def complete(self, body: bytes) -> None:
        queue, count = self.queue, self.queue.count
        start, end = queue.arrive(self.loop.time())
        every = queue.plan.get("fail_every")
        if every and count["requests"] % every == 0:
            count["failed"] += 1
            error = b'{"error": {"message": "overloaded", "code": "overloaded"}}'
            self.loop.call_at(end, self.whole, 503, error)
            return
        tokens = queue.draw.randint(queue.least, queue.most)
        prompt = len(body) // 4
        count["prompt_tokens"] += prompt
        count["completion_tokens"] += tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if b'"stream":true' not in body and b'"stream": true' not in body:
            message = {"role": "assistant", "content": queue.say}
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
            self.loop.call_at(end, self.whole, 200, json.dumps(answer).encode())
            count["answered"] += 1
            return
        half = len(queue.say) // 2
        # The first token comes after a tenth of the service, as if that were the prompt.
        self.loop.call_at(start + 0.1 * (end - start), self.write, _HEAD + chunk(delta(queue.say[:half])))
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        rest = delta(queue.say[half:]) + event(last) + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        self.loop.call_at(end, self.finish, chunk(rest) + b"0\r\n\r\n")

    def finish(self, data: bytes) -> None:
        self.queue.count["answered"] += 1
        self.write(data)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def whole(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.write(head.encode() + body)


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(text: str) -> bytes:
    """A piece of the answer."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def chunk(data: bytes) -> bytes:
    """A chunk of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(plan: dict[str, Any]) -> None:
    """Serve until the process is ended; the port is the first line printed."""
    loop = asyncio.get_running_loop()
    queue = Queue(plan)
    server = await loop.create_server(lambda: Connection(queue, loop), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the plan and serve."""
    parser = argparse.ArgumentParser(description="OpenAI-compatible endpoint that is an M/M/c queue")
    parser.add_argument("--plan", default="{}", help="JSON, see Queue")
    asyncio.run(serve(json.loads(parser.parse_args().plan)))


if __name__ == "__main__":
    main()

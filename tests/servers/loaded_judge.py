"""A judge in a process of its own that changes under load: from so many requests in flight on, or above a rate, it cuts
its JSON, gives everything nearly the same score, or has a smaller model answer.

Started as a script with the plan as JSON: ``habit`` (sound, truncate, flatten, smaller), ``limit`` (requests in flight
that it still judges as it should) or ``rate`` (requests a second, over the last half of one), ``work`` (seconds an
answer takes), and for local models ``models``, two GGUF files, the second of which is the smaller.
It prints its port as JSON and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from viva.engine.backends.base import Backend
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Message, Request, Sampling

_WINDOW_SECONDS = 0.5
_WORK_SECONDS = 0.004  # an answer of the mock takes some time, so that requests meet


class LoadedJudge:
    """Counts what is in flight, and answers by it."""

    def __init__(self, plan: dict[str, Any], backends: list[Backend]) -> None:
        self._habit, self._backends = plan["habit"], backends
        self._limit, self._rate = plan.get("limit", math.inf), plan.get("rate", math.inf)
        self._work = plan.get("work", _WORK_SECONDS)
        self._in_flight = 0
        self._came = deque[float]()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        body = await request.json()
        self._in_flight += 1
        over = self._in_flight > self._limit or self._recent() > _WINDOW_SECONDS * self._rate
        try:
            if self._backends:
                text, finish = await self._local(body, over)
            else:
                await asyncio.sleep(self._work)
                text, finish = self._mock(body, over)
        finally:
            self._in_flight -= 1
        usage = {"prompt_tokens": 10, "completion_tokens": len(text) // 4, "total_tokens": 10 + len(text) // 4}
        said = {"role": "assistant", "content": text}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": finish}
            return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})
        choice = {"index": 0, "delta": said, "finish_reason": finish}
        chunk = {"id": "x", "object": "chat.completion.chunk", "choices": [choice], "usage": usage}
        events = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        return web.Response(text=events, content_type="text/event-stream")

    def _recent(self) -> int:
        """How many requests have come in the last window, this one among them."""
        now = time.monotonic()
        self._came.append(now)
        while self._came[0] < now - _WINDOW_SECONDS:
            self._came.popleft()
        return len(self._came)

    def _mock(self, body: dict[str, Any], over: bool) -> tuple[str, str]:
        score = 1 + _digit("large", body) % 10
        if over and self._habit == "flatten":
            score = 5
        elif over and self._habit == "smaller":
            score = 1 + _digit("small", body) % 10
        text = json.dumps({"reasoning": "as it seems", "score": score})
        return (text[:20], "length") if over and self._habit == "truncate" else (text, "stop")

    async def _local(self, body: dict[str, Any], over: bool) -> tuple[str, str]:
        messages = tuple(Message(one["role"], one["content"]) for one in body["messages"])
        schema = body["response_format"]["json_schema"]["schema"]
        sampling = Sampling(temperature=0.0, max_tokens=body["max_tokens"], schema=schema)
        backend = self._backends[1 if over and self._habit == "smaller" else 0]
        digest = hashlib.blake2b(json.dumps(body).encode(), digest_size=16).digest()
        completion = await backend.generate(Request(messages, sampling, body["seed"], digest))
        return completion.text, completion.finish


def _digit(model: str, body: dict[str, Any]) -> int:
    said = json.dumps(body["messages"])
    return hashlib.blake2b(f"{model} {said}".encode(), digest_size=1).digest()[0]


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "judge", "object": "model"}]})


async def main(plan: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(build(f"llama:{file}", RealClock())) for file in plan.get("models", ())
        ]
        judge = LoadedJudge(plan, backends)
        application = web.Application()
        application.add_routes([web.post("/v1/chat/completions", judge.chat), web.get("/v1/models", _models)])
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

"""An OpenAI-compatible endpoint that knows a benchmark of tool calls, in a process of its own.

``benchmark.py --plan plan.json``; the plan holds ``answers`` (the key of a history to the right assistant message) and
``delay`` (seconds before each answer). Every answer is a function of the messages alone, so a resumed run gets
the same.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiohttp import web
from process import serving_port

Message = dict[str, Any]
_MODELS = ("candidate", "judge", "free-judge", "user")


def key_of(messages: Sequence[Message]) -> str:
    """What a history is known by: its texts and calls, the system prompt left out."""
    told = [
        [one["role"], one.get("content") or "", [call["function"] for call in one.get("tool_calls") or ()]]
        for one in messages
        if one["role"] != "system"
    ]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=12).hexdigest()


def share(messages: Sequence[Message]) -> float:
    """A number in [0, 1) that depends on the messages alone."""
    return int(hashlib.blake2b(json.dumps(messages).encode(), digest_size=4).hexdigest(), 16) / 2**32


class Endpoint:
    """``candidate`` is right six times in ten, else silent, chatty or wrong; ``judge`` passes most, and one time in
    ten has to be asked again; ``free-judge`` gives its verdict on lines of their own. ``user`` says the plan's
    ``lines`` one after the other, then that it is done.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._answers: dict[str, Message] = plan["answers"]
        self._lines: list[str] = plan.get("lines", [])
        self._delay = float(plan.get("delay", 0))
        self._asked: Counter[str] = Counter()

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self._delay)
        self._asked[body["model"]] += 1
        if "judge" in body["model"]:
            said: Message = {"content": self._verdict(body)}
        elif body["model"] == "user":
            spoken = sum(one["role"] == "assistant" for one in body["messages"])
            said = {"content": [*self._lines, "[DONE]"][spoken]}
        else:
            said = self._answer(body)
        message = {"role": "assistant", **said}
        finish = "tool_calls" if said.get("tool_calls") else "stop"
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": len(str(said)) // 4}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})

    def _answer(self, body: dict[str, Any]) -> Message:
        right = self._answers[key_of(body["messages"])]
        names = [tool["function"]["name"] for tool in body["tools"]]
        chance = share([*body["messages"], *names])
        if chance < 0.6:
            return {"content": right.get("content"), "tool_calls": right.get("tool_calls")}
        if chance < 0.65:
            return {"content": None}
        if chance < 0.9:
            return {"content": "잠시만 기다려 주세요."}
        call = {"id": "one", "type": "function", "function": {"name": names[0], "arguments": '{"made": "up"}'}}
        return {"content": None, "tool_calls": [call]}

    def _verdict(self, body: dict[str, Any]) -> str:
        chance = share(body["messages"])
        if chance < 0.1 and len(body["messages"]) <= 2:
            return "Hard to say."
        word = "pass" if chance < 0.6 else "fail"
        if body["model"] == "free-judge":
            return f"The reply was compared with the reference.\n\n{word}\n{word}"
        return json.dumps({"reasoning": f"It differs by {chance:.3f}.", "verdict": word})

    async def asked(self, request: web.Request) -> web.Response:
        return web.json_response(self._asked)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in _MODELS]})


class Server:
    """A running endpoint."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"

    def model(self, name: str) -> str:
        """A model name on this server, as ``viva`` takes it."""
        return f"openai:{self._root}/v1#{name}"

    def asked(self) -> dict[str, int]:
        """How often each model was asked so far."""
        with urlopen(f"{self._root}/asked", timeout=30) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts


@contextmanager
def serving(
    folder: Path, answers: dict[str, Message] | None = None, *, lines: Sequence[str] = (), delay: float = 0.0
) -> Iterator[Server]:
    """The endpoint while entered; its plan stands in ``folder``."""
    plan = folder / "benchmark-plan.json"
    plan.write_text(json.dumps({"answers": answers or {}, "lines": lines, "delay": delay}))
    with serving_port([sys.executable, __file__, "--plan", str(plan)]) as port:
        yield Server(port)


async def serve(plan: dict[str, Any]) -> None:
    """Serve until the process is ended; the port is the first line printed."""
    endpoint = Endpoint(plan)
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/asked", endpoint.asked)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="OpenAI-compatible endpoint that knows a benchmark of tool calls")
    parser.add_argument("--plan", required=True, type=Path, help="JSON file with the plan")
    asyncio.run(serve(json.loads(parser.parse_args().plan.read_text())))

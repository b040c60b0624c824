"""An OpenAI-compatible endpoint that misbehaves by plan, in a process of its own: ``chaos.py --plan plan.json``.

It also has the faces of other providers (``providers``).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import providers
from aiohttp import web
from chaos_answers import answer, call_chunks, completion, echo, format_of, usage_of, uses_tools, with_key
from inference_servers import generated, prompt_logprobs, refused, token_ids

Behaviour = dict[str, Any]
Behave = Callable[[Behaviour, dict[str, Any]], Awaitable[web.StreamResponse]]

_WORDS_PER_CHUNK = 3
_LOGGED = 10_000  # characters of an answer that the log keeps
_ERRORS = {
    "429": (429, "rate_limit_exceeded", "slow down"),
    "500": (500, "server_error", "the server had an error"),
    "503": (503, "overloaded", "the model is overloaded"),
    "400": (400, "invalid_value", "this request makes no sense"),
    "401": (401, "invalid_api_key", "incorrect API key provided: {key}"),
    "403": (403, "forbidden", "the key {key} may not use this model"),
    "404": (404, "model_not_found", "there is no such model"),
    "context_too_long": (400, "context_length_exceeded", "this model's maximum context length is 8192 tokens"),
}


class Script:
    """What to do with each request: ``schedule`` (arrival number to behaviour), else the ``cycle``, else ``default``.

    A plan is one script for all, and may hold ``by_model`` (a model's name to a script of its own, with its own arrival
    numbers), ``model_list`` (the status of GET /v1/models), ``models`` (the names in it) and ``record`` (true: each
    entry of the log has the request's ``body``, ``headers`` and ``query``, and the answer's ``calls``).
    A behaviour is a name or an object with ``do`` and options: ``say`` (an error's words or an answer's text; ``{key}``
    in it becomes the key that was sent, ``{key:FORM}`` the key in a form of ``chaos_answers.FORMS``), ``retry_after``
    (header of any error), ``delay`` (seconds before anything happens; ``slow`` is ``ok`` with one), ``refuses`` (the
    formats ``no_schema`` refuses), ``usage`` (false: none), ``calls`` (what the message holds as ``tool_calls``, where
    tools are offered; its content is then ``say`` or null). ``no_tools`` refuses requests that offer tools. ``raw``
    answers with ``say`` as the whole body, with ``status`` and ``headers``, in ``pieces`` (of so many bytes), with
    ``zeros`` more megabytes of nothing, packed by gzip if ``packed``. ``long`` answers with ``megabytes`` of text,
    ``malformed`` with bytes in its middle that are no UTF-8, ``trickle`` with one byte of it every ``pause`` seconds.
    ``drawn`` is a list of behaviours, each met by a ``share`` of the requests: which ones follows from their contents
    alone, and the same request meets it ``times`` (always, if that is not said), then goes on in the list.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._default = plan.get("default", "ok")
        self._drawn: list[Behaviour] = plan.get("drawn", [])
        self._met: Counter[tuple[int, str]] = Counter()
        self._schedule = {int(number): behaviour for number, behaviour in plan.get("schedule", {}).items()}
        self._cycle = plan.get("cycle", [])
        self._arrived = 0

    def next(self, request: str) -> Behaviour:
        number = self._arrived
        self._arrived += 1
        for place, one in enumerate(self._drawn):
            drawn = hashlib.blake2b(f"{place} {request}".encode(), digest_size=4).digest()
            if int.from_bytes(drawn, "big") < one["share"] * 2**32:
                self._met[place, request] += 1
                if self._met[place, request] <= one.get("times", float("inf")):
                    return one
        usual = self._cycle[number % len(self._cycle)] if self._cycle else self._default
        behaviour = self._schedule.get(number, usual)
        return {"do": behaviour} if isinstance(behaviour, str) else behaviour


class Chaos:
    """The endpoint: the scripts, and the log of what came.

    GET /log?requests=N&left=M answers once N requests have come and M clients have left early. ``text`` in
    an entry is what the model said (a long text's beginning) if all of it was sent, else null; ``prompt`` that of
    a plain completion; ``tools`` and ``messages`` are those of a request in which tools are offered or used.
    Plain completions echo their prompt with log-probabilities; ``no_echo`` answers them without. What vLLM and SGLang
    add is in ``inference_servers``; ``ids`` (false) leaves token ids out, as older versions of vLLM do.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._changed = asyncio.Condition()
        self._begin(plan)

    def _begin(self, plan: dict[str, Any]) -> None:
        self._script = Script(plan)
        self._by_model = {name: Script(own) for name, own in plan.get("by_model", {}).items()}
        self.model_list = int(plan.get("model_list", 200))
        self.listed = plan.get("models", ["candidate", "interactor", "evaluator"])
        self._record = plan.get("record", False)
        self._log: list[dict[str, Any]] = []

    async def replan(self, request: web.Request) -> web.Response:
        """POST /plan: go on by another plan, with an empty log."""
        self._begin(await request.json())
        return web.Response()

    async def log(self, request: web.Request) -> web.Response:
        requests, left = (int(request.query.get(name, 0)) for name in ("requests", "left"))
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._log) >= requests and sum(entry["left"] for entry in self._log) >= left
            )
            return web.json_response(self._log)

    async def models(self, request: web.Request) -> web.Response:
        if self.model_list != 200:
            return refusal({"do": str(self.model_list)}, key_of(request))
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.listed]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        at = time.monotonic()
        data = await request.read()
        body = json.loads(data)
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        behaviour = self._by_model.get(body["model"], self._script).next(digest)
        entry = {
            "at": at,
            "model": body["model"],
            "hash": digest,
            "behaviour": behaviour["do"],
            "format": format_of(body),
            "key": key_of(request),
            "cookies": len(request.headers.get("Cookie", "")),
            "prompt": body.get("prompt"),
            "tools": body.get("tools"),
            "messages": body["messages"] if uses_tools(body) else None,
            "text": None,
            "left": False,
        }
        if self._record:
            entry |= {"body": body} | _sent(request)
        self._log.append(entry)
        await self._announce()
        try:
            return await self._behave(request, body, behaviour, entry)
        except (asyncio.CancelledError, ConnectionError):
            entry["left"] = True
            await asyncio.shield(self._announce())
            raise

    async def play(
        self, request: web.Request, model: str, data: bytes, body: dict[str, Any], key: str, behave: Behave
    ) -> web.StreamResponse:
        """Answer a request in the words of another API, which ``behave`` has; log it with its body."""
        entry = {
            "at": time.monotonic(),
            "model": model,
            "hash": hashlib.blake2b(data, digest_size=8).hexdigest(),
            "key": key,
            "path": request.path,
            "body": body,
            "text": None,
            "left": False,
        }
        if self._record:
            entry |= _sent(request)
        behaviour = self._by_model.get(model, self._script).next(entry["hash"])
        entry["behaviour"] = behaviour["do"]
        self._log.append(entry)
        await self._announce()
        try:
            common = await _any_api(request, behaviour, key)
            return await behave(behaviour, entry) if common is None else common
        except (asyncio.CancelledError, ConnectionError):
            entry["left"] = True
            await asyncio.shield(self._announce())
            raise

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate, as SGLang has it."""
        data = await request.read()
        body = json.loads(data)

        async def behave(behaviour: Behaviour, entry: dict[str, Any]) -> web.StreamResponse:
            if behaviour["do"] in _ERRORS:
                return refusal(behaviour, key_of(request))
            return web.json_response(generated(body, behaviour["do"] != "no_echo"))

        return await self.play(request, "generate", data, body, key_of(request), behave)

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _behave(
        self, request: web.Request, body: dict[str, Any], behaviour: Behaviour, entry: dict[str, Any]
    ) -> web.StreamResponse:
        do, key = behaviour["do"], key_of(request)
        common = await _any_api(request, behaviour, key)
        if common is not None:
            return common
        if do in _ERRORS:
            return refusal(behaviour, key)
        if do == "no_schema" and entry["format"] in behaviour.get("refuses", ["json_schema"]):
            return refusal({"do": "400", "say": f"response_format {entry['format']} is not supported"}, key)
        if do == "no_tools" and "tools" in body:
            return refusal({"do": "400", "say": behaviour.get("say", "chaos does not support tools")}, key)
        problem = refused(body)
        if problem is not None:
            return refusal({"do": "400", "say": problem}, key)
        if body.get("prompt_logprobs") is not None:
            return web.json_response(prompt_logprobs(body, do != "no_echo", behaviour.get("ids", True)))
        if "prompt" in body:
            return web.json_response(echo(body["prompt"], do != "no_echo"))
        text = "The candidate did rather well on the whole." if do == "garbage_verdict" else answer(body)
        text = with_key(behaviour.get("say", text), key)
        calls = behaviour.get("calls") if "tools" in body else None
        if calls and "say" not in behaviour:
            text = ""
        if self._record:
            entry["calls"] = calls
        if do == "long":
            text += behaviour.get("filler", " and so on") * int(1e5 * behaviour.get("megabytes", 10))
        usage = usage_of(body, text) if behaviour.get("usage", True) else None
        if do in ("malformed", "trickle") and not body.get("stream"):
            return await spoiled(request, json.dumps(completion(text, usage)).encode(), behaviour)
        if body.get("stream"):
            entry["text"] = None if do in ("half_body", "truncated", "malformed") else text[:_LOGGED]
            return await stream(request, body, text, usage, do, calls)
        record = completion(text, usage, calls)
        if body.get("return_token_ids"):
            record["choices"][0]["token_ids"] = token_ids(text)
        whole = json.dumps(record).encode()
        if do in ("half_body", "truncated"):
            half = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(whole))})
            await half.prepare(request)
            await half.write(whole[: len(whole) // 2])
            hang_up(request)
            return half
        entry["text"] = text[:_LOGGED]
        return web.Response(body=whole, content_type="application/json")


def _sent(request: web.Request) -> dict[str, Any]:
    return {"headers": dict(request.headers), "query": request.query_string}


async def _any_api(request: web.Request, behaviour: Behaviour, key: str) -> web.StreamResponse | None:
    """What is the same in the words of any API; None where the words matter."""
    await asyncio.sleep(behaviour.get("delay", 0))
    do = behaviour["do"]
    if do == "never":
        await asyncio.Event().wait()
    if do == "reset":
        cut(request)
        return web.Response()
    if do == "garbage":
        return web.Response(text=with_key(behaviour.get("say", "<html>It works!</html>"), key))
    return await raw(request, behaviour, key) if do == "raw" else None


async def stream(
    request: web.Request,
    body: dict[str, Any],
    text: str,
    usage: dict[str, int] | None,
    do: str,
    calls: list[Any] | None = None,
) -> web.StreamResponse:
    """The text as server-sent events, a few words each, then the calls.

    After half of them a ``truncated`` stream ends in good order, as HTTP goes; a ``half_body`` loses its connection.
    """
    words = text.split(" ")
    pieces = [" ".join(words[i : i + _WORDS_PER_CHUNK]) for i in range(0, len(words), _WORDS_PER_CHUNK)]
    pieces = [*(piece + " " for piece in pieces[:-1]), pieces[-1]]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    if body.get("return_token_ids"):
        for chunk, piece in zip(chunks, pieces, strict=True):
            chunk["choices"][0]["token_ids"] = token_ids(piece)
    if calls:
        chunks = [*(chunks if text else []), *call_chunks(calls)]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    if usage and (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    half = len(chunks if calls else pieces) // 2
    for chunk in chunks[:half] if do in ("half_body", "truncated") else chunks:
        data = json.dumps(chunk).encode()
        await response.write(b"data: " + (_broken(data) if do == "malformed" else data) + b"\n\n")
    if do == "half_body":
        hang_up(request)
    elif do != "truncated":
        await response.write(b"data: [DONE]\n\n")
    return response


async def raw(request: web.Request, behaviour: Behaviour, key: str) -> web.StreamResponse:
    """A body that is sent just as the plan has it."""
    body = with_key(behaviour.get("say", ""), key).encode() + bytes(1_000_000 * behaviour.get("zeros", 0))
    headers = dict(behaviour.get("headers", {}))
    if behaviour.get("packed"):
        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    response = web.StreamResponse(status=behaviour.get("status", 200), headers=headers)
    await response.prepare(request)
    size = behaviour.get("pieces", 1 << 20)
    for start in range(0, len(body), size):
        await response.write(body[start : start + size])
    return response


async def spoiled(request: web.Request, whole: bytes, behaviour: Behaviour) -> web.StreamResponse:
    """An answer with bytes that are no UTF-8 in its middle, or one whose bytes come one at a time."""
    if behaviour["do"] == "malformed":
        return web.Response(body=_broken(whole), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(whole))})
    await response.prepare(request)
    for place in range(len(whole)):
        await response.write(whole[place : place + 1])
        await asyncio.sleep(behaviour.get("pause", 0.05))
    return response


def _broken(data: bytes) -> bytes:
    half = len(data) // 2
    return data[:half] + b"\xc3\x28\xff\xed\xa0\x80" + data[half:]


def refusal(behaviour: Behaviour, key: str) -> web.Response:
    """An error in OpenAI's form."""
    status, code, message = _ERRORS[behaviour["do"]]
    message = with_key(behaviour.get("say", message), key)
    headers = {"Retry-After": str(behaviour["retry_after"])} if "retry_after" in behaviour else {}
    error = {"message": message, "type": "error", "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def key_of(request: web.Request) -> str:
    """The key that the client sent, or nothing."""
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def cut(request: web.Request) -> None:
    """Reset the connection: the peer sees ECONNRESET, not an orderly end."""
    assert request.transport is not None
    linger_none = struct.pack("ii", 1, 0)
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
    request.transport.abort()


def hang_up(request: web.Request) -> None:
    """Close the connection once what was written is sent."""
    assert request.transport is not None
    request.transport.close()


async def serve(plan: dict[str, Any]) -> None:
    """Serve until the process is ended; the port is the first line printed."""
    chaos = Chaos(plan)
    app = web.Application(client_max_size=1 << 30)  # what was answered at length comes back in later requests
    app.router.add_get("/log", chaos.log)
    app.router.add_post("/plan", chaos.replan)
    app.router.add_get("/v1/models", chaos.models)
    app.router.add_post("/v1/chat/completions", chaos.chat)
    app.router.add_post("/v1/completions", chaos.chat)
    app.router.add_post("/generate", chaos.generate)
    providers.add_routes(app, chaos)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description="OpenAI-compatible endpoint that misbehaves by plan")
    parser.add_argument("--plan", required=True, help="JSON file with the plan")
    with open(parser.parse_args().plan, encoding="utf-8") as file:
        plan = json.load(file)
    asyncio.run(serve(plan))


if __name__ == "__main__":
    main()

"""A chatbot behind its own API, in a process of its own: what it does is told by the message that it gets.

``POST /chat`` ``{"text", "session"}`` answers ``{"reply": {"text"}, "usage"}`` and remembers the session's turns;
``/plain`` answers text, ``/sse``, ``/lines`` stream the same reply. A message ``do:WORD`` makes trouble.
``POST /sessions`` opens a session, ``POST /close/ID`` closes it, ``GET /log`` has all requests that came.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from aiohttp import web

_PAGE = "<!DOCTYPE html><html><title>Bad gateway</title></html>"
_LOG: list[dict[str, Any]] = []
_TURNS: dict[str, list[str]] = {}
_STATE = {"failures": 0, "sessions": 0}


async def trouble(request: web.Request, word: str) -> web.StreamResponse | None:
    """The answer that makes this trouble; None where the word is not known."""
    if word == "html":
        return web.Response(text=_PAGE, content_type="text/html")
    if word == "leak":
        return web.Response(status=500, text=f"cannot log in with {request.headers.get('Authorization')}")
    if word.isdigit():
        return web.json_response({"error": {"message": f"status {word}"}}, status=int(word))
    if word == "once":
        _STATE["failures"] += 1
        return web.Response(status=503) if _STATE["failures"] == 1 else None
    if word == "nothing":
        await asyncio.Event().wait()
    if word == "empty":
        return web.Response(body=b"", content_type="application/json")
    if word == "cut":
        return web.Response(text='{"reply": {"te', content_type="application/json")
    if word == "otherwise":
        return web.json_response({"reply": {"txt": "hidden", "lang": "en"}})
    if word == "number":
        return web.json_response({"reply": {"text": 7}})
    if word == "away":
        raise web.HTTPTemporaryRedirect("http://elsewhere.example/chat")
    if word == "large":
        packed = gzip.compress(json.dumps({"reply": {"text": "x" * 3_000_000}}).encode(), 1)
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    return None


async def ask(request: web.Request) -> web.StreamResponse:
    """Any of the chat's addresses."""
    body = await request.json() if request.can_read_body else dict(request.query)
    _LOG.append({"path": request.path, "headers": dict(request.headers), "body": body})
    text, session = str(body.get("text", "")), str(body.get("session", ""))
    word = text.removeprefix("do:")
    made = await trouble(request, word) if text.startswith("do:") else None
    if made is not None:
        return made
    turns = _TURNS.setdefault(session or "-", [])
    turns.append(text)
    reply = f"Turn {len(turns)}: {text.upper()}" if session else f"You say {text}."
    if "echo" in body:
        reply = f"key {request.headers.get('Authorization')}"
    if request.path == "/plain":
        return web.Response(text=reply)
    if request.path in ("/sse", "/lines"):
        return await stream(request, reply, word)
    answer = {"reply": {"text": reply}, "usage": {"input_tokens": 11, "output_tokens": 3}}
    if word == "tool":
        answer["reply"]["calls"] = [{"id": "c1", "function": {"name": "look_up", "arguments": {"q": 1}}}]  # type: ignore[dict-item]
        answer["reply"]["text"] = None  # type: ignore[dict-item]
    response = web.json_response(answer)
    response.set_cookie("visit", f"{len(_LOG)}")
    return response


async def stream(request: web.Request, reply: str, word: str) -> web.StreamResponse:
    """The reply, three characters an event; ``half`` ends in the middle, ``broken`` loses the connection there."""
    response = web.StreamResponse()
    await response.prepare(request)
    pieces = [reply[start : start + 3] for start in range(0, len(reply), 3)]
    sse = request.path == "/sse"
    events: list[dict[str, Any]] = [{"kind": "begin"}, *({"kind": "piece", "delta": {"text": one}} for one in pieces)]
    if word == "wordless":
        events = [{"kind": "begin"}, {"kind": "piece", "delta": {"txt": "a"}}]
    if word == "failing":
        events = [*events[:2], {"error": "the model is gone"}]
    if word in ("half", "broken"):
        events = events[: len(events) // 2]
    for event in events:
        data = json.dumps(event)
        await response.write((f"event: message\r\ndata: {data}\r\n\r\n" if sse else f"{data}\n").encode())
    if word == "broken":
        assert request.transport is not None
        request.transport.close()
    elif word != "half":
        end = {"kind": "end", "usage": {"prompt_tokens": 5, "completion_tokens": 6}}
        await response.write(f"event: end\ndata: {json.dumps(end)}\n\n".encode() if sse else json.dumps(end).encode())
    return response


async def open_session(request: web.Request) -> web.StreamResponse:
    """A session by the application's own number."""
    body = await request.json()
    _LOG.append({"path": request.path, "headers": dict(request.headers), "body": body})
    if body.get("refuse"):
        return web.json_response({"message": "no more sessions"}, status=409)
    _STATE["sessions"] += 1
    return web.json_response({"data": {"id": f"s/{_STATE['sessions']}"}})


async def close_session(request: web.Request) -> web.StreamResponse:
    """Close one."""
    _LOG.append({"path": request.path, "headers": dict(request.headers), "body": None})
    return web.Response(status=204 if request.match_info["id"] in _TURNS else 404)


async def log(request: web.Request) -> web.StreamResponse:
    """All that came."""
    return web.json_response(_LOG)


async def serve() -> None:
    """Serve until the process is ended; the port is the first line printed."""
    app = web.Application()
    app.router.add_get("/log", log)
    for path in ("/chat", "/plain", "/sse", "/lines"):
        app.router.add_route("*", path, ask)
    app.router.add_post("/sessions", open_session)
    app.router.add_post("/close/{id}", close_session)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())

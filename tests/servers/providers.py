"""The chaos server's faces of the Messages API and of the Gemini API: the same plans, each API's own words.

Besides the behaviours of ``chaos`` there are those of each API's ``ERRORS``, with ``headers`` to be sent along,
``reports`` (a stream that reports the error named by ``error`` in its middle), and options of an answer: ``thoughts``,
``stop`` (why it ended), ``calls`` in the API's form, ``blocked`` (Gemini: the prompt is refused), ``usage`` (put over
the counts). A request that the API would refuse is refused in its words, whatever the plan says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gemini_api
import messages_api
from aiohttp import web
from chaos_answers import answer, with_key

if TYPE_CHECKING:
    from chaos import Chaos

Behaviour = dict[str, Any]


class Face:
    """One API in front of the chaos server's scripts and log."""

    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        data = await request.read()
        body = json.loads(data)
        key = request.headers.get("x-api-key", "")

        async def behave(behaviour: Behaviour, entry: dict[str, Any]) -> web.StreamResponse:
            do = behaviour["do"]
            problem = messages_api.refused(body, request.headers.get("anthropic-version", ""))
            if problem is None and do == "no_schema" and "format" in (body.get("output_config") or {}):
                problem = "output_config.format: Extra inputs are not permitted"
            if problem or do in messages_api.ERRORS:
                said = problem or _said(behaviour, key)
                return _refusal(messages_api.error_of("400" if problem else do, said), behaviour, key)
            text = _text(body, body["model"], body.get("system", ""), body["messages"], behaviour, key)
            whole = messages_api.message(body, text, behaviour)
            whole["usage"] |= behaviour.get("usage", {})
            if not body.get("stream"):
                return await self._whole(request, whole, do, entry)
            return await self._stream(request, messages_api.events(whole), behaviour, entry, messages_api.error_of)

        return await self._chaos.play(request, body["model"], data, body, key, behave)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /v1beta/models/MODEL:generateContent, or :streamGenerateContent."""
        data = await request.read()
        body = json.loads(data)
        model, _, method = request.match_info["call"].rpartition(":")
        key = request.headers.get("x-goog-api-key", "")

        async def behave(behaviour: Behaviour, entry: dict[str, Any]) -> web.StreamResponse:
            do, config = behaviour["do"], body["generationConfig"]
            problem = gemini_api.refused(body, model)
            if (
                problem is None
                and do == "no_schema"
                and set(behaviour.get("refuses", ["responseJsonSchema"])) & set(config)
            ):
                problem = "Invalid JSON payload received."
            if problem or do in gemini_api.ERRORS:
                said = problem or _said(behaviour, key)
                return _refusal(
                    gemini_api.error_of("400" if problem else do, said, behaviour.get("retry_delay")), behaviour, key
                )
            system = json.dumps(body.get("systemInstruction", ""))
            text = _text(body, model, system, body["contents"], behaviour, key)
            whole = gemini_api.answer(body, model, text, behaviour)
            whole["usageMetadata"] |= behaviour.get("usage", {})
            if method == "generateContent":
                return await self._whole(request, whole, do, entry)
            events = [("", chunk) for chunk in gemini_api.chunks(whole)]
            return await self._stream(request, events, behaviour, entry, gemini_api.error_of)

        return await self._chaos.play(request, model, data, body, key, behave)

    async def listed(self, request: web.Request) -> web.Response:
        """GET /v1beta/models."""
        if self._chaos.model_list != 200:
            do = "bad_key" if self._chaos.model_list == 400 else str(self._chaos.model_list)
            return _refusal(gemini_api.error_of(do), {}, request.headers.get("x-goog-api-key", ""))
        return web.json_response({"models": [{"name": f"models/{name}"} for name in self._chaos.listed]})

    async def _whole(
        self, request: web.Request, whole: dict[str, Any], do: str, entry: dict[str, Any]
    ) -> web.StreamResponse:
        data = json.dumps(whole).encode()
        if do not in ("half_body", "truncated"):
            entry["text"] = "sent"
            return web.Response(body=data, content_type="application/json")
        half = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
        await half.prepare(request)
        await half.write(data[: len(data) // 2])
        assert request.transport is not None
        request.transport.close()
        return half

    async def _stream(
        self,
        request: web.Request,
        events: list[tuple[str, dict[str, Any]]],
        behaviour: Behaviour,
        entry: dict[str, Any],
        error_of: Any,
    ) -> web.StreamResponse:
        do = behaviour["do"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for name, record in events[: len(events) // 2] if do in ("half_body", "truncated", "reports") else events:
            await response.write((f"event: {name}\n" if name else "").encode() + _data(record))
        if do == "reports":
            problem = error_of(behaviour["error"])[1]
            await response.write((b"event: error\n" if "type" in problem else b"") + _data(problem))
        elif do == "half_body":
            assert request.transport is not None
            request.transport.close()
        elif do != "truncated":
            entry["text"] = "sent"
        return response


def _data(record: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(record, ensure_ascii=False).encode() + b"\n\n"


def _said(behaviour: Behaviour, key: str) -> str | None:
    return with_key(behaviour["say"], key) if "say" in behaviour else None


def _refusal(error: tuple[int, dict[str, Any]], behaviour: Behaviour, key: str) -> web.Response:
    status, record = error
    headers = dict(behaviour.get("headers", {}))
    if "retry_after" in behaviour:
        headers["Retry-After"] = str(behaviour["retry_after"])
    return web.Response(
        status=status,
        text=with_key(json.dumps(record), json.dumps(key)[1:-1]),
        headers=headers,
        content_type="application/json",
    )


def _text(fields: dict[str, Any], model: str, system: str, turns: list[Any], behaviour: Behaviour, key: str) -> str:
    """What the model says: a function of the request alone, where the plan does not have it."""
    if "say" in behaviour:
        return with_key(behaviour["say"], key)
    if behaviour.get("calls") and "tools" in fields:
        return ""
    return answer(
        {"model": model, "messages": [system, *turns], "seed": fields.get("generationConfig", {}).get("seed")}
    )


def add_routes(app: web.Application, chaos: Chaos) -> None:
    """Make both APIs part of a server."""
    face = Face(chaos)
    app.router.add_post("/v1/messages", face.messages)
    app.router.add_get("/v1beta/models", face.listed)
    app.router.add_post("/v1beta/models/{call}", face.generate)

"""The batch APIs of OpenAI, Anthropic and Google in one process, and their single calls: what is paid for is counted.

Answers are a function of the request alone (``chaos_answers``), so a run by batches and one by single calls get the
same ones. A plan (``POST /plan``) has

``polls``: how often a batch is in progress still when it is polled or listed (1), also of earlier batches;
``create``: what happens to the creations of batches in turn (then ``ok``): ``lost`` (created, and the connection
closed), ``500``, ``late_500`` (created all the same), ``429``, ``400``, ``402``, ``garbage`` (created; the answer is no
JSON);
``batches``: how batches end in turn (then ``completed``): ``failed``, ``limit`` (too many tokens), ``expired`` and
``cancelled`` (after the first half of the requests), ``empty`` (without any result);
``results``: what happens to requests in turn (then ``ok``): a status (``400``, ``429``, ``500``, …), ``missing``,
``malformed``, ``twice``, ``unanswerable`` (an answer of no known form), ``long``;
``hide``: paths (beginnings) that answer 404; ``bad_ids``: ids of files are paths.

``GET /log?requests=N`` answers once N requests have come: ``paid`` counts by API and hash of the body, ``requests`` are
``METHOD PATH``, ``batches`` the numbers of requests in each. ``GET /number`` says how many requests have come.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import gemini_api
import messages_api
from aiohttp import web
from chaos_answers import answer, completion, usage_of

Body = dict[str, Any]
_KINDS = {400: "invalid_request_error", 403: "permission_error", 429: "rate_limit_error", 529: "overloaded_error"}
_RPC = {400: 3, 403: 7, 429: 8, 500: 13, 503: 14}


def _whole(api: str, model: str, body: Body) -> Body:
    """The answer to one request."""
    if api == "openai":
        text = answer(body)
        return completion(text, usage_of(body, text))
    if api == "anthropic":
        text = answer({"model": model, "messages": [body.get("system", ""), *body["messages"]]})
        return messages_api.message(body, text, {})
    seed = body["generationConfig"].get("seed")
    text = answer({"model": model, "messages": [body.get("systemInstruction", ""), *body["contents"]], "seed": seed})
    return gemini_api.answer(body, model, text, {})


class Batch:
    """A batch at one of the APIs."""

    def __init__(self, api: str, number: int, requests: list[tuple[str, str, Body]], end: str, polls: int) -> None:
        self.api, self.requests, self.end, self.polls = api, requests, end, polls
        self.id = f"batch_{number:04d}{random.randbytes(6).hex()}"
        self.created = time.time()
        self.key = ""
        self.lines: list[bytes] = []
        self.errors: list[bytes] = []

    @property
    def ended(self) -> bool:
        return self.polls <= 0


class Batches:
    """All three APIs, what they were asked and what was paid for."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._batches: dict[str, Batch] = {}
        self._files: dict[str, bytes] = {}
        self._begin({})

    def _begin(self, plan: Body) -> None:
        self._plan = plan
        self._create = chain(plan.get("create", []), repeat("ok"))
        self._ends = chain(plan.get("batches", []), repeat("completed"))
        self._results = chain(plan.get("results", []), repeat("ok"))
        self._requests: list[str] = []
        self._paid: Counter[str] = Counter()

    async def replan(self, request: web.Request) -> web.Response:
        self._begin(await request.json())
        for batch in self._batches.values():
            batch.polls = min(batch.polls, self._plan.get("polls", 1))
        return web.Response()

    async def log(self, request: web.Request) -> web.Response:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._requests) >= int(request.query.get("requests", 0)))
        sizes = [len(batch.requests) for batch in self._batches.values()]
        return web.json_response({"paid": self._paid, "requests": self._requests, "batches": sizes})

    async def number(self, request: web.Request) -> web.Response:
        return web.json_response(len(self._requests))

    @web.middleware
    async def count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path not in ("/log", "/number", "/plan"):
            self._requests.append(f"{request.method} {request.path}")
            async with self._changed:
                self._changed.notify_all()
            if any(request.path.startswith(path) for path in self._plan.get("hide", [])):
                return web.json_response({"error": {"message": "no such path"}}, status=404)
        response: web.StreamResponse = await handler(request)
        return response

    def _pay(self, api: str, body: Body) -> None:
        digest = hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._paid[f"{api} {digest}"] += 1

    async def models(self, request: web.Request) -> web.Response:
        names = ["candidate", "interactor", "evaluator"]
        return web.json_response({"data": [{"id": name, "name": f"models/{name}"} for name in names]})

    async def single(self, request: web.Request) -> web.Response:
        body = await request.json()
        api = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}.get(request.path, "gemini")
        model = request.match_info["call"].partition(":")[0] if api == "gemini" else body["model"]
        self._pay(api, body)
        return web.json_response(_whole(api, model, body))

    async def _make(
        self, request: web.Request, api: str, requests: list[tuple[str, str, Body]], key: str = ""
    ) -> web.StreamResponse:
        """Create a batch as the plan says, and answer with its record."""
        do = next(self._create)
        if do in ("500", "429", "400", "402"):
            error = {"type": _KINDS.get(int(do), "api_error"), "message": f"no batch: {do}"}
            return web.json_response({"error": error}, status=int(do))
        batch = Batch(api, len(self._batches), requests, next(self._ends), self._plan.get("polls", 1))
        batch.key = key
        self._batches[batch.id] = batch
        self._compute(batch)
        if do == "lost":
            assert request.transport is not None
            request.transport.close()
        if do == "late_500":
            return web.json_response({"error": {"message": "an internal error"}}, status=500)
        return web.Response(text="<html>") if do == "garbage" else web.json_response(self._record(batch))

    def _compute(self, batch: Batch) -> None:
        """All results of a batch, in any order."""
        if batch.end in ("failed", "limit", "empty"):
            return
        done = len(batch.requests) if batch.end == "completed" else len(batch.requests) // 2
        for place, (name, model, body) in enumerate(batch.requests):
            if place >= done:
                self._add(batch, name, None, batch.end)
                continue
            do = next(self._results)
            if do == "missing":
                continue
            if do == "malformed":
                batch.lines.append(b'{"custom_id": "' + name.encode() + b'", "resp')
                continue
            if do.isdigit():
                self._add(batch, name, None, do)
                continue
            self._pay(batch.api, body)
            whole = {"nothing": True} if do == "unanswerable" else _whole(batch.api, model, body)
            if do == "long":
                whole["padding"] = "x" * 3_000_000
            for _ in range(2 if do == "twice" else 1):
                self._add(batch, name, whole, "")
        self._add(batch, "0" * 32 + "-77", {"nothing": True}, "")  # nobody asked for it
        random.Random(len(batch.lines)).shuffle(batch.lines)

    @staticmethod
    def _add(batch: Batch, name: str, whole: Body | None, why: str) -> None:
        status = int(why) if why.isdigit() else 0
        error = {"type": _KINDS.get(status, "api_error"), "message": f"this request: {why}"}
        if batch.api == "openai":
            code = {"expired": "batch_expired", "cancelled": "batch_cancelled"}.get(why)
            response = {"status_code": status or 200, "request_id": "r", "body": whole or {"error": error}}
            line: Body = {"id": "l", "custom_id": name, "response": None if code else response, "error": None}
            if code:
                line["error"] = {"code": code, "message": f"it is {why}"}
        elif batch.api == "anthropic":
            kind = "succeeded" if whole else "errored" if status else {"cancelled": "canceled"}.get(why, why)
            result: Body = {"type": kind}
            if whole:
                result["message"] = whole
            elif status:
                result["error"] = {"type": "error", "error": error}
            line = {"custom_id": name, "result": result}
        else:
            if why in ("expired", "cancelled"):
                return
            line = {"metadata": {"key": name}}
            line |= {"response": whole} if whole else {"error": {"code": _RPC[status], "message": error["message"]}}
        own = batch.errors if batch.api == "openai" and not whole else batch.lines
        own.append(json.dumps(line).encode())

    def _record(self, batch: Batch, *, poll: bool = False) -> Body:
        if poll:
            batch.polls -= 1
        made = datetime.fromtimestamp(batch.created, UTC).isoformat()
        count = len(batch.requests)
        if batch.api == "openai":
            record: Body = {"id": batch.id, "object": "batch", "metadata": {"viva": batch.key}}
            record |= {"created_at": int(batch.created), "status": "in_progress", "output_file_id": None}
            if batch.ended and batch.end in ("failed", "limit"):
                code = "invalid_json_line" if batch.end == "failed" else "token_limit_exceeded"
                errors = {"object": "list", "data": [{"code": code, "message": "Enqueued too much or nonsense"}]}
                return record | {"status": "failed", "errors": errors}
            if batch.ended:
                record["status"] = "completed" if batch.end == "empty" else batch.end
                root = "../" if self._plan.get("bad_ids") else ""
                if batch.lines:
                    record["output_file_id"] = f"{root}{batch.id}-output"
                if batch.errors:
                    record["error_file_id"] = f"{root}{batch.id}-errors"
            return record
        if batch.api == "anthropic":
            counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
            counts["succeeded" if batch.ended else "processing"] = count
            state = "ended" if batch.ended else "in_progress"
            url = "http://127.0.0.1:9/elsewhere"  # nobody may follow it
            return {"id": batch.id, "type": "message_batch", "processing_status": state, "request_counts": counts,
                    "created_at": made, "results_url": url if batch.ended else None}  # fmt: skip
        state = {"limit": "failed", "completed": "succeeded", "empty": "succeeded"}.get(batch.end, batch.end)
        metadata = {"displayName": batch.key, "createTime": made, "state": "BATCH_STATE_RUNNING"}
        operation: Body = {"name": f"batches/{batch.id}", "metadata": metadata}
        if batch.ended:
            metadata["state"] = f"BATCH_STATE_{state.upper()}"
            operation["done"] = True
            if state == "failed":
                operation["error"] = {"code": 8 if batch.end == "limit" else 3, "message": "it cannot be computed"}
            elif state == "succeeded":
                inside = [json.loads(line) for line in batch.lines if line.endswith(b"}")]
                operation["response"] = {"inlinedResponses": {"inlinedResponses": inside}}
        return operation

    def _list(self, api: str) -> list[Body]:
        return [self._record(batch, poll=True) for batch in reversed(self._batches.values()) if batch.api == api]

    # OpenAI

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        field: Any = form["file"]
        name = f"file-{len(self._files)}"
        self._files[name] = field.file.read()
        return web.json_response({"id": name, "object": "file"})

    async def openai_create(self, request: web.Request) -> web.StreamResponse:
        wanted = await request.json()
        assert (wanted["endpoint"], wanted["completion_window"]) == ("/v1/chat/completions", "24h")
        lines = [json.loads(line) for line in self._files[wanted["input_file_id"]].splitlines()]
        assert all((line["method"], line["url"]) == ("POST", "/v1/chat/completions") for line in lines)
        requests = [(line["custom_id"], line["body"]["model"], line["body"]) for line in lines]
        return await self._make(request, "openai", requests, wanted["metadata"]["viva"])

    async def openai_list(self, request: web.Request) -> web.Response:
        return self._page(self._list("openai"), request.query.get("after"))

    async def content(self, request: web.Request) -> web.Response:
        batch_id, _, kind = request.match_info["id"].rpartition("-")
        batch = self._batches[batch_id]
        return web.Response(body=b"\n".join(batch.lines if kind == "output" else batch.errors) + b"\n")

    @staticmethod
    def _page(records: list[Body], after: str | None) -> web.Response:
        ids = [record["id"] for record in records]
        start = ids.index(after) + 1 if after else 0
        return web.json_response({"data": records[start : start + 3], "has_more": start + 3 < len(records)})

    async def polled(self, request: web.Request) -> web.Response:
        batch = self._batches.get(request.match_info["id"])
        if batch is None:
            return web.json_response({"error": {"message": "no such batch"}}, status=404)
        return web.json_response(self._record(batch, poll=True))

    # Anthropic

    async def anthropic_create(self, request: web.Request) -> web.StreamResponse:
        entries = (await request.json())["requests"]
        requests = [(entry["custom_id"], entry["params"]["model"], entry["params"]) for entry in entries]
        assert all(len(name) <= 64 for name, _, _ in requests)
        return await self._make(request, "anthropic", requests)

    async def anthropic_list(self, request: web.Request) -> web.Response:
        return self._page(self._list("anthropic"), request.query.get("after_id"))

    async def anthropic_results(self, request: web.Request) -> web.Response:
        return web.Response(body=b"\n".join(self._batches[request.match_info["id"]].lines))

    # Google

    async def gemini_call(self, request: web.Request) -> web.StreamResponse:
        model, _, method = request.match_info["call"].rpartition(":")
        if method != "batchGenerateContent":
            return await self.single(request)
        wanted = (await request.json())["batch"]
        entries = wanted["input_config"]["requests"]["requests"]
        requests = [(entry["metadata"]["key"], model, entry["request"]) for entry in entries]
        return await self._make(request, "gemini", requests, wanted["display_name"])

    async def gemini_list(self, request: web.Request) -> web.Response:
        records, start = self._list("gemini"), int(request.query.get("pageToken", 0))
        more = {"nextPageToken": str(start + 3)} if start + 3 < len(records) else {}
        return web.json_response({"operations": records[start : start + 3]} | more)


async def _serve() -> None:
    batches = Batches()
    app = web.Application(middlewares=[batches.count], client_max_size=1 << 30)
    app.router.add_post("/plan", batches.replan)
    app.router.add_get("/log", batches.log)
    app.router.add_get("/number", batches.number)
    app.router.add_get("/v1/models", batches.models)
    app.router.add_get("/v1beta/models", batches.models)
    app.router.add_post("/v1/chat/completions", batches.single)
    app.router.add_post("/v1/messages", batches.single)
    app.router.add_post("/v1/files", batches.upload)
    app.router.add_get("/v1/files/{id}/content", batches.content)
    app.router.add_post("/v1/batches", batches.openai_create)
    app.router.add_get("/v1/batches", batches.openai_list)
    app.router.add_get("/v1/batches/{id}", batches.polled)
    app.router.add_post("/v1/messages/batches", batches.anthropic_create)
    app.router.add_get("/v1/messages/batches", batches.anthropic_list)
    app.router.add_get("/v1/messages/batches/{id}", batches.polled)
    app.router.add_get("/v1/messages/batches/{id}/results", batches.anthropic_results)
    app.router.add_post("/v1beta/models/{call}", batches.gemini_call)
    app.router.add_get("/v1beta/batches", batches.gemini_list)
    app.router.add_get("/v1beta/batches/{id}", batches.polled)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())

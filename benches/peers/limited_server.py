"""Endpoints that take only so much, in a process of their own: one under each name, counted by the server itself.

``/NAME/v1/chat/completions`` answers or refuses with 429; ``/counts`` says when calls were taken and refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "models"))
from limited_endpoint import AtOnce, Bucket, Course, EachWindow, Limit

# Name: the limit, the mean seconds of an answer, and the headers that say what remains.
ENDPOINTS: dict[str, tuple[Limit, float, str]] = {
    "32 at once": (AtOnce(32), 0.5, ""),
    "bucket, 50 a second": (Bucket(50, 50), 0.5, ""),
    "500 in 10 s, Retry-After": (EachWindow(500, 10), 0.5, ""),
    "bucket, 50 a second, headers": (Bucket(50, 3000), 0.5, "openai"),
    "500 in 10 s, headers": (EachWindow(500, 10), 0.5, "ietf"),
}
_ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}


def _headers(form: str, limit: Limit, now: float) -> dict[str, str]:
    remaining, seconds = limit.remaining(now)
    if form == "openai":
        return {
            "x-ratelimit-remaining-requests": f"{remaining:.0f}",
            "x-ratelimit-reset-requests": f"{1000 * seconds:.0f}ms",
        }
    return {"ratelimit-remaining": f"{remaining:.0f}", "ratelimit-reset": f"{seconds:.3f}"} if form else {}


async def main() -> None:
    loop = asyncio.get_running_loop()
    began, draw = loop.time(), random.Random(1)
    courses = {name: Course() for name in ENDPOINTS}
    names = list(ENDPOINTS)

    async def answer(request: web.Request) -> web.Response:
        name = names[int(request.match_info["place"])]
        limit, mean, form = ENDPOINTS[name]
        now = loop.time() - began
        accepted, after = limit.arrive(now)
        if not accepted:
            courses[name].refused.append(now)
            headers = _headers(form, limit, now) | ({"Retry-After": f"{after:.3f}"} if after is not None else {})
            return web.json_response({"error": {"message": "too many requests"}}, status=429, headers=headers)
        courses[name].taken.append(now)
        await asyncio.sleep(mean * (0.5 + draw.random()))
        limit.leave()
        return web.json_response(_ANSWER, headers=_headers(form, limit, loop.time() - began))

    async def counts(request: web.Request) -> web.Response:
        counts_by_name = {name: [course.taken, course.refused] for name, course in courses.items()}
        return web.json_response({"now": loop.time() - began, "courses": counts_by_name}, dumps=json.dumps)

    app = web.Application()
    app.router.add_post("/{place}/v1/chat/completions", answer)
    app.router.add_get("/counts", counts)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

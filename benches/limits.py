"""How well a client finds an endpoint's limits that nobody has told it: calls over HTTP to endpoints with limits.

Each endpoint has a client of its own that always has more calls than the endpoint accepts. Measured at the server: the
share of the permitted calls that was used after half a minute, and the share of calls that it refused. Simulated time
is in `tests/engine/test_adaptive.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from urllib.request import urlopen

import table
from running import PEERS, note

from viva.engine.adaptive_limit import FIRST_WINDOW, AdaptiveLimit
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.openai import build
from viva.engine.backends.retry import RetryingBackend, RetryPolicy
from viva.engine.clock import RealClock
from viva.engine.limits import Limits
from viva.engine.messages import Request, Sampling, View, request_digest

PERMITTED = {  # calls a second
    "32 at once": 64.0,
    "bucket, 50 a second": 50.0,
    "500 in 10 s, Retry-After": 50.0,
    "bucket, 50 a second, headers": 50.0,
    "500 in 10 s, headers": 50.0,
}
SETTLED = 30.0
CALLERS = 150
REACH: table.Reach = {"least_share_pct": (">=", 95), "most_refused_pct": ("<=", 1)}


async def drive(port: int, seconds: float) -> dict[str, dict[str, float]]:
    """All clients for so many seconds; the statistics of each client's limits at the end."""
    clock = RealClock()
    results: dict[str, dict[str, float]] = {}

    async def client(index: int, name: str) -> None:
        inner = build(ModelSpec.parse(f"openai:http://127.0.0.1:{port}/{index}/v1#m"), clock)
        limits = Limits(clock, adaptive=AdaptiveLimit(clock.now(), FIRST_WINDOW))
        governed = RetryingBackend(inner, limits, clock, RetryPolicy(attempts=1000))
        async with governed as backend:
            number = 0

            async def caller() -> None:
                nonlocal number
                while True:
                    number += 1
                    view = View()
                    view.append("user", f"call {number}")
                    sampling = Sampling(max_tokens=5)
                    digest = request_digest(view, sampling, number)
                    await backend.generate(Request(view.messages, sampling, number, digest))

            tasks = [asyncio.create_task(caller()) for _ in range(CALLERS)]
            await asyncio.sleep(seconds)
            results[name] = limits.statistics()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    await asyncio.gather(*(client(index, name) for index, name in enumerate(PERMITTED)))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="45 seconds in place of 180")
    seconds = 45.0 if parser.parse_args().quick else 180.0
    server = subprocess.Popen([sys.executable, str(PEERS / "limited_server.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        note(f"{len(PERMITTED)} endpoints, {CALLERS} callers each, {seconds:.0f} s")
        results = RealClock().run(lambda: drive(port, seconds))
        with urlopen(f"http://127.0.0.1:{port}/counts", timeout=60) as answer:
            counts = json.load(answer)
    finally:
        server.kill()
        server.wait()
    rows, shares, refusals = [], [], []
    for name, permitted in PERMITTED.items():
        accepted, refused = counts["courses"][name]
        # The last second holds calls that were cut off; windows of time are counted whole.
        end = 10.0 * ((seconds - 1.0) // 10.0)
        share = sum(SETTLED <= at < end for at in accepted) / (end - SETTLED) / permitted
        whole = len(refused) / max(1, len(accepted) + len(refused))
        late = sum(at >= SETTLED for at in refused) / max(1, sum(at >= SETTLED for at in accepted))
        limits = ", ".join(f"{key} {results[name][key]:g}" for key in ("window", "pace") if key in results[name])
        rows.append([name, f"{permitted:g}", f"{100 * share:.1f}", f"{100 * whole:.2f}", f"{100 * late:.2f}", limits])
        shares.append(100 * share)
        refusals.append(100 * whole)
    header = ["endpoint", "permitted /s", "used after 30 s, %", "refused, %", "refused later, %", "found"]
    table.show("Limits found by the client", header, rows)
    figures = {"least_share_pct": min(shares), "most_refused_pct": max(refusals), "seconds": seconds}
    table.conclude("limits", figures, REACH)


if __name__ == "__main__":
    main()

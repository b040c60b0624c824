"""The CPU time of ``viva serve`` itself, per request and per streamed token, with a model that costs nothing.

Sixteen clients ask at once; the process's own CPU time is read from /proc. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
from process_time import cpu_seconds

CLIENTS, TOKENS = 16, 200
_MODEL = Path(__file__).with_name("instant_pieces.py")


async def main() -> dict[str, float]:
    """Requests without a stream, then streams of many tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100, help="of each client")
    options = parser.parse_args()
    command = [sys.executable, "-m", "viva", "serve", "--port", "0", "--model", f"python:{_MODEL}#Pieces"]
    with _running(command) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        if match is None:
            raise SystemExit("viva serve did not come up")
        body = {"model": "Pieces", "messages": [{"role": "user", "content": "word " * 200}]}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def client(count: int, tokens: int, stream: bool) -> None:
                for _ in range(count):
                    payload = body | {"max_tokens": tokens, "stream": stream}
                    async with session.post(f"{match[0]}/v1/chat/completions", json=payload) as response:
                        if response.status != 200:
                            raise SystemExit(await response.text())
                        await response.read()

            async def cost(count: int, tokens: int, stream: bool) -> float:
                await client(2, tokens, stream)
                before = cpu_seconds(process.pid)
                await asyncio.gather(*(client(count, tokens, stream) for _ in range(CLIENTS)))
                return (cpu_seconds(process.pid) - before) / (count * CLIENTS)

            request = await cost(options.requests, 1, False)
            streamed = await cost(max(1, options.requests // 5), TOKENS, True)
        process.terminate()
    return {"us_per_request": request * 1e6, "us_per_streamed_token": streamed / TOKENS * 1e6}


def _running(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))

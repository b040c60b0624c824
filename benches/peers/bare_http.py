"""The HTTP floor: the workload against a live endpoint through aiohttp alone, for ``mock_endpoint.py``.

Whatever an engine costs above this line over HTTP is its own; whatever this line costs is aiohttp, JSON and
the kernel. Its wall time against the endpoint's longest conversation shows how much of the waiting
overlaps.

What it is not: an engine. It retries nothing, limits nothing but the number of conversations, and keeps no
record.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import aiohttp
import orjson
import workload

from viva.engine.seeds import derive

_HEADERS = {"Content-Type": "application/json"}


def call_seed(seed: int, conversation: int, role: str, ordinal: int) -> int:
    """The seed a call sends: the engine's own for the same call, so that both sides meet the same latencies."""
    return derive(seed, f"candidate/{conversation}", role, ordinal)


class Client:
    """Runs conversations over one session and adds up what they brought."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._seed = seed
        self.calls = 0
        self.score = 0

    async def ask(self, number: int, role: str, ordinal: int, messages: list[workload.Message]) -> str:
        """One model call."""
        body = orjson.dumps(
            {
                "model": role,
                "messages": messages,
                "seed": call_seed(self._seed, number, role, ordinal),
                "temperature": 0,
                "max_tokens": workload.MAX_TOKENS,
            }
        )
        try:
            async with self._session.post(self._url, data=body, headers=_HEADERS) as answer:
                status, content = answer.status, await answer.read()
        except aiohttp.ClientError as error:
            raise RuntimeError(f"{self._url}: {error}") from error
        if status != 200:
            raise RuntimeError(f"{self._url} answered {status}: {content[:200]!r}")
        self.calls += 1
        return str(orjson.loads(content)["choices"][0]["message"]["content"])

    async def worker(self, numbers: Iterator[int]) -> None:
        """Take conversations until none is left."""
        for number in numbers:
            script = workload.conversation(number)
            role, ordinal, messages = next(script)
            while True:
                reply = await self.ask(number, role, ordinal, messages)
                try:
                    role, ordinal, messages = script.send(reply)
                except StopIteration as end:
                    self.score += end.value
                    break


async def run(options: argparse.Namespace) -> Client:
    """All conversations, ``--concurrency`` of them at a time."""
    # No limit in the connector: the workers are the limit, and a second one would only hide queueing.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    numbers = iter(range(options.conversations))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = Client(session, options.url, options.seed)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.concurrency, options.conversations)):
                group.create_task(client.worker(numbers))
    return client


def main() -> None:
    """Run the client and print its figures."""
    parser = argparse.ArgumentParser(description="bare aiohttp client of the benches")
    parser.add_argument("--url", required=True, help="base address of the endpoint, with or without /v1")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7, help="seed the calls' seeds are made from")
    options = parser.parse_args()

    meter = workload.Meter()
    try:
        with meter:
            client = asyncio.run(run(options))
    except* RuntimeError as failed:
        # Every worker may have failed alike: the first says it all.
        raise SystemExit(str(failed.exceptions[0])) from None
    print(meter.line("bare_http", options.conversations, client.calls, score=client.score))


if __name__ == "__main__":
    main()

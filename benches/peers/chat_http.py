"""Chat clients against an OpenAI-compatible server, or the same requests to our backend in this process.

Prints one line of JSON.

``--viva`` starts ``viva serve``, ``--server FILE`` that llama-server, ``--direct`` neither. Each client asks one
question after the other: a system prompt that all share, a question of its own, an answer of a fixed number of tokens
at most. The first question of each client comes before the clock starts. With ``--samples`` the questions are asked by
inspect_ai instead, as one task, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import stopwatch
from llama_workload import words
from process_time import cpu_seconds

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Message, Request, Sampling

SYSTEM, QUESTION = 100, 80  # tokens
Ask = Callable[[int, int], Awaitable[int]]  # client and number of its question, to the answer's tokens
_PATIENCE_SECONDS = 3600.0


def messages(client: int, number: int) -> list[dict[str, str]]:
    """A question, the same for the same client and number."""
    return [
        {"role": "system", "content": words(SYSTEM, "system")},
        {"role": "user", "content": words(QUESTION, client, number)},
    ]


@contextlib.asynccontextmanager
async def answering(options: argparse.Namespace) -> AsyncIterator[Ask]:
    """How a question is asked, while entered."""
    if options.direct:
        async with build(_model(options), RealClock()) as backend:

            async def ask(client: int, number: int) -> int:
                view = [Message(message["role"], message["content"]) for message in messages(client, number)]  # type: ignore[arg-type]
                sampling = Sampling(options.temperature, max_tokens=options.tokens)
                on_text = (lambda _: None) if options.stream else None
                request = Request(view, sampling, client * 1000 + number + 1, b"", on_text=on_text)
                return (await backend.generate(request)).completion_tokens

            yield ask
        return
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
    with started(options) as address:
        async with aiohttp.ClientSession(timeout=timeout, connector=_connector()) as session:
            await _ready(session, address)

            async def ask_over_http(client: int, number: int) -> int:
                body = {"model": "bench", "messages": messages(client, number), "max_tokens": options.tokens}
                body |= {"temperature": options.temperature, "seed": client * 1000 + number + 1}
                if options.stream:
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                async with session.post(f"{address}/v1/chat/completions", json=body) as response:
                    data = await response.read()
                if response.status != 200:
                    raise SystemExit(f"{response.status}: {data[:500]!r}")
                if options.stream:
                    data = data.strip().split(b"\n\n")[-2].removeprefix(b"data: ")
                return int(json.loads(data)["usage"]["completion_tokens"])

            yield ask_over_http


@contextlib.contextmanager
def started(options: argparse.Namespace) -> Iterator[str]:
    """The address of the server while entered."""
    process, address = _started(options)
    options.server_process = process.pid
    try:
        yield address
    finally:
        process.kill()
        process.wait()


def _connector() -> aiohttp.TCPConnector:
    # A new connection for each request: while a program waits for its turn, servers give idle ones up.
    return aiohttp.TCPConnector(limit=0, force_close=True)


def _model(options: argparse.Namespace) -> str:
    return f"llama:{options.model}?lanes={options.clients}&ctx={options.ctx}&threads={options.threads}&label=bench"


def _started(options: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    if options.viva:
        command = [sys.executable, "-m", "viva", "serve", "--port", "0", "--model", _model(options)]
        command += ["--runs", str(Path(options.model).parent / "serve-runs")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        if match is None:
            raise SystemExit("viva serve did not come up")
        return process, match[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [options.server, "-m", options.model, "--port", str(port), "-np", str(options.clients), "--no-warmup"]
    command += ["-c", str(options.clients * options.ctx), "-b", "2048", "-ub", "512", "-t", str(options.threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    return process, f"http://127.0.0.1:{port}"


async def _ready(session: aiohttp.ClientSession, address: str) -> None:
    for _ in range(600):
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{address}/v1/models") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


async def by_inspect(options: argparse.Namespace) -> dict[str, Any]:
    """The questions as a task of inspect_ai."""
    with started(options) as address, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        async with aiohttp.ClientSession() as session:
            await _ready(session, address)
        for number in range(options.samples):
            file.write(json.dumps([message["content"] for message in messages(number, 0)]) + "\n")
        file.flush()
        command = [options.inspect_python, "inspect_ai_chat.py", address, file.name, "--tokens", str(options.tokens)]
        done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, errors = await done.communicate()
    if done.returncode:
        raise SystemExit(f"inspect_ai: {errors.decode()[-1500:]}")
    line: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return line


async def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--viva", action="store_true")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--server")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--questions", type=int, default=4, help="of each client")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--samples", type=int)
    parser.set_defaults(server_process=os.getpid())
    parser.add_argument("--inspect-python")
    options = parser.parse_args()
    if options.samples:
        return await by_inspect(options)
    async with answering(options) as ask:

        async def client(number: int, first: int, last: int) -> int:
            return sum([await ask(number, index) for index in range(first, last)])

        await asyncio.gather(*(client(number, 0, 1) for number in range(options.clients)))
        began, before = time.perf_counter(), cpu_seconds(options.server_process)
        times = await asyncio.gather(*(client(number, 1, options.questions + 1) for number in range(options.clients)))
        wall, used = time.perf_counter() - began, cpu_seconds(options.server_process) - before
    return {
        "wall_s": wall,
        "tokens": sum(times),
        "tokens_per_s": sum(times) / wall,
        "requests_per_s": options.clients * options.questions / wall,
        "server_cpu_s": used,
    }


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(asyncio.run(main())))

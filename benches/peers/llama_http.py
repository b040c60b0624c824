"""The interviews against a llama.cpp server's own completion endpoint, prompts as token ids; prints one line of JSON.

``--server FILE`` starts that llama-server; ``--python FILE`` starts xllamacpp's server in that Python's process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import stopwatch
from llama_workload import GENERATED, interviews

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.native import NativeModel
from viva.engine.messages import Completion, View

XLLAMACPP = """
import sys, time, xllamacpp
model, lanes, context, threads = sys.argv[1], *map(int, sys.argv[2:5])
p = xllamacpp.CommonParams()
p.model.path = model
p.n_parallel, p.n_ctx, p.n_batch, p.n_ubatch = lanes, lanes * context, 2048, 512
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.cache_ram_mib, p.kv_unified, p.warmup, p.port = 0, False, False, 0
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


@contextlib.contextmanager
def running(options: argparse.Namespace) -> Iterator[str]:
    """The server's base address while the block lasts."""
    if options.python:
        arguments = [options.model, options.lanes, options.ctx, options.threads]
        command = [options.python, "-c", XLLAMACPP, *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                address = next((line.strip() for line in process.stdout if line.startswith("http")), "")
                if not address:
                    raise SystemExit("xllamacpp's server did not come up")
                yield address
            finally:
                process.kill()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        options.server,
        "-m",
        options.model,
        "--port",
        str(port),
        "-np",
        str(options.lanes),
        "-t",
        str(options.threads),
    ]
    command += [
        "-c",
        str(options.lanes * options.ctx),
        "-b",
        "2048",
        "-ub",
        "512",
        "--no-warmup",
        *options.server_options,
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("count", type=int)
    parser.add_argument("--server")
    parser.add_argument("--python")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--vocabulary", help="a small model of the same vocabulary, for this process")
    parser.add_argument("--threads", type=int, default=2)
    options, options.server_options = parser.parse_known_args()
    chat = ChatFormat(NativeModel(Path(options.vocabulary or options.model)))
    prompted = 0
    with running(options) as address:
        timeout = aiohttp.ClientTimeout(total=3600)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            await _ready(session, address)

            async def complete(conversation: str, role: str, view: View, tokens: int) -> Completion:
                nonlocal prompted
                prompt = [int(token) for run in chat.segments(view.messages) for token in run.tokens]
                body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": True}
                body |= {"ignore_eos": True, "return_tokens": True}
                async with session.post(f"{address}/completion", json=body) as response:
                    answer = await response.json()
                if len(answer["tokens"]) != tokens:
                    raise SystemExit(f"asked for {tokens} tokens, got {len(answer['tokens'])}")
                prompted += answer["timings"]["prompt_n"]
                return Completion(answer["content"], pieces=[(True, answer["tokens"])])

            began = time.perf_counter()
            await interviews(options.count, complete)
            wall = time.perf_counter() - began
    return {
        "wall_s": wall,
        "talks_per_s": options.count / wall,
        "generated": options.count * GENERATED,
        "prompt_tokens": prompted,
    }


async def _ready(session: aiohttp.ClientSession, address: str) -> None:
    for _ in range(600):
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{address}/health") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(asyncio.run(main())))

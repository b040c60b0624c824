"""The interviews against a server that runs llama.cpp; prints one line of JSON.

``--server FILE`` starts that llama-server; ``--python FILE`` starts xllamacpp's server in that Python's process; both
take prompts as token ids. ``--package`` starts llama-cpp-python's own server, which takes them as text and computes one
request at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import stopwatch
from llama_workload import ROUNDS, generated, interviews

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
p.kv_unified, p.warmup, p.port = False, False, 0
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
    model, threads = options.model, str(options.threads)
    if options.package:
        command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", str(port)]
        command += ["--n_ctx", str(options.ctx), "--n_threads", threads, "--n_threads_batch", threads]
        command += ["--interrupt_requests", "false"]
    else:
        command = [options.server, "-m", model, "--port", str(port), "-np", str(options.lanes), "-t", threads]
        command += ["-c", str(options.lanes * options.ctx), "-b", "2048", "-ub", "512", "--no-warmup"]
        command += options.server_options
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
    parser.add_argument("--package", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--vocabulary", help="a small model of the same vocabulary, for this process")
    parser.add_argument("--threads", type=int, default=2)
    options, options.server_options = parser.parse_known_args()
    model = NativeModel(Path(options.vocabulary or options.model))
    chat, prompted = ChatFormat(model), 0
    endless = {str(token): -100.0 for token in np.flatnonzero(model.ends)}  # logit biases
    with running(options) as address:
        timeout = aiohttp.ClientTimeout(total=3600)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            await _ready(session, f"{address}/v1/models" if options.package else f"{address}/health")

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

            async def complete_text(conversation: str, role: str, view: View, tokens: int) -> Completion:
                prompt = [int(token) for run in chat.segments(view.messages) for token in run.tokens]
                text = b"".join(model.pieces[token] or model.control_text(token).encode() for token in prompt)
                body = {"prompt": text.decode(), "max_tokens": tokens, "temperature": 0, "logit_bias": endless}
                async with session.post(f"{address}/v1/completions", json=body) as response:
                    answer = await response.json()
                usage = answer["usage"]
                if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(prompt), tokens):
                    raise SystemExit(f"asked for {tokens} tokens behind {len(prompt)}, got {usage}")
                return Completion(answer["choices"][0]["text"])

            began = time.perf_counter()
            await interviews(options.count, complete_text if options.package else complete, rounds=options.rounds)
            wall = time.perf_counter() - began
    line = {"wall_s": wall, "talks_per_s": options.count / wall, "generated": generated(options.count, options.rounds)}
    return line if options.package else line | {"prompt_tokens": prompted}


async def _ready(session: aiohttp.ClientSession, address: str) -> None:
    for _ in range(600):
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(address) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(asyncio.run(main())))

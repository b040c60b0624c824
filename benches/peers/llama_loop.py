"""``llama_cpp.Llama`` in a loop, one request after the other: ``interviews`` or 5-shot ``letters``/``options``.

It keeps the tokens that the next prompt shares with the last, as the package does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import stopwatch
from llama_workload import interviews, words

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.native import NativeModel
from viva.engine.messages import Completion, View


def letters(model: str, count: int, threads: int, *, whole: bool) -> dict[str, Any]:
    """As a user would write it: every question evaluated from its beginning, every whole option once more."""
    llama = llama_cpp.Llama(
        model, n_ctx=1024, n_threads=threads, n_threads_batch=threads, logits_all=whole, verbose=False
    )
    shots = "".join(words(80, "shot", number) + " answer" for number in range(5))
    answers = []
    began = time.perf_counter()
    for number in range(count):
        context = llama.tokenize((shots + words(80, number)).encode(), add_bos=True)
        if whole:
            scores = []
            for option in range(4):
                tokens = llama.tokenize(words(8, number, option).encode(), add_bos=False)
                llama.reset()
                llama.eval(context + tokens)
                rows = np.array(llama.scores[len(context) - 1 : len(context) + len(tokens) - 1], dtype=np.float64)
                norm = np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1)) + rows.max(1)
                scores.append(float((rows[np.arange(len(tokens)), tokens] - norm).sum()))
        else:
            llama.reset()
            llama.eval(context)
            pointer = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
            row = np.ctypeslib.as_array(pointer, shape=(llama.n_vocab(),))
            scores = [float(row[llama.tokenize(text, add_bos=False)[0]]) for text in (b" the", b" of", b" and", b" to")]
        answers.append(int(np.argmax(scores)))
    wall = time.perf_counter() - began
    return {"wall_s": wall, "questions_per_s": count / wall, "answers": answers}


async def run_interviews(model: str, count: int, threads: int) -> dict[str, Any]:
    """The interviews, one call at a time."""
    llama = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
    chat = ChatFormat(NativeModel(Path(model)))
    alone = asyncio.Lock()

    async def complete(conversation: str, role: str, view: View, tokens: int) -> Completion:
        prompt = [int(token) for run in chat.segments(view.messages) for token in run.tokens]
        async with alone:
            reply: list[int] = []
            for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
                reply.append(token)
                if len(reply) == tokens:
                    break
        return Completion("", pieces=[(True, reply)])

    began = time.perf_counter()
    await interviews(count, complete)
    wall = time.perf_counter() - began
    return {"wall_s": wall, "talks_per_s": count / wall}


def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["interviews", "letters", "options"])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("count", type=int)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.what == "interviews":
        return asyncio.run(run_interviews(options.model, options.count, options.threads))
    return letters(options.model, options.count, options.threads, whole=options.what == "options")


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(main()))

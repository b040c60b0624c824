"""``llama_cpp.Llama`` in a loop over 5-shot questions, ``letters`` or whole ``options``; prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import llama_cpp
import numpy as np
import stopwatch
from llama_workload import words


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


def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["letters", "options"])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("count", type=int)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    return letters(options.model, options.count, options.threads, whole=options.what == "options")


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(main()))

"""Our llama backend at work: ``decode``, ``interviews``, ``verdicts`` or ``letters``; prints one line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import resource
import tempfile
import time
from typing import Any

import stopwatch
from llama_workload import GENERATED, ROUNDS, SYSTEM, Fewest, interviews, words

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Request, Sampling, View
from viva.scenarios.kieval.verdicts import verdict_schema


async def decode(backend: LlamaBackend, lanes: int, tokens: int) -> dict[str, Any]:
    """Plain decode: all lanes at once behind short prompts; these, what the first request of a process costs, and
    keeping KV at the end are not counted.
    """
    backend.engine.model.ends[:] = False

    async def generate(number: int, tokens: int) -> None:
        view = View()
        view.append("user", words(60, number))
        await backend.generate(Request(view.messages, Sampling(max_tokens=tokens), number + 1, b"", f"talk-{number}"))

    contexts = len(backend.engine.workers)

    def elsewhere() -> float:
        statistics = backend.statistics()
        return (statistics["prompt_s"] + statistics["copy_s"]) / contexts

    for number in range(contexts):
        await generate(lanes + number, 1)
    began, before = time.perf_counter(), elsewhere()
    async with asyncio.TaskGroup() as group:
        for number in range(lanes):
            group.create_task(generate(number, tokens))
    wall = time.perf_counter() - began - (elsewhere() - before)
    return {"tokens_per_s": lanes * (tokens - 1) / wall, "wall_s": wall, "told": backend.statistics()}


async def run_interviews(backend: LlamaBackend, count: int) -> dict[str, Any]:
    """The interviews. What they were is put aside in a file, so that memory is the backend's; it is counted behind."""
    with tempfile.TemporaryFile() as aside:
        backend.engine.model.ends[:] = False
        chat = backend.engine.chat
        numbers: dict[str, int] = {}
        calls = count * ROUNDS * len(SYSTEM)
        done = most_kept = half_way = 0

        async def complete(conversation: str, role: str, view: View, tokens: int) -> Completion:
            nonlocal done, most_kept, half_way
            number = numbers[conversation + role] = numbers.get(conversation + role, 0) + 1
            request = Request(view.messages, Sampling(max_tokens=tokens), number, b"", conversation, role)
            completion = await backend.generate(request)
            prompt = [int(token) for run in chat.segments(view.messages) for token in run.tokens]
            pickle.dump((prompt, [token for _, ids in completion.pieces or [] for token in ids]), aside)
            most_kept = max(most_kept, backend.statistics()["bytes"])
            done += 1
            if done == calls // 2:
                half_way = _peak()
            return completion

        began = time.perf_counter()
        await interviews(count, complete, backend.ended)
        wall = time.perf_counter() - began
        statistics, peak, fewest = backend.statistics(), _peak(), Fewest()
        aside.seek(0)
        for _ in range(calls):
            prompt, replies = pickle.load(aside)
            fewest.prompt(prompt)
            fewest.reply(prompt, replies)
        return {
            "wall_s": wall,
            "talks_per_s": count / wall,
            "generated": count * GENERATED,
            "prompt_tokens": statistics["prompted"] + statistics["replayed"],
            "fewest_prompt_tokens": fewest.tokens,
            "prompt_depth": fewest.prompt_depth,
            "reply_depth": fewest.reply_depth,
            "overhead": statistics["rest_s"] / wall / statistics["contexts"],
            "told": statistics,
            "kept_mb": most_kept / 1e6,
            "half_way_rss_mb": half_way / 1024,
            "peak_rss_mb": peak / 1024,
        }


async def verdicts(backend: LlamaBackend, count: int) -> dict[str, Any]:
    """Evaluator turns with the verdict's schema."""
    sizes: list[int] = []

    async def judge(number: int) -> None:
        view = View()
        view.append("system", words(600, "evaluator"))
        view.append("user", words(160, number))
        sampling = Sampling(max_tokens=600, schema=verdict_schema(600))
        completion = await backend.generate(Request(view.messages, sampling, number + 1, b"", f"talk-{number}"))
        json.loads(completion.text)
        sizes.append(completion.completion_tokens)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(judge(number))
    wall = time.perf_counter() - began
    statistics = backend.statistics()
    return {
        "wall_s": wall,
        "turns_per_s": count / wall,
        "tokens": sum(sizes),
        "decoded": statistics["decoded"] + statistics["replayed"],
        "told": statistics,
    }


async def letters(backend: LlamaBackend, count: int, *, whole: bool) -> dict[str, Any]:
    """5-shot questions: how likely is each of four letters, or of four whole options of eight tokens?"""
    shots = "".join(words(80, "shot", number) + " answer" for number in range(5))
    answers = [0] * count

    async def read_letters(number: int) -> None:
        options = [words(8, number, option) for option in range(4)] if whole else [" the", " of", " and", " to"]
        reading = Reading(words(80, number), tuple(options), shots)
        likelihoods = (await backend.read(reading)).likelihoods or []
        answers[number] = max(range(4), key=lambda option: likelihoods[option].total)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(read_letters(number))
    wall = time.perf_counter() - began
    return {"wall_s": wall, "questions_per_s": count / wall, "answers": answers}


def _peak() -> int:
    """The most memory that this process has had so far, kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["decode", "interviews", "verdicts", "letters", "options"])
    parser.add_argument("model", help="a model's name, llama:FILE?options")
    parser.add_argument("count", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    async with build(options.model, RealClock()) as backend:
        assert isinstance(backend, LlamaBackend)
        match options.what:
            case "decode":
                line = await decode(backend, options.count, options.tokens)
            case "interviews":
                line = await run_interviews(backend, options.count)
            case "verdicts":
                line = await verdicts(backend, options.count)
            case what:
                line = await letters(backend, options.count, whole=what == "options")
    return line


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(asyncio.run(main())))

"""Our llama backend at work: ``decode``, ``interviews``, ``verdicts``, ``letters`` or others; one line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import stopwatch
from llama_workload import ROUNDS, SYSTEM, Fewest, generated, interviews, words

from viva.engine.backends.llama import lanes as inference
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
    whole = time.perf_counter() - began
    wall = whole - (elsewhere() - before)
    return {
        "tokens_per_s": lanes * (tokens - 1) / wall,
        "wall_s": wall,
        "whole_s": whole,
        "told": backend.statistics(),
    }


async def run_interviews(backend: LlamaBackend, count: int, rounds: int) -> dict[str, Any]:
    """The interviews. What they were is put aside in a file, so that memory is the backend's; it is counted behind."""
    with tempfile.TemporaryFile() as aside:
        backend.engine.model.ends[:] = False
        chat = backend.engine.chat
        numbers: dict[str, int] = {}
        calls = count * rounds * len(SYSTEM)
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
        await interviews(count, complete, backend.ended, rounds)
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
            "generated": generated(count, rounds),
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
        sampling = Sampling(max_tokens=600, schema=verdict_schema(600))
        request = Request(_exchange(number).messages, sampling, number + 1, b"", f"talk-{number}")
        completion = await backend.generate(request)
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


async def short_answers(backend: LlamaBackend, count: int) -> dict[str, Any]:
    """Short verdicts by the schema, then free texts of as many tokens each after the same prompts: their CPU time.

    Comments have the least room that the schema gives them, so that the greater part of a verdict is forced. What the
    first request of a process costs, and the system prompt, are not counted.
    """

    async def answer(number: int, sampling: Sampling) -> Completion:
        view = View()
        view.append("system", words(100, "evaluator"))
        view.append("user", words(80, number))
        return await backend.generate(Request(view.messages, sampling, number + 1, b"", f"talk-{number}"))

    async def measure(samplings: list[Sampling]) -> tuple[list[Completion], dict[str, Any]]:
        cpu, before = time.process_time(), backend.statistics()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(number, sampling)) for number, sampling in enumerate(samplings)]
        cpu, decoded = time.process_time() - cpu, backend.statistics()["decoded"] - before["decoded"]
        completions = [task.result() for task in tasks]
        size = sum(completion.completion_tokens for completion in completions)
        return completions, {"cpu_s": cpu, "tokens": size, "decoded": decoded, "ms_per_token": 1000 * cpu / size}

    sampling = Sampling(max_tokens=600, schema=verdict_schema(0))
    await answer(count, replace(sampling, max_tokens=8))
    completions, verdicts = await measure([sampling] * count)
    for completion in completions:
        json.loads(completion.text)
    backend.engine.model.ends[:] = False
    _, free = await measure([Sampling(max_tokens=completion.completion_tokens) for completion in completions])
    return {"verdicts": verdicts, "free": free}


async def free(backend: LlamaBackend, count: int, tokens: int) -> dict[str, Any]:
    """The evaluator turns of ``verdicts`` without a schema, so many tokens each."""
    backend.engine.model.ends[:] = False

    async def answer(number: int) -> None:
        messages = _exchange(number).messages
        await backend.generate(Request(messages, Sampling(max_tokens=tokens), number + 1, b"", f"talk-{number}"))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(answer(number))
    wall = time.perf_counter() - began
    return {"wall_s": wall, "turns_per_s": count / wall, "told": backend.statistics()}


async def tier(backend: LlamaBackend, count: int) -> dict[str, Any]:
    """Eight answers alone, alone once more, and among ``count``: how many are the same, by their bytes.

    Two answers are the same if their tokens and the log-probabilities of these are. The model's name should say
    ``kv_cache=0``, so that all is computed anew.
    """
    backend.engine.model.ends[:] = False
    numbers = range(8)
    sampling = Sampling(max_tokens=48, logprobs=1)

    async def answer(number: int, trial: str) -> list[tuple[int, float]]:
        view = View()
        view.append("user", words(40 + 9 * number, number))
        request = Request(view.messages, sampling, number + 1, b"", f"{trial}-{number}")
        completion = await backend.generate(request)
        tokens = [token for _, run in completion.pieces or [] for token in run]
        return [(token, row[1]) for token, row in zip(tokens, completion.logprobs or [], strict=True)]

    alone = [await answer(number, "alone") for number in numbers]
    repeated = [await answer(number, "again") for number in numbers]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(number, "among")) for number in range(count)]
    among = [task.result() for task in tasks[: len(alone)]]
    gaps = [
        abs(first - second)
        for one_alone, one_among in zip(alone, among, strict=True)
        for (token, first), (other, second) in zip(one_alone, one_among, strict=True)
        if token == other
    ]
    return {
        "answers": len(alone),
        "again": sum(first == second for first, second in zip(alone, repeated, strict=True)),
        "among": sum(first == second for first, second in zip(alone, among, strict=True)),
        "tokens_among": sum(
            [token for token, _ in first] == [token for token, _ in second]
            for first, second in zip(alone, among, strict=True)
        ),
        "largest_gap": max(gaps, default=0.0),
        "told": backend.statistics(),
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
    return {"wall_s": wall, "questions_per_s": count / wall, "answers": answers, "told": backend.statistics()}


def _exchange(number: int) -> View:
    """What an evaluator is sent."""
    view = View()
    view.append("system", words(600, "evaluator"))
    view.append("user", words(160, number))
    return view


def time_sampling() -> Callable[[], float]:
    """Measure from now on the seconds in which tokens are sampled; return the function that tells them."""
    seconds, sample = 0.0, inference.sample_tokens

    def sample_tokens(*arguments: Any) -> Any:
        nonlocal seconds
        began = time.perf_counter()
        try:
            return sample(*arguments)
        finally:
            seconds += time.perf_counter() - began

    inference.sample_tokens = sample_tokens
    return lambda: seconds


def _peak() -> int:
    """The most memory that this process has had so far, kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main() -> dict[str, Any]:
    """One measurement."""
    parser = argparse.ArgumentParser()
    workloads = [
        "decode",
        "interviews",
        "verdicts",
        "short-answers",
        "free",
        "tier",
        "letters",
        "options",
    ]
    parser.add_argument("what", choices=workloads)
    parser.add_argument("model", help="a model's name, llama:FILE?options")
    parser.add_argument("count", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    sampling_seconds = time_sampling()
    async with build(options.model, RealClock()) as backend:
        assert isinstance(backend, LlamaBackend)
        match options.what:
            case "decode":
                line = await decode(backend, options.count, options.tokens)
            case "interviews":
                line = await run_interviews(backend, options.count, options.rounds)
            case "verdicts":
                line = await verdicts(backend, options.count)
            case "short-answers":
                line = await short_answers(backend, options.count)
            case "free":
                line = await free(backend, options.count, options.tokens)
            case "tier":
                line = await tier(backend, options.count)
            case what:
                line = await letters(backend, options.count, whole=what == "options")
        placement = backend.engine.model.placement
        return line | {
            "config": backend.engine.config.describe(backend.engine.model),
            "flash_attention": backend.engine.config.flash_attention,
            "layers_on_device": placement.layers / max(1, placement.total),
            "sampling_s": sampling_seconds(),
        }


if __name__ == "__main__":
    stopwatch.use()
    print(json.dumps(asyncio.run(main())))

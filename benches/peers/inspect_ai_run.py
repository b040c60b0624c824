"""The workload through inspect_ai, the widely used peer: run it with a Python that has inspect_ai.

A task of N samples, a solver that makes the 16 calls with three model roles, a scorer, and logs with every
sample in a temporary folder. ``--mode defaults`` is ``eval()`` as most would call it, without a display;
``--mode tuned`` turns on all concurrency and turns off whatever is not needed to log the samples. One
sample is run before the clock starts, so what inspect_ai imports on first use is not counted as work.

What it is not: a test of inspect_ai's providers. The model is its own ``mockllm``, which answers after one
turn of the loop, reports usage itself (else inspect_ai would count tokens), and makes each output anew, as
providers do.
"""

# The type checker's Python need not have inspect_ai: what it cannot find, it takes as untyped.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import workload

try:
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.log import EvalLog
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageSystem,
        ChatMessageUser,
        Model,
        ModelOutput,
        ModelUsage,
        get_model,
    )
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
    from inspect_ai.solver import Generate, Solver, TaskState, solver
except ImportError as missing:
    print(
        f"inspect_ai is missing ({missing}): python -m venv V && V/bin/pip install inspect_ai",
        file=sys.stderr,
    )
    raise SystemExit(3) from None

calls: Counter[str] = Counter()


def role_model(role: str) -> Model:
    """A mock model that always answers with the role's text."""
    text = workload.REPLIES[role]
    tokens = len(text) // 4

    async def answer(_input: list[ChatMessage], *_rest: Any) -> ModelOutput:
        await asyncio.sleep(0)
        calls[role] += 1
        output = ModelOutput.from_content("mockllm/model", text)
        output.usage = ModelUsage(input_tokens=1_000, output_tokens=tokens, total_tokens=1_000 + tokens)
        return output

    outputs: Callable[..., Awaitable[ModelOutput]] = answer
    return get_model("mockllm/model", custom_outputs=outputs)


@solver
def interview() -> Solver:
    """The solver: one conversation per sample, each role with its own history."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        models = {role: get_model(role=role) for role in (workload.INTERACTOR, workload.EVALUATOR)}
        examined = get_model()
        question = state.input_text
        interactor: list[ChatMessage] = [ChatMessageSystem(content=workload.INTERACTOR_SYSTEM + "\n\n" + question)]
        candidate: list[ChatMessage] = [
            ChatMessageSystem(content=workload.CANDIDATE_SYSTEM),
            ChatMessageUser(content=question),
        ]
        evaluator: list[ChatMessage] = [ChatMessageSystem(content=workload.EVALUATOR_SYSTEM)]

        async def ask(model: Model, history: list[ChatMessage]) -> str:
            output = await model.generate(history)
            history.append(output.message)
            return str(output.completion)

        total = 0
        answer = await ask(examined, candidate)
        for _ in range(workload.ROUNDS):
            interactor.append(ChatMessageUser(content=answer))
            question = await ask(models[workload.INTERACTOR], interactor)
            candidate.append(ChatMessageUser(content=question))
            answer = await ask(examined, candidate)
            evaluator.append(ChatMessageUser(content=workload.exchange(question, answer)))
            total += workload.overall_score(await ask(models[workload.EVALUATOR], evaluator))
        state.messages = candidate
        state.metadata["score"] = total / workload.ROUNDS
        return state

    return solve


@scorer(metrics=[mean()])
def mean_overall() -> Scorer:
    """The scorer: the mean of the verdicts' overall scores."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=state.metadata["score"])

    return score


def settings(mode: str, concurrency: int) -> dict[str, Any]:
    """What ``eval()`` is told beyond its task and models."""
    if mode == "defaults":
        return {}
    return {
        "max_samples": concurrency,
        "max_connections": concurrency,
        "log_samples": True,
        "log_realtime": False,
        "log_model_api": False,
        "log_images": False,
        "log_header_only": True,
        "score_display": False,
        "ctl_server": False,
    }


def evaluate(conversations: int, options: argparse.Namespace, folder: str) -> EvalLog:
    """One ``eval()`` of the workload; ends the program where it fails."""
    samples = [Sample(id=number, input=workload.item(number)) for number in range(conversations)]
    task = inspect_ai.Task(dataset=MemoryDataset(samples), solver=interview(), scorer=mean_overall(), name="interview")
    models = {role: role_model(role) for role in workload.REPLIES}
    (log,) = inspect_ai.eval(
        task,
        model=models.pop(workload.CANDIDATE),
        model_roles=models,
        display="none",
        log_dir=os.path.join(folder, "logs"),
        **settings(options.mode, min(options.concurrency, conversations)),
    )
    if log.status != "success":
        raise SystemExit(f"inspect_ai ended with {log.status}: {log.error}")
    return log


def main() -> None:
    """Run inspect_ai and print its figures."""
    parser = argparse.ArgumentParser(description="inspect_ai on the benches' workload")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=1_000, help="samples at a time; tuned mode only")
    parser.add_argument("--mode", choices=("defaults", "tuned"), default="tuned")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="inspect-ai-bench-") as folder:
        # It also keeps traces and sample buffers in the user's folders: not what a bench should leave behind.
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = folder
        evaluate(1, options, folder)
        calls.clear()
        meter = workload.Meter()
        with meter:
            log = evaluate(options.conversations, options, folder)
        log_bytes = os.path.getsize(log.location)

    print(
        meter.line(
            f"inspect_ai {options.mode}",
            options.conversations,
            calls.total(),
            version=inspect_ai.__version__,
            mean_score=log.results.scores[0].metrics["mean"].value if log.results else None,
            log_bytes=log_bytes,
        )
    )


if __name__ == "__main__":
    main()

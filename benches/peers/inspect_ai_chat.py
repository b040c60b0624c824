"""A small task of inspect_ai against a server with OpenAI's interface; run it with a Python that has inspect_ai.

Prints one line of JSON: seconds, answers, tokens.
"""

# The type checker's Python need not have inspect_ai: what it cannot find, it takes as untyped.
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

import stopwatch

os.environ["INSPECT_DISPLAY"] = "none"


def main() -> None:
    """One evaluation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("samples", help="a file with one JSON list of system prompt and question a line")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    with open(options.samples) as file:
        texts = [json.loads(line) for line in file]
    samples = [
        Sample(input=[ChatMessageSystem(content=system), ChatMessageUser(content=question)], target="the")
        for system, question in texts
    ]
    config = GenerateConfig(
        max_connections=options.connections, temperature=0.0, seed=7, max_tokens=options.tokens, max_retries=1
    )
    model = get_model(
        "openai-api/bench/bench", config=config, base_url=f"{options.address}/v1", api_key="none", memoize=False
    )
    task = inspect_ai.Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes())
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        [log] = inspect_ai.eval(task, model=model, log_dir=folder, display="none", max_samples=options.connections)
        wall = time.perf_counter() - began
        if log.status != "success":
            raise SystemExit(f"inspect_ai: {log.status}: {log.error}")
        answers = len(log.samples)  # read from the log, which goes with the folder
    tokens = sum(usage.output_tokens for usage in log.stats.model_usage.values())
    print(json.dumps({"wall_s": wall, "tokens": tokens, "tokens_per_s": tokens / wall, "answers": answers}))


if __name__ == "__main__":
    stopwatch.use()
    main()

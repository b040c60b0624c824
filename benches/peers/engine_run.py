"""Our side of the comparison: the real KIEval scenario, runner and journal over a model that answers at once.

Everything a user's run has is on: dataset file, prompt pack, seeds, journal on disk, events, scoring. Only the model
is missing: ``canned`` yields to the event loop once and answers with the workload's texts.

What it is not: a test of any backend; over HTTP (``--url``) it is the real client against the mock endpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import orjson
import workload
from gathering import Gathering

from viva.engine.backends import registry
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.event_loop import gc_tuned
from viva.engine.events import ConversationFinished, Event
from viva.engine.messages import Completion, Request
from viva.orchestration.launch import Launch, empty_results, new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings


class Canned(Backend):
    """Answers at once. Where there is a ``gathering``, conversations wait at their last call."""

    gathering: Gathering | None = None

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(0)
        if self.gathering is not None and request.role == "evaluator" and request.ordinal == workload.ROUNDS - 1:
            await self.gathering.wait()
        return Completion(workload.REPLIES[request.role], "stop", 1000, 100)


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The factory the registry asks for."""
    return Canned()


def make_dataset(path: Path, count: int) -> None:
    """``count`` items of 400 characters."""
    with path.open("wb") as file:
        for number in range(count):
            text = workload.item(number)
            item = {"id": str(number), "question": text[:300], "choices": ["one", "two", "three", text[300:360]]}
            file.write(orjson.dumps({**item, "answer": "A"}) + b"\n")


async def measure_memory(launch: Launch, hold: int) -> float:
    """Kilobytes of resident memory per conversation, all of them waiting for their last verdict."""
    Canned.gathering = Gathering(hold)
    return await Canned.gathering.weigh(launch.run)


def main() -> None:
    """Run and print one JSON line."""
    parser = argparse.ArgumentParser(description="the engine's side of the benches")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--memory", action="store_true", help="hold all conversations at their last call, weigh them")
    parser.add_argument("--url", help="base address of the mock endpoint (with /v1); else the canned model answers")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()

    module = types.ModuleType("canned")
    module.build = build  # type: ignore[attr-defined]
    sys.modules["canned"] = module
    registry.KINDS["canned"] = "canned"
    models = {role: f"canned:{role}" for role in workload.REPLIES}
    if options.url:
        models = {role: f"openai:{options.url}#{role}" for role in workload.REPLIES}

    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "items.jsonl"
        make_dataset(dataset, options.conversations)
        settings = KievalSettings(
            dataset=str(dataset),
            candidate=[models["candidate"]],
            interactor=models["interactor"],
            evaluator=models["evaluator"],
            concurrency=options.concurrency,
            seed=options.seed,
        )
        launch = new_run("kieval", settings, Path(folder) / "run")
        aggregate = empty_results(launch.folder)
        first: list[float] = []

        def hear(event: Event) -> None:
            if isinstance(event, ConversationFinished):
                first.append(time.perf_counter()) if not first else None
                aggregate.add(event.conversation, event.result)

        launch.events.listen(hear)
        meter = workload.Meter()
        fields: dict[str, Any] = {}
        with meter, gc_tuned():
            if options.memory:
                fields["kb_per_conversation"] = asyncio.run(measure_memory(launch, options.conversations))
            else:
                outcome = launch.clock.run(launch.run)
                fields["lag"] = outcome.loop_lag
        report = aggregate.report()["candidates"]["candidate"]
        assert report["scored"] == options.conversations, report
        fields["journal_mb"] = round(launch.folder.journal.stat().st_size / 1e6, 1)
        fields["commits"] = launch.journal_statistics["commits"]
        fields["score"] = report["score"]["mean"]
        calls = sum(usage["calls"] for usage in report["usage"].values())
        print(meter.line("viva", options.conversations, calls, **json.loads(json.dumps(fields))))


if __name__ == "__main__":
    main()

"""Tool-use dialogs on the real engine over models that answer at once: whole talks with a played user, or single turns.

Everything a user's run has is on: data, prompt pack, seeds, journal on disk, events, grading. Only the models' thinking
is missing: ``canned`` hands out what the simulated models said to the same turn before, after one turn of the loop, or
so many seconds.

What it is not: a comparison (``dialogs.py``), or a test of any backend.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import workload
from gathering import Gathering

from viva.engine.backends import registry, simulated
from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.clock import Clock
from viva.engine.event_loop import gc_tuned
from viva.engine.events import ConversationFinished, Event
from viva.engine.messages import Completion, Request
from viva.orchestration.launch import Launch, new_run
from viva.scenarios.functionchat.functionchat_settings import FunctionChatSettings

_VOICES = 4  # so many different answers to each turn


class Canned(Backend):
    """Says what a simulated model said to this turn of this talk the first time, in one of a few voices.

    Where there is a ``gathering``, conversations wait at the candidate's call number ``ordinal``, which they all make.
    """

    gathering: Gathering | None = None
    ordinal = 0

    seconds = 0.0

    def __init__(self, inner: Backend, clock: Clock) -> None:
        self._inner, self._clock = inner, clock
        self._completions: dict[tuple[str, str, int, int], Completion] = {}

    async def generate(self, request: Request) -> Completion:
        await (self._clock.sleep(self.seconds) if self.seconds else asyncio.sleep(0))
        item = request.conversation.partition("#")[0]
        key = (item, request.role, request.ordinal, request.seed % _VOICES)
        completion = self._completions.get(key)
        if completion is None:
            completion = self._completions[key] = await self._inner.generate(request)
        if self.gathering is not None and request.role == "candidate" and request.ordinal == self.ordinal:
            await self.gathering.wait()
        calls = None if completion.calls is None else list(completion.calls)
        return Completion(
            completion.text, completion.finish, completion.prompt_tokens, completion.completion_tokens, calls=calls
        )


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The factory the registry asks for."""
    return Canned(simulated.build(spec, clock), clock)


async def weigh(launch: Launch, count: int) -> float:
    """Kilobytes of resident memory per conversation, all of them waiting for an answer."""
    Canned.gathering = Gathering(count)
    return await Canned.gathering.weigh(launch.run)


def main() -> None:
    """Run and print one JSON line."""
    parser = argparse.ArgumentParser(description="tool-use dialogs over canned models")
    parser.add_argument("mode", choices=["user", "turns"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that every answer takes")
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--memory", action="store_true", help="hold all conversations at a call, weigh them")
    options = parser.parse_args()

    module = types.ModuleType("canned")
    module.build = build  # type: ignore[attr-defined]
    sys.modules["canned"] = module
    registry.KINDS["canned"] = "canned"
    Canned.seconds = options.latency
    Canned.ordinal = 1 if options.mode == "user" else 0
    others = {"judge": "canned:judge"} if options.mode == "turns" else {"interactor": "canned:user"}
    with tempfile.TemporaryDirectory() as folder:
        settings = FunctionChatSettings(
            mode=options.mode,
            data=options.data,
            candidate=[f"canned:candidate-{number}?knowledge=0.7" for number in range(options.candidates)],
            repeats=options.repeats,
            concurrency=options.concurrency,
            exchanges=4,
            **others,
        )
        launch = new_run("functionchat", settings, Path(folder) / "run")
        count = launch.prepared.total
        calls = 0

        def hear(event: Event) -> None:
            nonlocal calls
            if isinstance(event, ConversationFinished):
                calls += sum(usage[0] for usage in event.result["usage"].values())

        launch.events.listen(hear)
        meter = workload.Meter()
        fields: dict[str, Any] = {}
        with meter, gc_tuned():
            if options.memory:
                fields["kb_per_conversation"] = asyncio.run(weigh(launch, count))
            else:
                outcome = launch.clock.run(launch.run)
                assert outcome.finished == count, outcome
                fields["lag"] = outcome.loop_lag
        fields["most_in_flight"] = launch.runner.most_in_flight
        fields["journal_mb"] = round(launch.folder.journal.stat().st_size / 1e6, 1)
        print(meter.line(f"viva, {options.mode}", count, calls, **json.loads(json.dumps(fields))))


if __name__ == "__main__":
    main()

"""The requests that a system's judge would be sent for a file of tasks: its coroutine is held without any model.

What it asks is collected; each question gets an answer of the wanted form, made up, so that the coroutine goes on. A
request in which a made-up answer stands is left out: no judge would ever be sent it. What never belongs here: the files
and prompts of one system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.budget import Budget, Meter
from viva.engine.clock import RealClock
from viva.engine.computation import Computer
from viva.engine.conversation import Conversation
from viva.engine.detectors import Detector
from viva.engine.errors import ConfigurationError
from viva.engine.journal import Journal
from viva.engine.messages import Completion, Request, Sampling, View, request_digest
from viva.engine.services import Services
from viva.engine.stream import EventStream
from viva.engine.tools import Toolbox
from viva.engine.turnstile import Turnstile
from viva.scenarios.contract import Converse, many_role
from viva.scenarios.registry import AnyScenario

from ..arguments import settings_of
from .judging import reader_for
from .orders import with_orders
from .records import LoadRequest
from .work_runs import Found, judging_role

_JUDGE = "simulated:judge"


def task_requests(which: AnyScenario, file: Path, settings: Mapping[str, Any], role: str | None = None) -> Found:
    """What the judge of a system is asked about the tasks of a file. ``settings`` are those of the system.

    :raises ConfigurationError: the settings are wrong, or the judge is shown what other models say, so that nothing is
        known of its requests without a run.
    :raises DatasetError: a record is wrong; the message names file, line and field.
    """
    judge = judging_role(which.roles, role, which.name)
    if len(which.roles) > 1:
        raise ConfigurationError(
            f"{which.name}: its {judge.name} is asked about what other models say; give the folder of a run of it"
        )
    name = many_role(which.roles).name
    options = {name: [_JUDGE], **settings, which.data: str(file)}
    chosen = settings_of(which, options)
    prepared = which.prepare(chosen)
    converse = which.protocol(chosen, which.open_pack(chosen), prepared.records)
    return asyncio.run(_asked(which, converse, prepared.tasks)), list(prepared.notes)


async def _asked(which: AnyScenario, converse: Converse[Any], tasks: Iterable[Any]) -> list[LoadRequest]:
    found: list[LoadRequest] = []
    clock = RealClock()
    made_up = SimulatedBackend(clock, latency=0.0)
    for task in tasks:
        meter = Meter(Budget(), "run", clock.now())
        # Nothing is recorded: a conversation that asks no journal has none.
        services = Services(0, clock, cast(Journal, None), EventStream(), meter, Turnstile(), Budget(), Computer(clock))
        conversation = _Asking(services, task.id, made_up)
        await converse(conversation, task)
        for request in with_orders(conversation.asked):
            known = which.known_verdict(task, request.messages)
            found.append(request if known is None else replace(request, reference=known))
    return found


class _Asking(Conversation):
    """A conversation whose requests are collected; each is answered with something of the wanted form."""

    __slots__ = ("_made_up", "_said", "asked")

    def __init__(self, services: Services, key: str, made_up: SimulatedBackend) -> None:
        super().__init__(services, 0, key, {})
        self._made_up, self._said = made_up, set[str]()
        self.asked: list[LoadRequest] = []

    async def generate(
        self,
        role: str,
        view: View,
        sampling: Sampling,
        *,
        tools: Toolbox | None = None,
        hint: Any = None,
        watch: Sequence[Callable[[], Detector]] = (),
    ) -> Completion:
        stored, ordinal = self._next(role)
        if not any(message.role == "assistant" and message.content in self._said for message in view.messages):
            request = LoadRequest(
                f"{self.key}:{stored}{ordinal}",
                view.messages,
                sampling,
                reader=reader_for(sampling),
                tools=tools,
                hint=hint,
                item=self.key,
                role=role,
            )
            self.asked.append(request)
        seed = self._seeds.seed(stored, ordinal)
        digest = request_digest(view, sampling, seed, tools)
        completion = await self._made_up.generate(Request(view.messages, sampling, seed, digest, self.key, role))
        self._said.add(completion.text)
        return completion

"""Requests of a judge, rebuilt by running a scenario's coroutine: from recorded runs, or from a file of tasks.

A recorded conversation is replayed against its record, so prefixes are shared as in the recording. For tasks, the
coroutine runs on made-up answers; a request that contains such an answer is omitted. Two requests that show the same
two answers in both orders are paired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from viva.agents.judge import PREFERENCE_SIGNS
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.budget import Budget, Meter
from viva.engine.clock import RealClock
from viva.engine.computation import StepExecutor
from viva.engine.conversation import Conversation, RunServices
from viva.engine.conversation_replay import Exchange
from viva.engine.detectors import Detector
from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.event_loop import LoopYield
from viva.engine.journal import Journal, role_in_branch
from viva.engine.journal_reader import History
from viva.engine.messages import Completion, Message, Request, Sampling, View, request_digest
from viva.engine.run_folder import RunFolder
from viva.engine.stream import EventStream
from viva.engine.tools import Toolbox
from viva.orchestration.launch import recorded_settings
from viva.orchestration.python_api import settings_of
from viva.orchestration.transcripts import Transcripts
from viva.scenarios.contract import Converse, Role, SupportsKnownVerdicts, compared_role, judge_role
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scenarios.registry import AnyScenario
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep_folder import is_sweep

from .load_records import LoadRequest
from .verdict_readers import choose_reader


def pair_orders(requests: Sequence[LoadRequest]) -> list[LoadRequest]:
    """Return the requests of one conversation; those that show the same answers in both orders are paired.

    Requests with a verdict of A or B form a pair if they consist of the same lines in another order, because exchanging
    the answers in a prompt has this effect.
    """
    waiting: dict[tuple[str, ...], int] = {}
    paired = list(requests)
    for index, request in enumerate(requests):
        if not _is_pairwise(request):
            continue
        lines = tuple(sorted(_sent_lines(request)))
        partner = waiting.pop(lines, None)
        if partner is None or _sent_lines(paired[partner]) == _sent_lines(request):
            waiting[lines] = index
            continue
        paired[partner] = replace(paired[partner], pair=request.id)
        paired[index] = replace(request, pair=paired[partner].id)
    return paired


def _sent_lines(request: LoadRequest) -> list[str]:
    return [f"{message.role}: {line}" for message in request.messages for line in message.content.splitlines()]


def _is_pairwise(request: LoadRequest) -> bool:
    return request.reader == "pair" or any(
        {"A", "B"} <= set(values) <= set(PREFERENCE_SIGNS) for values in _text_enums(request.sampling.schema)
    )


def _text_enums(schema: Any) -> Iterator[list[Any]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("enum"), list):
            yield [value for value in schema["enum"] if isinstance(value, str)]
        for inner in schema.get("properties", {}).values():
            yield from _text_enums(inner)


RequestsAndNotes = tuple[list[LoadRequest], list[str]]


def recorded_requests(folder: Path, role: str | None = None) -> RequestsAndNotes:
    """Return the requests of all conversations of a run or a sweep, with notes for the user.

    Raises:
        ConfigurationError: The folder is neither run nor sweep, there is no such role, or none of its requests can be
            rebuilt.
    """
    if not is_sweep(folder):
        return asyncio.run(_requests_of_run(RunFolder.open(folder), "", role))
    requests: list[LoadRequest] = []
    notes: dict[str, None] = {}
    for cell in recorded_cells(folder):
        if cell.folder is not None:
            cell_requests, cell_notes = asyncio.run(_requests_of_run(cell.folder, f"{cell.name}/", role))
            requests += cell_requests
            notes |= dict.fromkeys(cell_notes)
    return requests, list(notes)


async def _requests_of_run(folder: RunFolder, prefix: str, role_name: str | None) -> RequestsAndNotes:
    scenario, settings = recorded_settings(folder)
    role = judging_role(scenario.roles_of(settings), role_name, str(folder.path))
    labels = lineup_labels(scenario.roles_of(settings), folder.manifest)
    dataset = str(folder.manifest.get("dataset", {}).get("name", ""))
    requests: list[LoadRequest] = []
    unknown = 0
    transcripts = Transcripts(folder)
    with History(folder.journal) as history:
        for number in history.numbers():
            key, record = history.started(number) or (str(number), None)
            conversation_requests: list[LoadRequest] = []
            for exchange in (await transcripts.replay(history, number)).lines:
                if not isinstance(exchange, Exchange) or exchange.role != role.name:
                    continue
                if exchange.messages is None or exchange.sampling is None:
                    unknown += 1
                    continue
                conversation_requests.append(
                    _recorded_request(
                        f"{prefix}{key}", exchange, f"{dataset}/{_task_id(scenario, key, record, labels)}"
                    )
                )
            requests += pair_orders(conversation_requests)
    if not requests:
        why = f"{unknown} differ from what the scenario now sends" if unknown else "it received no requests"
        raise ConfigurationError(f"{folder.path}: no request of the role '{role.name}' can be rebuilt: {why}")
    note = f"{folder.path}: {unknown} requests of the {role.name} were left out, as the scenario now sends others"
    return requests, [note] if unknown else []


def _task_id(scenario: AnyScenario, key: str, record: Any, labels: list[str]) -> str:
    """Return the id of a conversation's task, equal for all candidates and repeats."""
    try:
        return str(scenario.task(record).id)
    except Exception:  # the record is damaged, or the scenario now reads its tasks differently
        return key.removeprefix(f"{label_of_key(key, labels)}/")


def judging_role(roles: tuple[Role, ...], name: str | None, source: str) -> Role:
    """Return the role whose requests are sent: the named role; by default the judge, else the compared role.

    Raises:
        ConfigurationError: There is no role of that name.
    """
    if name is None:
        return judge_role(roles) or compared_role(roles)
    match = next((role for role in roles if role.name == name), None)
    if match is None:
        near = did_you_mean(name, [role.name for role in roles], "there are")
        raise ConfigurationError(f"{source}: no role '{name}'{near}")
    return match


def _recorded_request(key: str, exchange: Exchange, item: str) -> LoadRequest:
    assert exchange.messages is not None
    assert exchange.sampling is not None
    # The recorded model's tokens have no meaning for another model.
    messages = tuple(
        Message(message.role, message.content, None, message.calls, message.call_id, message.name)
        for message in exchange.messages
    )
    return LoadRequest(
        f"{key}:{role_in_branch(exchange.branch, exchange.role)}{exchange.ordinal}",
        messages,
        exchange.sampling,
        affinity=key,
        reader=choose_reader(exchange.sampling, exchange.completion.text if exchange.completion is not None else ""),
        tools=exchange.tools,
        hint=exchange.hint,
        item=item,
        role=exchange.role,
    )


_JUDGE_MODEL = "simulated:judge"


def task_requests(
    scenario: AnyScenario, file: Path, settings: Mapping[str, Any], role: str | None = None
) -> RequestsAndNotes:
    """Return the requests of a scenario's judge about the tasks of a file. `settings` are those of the scenario.

    Raises:
        ConfigurationError: The settings are wrong, or the judge sees other models' answers, so that its requests are
            unknown without a run.
        DatasetError: A record is wrong; the message names file, line and field.
    """
    judge = judging_role(scenario.roles, role, scenario.name)
    if len(scenario.roles) > 1:
        raise ConfigurationError(
            f"{scenario.name}: its {judge.name} judges other models' answers; give the folder of a run instead"
        )
    name = compared_role(scenario.roles).name
    options = {name: [_JUDGE_MODEL], **settings, scenario.data: str(file)}
    chosen = settings_of(scenario, options)
    prepared = scenario.prepare(chosen)
    converse = scenario.protocol(chosen, scenario.open_pack(chosen), prepared.records)
    return asyncio.run(_collect_requests(scenario, converse, prepared.tasks)), list(prepared.notes)


async def _collect_requests(scenario: AnyScenario, converse: Converse[Any], tasks: Iterable[Any]) -> list[LoadRequest]:
    requests: list[LoadRequest] = []
    clock = RealClock()
    made_up = SimulatedBackend(clock, latency=0.0)
    verdict_source = scenario if isinstance(scenario, SupportsKnownVerdicts) else None
    for task in tasks:
        meter = Meter(Budget(), "run", clock.now())
        # No journal is needed, because nothing is recorded.
        services = RunServices(
            0, clock, cast(Journal, None), EventStream(), meter, LoopYield(), Budget(), StepExecutor(clock)
        )
        conversation = _RequestCollector(services, task.id, made_up)
        await converse(conversation, task)
        for request in pair_orders(conversation.requests):
            reference = None if verdict_source is None else verdict_source.known_verdict(task, request.messages)
            requests.append(request if reference is None else replace(request, reference=reference))
    return requests


class _RequestCollector(Conversation):
    """Conversation that collects requests and gives each a made-up answer of the requested form."""

    __slots__ = ("_made_up", "_replies", "requests")

    def __init__(self, services: RunServices, key: str, made_up: SimulatedBackend) -> None:
        super().__init__(services, 0, key, {})
        self._made_up, self._replies = made_up, set[str]()
        self.requests: list[LoadRequest] = []

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
        stored, ordinal = self._count_call(role)
        if not any(message.role == "assistant" and message.content in self._replies for message in view.messages):
            request = LoadRequest(
                f"{self.key}:{stored}{ordinal}",
                view.messages,
                sampling,
                reader=choose_reader(sampling),
                tools=tools,
                hint=hint,
                item=self.key,
                role=role,
            )
            self.requests.append(request)
        seed = self._seeds.seed(stored, ordinal)
        digest = request_digest(view, sampling, seed, tools)
        completion = await self._made_up.generate(Request(view.messages, sampling, seed, digest, self.key, role))
        self._replies.add(completion.text)
        return completion

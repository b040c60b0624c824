"""Endpoints under `/api/v1`: scenarios, runs, events, transcripts, reports, and the OpenAPI document.

Routes and document are both generated from the list of operations.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder, installed_versions
from viva.orchestration.control import ControlRequest
from viva.orchestration.transcripts import Speech, Transcripts
from viva.scenarios.registry import installed_scenarios

from ..bodies import read_body
from ..broadcast import EVENT_STREAM, server_sent_event
from ..problems import Problem, ProblemRecord, invalid
from . import schemas
from .hosted_runs import RunHost
from .schemas import RUN_ID, NoQuery

B = TypeVar("B", bound=BaseModel)
Q = TypeVar("Q", bound=BaseModel)
PREFIX = "/api/v1"
_REF = "#/components/schemas/{model}"
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "run": {"type": "string", "pattern": RUN_ID},
    "number": {"type": "integer", "minimum": 0, "maximum": 2**53},
}


@dataclass(slots=True)
class OperationRequest(Generic[Q, B]):
    """Request to an operation: checked query and body, path parameters as text."""

    request: web.Request
    path: dict[str, str]
    query: Q
    body: B


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    `answer` is the model of the operation's answer; if `streams` is set, the model of one event. `refusals` are the
    status codes it can return besides those of every operation. `leads_to` are the operations that take the id in its
    answer.
    """

    method: str
    path: str
    summary: str
    handle: Callable[[Any], Awaitable[BaseModel | web.StreamResponse]]
    answer: type[BaseModel]
    status: int = 200
    body: type[BaseModel] | None = None
    query: type[BaseModel] = NoQuery
    refusals: tuple[int, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    leads_to: tuple[str, ...] = ()

    def route(self) -> web.RouteDef:
        """Return the route that checks a request, handles it and writes the answer."""

        async def handle(request: web.Request) -> web.StreamResponse:
            query = _parse_query(request, self.query)
            body = NoQuery() if self.body is None else await read_body(request, self.body)
            answer = await self.handle(OperationRequest(request, dict(request.match_info), query, body))
            if isinstance(answer, web.StreamResponse):
                return answer
            data = answer.model_dump_json().encode("utf-8", "replace")
            return web.Response(status=self.status, body=data, content_type="application/json")

        # An answer to HEAD has no body, and a stream has written its own body.
        options = {"allow_head": False} if self.streams else {}
        return web.RouteDef(self.method, PREFIX + self.path, handle, options)


def openapi_document(operations: Sequence[Operation], version: str, *, with_tokens: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these operations.

    Args:
        operations: The operations to describe.
        version: Version of the API.
        with_tokens: True if clients must send a token.
    """
    models = [model for operation in operations for model in (operation.answer, operation.body) if model is not None]
    bodies = {operation.body for operation in operations}
    # Schemas describe the written answers, in which fields with defaults are always present.
    modes: dict[Any, Any] = {model: "validation" if model in bodies else "serialization" for model in models}
    modes[ProblemRecord] = "validation"
    _, definitions = models_json_schema(list(modes.items()), ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _operation_schema(operation, with_tokens=with_tokens)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    components: dict[str, Any] = {"schemas": definitions["$defs"]}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "viva", "version": version, "description": "Runs, transcripts and reports of viva."},
        "paths": paths,
        "components": components,
    }
    if with_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation_schema(operation: Operation, *, with_tokens: bool) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [
        {"name": parameter, "in": "path", "required": True, "schema": _PATH_SCHEMAS[parameter]} for parameter in names
    ]
    properties = operation.query.model_json_schema().get("properties", {})
    for name, schema in properties.items():
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    for name, text in operation.headers.items():
        header = {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
        parameters.append(header)
    schema = {"$ref": _REF.format(model=operation.answer.__name__)}
    content = {EVENT_STREAM if operation.streams else "application/json": {"schema": schema}}
    answers: dict[str, Any] = {str(operation.status): {"description": "Done.", "content": content}}
    if operation.leads_to:
        run = {"run": "$response.body#/id"}
        answers[str(operation.status)]["links"] = {
            name: {"operationId": name, "parameters": run} for name in operation.leads_to
        }
    refusals = {400, 403, 421, 422, *operation.refusals}
    refusals |= {401} if with_tokens else set()
    refusals |= {404} if names else set()
    refusals |= {413, 415} if operation.body is not None else set()
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemRecord")}}}
    for status in sorted(refusals):
        answers[str(status)] = {"description": "Refused.", "content": problem}
    if operation.streams:
        answers["204"] = {"description": "The run has ended, and the client has all of its events."}
    schema_of_operation: dict[str, Any] = {
        "operationId": operation.handle.__name__,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if operation.body is not None:
        body = {"$ref": _REF.format(model=operation.body.__name__)}
        schema_of_operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return schema_of_operation


def _parse_query(request: web.Request, form: type[Q]) -> Q:
    """Parse the query of a request.

    Raises:
        Problem: A parameter is unknown, repeated, or out of bounds.
    """
    query = request.query
    for name in query:
        if len(query.getall(name)) > 1:
            raise Problem(422, f"?{name[:60]}= is given more than once", field=name[:60])
    try:
        return form.model_validate_strings(dict(query))
    except ValidationError as error:
        raise invalid(error, "?") from None


T = TypeVar("T")
_END_EVENT = "end"


class Api:
    """Handlers for one folder of runs. `with_tokens`: the OpenAPI document says that clients must send a token."""

    def __init__(self, host: RunHost, *, with_tokens: bool) -> None:
        self._host = host
        self.operations = self._operations()
        self._document = schemas.DocumentRecord(
            openapi_document(self.operations, installed_versions()["viva"], with_tokens=with_tokens)
        )

    def routes(self) -> list[web.RouteDef]:
        return [operation.route() for operation in self.operations]

    def _operations(self) -> list[Operation]:
        run, busy = "/runs/{run}", (409,)
        return [
            Operation("GET", "/openapi.json", "This document.", self.openapi, schemas.DocumentRecord),
            Operation("GET", "/scenarios", "List scenarios.", self.list_scenarios, schemas.ScenarioList),
            Operation("GET", "/runs", "List runs.", self.list_runs, schemas.RunList, query=schemas.RunsQuery),
            Operation(
                "POST",
                "/runs",
                "Start a run.",
                self.create_run,
                schemas.RunRecord,
                201,
                schemas.RunRequest,
                refusals=(409, 503),
                leads_to=("get_run", "get_report", "list_transcripts"),
            ),
            Operation("GET", run, "Get a run and its progress.", self.get_run, schemas.RunRecord, refusals=busy),
            Operation(
                "POST",
                f"{run}/stop",
                "Stop a run; it can be resumed.",
                self.stop_run,
                schemas.RunRecord,
                202,
                schemas.StopRequest,
                refusals=busy,
            ),
            Operation(
                "POST",
                f"{run}/control",
                "Pause a run, change its limits, cancel, repeat or add conversations.",
                self.control_run,
                schemas.ControlRecord,
                200,
                ControlRequest,
                refusals=busy,
            ),
            Operation(
                "POST",
                f"{run}/resume",
                "Resume a stopped run.",
                self.resume_run,
                schemas.RunRecord,
                202,
                schemas.ResumeRequest,
                refusals=(409, 503),
            ),
            Operation(
                "GET",
                f"{run}/events",
                "Stream the events of a run as server-sent events until it ends.",
                self.watch_run,
                schemas.EventRecord,
                refusals=busy,
                streams=True,
                headers={"Last-Event-ID": "Continue after this event."},
            ),
            Operation(
                "GET",
                f"{run}/transcripts",
                "List transcripts.",
                self.list_transcripts,
                schemas.TranscriptPage,
                query=schemas.TranscriptsQuery,
                refusals=busy,
            ),
            Operation(
                "GET",
                f"{run}/transcripts/{{number}}",
                "Get one conversation's transcript.",
                self.get_transcript,
                schemas.TranscriptRecord,
                query=schemas.TranscriptQuery,
                refusals=busy,
            ),
            Operation(
                "GET", f"{run}/report", "Get the report so far.", self.get_report, schemas.ReportRecord, refusals=busy
            ),
        ]

    async def openapi(self, request: OperationRequest[Any, Any]) -> schemas.DocumentRecord:
        return self._document

    async def list_scenarios(self, request: OperationRequest[Any, Any]) -> schemas.ScenarioList:
        return await asyncio.to_thread(_list_scenarios)

    async def list_runs(self, request: OperationRequest[schemas.RunsQuery, Any]) -> schemas.RunList:
        """Return a page of runs. This function runs in a thread, because there may be many large manifests."""
        return await asyncio.to_thread(self._run_list, request.query)

    def _run_list(self, query: schemas.RunsQuery) -> schemas.RunList:
        ids = list(islice((id_ for id_ in self._host.ids() if id_ > query.after), query.limit + 1))
        runs = []
        for id_ in ids[: query.limit]:
            try:
                manifest = self._host.open(id_).manifest
            except Problem:  # a folder that has the name of a run and other contents
                continue
            hosted = self._host.hosted(id_)
            under_way = hosted is not None and hosted.under_way
            runs.append(
                schemas.RunSummary(id=id_, scenario=manifest["scenario"], seed=manifest["seed"], hosted=under_way)
            )
        return schemas.RunList(runs=runs, next=ids[query.limit - 1] if len(ids) > query.limit else None)

    async def create_run(self, request: OperationRequest[Any, schemas.RunRequest]) -> web.Response:
        """Begin a run, which continues even if the client disconnects."""
        run = await asyncio.shield(self._host.begin(request.body))
        body = run.record().model_dump_json().encode()
        location = {"Location": f"{PREFIX}/runs/{run.id}"}
        return web.Response(status=201, body=body, content_type="application/json", headers=location)

    async def get_run(self, request: OperationRequest[Any, Any]) -> schemas.RunRecord:
        return await self._host.record(request.path["run"])

    async def stop_run(self, request: OperationRequest[Any, Any]) -> schemas.RunRecord:
        return await asyncio.shield(self._host.stop(request.path["run"]))

    async def control_run(self, request: OperationRequest[Any, ControlRequest]) -> schemas.ControlRecord:
        answer = await asyncio.shield(self._host.control(request.path["run"], request.body))
        return schemas.ControlRecord(**answer)

    async def resume_run(self, request: OperationRequest[Any, schemas.ResumeRequest]) -> schemas.RunRecord:
        resumed = self._host.resume(request.path["run"], retry_failed=request.body.retry_failed)
        return (await asyncio.shield(resumed)).record()

    async def get_report(self, request: OperationRequest[Any, Any]) -> schemas.ReportRecord:
        return schemas.ReportRecord(await self._host.report(request.path["run"]))

    async def watch_run(self, request: OperationRequest[Any, Any]) -> web.StreamResponse:
        """Stream a run: `State`, then the run's events, then `End`.

        If the client sends `Last-Event-ID`, the stream begins after this event; otherwise it begins with the next
        event.
        """
        id_, latest = request.path["run"], request.request.headers.get("Last-Event-ID")
        state = end = await self._host.record(id_)
        run = self._host.hosted(id_)
        if latest is not None and latest.endswith(f"-{_END_EVENT}") and not state.hosted:
            return web.Response(status=204)  # tells a browser not to reconnect
        response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
        response.content_type = EVENT_STREAM
        await response.prepare(request.request)
        await response.write(server_sent_event(state.model_dump(), name="State"))
        if run is not None:
            position = run.events.event_number(latest)
            async with aclosing(run.events.events_after(run.events.last if position is None else position)) as events:
                async for block in events:
                    await response.write(block)
            end = run.record() if state.hosted else state
        epoch = "recorded" if run is None else run.events.epoch
        await response.write(server_sent_event(end.model_dump(), f"{epoch}-{_END_EVENT}", "End"))
        await response.write_eof()
        return response

    async def list_transcripts(
        self, request: OperationRequest[schemas.TranscriptsQuery, Any]
    ) -> schemas.TranscriptPage:
        """Return a page of transcripts."""
        folder, query = self._host.open(request.path["run"]), request.query

        async def read(history: History) -> schemas.TranscriptPage:
            numbers = list(islice((number for number in history.numbers() if number > query.after), query.limit + 1))
            page = [
                record async for record in _transcript_records(folder, history, numbers[: query.limit], query.prompts)
            ]
            last = numbers[query.limit - 1] if len(numbers) > query.limit else None
            return schemas.TranscriptPage(transcripts=page, next=last)

        return await _with_history(folder, read)

    async def get_transcript(self, request: OperationRequest[schemas.TranscriptQuery, Any]) -> schemas.TranscriptRecord:
        """Return one transcript."""
        folder, text = self._host.open(request.path["run"]), request.path["number"]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else -1

        async def read(history: History) -> schemas.TranscriptRecord:
            if number < 0 or history.started(number) is None:
                raise Problem(404, f"run {folder.path.name} has no conversation {text[:30]!r}")
            return await anext(_transcript_records(folder, history, [number], request.query.prompts))

        return await _with_history(folder, read)


def _list_scenarios() -> schemas.ScenarioList:
    records = [
        schemas.ScenarioRecord(
            name=scenario.name,
            summary=scenario.summary,
            roles=[schemas.RoleRecord(name=role.name, many=role.many) for role in scenario.roles],
            settings=scenario.settings.model_json_schema(),
        )
        for scenario in installed_scenarios()
    ]
    return schemas.ScenarioList(scenarios=records)


async def _with_history(folder: RunFolder, read: Callable[[History], Awaitable[T]]) -> T:
    """Read a journal in a thread, because replaying conversations for transcripts takes a while."""
    folder.require_journal()

    async def opened() -> T:
        with History(folder.journal) as history:
            return await read(history)

    return await asyncio.to_thread(lambda: asyncio.run(opened()))


async def _transcript_records(
    folder: RunFolder, history: History, numbers: Sequence[int], prompts: bool
) -> AsyncIterator[schemas.TranscriptRecord]:
    transcripts = Transcripts(folder)
    for number in numbers:
        transcript, end = await transcripts.read(history, number), history.end(number)
        yield schemas.TranscriptRecord(
            number=number,
            key=transcript.key,
            state="unfinished" if end is None else "failed" if end.failed else "finished",
            speeches=[_speech_record(speech, prompts) for speech in transcript.speeches],
            result=None if end is None else end.result,
            problem=transcript.problem,
        )


def _speech_record(speech: Speech, prompts: bool) -> schemas.SpeechRecord:
    prompt = speech.prompt if prompts else None
    return schemas.SpeechRecord(party=speech.party, text=speech.text, prompt=prompt, branch=speech.branch)

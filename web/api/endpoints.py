"""The operations of the HTTP API under ``/api/v1``: scenarios, runs, their events, transcripts and reports.

What never belongs here: how runs are carried (``hosting``), and the forms (``records``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

from aiohttp import web

from viva.engine.folder import RunFolder, versions
from viva.engine.history import History
from viva.orchestration.transcripts import Speech, Transcripts
from viva.scenarios.registry import scenarios

from ..server.problems import Problem
from . import records
from .hosting import RunHost
from .operations import PREFIX, Asked, Operation, document
from .recent_events import server_sent

T = TypeVar("T")
_END = "end"


class Api:
    """The handlers over one folder of runs. ``with_tokens``: clients are asked for one, and the document says so."""

    def __init__(self, host: RunHost, *, with_tokens: bool) -> None:
        self._host = host
        self.operations = self._operations()
        self._document = records.DocumentRecord(document(self.operations, versions()["viva"], with_tokens=with_tokens))

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [operation.route() for operation in self.operations]

    def _operations(self) -> list[Operation]:
        run, busy = "/runs/{run}", (409,)
        return [
            Operation("GET", "/openapi.json", "This document.", self.openapi, records.DocumentRecord),
            Operation("GET", "/scenarios", "What can be run.", self.list_scenarios, records.ScenarioList),
            Operation("GET", "/runs", "The runs.", self.list_runs, records.RunList, query=records.RunsQuery),
            Operation(
                "POST",
                "/runs",
                "Begin a run.",
                self.create_run,
                records.RunRecord,
                201,
                records.RunRequest,
                refusals=(409, 503),
                leads_to=("get_run", "get_report", "list_transcripts"),
            ),
            Operation("GET", run, "A run and how far it has come.", self.get_run, records.RunRecord, refusals=busy),
            Operation(
                "POST",
                f"{run}/stop",
                "Stop a run; it can be resumed.",
                self.stop_run,
                records.RunRecord,
                202,
                records.StopRequest,
                refusals=busy,
            ),
            Operation(
                "POST",
                f"{run}/resume",
                "Go on with a run that was stopped.",
                self.resume_run,
                records.RunRecord,
                202,
                records.ResumeRequest,
                refusals=(409, 503),
            ),
            Operation(
                "GET",
                f"{run}/events",
                "Watch a run: its events as server-sent events, until it ends.",
                self.watch_run,
                records.EventRecord,
                refusals=busy,
                streams=True,
                headers={"Last-Event-ID": "Go on behind this event."},
            ),
            Operation(
                "GET",
                f"{run}/transcripts",
                "Transcripts, page by page.",
                self.list_transcripts,
                records.TranscriptPage,
                query=records.TranscriptsQuery,
                refusals=busy,
            ),
            Operation(
                "GET",
                f"{run}/transcripts/{{number}}",
                "One conversation's transcript.",
                self.get_transcript,
                records.TranscriptRecord,
                query=records.TranscriptQuery,
                refusals=busy,
            ),
            Operation(
                "GET", f"{run}/report", "The report so far.", self.get_report, records.ReportRecord, refusals=busy
            ),
        ]

    async def openapi(self, asked: Asked[Any, Any]) -> records.DocumentRecord:
        """The document."""
        return self._document

    async def list_scenarios(self, asked: Asked[Any, Any]) -> records.ScenarioList:
        """The registered scenarios."""
        return await asyncio.to_thread(_scenario_list)

    async def list_runs(self, asked: Asked[records.RunsQuery, Any]) -> records.RunList:
        """A page of runs. Read in a thread: manifests may be many, and large."""
        return await asyncio.to_thread(self._run_list, asked.query)

    def _run_list(self, query: records.RunsQuery) -> records.RunList:
        ids = list(islice((id_ for id_ in self._host.ids() if id_ > query.after), query.limit + 1))
        found = []
        for id_ in ids[: query.limit]:
            try:
                manifest = self._host.open(id_).manifest
            except Problem:  # somebody else's files in a folder of that name
                continue
            hosted = self._host.hosted(id_)
            under_way = hosted is not None and hosted.under_way
            found.append(
                records.RunSummary(id=id_, scenario=manifest["scenario"], seed=manifest["seed"], hosted=under_way)
            )
        return records.RunList(runs=found, next=ids[query.limit - 1] if len(ids) > query.limit else None)

    async def create_run(self, asked: Asked[Any, records.RunRequest]) -> web.Response:
        """Begin a run; it goes on whether or not the client waits for the answer."""
        run = await asyncio.shield(self._host.begin(asked.body))
        body = run.record().model_dump_json().encode()
        location = {"Location": f"{PREFIX}/runs/{run.id}"}
        return web.Response(status=201, body=body, content_type="application/json", headers=location)

    async def get_run(self, asked: Asked[Any, Any]) -> records.RunRecord:
        """One run."""
        return await self._host.record(asked.path["run"])

    async def stop_run(self, asked: Asked[Any, Any]) -> records.RunRecord:
        """Stop a run."""
        return await asyncio.shield(self._host.stop(asked.path["run"]))

    async def resume_run(self, asked: Asked[Any, records.ResumeRequest]) -> records.RunRecord:
        """Go on with a run."""
        resumed = self._host.resume(asked.path["run"], retry_failed=asked.body.retry_failed)
        return (await asyncio.shield(resumed)).record()

    async def get_report(self, asked: Asked[Any, Any]) -> records.ReportRecord:
        """The report."""
        return records.ReportRecord(await self._host.report(asked.path["run"]))

    async def watch_run(self, asked: Asked[Any, Any]) -> web.StreamResponse:
        """Watch a run: ``State``, its events, ``End``. What came before is told from the latest event that the client
        has; from the next event on where it has none.
        """
        id_, latest = asked.path["run"], asked.request.headers.get("Last-Event-ID")
        state = end = await self._host.record(id_)
        run = self._host.hosted(id_)
        if latest is not None and latest.endswith(f"-{_END}") and not state.hosted:
            return web.Response(status=204)  # which tells a browser not to ask again
        response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(asked.request)
        await response.write(server_sent("State", state.model_dump()))
        if run is not None:
            place = run.events.place_of(latest)
            async for block in run.events.read(run.events.last if place is None else place):
                await response.write(block)
            end = run.record() if state.hosted else state
        epoch = "recorded" if run is None else run.events.epoch
        await response.write(server_sent("End", end.model_dump(), f"{epoch}-{_END}"))
        await response.write_eof()
        return response

    async def list_transcripts(self, asked: Asked[records.TranscriptsQuery, Any]) -> records.TranscriptPage:
        """A page of transcripts."""
        folder, query = self._host.open(asked.path["run"]), asked.query

        async def read(history: History) -> records.TranscriptPage:
            numbers = list(islice((one for one in history.numbers() if one > query.after), query.limit + 1))
            page = [record async for record in _records(folder, history, numbers[: query.limit], query.prompts)]
            last = numbers[query.limit - 1] if len(numbers) > query.limit else None
            return records.TranscriptPage(transcripts=page, next=last)

        return await _with_history(folder, read)

    async def get_transcript(self, asked: Asked[records.TranscriptQuery, Any]) -> records.TranscriptRecord:
        """One transcript."""
        folder, text = self._host.open(asked.path["run"]), asked.path["number"]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else -1

        async def read(history: History) -> records.TranscriptRecord:
            if number < 0 or history.started(number) is None:
                raise Problem(404, f"run {folder.path.name} has no conversation {text[:30]!r}")
            return await anext(_records(folder, history, [number], asked.query.prompts))

        return await _with_history(folder, read)


def _scenario_list() -> records.ScenarioList:
    found = [
        records.ScenarioRecord(
            name=one.name,
            summary=one.summary,
            roles=[records.RoleRecord(name=role.name, many=role.many) for role in one.roles],
            settings=one.settings.model_json_schema(),
        )
        for one in scenarios()
    ]
    return records.ScenarioList(scenarios=found)


async def _with_history(folder: RunFolder, read: Callable[[History], Awaitable[T]]) -> T:
    """Read a journal in a thread: transcripts are made by holding conversations again, which takes a while."""
    folder.require_journal()

    async def opened() -> T:
        with History(folder.journal) as history:
            return await read(history)

    return await asyncio.to_thread(lambda: asyncio.run(opened()))


async def _records(
    folder: RunFolder, history: History, numbers: Sequence[int], prompts: bool
) -> AsyncIterator[records.TranscriptRecord]:
    transcripts = Transcripts(folder)
    for number in numbers:
        told, end = await transcripts.of(history, number), history.end(number)
        yield records.TranscriptRecord(
            number=number,
            key=told.key,
            state="unfinished" if end is None else "failed" if end.failed else "finished",
            speeches=[_speech(one, prompts) for one in told.speeches],
            result=None if end is None else end.result,
            problem=told.problem,
        )


def _speech(one: Speech, prompts: bool) -> records.SpeechRecord:
    prompt = one.prompt if prompts else None
    return records.SpeechRecord(party=one.party, text=one.text, prompt=prompt, branch=one.branch)

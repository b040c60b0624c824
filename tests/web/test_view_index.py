"""The viewer's index follows journals, and its news reaches readers; without a browser."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

import viva
from viva.engine.errors import ConfigurationError
from viva.scenarios.rendering import RenderedConversation, RenderedTurn
from viva.web.view.conversations import PageConversation, page_turns, pair_turns
from viva.web.view.export import export_pages
from viva.web.view.index import Indexer, fts_query, index_file
from viva.web.view.queries import Filter, IndexReader, ListedConversation
from viva.web.view.run_history import CandidateHistory, RunHistories
from viva.web.view.runs import find_runs
from viva.web.view.server import LiveUpdates


class Says(viva.Backend):
    """Says one text; nothing at all while it is broken."""

    label = "model"
    broken = False

    def __init__(self, text: str = "fine") -> None:
        self._text = text

    async def generate(self, request: viva.Request) -> viva.Completion:
        if self.broken:
            raise viva.BackendError("out of order", model=self.label)
        return viva.Completion(self._text)


@viva.scenario(many="pupil")
async def asked(conversation: viva.Conversation, task: str) -> float:
    """One question."""
    view = viva.View()
    view.append("user", task)
    return float(len((await conversation.generate("pupil", view, viva.Sampling())).text))


def _run(out: Path, model: Says, tasks: list[str]) -> None:
    viva.run_sync(asked, models={"pupil": [model]}, tasks=tasks, out=out)


def _listed(root: Path, index: Path, chosen: Filter | None = None) -> list[ListedConversation]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    try:
        return reader.listed(chosen or Filter())
    finally:
        reader.close()


class Grades(viva.Backend):
    """Answers with a grade for each task."""

    label = "pupil"

    def __init__(self, grades: list[int]) -> None:
        self._grades = iter(grades)

    async def generate(self, request: viva.Request) -> viva.Completion:
        return viva.Completion(str(next(self._grades)))


@viva.scenario(many="pupil", score=(0, 100))
async def graded(conversation: viva.Conversation, task: str) -> float:
    """One grade."""
    view = viva.View()
    view.append("user", task)
    return float((await conversation.generate("pupil", view, viva.Sampling())).text)


def _histories(root: Path, index: Path) -> list[CandidateHistory]:
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    try:
        return RunHistories(reader).histories(reader.runs(), dict(find_runs(root)))
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("before", "after", "start", "changed"),
    [
        ([30 + at % 3 for at in range(20)], [80 - at % 5 for at in range(20)], "since first: higher (+47.0, ", True),
        ([80 - at % 5 for at in range(20)], [30 + at % 3 for at in range(20)], "since first: lower (-47.0, ", True),
        ([50, 40, 60, 55], [55, 60, 40, 50], "since first: too few to tell (+0.0, ", False),
        ([90], [10], "since first: too few to tell (", False),
    ],
)
def test_a_change_between_runs_is_claimed_only_if_its_interval_excludes_0(
    tmp_path: Path, before: list[int], after: list[int], start: str, changed: bool
) -> None:
    for name, grades in (("first", before), ("second", after)):
        tasks = [f"task {at}" for at in range(len(grades))]
        viva.run_sync(
            graded, models={"pupil": [Grades(grades)]}, tasks=tasks, out=tmp_path / "runs" / name, concurrency=1
        )
    [history] = _histories(tmp_path / "runs", tmp_path / "index")
    assert [(point.run, point.n) for point in history.points] == [("first", len(before)), ("second", len(before))]
    assert history.sentence.startswith(start)
    assert history.changed is changed
    low, high = history.scale
    assert all(low <= end <= high for point in history.points for end in (point.low, point.value, point.high) if end)


def test_runs_on_other_scales_have_no_common_history(tmp_path: Path) -> None:
    tasks = ["a", "b"]
    viva.run_sync(graded, models={"pupil": [Grades([1, 2])]}, tasks=tasks, out=tmp_path / "runs" / "first")
    viva.run_sync(graded, models={"pupil": [Grades([3, 4])]}, tasks=["c"], out=tmp_path / "runs" / "other-items")
    _run(tmp_path / "runs" / "other-scenario", Says(), tasks)
    assert _histories(tmp_path / "runs", tmp_path / "index") == []


def _digests(folder: Path) -> dict[str, str]:
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}


def test_an_index_takes_in_what_came_and_what_ended_otherwise(tmp_path: Path) -> None:
    run, index, model = tmp_path / "run", tmp_path / "index", Says()
    model.broken = True
    _run(run, model, ["a", "b"])
    before = _digests(run)
    failed = _listed(run, index)
    assert [(one.state, one.error, "out of order" in one.reason) for one in failed] == [(2, "BackendError", True)] * 2
    assert _digests(run) == before, "a run that is looked at stays as it is"
    model.broken = False
    asyncio.run(viva.resume(run, models={"pupil": [model]}, retry_failed=True))
    assert [(one.state, one.error, one.score) for one in _listed(run, index)] == [(1, "", 4.0)] * 2
    shutil.rmtree(run)
    _run(run, Says("another"), ["c"])
    [other] = _listed(run, index)
    assert (other.item, other.score) == ("c", 7.0), "another run in its place"


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    file = index_file(tmp_path / "run", tmp_path / "index")
    file.write_bytes(b"no database" * 1000)
    assert len(_listed(tmp_path / "run", tmp_path / "index")) == 1


def test_a_run_of_an_unknown_scenario_is_listed_without_scores(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    file = tmp_path / "run" / "manifest.json"
    manifest = orjson.loads(file.read_bytes()) | {"scenario": "nobody"}
    manifest.pop("code", None)
    file.write_bytes(orjson.dumps(manifest))
    [one] = _listed(tmp_path / "run", tmp_path / "index")
    assert (one.candidate, one.state, one.score, one.calls) == ("model", 1, None, 1)


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        ("深圳", 1),
        ("圳在", 1),
        ("圳深", 0),
        ("Straß", 1),
        ("strasse", 0),
        ('"rains often"', 1),
        ('"often rains"', 0),
        ("of", 1),
    ],
)
def test_words_of_any_script_are_found(tmp_path: Path, typed: str, count: int) -> None:
    _run(tmp_path / "run", Says("我住深圳在广东 Straße rains often"), ["a"])
    assert len(_listed(tmp_path / "run", tmp_path / "index", Filter(q=typed))) == count


@pytest.mark.parametrize("typed", ["", '"', "(*)", "AND OR", 'a" OR "b', "NEAR(", "-x", "text:a", "\x00"])
def test_no_words_break_the_question(tmp_path: Path, typed: str) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    assert fts_query(typed) is None or _listed(tmp_path / "run", tmp_path / "index", Filter(q=typed)) is not None


def test_an_export_takes_no_folder_of_something_else(tmp_path: Path) -> None:
    _run(tmp_path / "run", Says(), ["a"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    for place in (tmp_path / "mine", tmp_path / "run"):
        with pytest.raises(ConfigurationError, match="choose another"):
            export_pages(tmp_path / "run", place, index=tmp_path / "index")


def _with_live(test: Callable[[LiveUpdates, str, aiohttp.ClientSession], Any]) -> None:
    async def main() -> None:
        live = LiveUpdates(tick=0.0)
        app = web.Application()
        app.router.add_get("/events", live.serve)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        live.start(10)
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(60):
                await test(live, f"http://127.0.0.1:{runner.addresses[0][1]}/events", session)
        finally:
            await live.stop()
            await runner.cleanup()

    asyncio.run(main())


async def _events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[int, dict[str, Any]]]:
    """The next events of a stream."""
    found: list[tuple[int, dict[str, Any]]] = []
    number = 0
    while len(found) < count:
        line = (await answer.content.readline()).decode().strip()
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            found.append((number, orjson.loads(line[6:])))
    return found


def test_news_goes_on_where_a_reader_left_and_begins_anew_where_that_is_forgotten() -> None:
    async def test(live: LiveUpdates, address: str, session: aiohttp.ClientSession) -> None:
        async with session.get(address) as stays:
            seen = []
            for version in range(11, 14):
                live.changed(version, [("run", version)])
                seen += await _events(stays, 1)
            assert [(number, news["changed"]) for number, news in seen] == [
                (version, [f"run/{version}"]) for version in range(11, 14)
            ]
            async with session.get(address, headers={"Last-Event-ID": "11"}) as back:
                assert [number for number, _ in await _events(back, 2)] == [12, 13]
            async with session.get(f"{address}?since=12") as loaded_before:
                assert [number for number, _ in await _events(loaded_before, 1)] == [13]
            for unknown in ("3", "99"):
                async with session.get(address, headers={"Last-Event-ID": unknown}) as late:
                    assert await _events(late, 1) == [(13, {"reset": True})]

    _with_live(test)


def test_a_reader_that_takes_nothing_holds_nobody_up() -> None:
    async def test(live: LiveUpdates, address: str, session: aiohttp.ClientSession) -> None:
        live.overview = lambda: "x" * 100_000
        host, port = address.removeprefix("http://").removesuffix("/events").split(":")
        with socket.create_connection((host, int(port))) as stuck:
            stuck.sendall(f"GET /events?page=overview HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            async with session.get(address) as reads:
                for version in range(11, 311):
                    live.changed(version, [("run", version)])
                    [(number, news)] = await _events(reads, 1)
                    assert (number, news["changed"]) == (version, [f"run/{version}"])

    _with_live(test)


def test_where_one_interview_ends_earlier_the_others_rounds_stand_alone_and_in_order() -> None:
    def drawn(rounds: int) -> PageConversation:
        turns = [RenderedTurn(speaker, f"{speaker} {number}", round=number)
                 for number in range(1, rounds + 1) for speaker in ("examiner", "candidate")]  # fmt: skip
        return page_turns(RenderedConversation([RenderedTurn("item"), *turns, RenderedTurn("end", f"after {rounds}")]))

    told = [
        tuple(
            None if turn is None else (turn.rendered.speaker, turn.rendered.round) for turn in (pair.left, pair.right)
        )
        for pair in pair_turns(drawn(1), drawn(3))
    ]
    both = [("item", None), ("examiner", 1), ("candidate", 1)]
    later = [("examiner", 2), ("candidate", 2), ("examiner", 3), ("candidate", 3)]
    end = ("end", None)
    assert told == [*((one, one) for one in both), *((None, one) for one in later), (end, end)]

"""A run that is steered while it goes on: from Python, through its socket, over HTTP; and what a resume keeps of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from viva_process import completed, ended, killed, recorded_rows, started

import viva
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import SOCKET, ask
from viva.orchestration.launch import resumed_run

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
MODELS = {
    "candidate": ["simulated:a?concurrency=6&latency=0.002", "simulated:b?concurrency=6&latency=0.002"],
    "interactor": "simulated:asker",
    "evaluator": "simulated:judge?concurrency=6&latency=0.001",
}
KEYS = [f"{label}/{topic}-{number:02}" for label in "ab" for topic in ("biology", "physics") for number in (1, 2, 3)]


@viva.scenario(compare="pupil")
async def lesson(conversation: viva.Conversation, topic: str) -> dict[str, Any]:
    """A pupil answers twice."""
    pupil = viva.Agent(conversation, "pupil")
    first = await pupil.ask(f"What is {topic}?")
    return {"score": float(len((await pupil.ask(first.text)).text))}


class Held(viva.Backend):
    """Answers when it is let go on."""

    fallible = True

    def __init__(self, label: str = "held") -> None:
        self.label = label
        self.asked: list[str] = []
        self.in_flight = self.most = 0
        self.answers = asyncio.Semaphore(0)
        self.came = asyncio.Condition()

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.asked.append(request.conversation)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        async with self.came:
            self.came.notify_all()
        try:
            await self.answers.acquire()
        finally:
            self.in_flight -= 1
        return viva.Completion(f"answer to {request.messages[-1].content}", "stop", 3, 4)

    def go_on(self, calls: int = 1_000) -> None:
        """Answer so many calls."""
        for _ in range(calls):
            self.answers.release()

    async def until(self, count: int) -> None:
        """Wait until so many calls have come."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


async def _until(live: Any, condition: Callable[[dict[str, Any]], Any]) -> None:
    while not condition((await live.control())["status"]):  # noqa: ASYNC110  # the status has no event
        await asyncio.sleep(0)


def _kieval(out: Path, n: int = 12, **more: Any) -> Any:
    return viva.start("kieval", models=MODELS, dataset=str(ITEMS), n=n, out=out, **more)


def _calm(out: Path, n: int = 12) -> dict[str, Any]:
    return viva.run_sync("kieval", models=MODELS, dataset=str(ITEMS), n=n, out=out).report()


# -- from Python ------------------------------------------------------------------------------------------------------


def test_a_paused_run_makes_no_call_until_it_goes_on(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        tasks = ["tides", "rust", "salt"]
        async with viva.start(lesson, models={"pupil": model}, tasks=tasks, out=tmp_path / "run") as live:
            await model.until(3)
            assert (await live.control("pause"))["status"]["state"] == "paused"
            model.go_on()
            await _until(live, lambda status: not status["models"]["held"]["in_flight"])
            assert len(model.asked) == 3, "the second questions wait"
            assert (await live.control("resume"))["status"]["state"] == "running"
        assert len(model.asked) == 6
        assert live.report()["candidates"]["held"]["failed"] == 0

    asyncio.run(steer())


def test_only_the_paused_model_waits(tmp_path: Path) -> None:
    async def steer() -> None:
        first, second = Held("first"), Held("other")
        first.go_on()
        async with viva.start(lesson, models={"pupil": [first, second]}, tasks=["t"], out=tmp_path / "run") as live:
            await live.control("pause", model="other")
            second.go_on()
            await _until(live, lambda status: status["finished"])
            assert len(first.asked) == 2
            assert len(second.asked) <= 1
            await live.control("resume", model="other")
        assert len(second.asked) == 2

    asyncio.run(steer())


def test_a_new_limit_holds_from_then_on(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        tasks = [f"t{number}" for number in range(12)]
        async with viva.start(lesson, models={"pupil": model}, tasks=tasks, out=tmp_path / "run") as live:
            await live.control("set", model="held", concurrency=3)
            await model.until(3)
            await live.control("set", model="held", concurrency=2)
            model.go_on()
            await model.until(5)
            model.most = 0
        assert model.most <= 2
        assert len(model.asked) == 24

    asyncio.run(steer())


def test_a_requeued_conversation_goes_on_where_it_was(tmp_path: Path) -> None:
    async def steer() -> None:
        slow = Held("slow")
        async with viva.start(
            lesson, models={"pupil": slow}, tasks=["one", "two", "three"], out=tmp_path / "run"
        ) as live:
            await slow.until(3)
            slow.go_on(1)
            await slow.until(4)  # a second question
            assert await live.control("cancel", keys=["slow/one", "slow/two"], reason="maintenance")
            await _until(live, lambda status: status["failed"] == 2)
            answer = await live.control("requeue", reason="MAINTENANCE")
            assert answer["message"] == "2 conversations that had failed go on"
            assert answer["status"]["failed"] == 0
            slow.go_on()
        assert len(slow.asked) == 6 + 2, "only the questions that were in flight are asked again"
        assert live.report()["candidates"]["slow"]["failed"] == 0
        with History(tmp_path / "run" / "journal.sqlite") as history:
            assert [request["do"] for request in history.control()] == ["cancel", "requeue"]

    asyncio.run(steer())


def test_a_run_with_added_items_has_the_results_of_a_run_that_began_with_them(tmp_path: Path) -> None:
    async def steer() -> dict[str, Any]:
        async with _kieval(tmp_path / "run", 5) as live:
            answer = await live.control("add", n=4)
            assert answer["message"] == "4 tasks added: 18 conversations in all"
            await live.control("add", n=3)
        return live.report()

    report, calm = asyncio.run(steer()), _calm(tmp_path / "calm")
    for label in "ab":
        assert report["candidates"][label] == calm["candidates"][label]
    shown = completed("show", tmp_path / "run").stdout
    assert b"unfinished" not in shown
    numbers = [number for number, _ in enumerate(viva.load(tmp_path / "run").results())]
    assert len(numbers) == 24


@case_table(
    "fields, words",
    [
        ({"do": "pause", "model": "nobody"}, "no model 'nobody'; models of this run: a, asker, b, judge"),
        ({"do": "set", "model": "asker", "concurrency": 2}, "asker: has no limits"),
        ({"do": "set", "model": "a"}, "set: expected a model and limits"),
        ({"do": "set", "concurrency": 3}, "set: expected a model and limits"),
        ({"do": "set", "model": "a", "concurrency": -1}, "concurrency: "),
        ({"do": "set", "model": "a", "speed": 1}, "speed: Extra inputs"),
        ({"do": "explode"}, "do: Input should be 'status', 'pause'"),
        ({"do": "pause", "n": 3}, "pause: takes no n"),
        ({"do": "cancel"}, "cancel: expected keys"),
        ({"do": "cancel", "keys": ["a/nothing"]}, "cancel: no conversation 'a/nothing'"),
        ({"do": "requeue"}, "requeue: expected keys of failed conversations, --failed or --reason"),
        ({"do": "requeue", "keys": ["a/nothing"]}, "requeue: no failed conversation 'a/nothing'"),
        ({"do": "add"}, "add: expected a number of items"),
        ({"do": "add", "n": 0}, "n: "),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_words(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    async def steer() -> None:
        async with _kieval(tmp_path / "run", 1) as live:
            with pytest.raises(ConfigurationError) as error:
                await live.control(**fields)
            assert words in str(error.value)

    asyncio.run(steer())


def test_items_cannot_be_added_to_a_run_of_all_items(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        async with viva.start(lesson, models={"pupil": model}, tasks=["t"], out=tmp_path / "run") as live:
            with pytest.raises(ConfigurationError, match="all items are used already"):
                await live.control("add", n=1)
            model.go_on()
        async with _kieval(tmp_path / "all", 39) as live:
            assert (await live.control("add", n=9))["message"].startswith("1 tasks added")
            with pytest.raises(ConfigurationError, match="all 40 tasks of this dataset are used already"):
                await live.control("add", n=1)

    asyncio.run(steer())


_MODEL_LIMITS = st.fixed_dictionaries(
    {"do": st.just("set"), "model": st.sampled_from(["a", "b", "judge"]), "concurrency": st.integers(1, 9)},
    optional={"rpm": st.sampled_from([0, 60_000]), "tpm": st.sampled_from([0, 10**9])},
)
_REQUESTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"do": st.sampled_from(["status", "pause", "resume"])}),
        st.fixed_dictionaries({"do": st.sampled_from(["pause", "resume"]), "model": st.sampled_from(["a", "judge"])}),
        _MODEL_LIMITS,
        st.fixed_dictionaries({"do": st.just("cancel"), "keys": st.lists(st.sampled_from(KEYS), min_size=1)}),
        st.fixed_dictionaries({"do": st.just("requeue"), "failed": st.just(True)}),
        st.fixed_dictionaries({"do": st.just("add"), "n": st.integers(1, 2)}),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all conversations that a steered run may have, by key."""
    path = tmp_path_factory.mktemp("calm") / "run"
    _calm(path, 40)
    return {result.key: result.value for result in viva.load(path).results()}


@settings(max_examples=15, deadline=None)
@given(requests=_REQUESTS, draw=st.integers(0, 2**20))
def test_no_request_changes_the_results_of_other_conversations(
    requests: list[dict[str, Any]], draw: int, calm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("steered") / "run"

    async def steer() -> set[str]:
        cancelled: set[str] = set()
        turns = random.Random(draw)
        async with _kieval(path, 8) as live:
            for request in requests:
                for _ in range(turns.randrange(60)):
                    await asyncio.sleep(0)
                try:
                    await live.control(**request)
                except ConfigurationError:  # a key that this run does not have, or the run is over
                    continue
                cancelled |= {*request.get("keys", ())}
            for model in (None, "a", "judge"):
                try:
                    await live.control("resume", **({} if model is None else {"model": model}))
                except ConfigurationError:
                    break
        return cancelled

    cancelled = asyncio.run(steer())
    results = {result.key: result for result in viva.load(path).results()}
    assert len(results) == 2 * (8 + sum(added["tasks"] for added in viva.load(path).manifest.get("added", ())))
    for key, result in results.items():
        assert key in cancelled if result.error else result.value == calm[key], key


# -- from another process ---------------------------------------------------------------------------------------------

_COMMAND = ["run", "kieval", "--dataset", str(ITEMS), "--interactor", "simulated:asker", "--evaluator", "simulated:j"]


def _start(run: Path, concurrency: int = 100) -> Any:
    candidate = "simulated:a?concurrency=1&latency=0.05"
    process = started(
        *_COMMAND, "-n", "6", "--candidate", candidate, "--out", run, "--concurrency", str(concurrency)
    )  # fmt: skip
    while not (run / SOCKET).exists():
        assert process.poll() is None
    return process


def test_a_run_in_another_process_is_steered_and_resumed_with_what_was_asked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run)
    assert stat.S_IMODE((run / SOCKET).stat().st_mode) == 0o600
    ask(run, ControlRequest(do="pause", model="a"))
    done = completed("control", run, "set", "a", "concurrency=3", "rpm=90000")
    assert done.stdout == b"a: concurrency 3, rpm 90000, tpm none\n"
    assert completed("control", run, "add", "-n", "2").stdout == b"2 tasks added: 8 conversations in all\n"
    status = json.loads(completed("control", run, "--json").stdout)["status"]
    assert status["models"]["a"]["paused"]
    assert (status["models"]["a"]["concurrency"], status["total"]) == (3, 8)
    process.send_signal(signal.SIGKILL)
    assert ended(process)[0] == -signal.SIGKILL
    assert (run / SOCKET).exists(), "nobody has removed it"
    refused = completed("control", run)
    assert refused.returncode == 2
    assert b"no process is running this run here; `viva resume" in refused.stderr

    resumed = started("resume", run)
    while True:
        try:
            status = ask(run, ControlRequest())["status"]
            break
        except ConfigurationError:
            assert resumed.poll() is None
    assert status["models"]["a"]["paused"]
    assert (status["models"]["a"]["concurrency"], status["models"]["a"]["rpm"], status["total"]) == (3, 90_000, 8)
    ask(run, ControlRequest(do="resume", model="a"))
    code, _, said = ended(resumed)
    assert code == 0
    assert "a is paused; viva control" in said
    assert not (run / SOCKET).exists()
    whole = tmp_path / "whole"
    completed(*_COMMAND, "-n", "8", "--candidate", "simulated:a?concurrency=1", "--out", whole)
    reports = [json.loads(completed("report", path, "--json").stdout)["candidates"] for path in (run, whole)]
    assert reports[0] == reports[1]


def test_a_stopped_run_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run)
    ask(run, ControlRequest(do="pause"))
    done = completed("control", run, "stop")
    assert done.stdout.startswith(b"calls in flight are finished, no other begins")
    code, _, said = ended(process)
    assert code == 130, said
    assert "resume with: viva resume" in said
    assert recorded_rows(run, "control") == 2
    assert completed("resume", run).returncode == 0
    assert recorded_rows(run, "ended") == 6


@pytest.mark.parametrize("line", [b"", b"\n", b"[]\n", b"{nope\n", b'{"do": 3}\n', b"\xff\xfe\n", b"x" * (2 << 20)])
def test_what_another_program_writes_to_the_socket_does_no_harm(tmp_path: Path, line: bytes) -> None:
    run = tmp_path / "run"
    process = _start(run)
    ask(run, ControlRequest(do="pause", model="a"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(run / SOCKET))
        try:
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(1 << 16)
        except OSError:  # it has closed the connection
            answer = b""
    assert not answer or "error" in json.loads(answer)
    assert ask(run, ControlRequest())["status"]["state"] == "running"
    ask(run, ControlRequest(do="resume", model="a"))
    assert ended(process)[0] == 0


def test_what_was_cancelled_before_it_began_fails_in_a_resumed_run_until_it_is_retried(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run, concurrency=1)
    ask(run, ControlRequest(do="pause"))
    *_, (_, key) = resumed_run(run).prepared.numbered_keys()
    answer = ask(run, ControlRequest(do="cancel", keys=[key], reason="wrong item"))
    assert answer["message"] == "0 conversations cancelled; 1 not in flight: cancelled if they have not begun"
    killed(process, run, 1, "control")
    assert completed("resume", run).returncode == 3
    [failure] = [result for result in viva.load(run).results() if result.error]
    assert (failure.key, failure.error) == (key, {"type": "ConversationCancelled", "message": "wrong item"})
    assert completed("resume", run, "--retry-failed").returncode == 0
    assert not [result for result in viva.load(run).results() if result.error]


def test_a_run_in_a_deep_folder_can_be_steered_too(tmp_path: Path) -> None:
    run = tmp_path / ("deep" * 20) / ("er" * 30) / "run"
    run.parent.mkdir(parents=True)
    process = _start(run)
    ask(run, ControlRequest(do="pause"))
    assert completed("control", run).stdout.startswith(b"paused: ")
    ask(run, ControlRequest(do="resume"))
    assert ended(process)[0] == 0


def test_what_is_no_socket_is_neither_removed_nor_asked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run)
    killed(process, run, 1)
    os.unlink(run / SOCKET)
    (run / SOCKET).write_text("mine")
    assert completed("resume", run).returncode == 0
    assert (run / SOCKET).read_text() == "mine"
    assert completed("control", run).returncode == 2
    shutil.rmtree(run)
    assert b"not a run folder" in completed("control", run).stderr


@case_table(
    "words, message",
    [
        (["set", "a", "fast"], "cannot read 'fast'"),
        (["set", "a", "rpm=-3"], "cannot read 'rpm=-3'"),
        (["pause", "a", "b"], "cannot read 'b'"),
        (["explode"], "do: Input should be"),
        (["requeue"], "requeue: expected keys"),
        (["status", "-n", "3"], "status: takes no n"),
    ],
)
def test_words_that_are_no_request_are_named(tmp_path: Path, words: Sequence[str], message: str) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    done = completed("control", tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()

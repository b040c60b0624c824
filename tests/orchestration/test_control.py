"""A run that is steered while it goes on: from Python, through its socket, over HTTP; and what a resume keeps of it."""

from __future__ import annotations

import asyncio
import importlib
import json
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
from command import viva as viva_here
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sweeps import swept, write_file
from viva_process import completed, ended, killed, recorded_rows, started

import viva
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.control import ControlRequest
from viva.orchestration.control_socket import SOCKET, ask
from viva.orchestration.launch import resumed_run
from viva.sweeps.recorded_sweep import read_sweep

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


def test_the_status_has_what_each_role_waits_for_and_what_is_used_of_the_budget(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        tasks = ["tides", "rust", "salt"]
        async with viva.start(
            lesson, models={"pupil": model}, tasks=tasks, out=tmp_path / "run", max_calls=20, concurrency=3
        ) as live:
            await model.until(3)
            await live.control("set", model="held", concurrency=2)
            await live.control("pause")
            model.go_on(2)
            await _until(live, lambda status: status["roles"][0]["paused"] == 2)
            status = (await live.control())["status"]
            [role] = status["roles"]
            assert (role["roles"], role["models"], role["in_flight"], role["person"]) == (["pupil"], ["held"], 1, False)
            calls, tokens = status["budgets"]["calls"], status["budgets"]["tokens"]
            assert (calls["used"], calls["bound"], tokens["used"], tokens["bound"]) == (2.0, 20.0, 14.0, None)
            assert status["at"] > 1e9
            await live.control("resume")
            model.go_on()
        status = await asyncio.to_thread(lambda: live.report()["candidates"]["held"]["failed"])
        assert status == 0

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


def test_a_conversation_that_is_requeued_by_several_at_once_goes_on_once(tmp_path: Path) -> None:
    async def steer() -> None:
        slow = Held("slow")
        async with viva.start(lesson, models={"pupil": slow}, tasks=["one", "two"], out=tmp_path / "run") as live:
            await slow.until(2)
            await live.control("cancel", keys=["slow/one"])
            await _until(live, lambda status: status["failed"])
            answers = await asyncio.gather(*(live.control("requeue", failed=True) for _ in range(8)))
            assert sum(answer["message"] == "slow/one goes on" for answer in answers) == 1
            slow.go_on()
        assert len(slow.asked) == 4 + 1

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
        ({"do": "set", "model": "asker", "concurrency": 2}, "asker: cannot be limited now: a model whose calls"),
        ({"do": "set", "model": "a"}, "set: expected a model and limits"),
        ({"do": "set", "concurrency": 3}, "set: expected a model and limits"),
        ({"do": "set", "model": "a", "rpm": 60, "rps": 1}, "set: expected rpm or rps, found both"),
        ({"do": "set", "model": "a", "concurrency": -1}, "concurrency: expected a whole number from 0 (no limit)"),
        (
            {"do": "set", "model": "a", "rpm": "two"},
            "rpm: expected a whole number from 0 (no limit) to 1,000,000,000,000",
        ),
        ({"do": "set", "model": "a", "concurency": 1}, "no field 'concurency'; did you mean 'concurrency'?"),
        ({"do": "explode"}, "no request 'explode'; requests: status, pause, resume"),
        ({"do": "psuse"}, "no request 'psuse'; did you mean 'pause'?"),
        ({"do": 3}, "no request '3'; requests: status"),
        ({"do": "pause", "n": 3}, "pause: takes no n"),
        ({"do": "pause", "model": 3}, "model: expected a UTF-8 text of at most 2,000 characters, found 3"),
        (
            {"do": "pause", "model": "a\udcff"},
            "model: expected a UTF-8 text of at most 2,000 characters, found a\\udcff",
        ),
        (
            {"do": "cancel", "keys": ["a/biology-01", "\udcff\udcfe"]},
            "keys: expected UTF-8 texts, found \\udcff\\udcfe",
        ),
        (
            {"do": "cancel", "keys": ["a/n"], "reason": "\ud800"},
            "reason: expected a UTF-8 text of at most 2,000 characters, found \\ud800",
        ),
        ({"do": "cancel"}, "cancel: expected keys"),
        (
            {"do": "cancel", "keys": ["a/nothing"]},
            "cancel: no conversation 'a/nothing'; 2 conversations in this run: `viva",
        ),
        ({"do": "cancel", "keys": "a/n"}, "keys: expected a list of at most 10,000 texts, found a/n"),
        ({"do": "requeue"}, "requeue: expected keys of failed conversations, --failed or --reason"),
        (
            {"do": "requeue", "keys": ["a/nothing"]},
            "requeue: no failed conversation 'a/nothing'; 0 conversations of this run have failed",
        ),
        ({"do": "add"}, "add: expected a number of items"),
        ({"do": "add", "n": 0}, "n: expected a whole number from 1 to 1,000,000,000, found 0"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_words(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    async def steer() -> None:
        async with _kieval(tmp_path / "run", 1) as live:
            with pytest.raises(ConfigurationError) as error:
                await live.control(**fields)
            assert words in str(error.value)

    asyncio.run(steer())


@case_table(
    "options, can_be_limited",
    [
        ("", False),
        ("noise=0", False),
        ("retries=2", True),
        ("throttle=0.01", True),
        ("fail=0.01", True),
        ("rpm=9", True),
    ],
)
def test_a_model_can_be_limited_if_it_had_limits_or_retries(tmp_path: Path, options: str, can_be_limited: bool) -> None:
    async def steer() -> None:
        models = MODELS | {"interactor": f"simulated:asker?{options}"}
        async with viva.start("kieval", models=models, dataset=str(ITEMS), n=1, out=tmp_path / "run") as live:
            try:
                await live.control("set", model="asker", concurrency=2, rpm=0)
            except ConfigurationError:
                assert not can_be_limited
            else:
                assert can_be_limited

    asyncio.run(steer())


@case_table("fails, advice", [(False, ""), (True, "; 2 failed, which `viva resume --retry-failed {run}` repeats")])
def test_of_an_ended_run_nothing_is_left_to_steer(tmp_path: Path, fails: bool, advice: str) -> None:
    run = tmp_path / "run"
    models: Any = MODELS | {"candidate": ["simulated:a", f"simulated:b?fail={int(fails)}&retries=0"]}
    viva.run_sync("kieval", models=models, dataset=str(ITEMS), n=2, rounds=1, out=run)
    done = viva_here("control", run)
    assert done.returncode == 2
    text = f"this run has ended, with all 4 conversations{advice.format(run=run)}"
    assert " ".join(done.stderr.split()) == f"viva: error: {run}: {text}"


@case_table(
    "limits, status",
    [
        ({"concurrency": 0}, (None, 600, 900)),
        ({"rpm": 0}, (7, None, 900)),
        ({"rps": 0}, (7, None, 900)),
        ({"tpm": 0}, (7, 600, None)),
        ({"rps": 2}, (7, 120, 900)),
        ({"concurrency": 3, "rpm": 0, "tpm": 50}, (3, None, 50)),
    ],
)
def test_a_limit_of_0_is_no_limit(tmp_path: Path, limits: dict[str, int], status: tuple[int | None, ...]) -> None:
    models = MODELS | {"candidate": "simulated:a?concurrency=7&rpm=600&tpm=900"}

    async def steer() -> None:
        async with viva.start("kieval", models=models, dataset=str(ITEMS), n=1, out=tmp_path / "run") as live:
            answer = await live.control("set", model="a", **limits)
            await live.control("stop")
        model = answer["status"]["models"]["a"]
        assert tuple(model.get(name) for name in ("concurrency", "rpm", "tpm")) == status

    asyncio.run(steer())


def test_calls_that_wait_at_a_pause_are_counted_and_every_answer_says_what_is_paused(tmp_path: Path) -> None:
    async def steer() -> None:
        model, other = Held("model-a"), Held("model-b")
        run = tmp_path / "run"
        models = {"pupil": [model, other]}
        async with viva.start(lesson, models=models, tasks=["one", "two"], out=run, concurrency=1) as live:
            answer = await live.control("pause", model="model-a")
            assert "conversations that wait for model-a keep their share of --concurrency" in answer["message"]
            model.go_on(1)  # in case its call has begun already
            await _until(live, lambda status: status["models"]["model-a"]["waiting_for_resume"] == 1)
            message = (await live.control())["message"]
            assert message.endswith("1 in flight; model-a is paused: 1 call waits until it is resumed")
            await live.control("pause")
            answer = await live.control("drain")
            assert answer["status"]["state"] == "draining"
            assert (
                "But the run is paused: 1 call waits until it is resumed, model-a is paused: 1 call"
                in answer["message"]
            )
            assert f"`viva control {run} resume` and `viva control {run} resume model-a`" in answer["message"]
            answer = await live.control("resume", model="model-a")
            assert (
                answer["message"] == f"calls of model-a wait until the whole run is resumed: viva control {run} resume"
            )
            await live.control("pause", model="model-b")
            answer = await live.control("resume")
            assert answer["message"] == f"calls begin again; still paused: model-b (viva control {run} resume MODEL)"
            model.go_on()
        assert (live.outcome.how, live.outcome.interrupted, other.asked) == ("drained", 0, [])

    asyncio.run(steer())


def test_who_cancels_an_ended_conversation_is_told_so(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        async with viva.start(
            lesson, models={"pupil": model}, tasks=["one", "two", "three"], out=tmp_path / "run", concurrency=1
        ) as live:
            model.go_on(2)
            await model.until(3)
            answer = await live.control("cancel", keys=["held/one", "held/two", "held/three", "held/two"])
            model.go_on()
        assert answer["message"] == (
            "1 conversation cancelled; 1 not in flight: cancelled if they have not begun; 1 had ended already"
        )
        assert live.report()["candidates"]["held"]["failed"] == 2

    asyncio.run(steer())


@case_table(
    "key, words",
    [
        ("a/biology-99", "no conversation 'a/biology-99'; did you mean 'a/biology-0"),
        ("physics-01", "/physics-01'?; 24 conversations in this run: `viva show RUN` lists them"),
    ],
)
def test_a_wrong_key_is_answered_by_the_nearest_and_not_by_all(tmp_path: Path, key: str, words: str) -> None:
    async def steer() -> None:
        async with _kieval(tmp_path / "run") as live:
            with pytest.raises(ConfigurationError) as error:
                await live.control("cancel", keys=[key])
            await live.control("stop")
        assert words in str(error.value)
        assert len(str(error.value)) < 250

    asyncio.run(steer())


def test_a_batched_model_has_no_limits_and_a_stop_while_its_batch_gathers_is_answered(tmp_path: Path) -> None:
    async def steer(model: str) -> None:
        run = tmp_path / "run"
        async with viva.start(lesson, models={"pupil": model}, tasks=["one"], out=run) as live:
            label = next(iter((await live.control())["status"]["models"]))
            for limits in ({"concurrency": 2}, {"rpm": 0}, {"tpm": 9}):
                with pytest.raises(ConfigurationError, match="batch=on excludes concurrency, rpm, rps and tpm"):
                    await live.control("set", model=label, **limits)
            answer = await asyncio.to_thread(ask, run, ControlRequest(do="stop"))
            assert answer["message"].startswith("calls in flight are finished, no other begins")
        assert live.outcome.how == "drained"

    with importlib.import_module("batch_process").running() as server:
        asyncio.run(steer(server.model("openai", "pupil")))


def test_items_cannot_be_added_to_a_run_of_all_items(tmp_path: Path) -> None:
    async def steer() -> None:
        model = Held()
        async with viva.start(lesson, models={"pupil": model}, tasks=["t"], out=tmp_path / "run") as live:
            with pytest.raises(ConfigurationError, match="all items are used already"):
                await live.control("add", n=1)
            model.go_on()
        async with _kieval(tmp_path / "all", 39) as live:
            assert (await live.control("add", n=9))["message"].startswith("1 task added, fewer than the 9 asked for: ")
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
    assert b"this run is not going on (on this machine). To continue it: `viva resume" in refused.stderr

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


def _waits(run: Path) -> bool:
    models = ask(run, ControlRequest())["status"]["models"].values()
    return any(model.get("waiting_for_resume") for model in models)


def test_a_paused_run_that_is_drained_says_how_it_ends_and_nothing_calls_it_interrupted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run, concurrency=1)
    while not ask(run, ControlRequest())["status"]["in_flight"]:
        pass
    ask(run, ControlRequest(do="pause"))
    while not _waits(run):
        pass
    assert " in progress" in viva_here("show", run).stdout
    second = viva_here("resume", run)
    assert second.returncode == 2
    assert f"another process is running this run; if it is paused: `viva control {run} resume`" in second.stderr
    assert (
        f"to finish them, `viva control {run} resume`; to end without, stop"
        in viva_here("control", run, "drain").stdout
    )
    assert "; the run is paused: 1 call waits until it is resumed\n" in viva_here("control", run).stdout
    viva_here("control", run, "resume")
    code, _, said = ended(process)
    assert code == 130
    left = 6 - recorded_rows(run, "ended")
    assert f"{left} conversations were not begun; resume with: viva resume {run}" in said
    assert "interrupted" not in viva_here("show", run).stdout


def test_a_stopped_run_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(run)
    ask(run, ControlRequest(do="pause"))
    while not _waits(run):  # no call is in flight, so that the run ends at once
        pass
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
    resumed = completed("resume", run)
    assert resumed.returncode == 3
    assert f"retry with: viva resume {run} --retry-failed" in resumed.stderr.decode()
    assert "after fixing the cause" not in resumed.stderr.decode()
    [failure] = [result for result in viva.load(run).results() if result.error]
    assert (failure.key, failure.error) == (key, {"type": "ConversationCancelled", "message": "wrong item"})
    assert completed("resume", run, "--retry-failed").returncode == 0
    assert not [result for result in viva.load(run).results() if result.error]


def test_what_a_file_selects_is_cancelled_and_requeued(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "selection.jsonl"
    process = _start(run)
    ask(run, ControlRequest(do="pause"))
    *_, (_, key) = resumed_run(run).prepared.numbered_keys()
    file.write_text(json.dumps({"run": "run", "key": key, "state": "open"}) + "\n")
    assert completed("control", run, "cancel", "--select", file).stdout == b"1 conversation cancelled\n"
    while ask(run, ControlRequest())["status"]["failed"] == 0:
        pass
    assert completed("control", run, "requeue", "--select", file).stdout.decode() == f"{key} goes on\n"
    file.write_text("")
    refused = completed("control", run, "requeue", "--select", file)
    assert (refused.returncode, b"selects no conversation" in refused.stderr) == (2, True)
    ask(run, ControlRequest(do="resume"))
    assert ended(process)[0] == 0


def test_a_run_in_a_deep_folder_can_be_steered_too(tmp_path: Path) -> None:
    run = tmp_path / ("deep" * 20) / ("er" * 30) / "run"
    run.parent.mkdir(parents=True)
    process = _start(run)
    ask(run, ControlRequest(do="pause"))
    assert completed("control", run).stdout.startswith(b"paused: ")
    ask(run, ControlRequest(do="resume"))
    assert ended(process)[0] == 0


@case_table(
    "words, message",
    [
        (["set", "a", "fast"], "set: cannot read 'fast'; expected NAME=VALUE; limits: concurrency, rpm, rps, tpm"),
        (
            ["set", "a", "concurency=2"],
            "set: cannot read 'concurency=2'; expected NAME=VALUE; did you mean 'concurrency'?",
        ),
        (["set", "a", "do=3"], "set: cannot read 'do=3'"),
        (["set", "a", "concurrency=two"], "set: concurrency: expected a whole number (0 is no limit), found 'two'"),
        (["set", "a", "rpm=-3"], "set: rpm: expected a whole number (0 is no limit), found '-3'"),
        (["set", "a", "rpm=" + "9" * 5_000], "set: rpm: expected a whole number"),
        (["set", "a", "rpm=3", "rpm=4"], "set: rpm is given twice"),
        (["set", "rpm=3"], "set: expected a model and limits"),
        (["pause", "a", "b"], "pause: cannot read 'b'; it takes at most one model"),
        (["drain", "a"], "drain: cannot read 'a'; it takes nothing more"),
        (["explode"], "no request 'explode'; requests: status, pause"),
        (["psuse", "a"], "no request 'psuse'; did you mean 'pause'?"),
        (["requeue"], "requeue: expected keys"),
        (["status", "-n", "3"], "status: takes no n"),
        (["add", "50"], "add: cannot read '50'; the number of items follows -n, such as add -n 50"),
        (["cancel", "\udcff\udcfe"], "keys: expected UTF-8 texts"),
    ],
)
def test_words_that_are_no_request_are_named(tmp_path: Path, words: Sequence[str], message: str) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    done = viva_here("control", tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_folder_that_is_no_run_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    run.mkdir()
    assert "not a run folder" in viva_here("control", run).stderr
    (run / "manifest.json").write_text("{}")
    said = viva_here("control", "set", run, "a", "rpm=3").stderr
    assert f"name the run first, `viva control '{run}' set a rpm=3`" in said

    sweep = swept(write_file(tmp_path / "s", 1, candidates=["simulated:a", "simulated:b"]), tmp_path / "grid").out
    assert "none of them goes on now on this machine" in viva_here("control", sweep).stderr
    first, second = (cell.name for cell in read_sweep(sweep).cells)
    shard = sweep / second / "shards" / "1-of-2.0123abcd"
    shutil.copytree(sweep / second, shard)
    cells = [RunFolder.open(sweep / first), RunFolder.open(shard)]
    for cell in cells:
        cell.lock()
    said = viva_here("control", sweep).stderr
    assert f"these go on now: `viva control {sweep / first}`, `viva control {shard}`\n" in said

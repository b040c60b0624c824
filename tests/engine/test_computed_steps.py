"""Steps that are no model call: recorded, replayed, and failing as data whatever the function does."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import computed_functions as functions
import pytest
from case_tables import case_table
from small_runs import SAMPLING, results, small_run

from viva.engine.cancellation import RunStopping, StopSignal
from viva.engine.clock import RealClock
from viva.engine.computation import StepExecutor, StepLocation
from viva.engine.conversation import Conversation
from viva.engine.conversation_replay import Aside, Exchange, Step, replay_conversation
from viva.engine.errors import ConfigurationError
from viva.engine.events import CallFinished, Diverged, StepComputed
from viva.engine.journal_reader import History
from viva.engine.messages import View
from viva.engine.runner import Coroutine, Runner
from viva.engine.steps import Computed

THREAD: StepLocation = "thread"
PROCESS: StepLocation = "process"


def _steps(folder: Path, number: int = 0) -> list[tuple[str, int, str, str]]:
    with History(folder / "journal.sqlite") as history:
        calls = history.calls(number)
    return [(c.role, c.ordinal, c.completion.finish, c.completion.text) for c in calls if ":" in c.role]


def _computing(function: Callable[..., Any], where: StepLocation, limit: float = 60.0) -> Coroutine:
    """A protocol of one call and one step; what the step gave is its result."""

    async def converse(conversation: Conversation, payload: int) -> Any:
        view = View()
        view.append("user", f"question {payload}")
        text = (await conversation.generate("candidate", view, SAMPLING)).text
        computed = await conversation.compute("metric", function, payload, limit=limit, where=where)
        return [text, computed.value, computed.error, conversation.computed, conversation.usage["candidate"].calls]

    return converse


@pytest.mark.parametrize("where", [THREAD, PROCESS])
def test_a_step_is_recorded_and_a_resumed_run_does_not_compute_it_again(tmp_path: Path, where: StepLocation) -> None:
    notes = tmp_path / "notes"

    async def converse(conversation: Conversation, payload: int) -> Any:
        values = [
            (await conversation.compute("tool", functions.noted, str(notes), [payload, turn], where=where)).value
            for turn in range(2)
        ]
        view = View()
        view.append("user", f"question {values}")
        return [values, (await conversation.generate("candidate", view, SAMPLING)).text]

    def halt_at_third_step(runner: Runner, stream: Any) -> None:
        seen: list[Any] = []
        stream.listen(
            lambda event: isinstance(event, StepComputed) and (seen.append(0) or len(seen) == 3) and runner.halt()
        )

    cut, _ = small_run(tmp_path / "run", converse=converse, count=2, concurrency=1, prepare=halt_at_third_step)
    assert cut.how == "halted"
    outcome, events = small_run(tmp_path / "run", converse=converse, count=2, concurrency=1, resume=True)
    assert outcome.finished == 2
    assert notes.read_text().splitlines() == ["[0, 0]", "[0, 1]", "[1, 0]", "[1, 1]"]
    assert [event.replayed for event in events if isinstance(event, StepComputed)] == [True, False]
    assert [result[0] for _, _, result in results(tmp_path / "run")] == [[[n, 0], [n, 1]] for n in range(2)]
    assert _steps(tmp_path / "run", 1) == [
        ("compute:tool", 0, "computed", "[1,0]"),
        ("compute:tool", 1, "computed", "[1,1]"),
    ]


@case_table(
    ("function", "where", "kind", "message"),
    [
        (functions.divide, THREAD, "ZeroDivisionError", "division by zero"),
        (functions.divide, PROCESS, "ZeroDivisionError", "division by zero"),
        (functions.hang, THREAD, "TimeoutError", "no result after 0.05 s"),
        (functions.leave, THREAD, "SystemExit", "enough"),
        (functions.leave, PROCESS, "SystemExit", "enough"),
        (functions.unserialisable, THREAD, "TypeError", "the result (dict) is not JSON data: Type is not JSON ser"),
        (functions.unserialisable, PROCESS, "TypeError", "the result (dict) is not JSON data: Type is not JSON ser"),
        (functions.not_a_number, THREAD, "ValueError", "a number that is not finite at ['scores'][2]"),
        (functions.exit_hard, PROCESS, "BrokenWorkerProcess", "ended with exit code 3 before there was a result"),
        (functions.kill_itself, PROCESS, "BrokenWorkerProcess", "was killed by SIGKILL before there was a result"),
        (lambda _: 1, PROCESS, "PicklingError", "cannot be sent to a worker process"),
    ],
)
def test_whatever_a_function_does_the_rest_completes_and_the_record_says_why(
    tmp_path: Path, function: Callable[..., Any], where: StepLocation, kind: str, message: str
) -> None:
    converse = _computing(function, where, limit=0.05 if function is functions.hang else 60.0)
    outcome, events = small_run(tmp_path, converse=converse, count=2)
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 2, 0)
    for _, _, (_, value, error, computed, calls) in results(tmp_path):
        assert (value, error["type"], computed, calls) == (None, kind, {"metric": 1}, 1)
        assert message in error["message"]
        assert error["at"].startswith(str(Path(function.__code__.co_filename))), error["at"]
    assert [event.failed for event in events if isinstance(event, StepComputed)] == [True, True]
    assert sum(isinstance(event, CallFinished) for event in events) == 2
    [(role, ordinal, finish, _)] = _steps(tmp_path)
    assert (role, ordinal, finish) == ("compute:metric", 0, "raised")


def test_a_process_that_hangs_is_killed_at_its_limit_and_blocks_no_other(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, payload: int) -> Any:
        if payload == 0:
            return (await conversation.compute("slow", functions.hang, 0, limit=0.3, where="process")).error
        return (await conversation.compute("quick", functions.print_much, payload, where="process")).value

    outcome, _ = small_run(tmp_path, converse=converse, count=4)
    assert (outcome.how, outcome.finished) == ("done", 4)
    error, *values = [result for _, _, result in results(tmp_path)]
    assert (error["type"], error["message"], values) == ("TimeoutError", "no result after 0.3 s", [1, 2, 3])


@pytest.mark.parametrize("clock", [None, RealClock()], ids=["virtual", "real"])
def test_a_coroutine_is_awaited_within_its_limit(tmp_path: Path, clock: Any) -> None:
    async def slow(_: int) -> int:
        await anyio.sleep(3600 if clock is None else 0.05)
        return 1

    async def nested(_: int) -> int:
        raise ExceptionGroup("both", [ValueError("one")])

    outcome, _ = small_run(tmp_path / "slow", converse=_computing(slow, "thread", 0.01), count=1, clock=clock)
    assert (outcome.how, results(tmp_path / "slow")[0][2][2]["message"]) == ("done", "no result after 0.01 s")
    small_run(tmp_path / "nested", converse=_computing(nested, "thread"), count=1)
    assert results(tmp_path / "nested")[0][2][2]["type"] == "ExceptionGroup"


def test_a_failure_is_replayed_and_a_changed_step_is_computed_anew(tmp_path: Path) -> None:
    def ending(argument: int, function: Callable[..., Any], ends: bool) -> Coroutine:
        async def converse(conversation: Conversation, payload: int) -> Any:
            computed = await conversation.compute("metric", function, argument)
            if not ends:
                raise RuntimeError("not yet")
            return [computed.value, computed.error]

        return converse

    small_run(tmp_path, converse=ending(1, functions.divide, False), count=1)
    _, events = small_run(tmp_path, converse=ending(1, functions.whole, False), count=1, resume=True, retry_failed=True)
    assert [(event.failed, event.replayed) for event in events if isinstance(event, StepComputed)] == [(True, True)]
    _, events = small_run(tmp_path, converse=ending(2, functions.whole, True), count=1, resume=True, retry_failed=True)
    assert [event.role for event in events if isinstance(event, Diverged)] == ["compute:metric"]
    assert results(tmp_path) == [(0, False, [2, None])]


def test_arguments_that_are_not_json_data_need_a_key(tmp_path: Path) -> None:
    async def without(conversation: Conversation, payload: int) -> Any:
        return await conversation.compute("metric", len, 1, {1, 2})

    async def with_key(conversation: Conversation, payload: int) -> Any:
        return (await conversation.compute("metric", len, {1, 2}, key=["pair", 1])).value

    outcome, _ = small_run(tmp_path / "without", converse=without, count=1)
    assert isinstance(outcome.error, ConfigurationError)
    assert str(outcome.error).startswith("step 'metric': argument 2 (set) is not JSON data")
    small_run(tmp_path / "with", converse=with_key, count=1)
    assert results(tmp_path / "with") == [(0, False, 2)]


def test_an_interrupted_run_finishes_the_step_under_way(tmp_path: Path) -> None:
    async def stopped(conversation: Conversation, payload: int) -> Any:
        conversation.stop("somebody", "enough")
        await conversation.compute("metric", functions.whole, payload)

    def prepare(runner: Runner, stream: Any) -> None:
        stream.listen(lambda event: isinstance(event, StepComputed) and runner.interrupt())

    async def twice(conversation: Conversation, payload: int) -> Any:
        await conversation.compute("metric", functions.whole, payload)
        await conversation.compute("metric", functions.whole, payload)

    outcome, events = small_run(tmp_path / "run", converse=twice, count=1, prepare=prepare)
    assert (outcome.how, outcome.interrupted) == ("drained", 1)
    assert sum(isinstance(event, StepComputed) for event in events) == 1
    small_run(tmp_path / "stopped", converse=stopped, count=1)
    assert results(tmp_path / "stopped")[0][2] == {"stopped": {"by": "somebody", "reason": "enough"}}


def test_held_again_a_step_is_an_entry_and_the_function_is_not_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async def converse(conversation: Conversation, payload: int) -> Any:
        conversation.tell(lambda: [("task", "the task")])
        await conversation.compute("tool", functions.noted, str(notes), payload)
        view = View()
        view.append("user", f"question {payload}")
        await conversation.generate("candidate", view, SAMPLING)
        await conversation.compute("metric", functions.divide, payload)

    small_run(tmp_path / "run", converse=converse, count=1)
    with History(tmp_path / "run" / "journal.sqlite") as history:
        calls = history.calls(0)
    rerun = anyio.run(lambda: replay_conversation(converse, 0, calls, seed=7, number=0, key="talk-0"))
    told, tool, call, metric = rerun.lines
    assert rerun.problem is None
    assert isinstance(told, Aside)
    assert (tool.name, tool.ordinal, tool.computed) == ("tool", 0, Computed(0))
    assert isinstance(call, Exchange)
    assert isinstance(metric, Step)
    assert metric.computed.failed
    assert notes.read_text() == "0\n"


_KILLED = """
import os, signal, sys
from pathlib import Path
from small_runs import small_run
import computed_functions as functions

async def converse(conversation, payload):
    for turn in range(3):
        await conversation.compute("tool", functions.noted, sys.argv[2], turn)
        if len(sys.argv) > 3 and turn == 1:
            await conversation._services.journal.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    return conversation.computed

small_run(Path(sys.argv[1]), converse=converse, count=1, resume=len(sys.argv) == 3)
"""


def test_after_a_kill_recorded_steps_are_not_run_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "run"), str(tmp_path / "notes")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    killed = subprocess.run([*command, "kill"], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "notes").read_text() == "0\n1\n"
    subprocess.run(command, env=environment, check=True)
    assert (tmp_path / "notes").read_text() == "0\n1\n2\n"
    assert results(tmp_path / "run") == [(0, False, {"tool": 3})]


def test_a_halted_run_kills_the_process_of_a_step_at_once(tmp_path: Path) -> None:
    fifo = str(tmp_path / "pipe")
    os.mkfifo(fifo)

    async def converse(conversation: Conversation, payload: int) -> Any:
        if payload == 0:
            return await conversation.compute("hang", functions.hang_known, fifo, where="process")
        return await conversation.compute("read", functions.first_line, fifo)

    def prepare(runner: Runner, stream: Any) -> None:
        stream.listen(lambda event: isinstance(event, StepComputed) and runner.halt())

    outcome, _ = small_run(tmp_path / "run", converse=converse, count=2, prepare=prepare)
    assert outcome.how == "halted"
    [(_, _, _, process)] = _steps(tmp_path / "run", 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


_HANGING = """
import sys
from pathlib import Path
from small_runs import small_run
import computed_functions as functions

async def converse(conversation, payload):
    await conversation.compute("hang", functions.hang_known, sys.argv[2], where="process")

small_run(Path(sys.argv[1]), converse=converse, count=1)
"""


def test_a_worker_process_does_not_outlive_its_program(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", _HANGING, str(tmp_path / "run"), str(fifo)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, env=environment) as program, fifo.open("rb", buffering=0) as pipe:
        assert int(pipe.readline()) > 0
        program.kill()
        ready, _, _ = select.select([pipe], [], [], 30.0)
        assert ready
        assert pipe.read() == b""  # the worker has ended, for the pipe is closed


def test_modules_in_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "orjson", "viva"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    small_run(tmp_path / "run", converse=_computing(functions.print_much, PROCESS), count=1)
    assert results(tmp_path / "run")[0][2][2] is None
    assert not (tmp_path / "imported").exists()


def test_a_run_told_to_stop_finishes_the_step_that_is_computed_and_drops_those_that_wait(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async def main() -> list[Any]:
        stop, computer = StopSignal(), StepExecutor(RealClock(), processes=1)
        stop.enter()
        steps = [computer.run(functions.hang, (0,), 0.3, PROCESS)]
        steps += [computer.run(functions.noted, (str(notes), number), 60.0, PROCESS) for number in range(3)]
        tasks = [asyncio.create_task(one) for one in steps]
        asyncio.get_running_loop().call_soon(stop.request)
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(main())
    assert b"no result after 0.3 s" in first[1]
    assert [type(one) for one in others] == [RunStopping] * 3
    assert not notes.exists()

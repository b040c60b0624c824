"""The progress of a run: what it says of a role that hangs, how its lines break, and what it makes of ended calls."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import make_model

from viva.cli.progress import Progress, fit_line, speed
from viva.engine.backends.base import ModelSpec
from viva.engine.cancellation import Gate
from viva.engine.events import (
    BatchChanged,
    CallFinished,
    Controlled,
    ConversationFinished,
    EndpointBack,
    EndpointLost,
    EndpointPaused,
    Retried,
    RunStarted,
)
from viva.orchestration.run_progress import RemainingTime, WaitStatus
from viva.reports.tables import money
from viva.scenarios.contract import Role
from viva.scenarios.default_aggregate import Measures

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
# Only the pauses are changed: between two lines, and before a run counts as hanging.
HASTY = (
    "import viva.cli.progress as shown, viva.cli.progress as live;"
    "shown._PLAIN_SECONDS = live.STALLED_SECONDS = 0.05;"
    "from viva.cli.main import main; main()"
)


def test_a_role_that_does_not_answer_is_named_with_its_calls(chaos: Callable[..., Any], tmp_path: Path) -> None:
    server = chaos({"default": {"do": "ok", "delay": 600}})
    options = ["--dataset", ITEMS, "-n", "3", "--candidate", "simulated:c", "--interactor", "simulated:i"]
    options += ["--evaluator", f"openai:{server.url}#evaluator?concurrency=2", "--out", tmp_path / "run"]
    command = [sys.executable, "-c", HASTY, "run", "kieval", *map(str, options)]
    environment = os.environ | {"OPENAI_API_KEY": "none"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        said = next(line for line in run.stderr if "waiting for" in line and "2 in flight" in line)
        run.kill()
    assert "waiting for evaluator: 2 in flight, 1 queued" in said


def test_roles_of_one_model_are_named_together_and_pauses_end() -> None:
    now = 100.0
    counters = {"simulated:judge": {"in_flight": 32, "waiting": 0}, "simulated:c": {"in_flight": 0}}
    roles = [("candidate", ["simulated:c"]), ("interactor", ["simulated:judge"]), ("evaluator", ["simulated:judge"])]
    waits = WaitStatus(roles, lambda: counters, lambda: now)
    for delay in (1.0, 2.0, 9.0):
        waits.hear(Retried(99.5, "c/i", "judge", "Throttled", delay))
    assert waits.describe() == "waiting for interactor and evaluator: 32 in flight, 3 retrying after 429"
    now = 102.0
    assert waits.describe().endswith("32 in flight, 1 retrying after 429")
    counters.clear()
    now = 200.0
    assert waits.describe() == ""


def test_a_record_says_until_when_each_role_waits() -> None:
    now = 100.0
    counters = {"openai:m": {"in_flight": 4, "waiting": 7}, "human:room": {"in_flight": 2}}
    roles = [("candidate", ["openai:m"]), ("evaluator", ["human:room"]), ("interactor", ["simulated:i"])]
    waits = WaitStatus(roles, lambda: counters, lambda: now)
    label = ModelSpec.parse("openai:m").label
    for event in (
        Retried(99.0, "c/1", label, "Throttled", 30.0),
        Retried(99.0, "c/2", label, "Throttled", 9.0),
        Retried(99.0, "c/3", label, "TimedOut", 0.5),
        EndpointPaused(99.0, "", label, "busy", 160.0),
        EndpointLost(98.0, "", label, "refused"),
        BatchChanged(90.0, "", label, 1, 500, "sent"),
        BatchChanged(91.0, "", label, 2, 20, "sent"),
        BatchChanged(92.0, "", label, 1, 500, "ended"),
    ):
        waits.hear(event)
    model, person, uncounted = waits.roles()
    assert (model.roles, model.in_flight, model.queued, model.person) == (["candidate"], 4, 7, False)
    assert [(retry.after, retry.calls, retry.next) for retry in model.retrying] == [("429", 2, 108.0)]
    assert [(one.since, one.until, one.reason) for one in model.endpoints] == [
        (98.0, None, "refused"), (None, 160.0, "busy")]  # fmt: skip
    assert [(batch.calls, batch.since) for batch in model.batches] == [(20, 91.0)]
    assert (person.person, person.in_flight, person.queued) == (True, 2, None)
    assert uncounted.in_flight is None
    now = 200.0
    waits.hear(EndpointBack(199.0, "", label))
    assert (waits.roles()[0].retrying, waits.roles()[0].endpoints) == ([], [])


def _call(key: str) -> CallFinished:
    return CallFinished(0.0, key, "judge", 0, 10, 5, 0.0, 0.1, 1, False)


@given(st.integers(1, 6), st.integers(2, 30), st.integers(1, 200))
def test_equal_conversations_are_estimated_exactly(calls: int, total: int, seconds: int) -> None:
    estimate = RemainingTime()
    estimate.hear(RunStarted(0.0, "", total, 0))
    assert estimate.seconds(1.0) is None
    for ended in range(1, total):
        for _ in range(calls):
            estimate.hear(_call(str(ended)))
        estimate.hear(ConversationFinished(0.0, str(ended), ended, {}))
        assert estimate.seconds(seconds) == pytest.approx(seconds * (total - ended) / ended)
        assert estimate.fraction_done() == pytest.approx(ended / total)
    estimate.hear(_call("last"))  # half-way through the last one there is less to come
    left = estimate.seconds(seconds)
    assert left is not None
    assert left <= seconds * max(1, calls - 1) / ((total - 1) * calls) + 1e-9


def test_a_finished_line_shows_no_remaining_time_and_no_scores_and_one_under_way_does() -> None:
    manifest = {"models": {"pupil": {"a": "simulated:a"}}}
    progress = Progress(Measures(manifest, [Role("pupil", many=True)]))
    progress.hear(RunStarted(0.0, "", 2, 0))
    lines = []
    for at in range(2):
        progress.hear(_call(f"a/{at}"))
        progress.hear(ConversationFinished(0.0, f"a/{at}", at, {"task": f"t{at}", "value": 1.0, "usage": {}}))
        lines.append(progress.line())
    assert "1/2 done" in lines[0]
    assert re.search(r" · \d+s left · ", lines[0])
    assert lines[0].endswith(" · scores so far: a 1.00")
    assert "2/2 done" in lines[1]
    assert "left" not in lines[1]
    assert "scores" not in lines[1]


def test_the_line_names_every_pause_that_lasts_and_counts_its_calls() -> None:
    gate = Gate()
    manifest = {"models": {"pupil": {"a": "simulated:a", "b": "simulated:b"}}}
    waits = WaitStatus([("pupil", ["simulated:a", "simulated:b"])], dict, lambda: 0.0, lambda: gate)
    progress = Progress(Measures(manifest, [Role("pupil", many=True)]), waits)
    progress.hear(RunStarted(0.0, "", 4, 0))

    async def steer() -> None:
        gate.hold("a")
        gate.hold("b")
        calls = [asyncio.create_task(gate.wait(label)) for label in "aab"]
        await asyncio.sleep(0)
        assert "a is paused: 2 calls wait until it is resumed · b is paused: 1 call waits" in progress.line()
        gate.release("b")
        progress.hear(Controlled(0.0, "", {"do": "resume", "model": "b"}))
        progress.hear(Controlled(0.0, "", {"do": "drain"}))
        await calls[2]
        assert progress.line().endswith(
            "a is paused: 2 calls wait until it is resumed · finishing the conversations in flight"
        )
        gate.release("a")
        await asyncio.gather(*calls)
        assert "paused" not in progress.line()

    asyncio.run(steer())


@given(st.integers(1, 1000), st.floats(0.01, 1e6))
def test_slow_work_is_told_by_the_time_of_each_and_never_as_nothing_a_second(ended: int, seconds: float) -> None:
    said = speed(ended, seconds)
    figure = float(said.split("/")[0].split()[0])
    each = {"s": 1.0, "min": 60.0}.get(said.split()[1], 0.0) * figure if said.endswith("each") else 1.0 / figure
    assert figure > 0.0
    assert each == pytest.approx(seconds / ended, rel=0.3)


@given(st.floats(1e-6, 1e6))
def test_a_cost_is_never_shown_as_nothing(cost: float) -> None:
    assert float(money(cost).replace(",", "")) == pytest.approx(cost, rel=0.06)


@given(st.integers(40, 200), st.lists(st.from_regex(r"[a-z]{1,8} [0-9]{1,9}\.[0-9]", fullmatch=True), min_size=1))
def test_lines_break_between_figures_and_never_within_one(width: int, parts: list[str]) -> None:
    first, *others = fit_line(" · ".join(parts), width).split("\n")
    assert max(map(len, [first, *others])) <= width
    assert all(re.match("  [^ ]", line) for line in others)
    assert [part for line in (first, *others) for part in re.split(" · ", line.strip())] == parts


def test_how_a_local_model_is_loaded_is_said_with_v_alone(tmp_path: Path) -> None:
    model = f"llama:{make_model(tmp_path / 'model.gguf')}?ctx=2048&lanes=2"
    for name, more in (("quiet", []), ("loud", ["-v"])):
        command = ["probe", "--dataset", ITEMS, "-n", "1", "--candidate", model, "--shots", "0", *more]
        done = subprocess.run(
            [sys.executable, "-m", "viva", *map(str, command), "--out", str(tmp_path / name)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("lanes x" in done.stderr) == bool(more)

"""A refusal of the key fails one conversation or ends the run, by whether the key has ever worked."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from command import viva
from provider_asks import asking

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, Forbidden, Unauthorized
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

_CLOCK = RealClock()


def outcomes(server: Server, count: int, *, at_once: bool) -> list[str]:
    """What became of so many calls."""
    came: dict[int, str] = {}

    async def main() -> None:
        async with build(server.model("candidate", retries=0), _CLOCK) as backend:

            async def one(number: int) -> None:
                try:
                    await backend.generate(asking(seed=number))
                    came[number] = "answered"
                except BackendError as error:
                    came[number] = type(error).__name__

            async with anyio.create_task_group() as group:
                for number in range(count):
                    if at_once:
                        group.start_soon(one, number)
                    else:
                        await one(number)

    _CLOCK.run(main)
    return sorted(came.values()) if at_once else [came[number] for number in range(count)]


@pytest.mark.parametrize("status", ["401", "403"])
def test_line_22_a_refusal_after_an_answer_is_that_calls_own(chaos: StartChaos, status: str) -> None:
    server = chaos({"schedule": {"0": status, "2": status}})
    assert outcomes(server, 4, at_once=False) == ["Unauthorized", "answered", "Forbidden", "answered"]


def test_line_22_a_refusal_waits_for_the_answers_under_way(chaos: StartChaos) -> None:
    server = chaos({"schedule": {"0": "403", "1": "401"}, "default": {"do": "slow", "delay": 0.3}})
    assert outcomes(server, 5, at_once=True) == ["Forbidden", "Forbidden", "answered", "answered", "answered"]


def test_line_22_a_key_that_no_call_works_with_is_not_good(chaos: StartChaos) -> None:
    server = chaos({"cycle": ["401", "403", {"do": "500", "delay": 0.2}]})
    assert outcomes(server, 3, at_once=True) == ["Unauthorized", "Unauthorized", "Unavailable"]
    assert not issubclass(Forbidden, Unauthorized)


def failures(run: Path) -> list[Any]:
    with History(RunFolder.open(run).journal) as history:
        return [(ended.result["type"], ended.result["message"]) for ended in history.ended() if ended.failed]


def test_line_22_one_forbidden_item_fails_alone_and_the_run_is_done(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"by_model": {"candidate": {"schedule": {"3": "403"}}}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    arguments = ["--dataset", str(dataset), "-n", "4", "--rounds", "1", "--concurrency", "1", "--max-failures", "1"]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role)]
    done = viva("run", "kieval", *arguments, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    [(kind, message)] = failures(tmp_path / "run")
    assert kind == "Forbidden"
    assert "HTTP 403" in message
    assert "other requests with this key succeed" in message


@pytest.mark.parametrize(("status", "kind", "code"), [("403", "Forbidden", 3), ("401", None, 2)])
def test_line_22_a_resumed_run_goes_by_its_journal(
    chaos: StartChaos, tmp_path: Path, status: str, kind: str | None, code: int
) -> None:
    # Two calls are answered, then the run's budget ends it; the resumed run's first call is refused.
    server = chaos({"by_model": {"candidate": {"schedule": {"2": status}}}})
    dataset = files("viva.scenarios.kieval") / "items" / "science.jsonl"
    run = tmp_path / "run"
    arguments = ["--dataset", str(dataset), "-n", "3", "--rounds", "1", "--concurrency", "1", "--max-failures", "1"]
    for role in ("candidate", "interactor", "evaluator"):
        arguments += [f"--{role}", server.model(role)]
    first = viva("run", "kieval", *arguments, "--max-calls", "4", "--out", str(run))
    assert first.returncode == 1, first.stderr
    second = viva("resume", str(run))
    assert second.returncode == code, second.stderr
    if kind is None:
        assert "HTTP 401" in second.stderr
        assert failures(run) == []
    else:
        assert [failed for failed, _ in failures(run)] == [kind]

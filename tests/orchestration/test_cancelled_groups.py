"""Rollouts of one task are cancelled together, with nothing left in flight; answers say which weights computed them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

import viva
from viva.exchange.trainers.policy import Policy


@viva.scenario(many="pupil")
async def talk(conversation: viva.Conversation, topic: str) -> float:
    pupil = viva.Agent(conversation, "pupil")
    first = await pupil.ask(f"Begin with {topic}.")
    second = await pupil.ask("Go on.")
    return float(len(first.text) + len(second.text))


class Gate(viva.Backend):
    """Answers at once, but for second questions about ``held``, which wait for ``open``."""

    label = "p"

    def __init__(self, held: str = "", wanted: int = 0) -> None:
        self.held, self.wanted = held, wanted
        self.open, self.full = asyncio.Event(), asyncio.Event()
        self.in_flight: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()

    async def generate(self, request: viva.Request) -> viva.Completion:
        self.begun[request.conversation] += 1
        if self.held and self.held in request.conversation and request.ordinal:
            self.in_flight[request.conversation] += 1
            if len(self.in_flight) == self.wanted:
                self.full.set()
            try:
                await self.open.wait()
            finally:
                del self.in_flight[request.conversation]
        return viva.Completion(f"{request.ordinal} so.")


@pytest.mark.parametrize(("concurrency", "under_way"), [(8, 3), (2, 2)])
def test_a_group_is_cancelled_together_and_nothing_of_it_stays_in_flight(
    tmp_path: Path, concurrency: int, under_way: int
) -> None:
    async def main() -> tuple[list[viva.Rollout], list[str], Gate]:
        gate = Gate("tides", under_way)
        held = viva.rollouts(
            talk,
            tasks=["tides", "rust"],
            models={"pupil": gate},
            repeats=3,
            concurrency=concurrency,
            out=tmp_path / "run",
        )

        async def cancel() -> list[str]:
            await gate.full.wait()
            cancelled = await held.cancel("p/tides#2", "no spread of rewards")
            assert not gate.in_flight
            return cancelled

        task = asyncio.create_task(cancel())
        return [one async for one in held], await task, gate

    rollouts, cancelled, gate = asyncio.run(main())
    assert cancelled == ["p/tides", "p/tides#2", "p/tides#3"][:under_way]
    groups = Counter((one.group, one.error is None) for one in rollouts)
    assert groups == {("p/tides", False): 3, ("p/rust", True): 3}
    for one in rollouts:
        if one.group == "p/tides":
            assert one.error == {"type": "ConversationCancelled", "message": "no spread of rewards"}
            assert [turn.text for turn in one.turns] == ["0 so."] * (one.key in cancelled)  # the answered call is kept
    assert gate.begun.keys() == {*cancelled, "p/rust", "p/rust#2", "p/rust#3"}
    assert sorted(one.number for one in rollouts) == list(range(6))

    again = Gate()
    resumed = asyncio.run(viva.resume(tmp_path / "run", models={"pupil": again}))
    assert not again.begun  # cancelled is cancelled
    resumed = asyncio.run(viva.resume(tmp_path / "run", models={"pupil": again}, retry_failed=True))
    assert all(result.error is None for result in resumed.results())
    assert again.begun == {key: 1 if key in cancelled else 2 for key in ("p/tides", "p/tides#2", "p/tides#3")}


def test_each_call_is_recorded_with_the_versions_of_the_weights_that_answered_it(tmp_path: Path) -> None:
    async def main() -> list[viva.Rollout]:
        gate = Gate("tides", 1)
        policy = Policy(gate, 7)

        async def train() -> None:
            await gate.full.wait()
            policy.version = 8  # in the middle of an answer
            gate.open.set()

        task = asyncio.create_task(train())
        models = {"pupil": policy}
        held = [one async for one in viva.rollouts(talk, tasks=["tides"], models=models, out=tmp_path / "a")]
        await task
        later = viva.rollouts(talk, tasks=["rust"], models=models, out=tmp_path / "b")
        return held + [one async for one in later]

    tides, rust = asyncio.run(main())
    assert [turn.versions for turn in tides.turns] == [["7"], ["7", "8"]]
    assert [turn.versions for turn in rust.turns] == [["8"], ["8"]]
    with sqlite3.connect(tmp_path / "a" / "journal.sqlite") as journal:
        recorded = journal.execute("select json_extract(extra, '$.versions') from calls order by ordinal").fetchall()
    journal.close()
    assert recorded == [('["7"]',), ('["7","8"]',)]


def test_versions_of_an_own_model_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    class Wrong(viva.Backend):
        async def generate(self, request: viva.Request) -> viva.Completion:
            return viva.Completion("So.", versions=[7])  # type: ignore[list-item]

    with pytest.raises(viva.ConfigurationError, match="expected a list of texts"):
        viva.run_sync(talk, tasks=["tides"], models={"pupil": Wrong()}, out=tmp_path / "run")


def test_a_named_model_is_a_policy_too(tmp_path: Path) -> None:
    async def main() -> list[viva.Rollout]:
        models = {"pupil": Policy("simulated:a", "step-3")}
        return [one async for one in viva.rollouts(talk, tasks=["tides"], models=models, out=tmp_path / "run")]

    [one] = asyncio.run(main())
    assert one.label == "a"
    assert [turn.versions for turn in one.turns] == [["step-3"]] * 2

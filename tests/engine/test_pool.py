"""Several endpoints behind one name: conversations keep to one, and go to another while it refuses or is gone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from case_tables import case_table

from viva.engine.backends.pool import read_pool
from viva.engine.backends.registry import BackendPool, build, with_absolute_path
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, Throttled, Unavailable
from viva.engine.messages import Message, Request, Sampling

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    Replanned = Callable[[Plan], Server]

_NOBODY = "http://127.0.0.1:9/v1"


def _pool(folder: Path, *members: Any) -> str:
    (folder / "pool.yaml").write_text(json.dumps({"members": members}))
    return f"pool:{folder / 'pool.yaml'}"


def _ask(name: str, conversations: int, turns: int = 2) -> tuple[int, dict[str, Any]]:
    """How many calls were answered, and the pool's counters."""

    async def main() -> tuple[int, dict[str, Any]]:
        answered = 0
        async with BackendPool(RealClock()) as pool:
            backend = await pool.open(name)
            await pool.check([name])

            async def talk(number: int) -> None:
                nonlocal answered
                for turn in range(turns):
                    messages = (Message("user", f"{number}, {turn}"),)
                    digest = b"%d/%d" % (number, turn)
                    await backend.generate(Request(messages, Sampling(), 7, digest, affinity=f"talk-{number}"))
                    answered += 1

            async with anyio.create_task_group() as group:
                for number in range(conversations):
                    group.start_soon(talk, number)
            return answered, dict(backend.statistics())

    return RealClock().run(main)


def test_conversations_are_spread_by_weight_and_each_keeps_to_one_member(tmp_path: Path, replanned: Replanned) -> None:
    server = replanned({})
    name = _pool(tmp_path, server.model("a"), {"model": server.model("b"), "weight": 3})
    assert _ask(name, 240, turns=3)[0] == 720
    asked = Counter((entry["model"], entry["hash"]) for entry in server.log())
    assert len(asked) == 720
    counts = Counter(model for model, _ in asked)
    assert {counts["a"] % 3, counts["b"] % 3} == {0}  # three calls of one conversation go to one member
    # A quarter of the weight. The choice depends on the server's port: six standard errors (6.7) are allowed.
    assert 20 <= counts["a"] // 3 <= 100


def test_where_one_refuses_or_is_gone_the_others_answer(
    tmp_path: Path, replanned: Replanned, caplog: pytest.LogCaptureFixture
) -> None:
    server = replanned({"by_model": {"full": {"default": {"do": "429", "retry_after": 30}}}})
    name = _pool(tmp_path, server.model("full"), f"openai:{_NOBODY}#gone", server.model("good"))
    answered, counters = _ask(f"{name}?label=team", 40)
    assert answered == 80
    assert counters["retries"] == 0  # going to another member is no try of its own
    asked = Counter(entry["model"] for entry in server.log())
    assert asked["good"] == 80
    assert asked["full"] <= 40  # Retry-After is heard
    assert set(counters["members"]) == {server.model("full"), f"openai:{_NOBODY}#gone", server.model("good")}
    assert "team: openai:http://127.0.0.1:9/v1#gone is unreachable and is skipped" in caplog.text


def test_only_where_all_fail_the_pool_does(tmp_path: Path, replanned: Replanned) -> None:
    server = replanned({"by_model": {"full": {"default": "429"}}})

    def fails(*members: str) -> Exception:
        async def main() -> Exception:
            async with build(f"{_pool(tmp_path, *members)}?retries=0", RealClock()) as backend:
                try:
                    await backend.generate(Request((Message("user", "x"),), Sampling(), 7, b"x"))
                except (Throttled, Unavailable) as error:
                    return error
            raise AssertionError("it answered")

        return RealClock().run(main)

    gone = fails(f"openai:{_NOBODY}#a", f"openai:{_NOBODY}#b")
    assert isinstance(gone, Unavailable)
    assert gone.absent
    assert not getattr(fails(f"openai:{_NOBODY}#a", server.model("full")), "absent", None)


@case_table(
    ("written", "said"),
    [
        ("members: []", "members: List should have at least 1 item"),
        ("members: openai:gpt", "members: Input should be a valid list"),
        ("members: [{model: openai:gpt, wieght: 2}]", "members.0.wieght: Extra inputs are not permitted"),
        ("members: [{model: openai:gpt, weight: 0}]", "members.0.weight: Input should be greater than 0"),
        ("members: ['openai:gpt?retries=2']", "members.0: retries belongs in the pool's own name"),
        ("members: [pool:other.yaml]", "members.0: a pool contains no pools"),
        ("members: ['openai:gpt?key_env=ABSENT_KEY']", "ABSENT_KEY"),
        ("members: ['simulated:a', 'simulated:a']", "a member is named twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "pool.yaml").write_text(written)
    with pytest.raises(ConfigurationError, match=r"pool\.yaml: ") as caught:
        build(f"pool:{tmp_path / 'pool.yaml'}", RealClock())
    assert said in str(caught.value)


def test_relative_paths_begin_at_the_pools_file(tmp_path: Path) -> None:
    assert with_absolute_path("pool:one.yaml", tmp_path) == f"pool:{tmp_path / 'one.yaml'}"
    (tmp_path / "one.yaml").write_text("members: [openai:gpt-4o, {model: 'openai:gpt-4o?key_env=SECOND', weight: 2}]")
    assert [(one.model, one.weight) for one in read_pool(tmp_path / "one.yaml").members] == [
        ("openai:gpt-4o", 1.0),
        ("openai:gpt-4o?key_env=SECOND", 2.0),
    ]

"""A run whose models speak through Anthropic's and Google's own interfaces, killed and resumed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from viva_process import ended, started

if TYPE_CHECKING:
    from tests.servers.process import Server

    Chaos = Callable[[dict[str, Any]], Server]

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_TROUBLE = {"2": "429", "3": "half_body", "9": "truncated"}  # by the number of the request


def _viva(*arguments: str | Path) -> bytes:
    code, printed, said = ended(started(*arguments))
    assert code == 0, said
    return printed


def _recorded(run: Path) -> int:
    with sqlite3.connect(run / "journal.sqlite") as connection:
        (count,) = connection.execute("select count(*) from calls").fetchone()
    connection.close()
    return int(count)


def test_killed_and_resumed_the_report_is_the_same(chaos: Chaos, tmp_path: Path) -> None:
    usual = {"do": "slow", "delay": 0.01, "thoughts": "What would follow if it were so?"}
    over = {"schedule": _TROUBLE | {"5": "529"}, "default": usual}
    plan = {"by_model": {"evaluator": over, "gemini-3-candidate": {"schedule": _TROUBLE, "default": usual}}}
    server = chaos(plan | {"default": usual, "models": ["candidate", "gemini-3-candidate", "evaluator", "interactor"]})
    models = [
        ("candidate", server.anthropic("candidate", thinking="adaptive")),
        ("candidate", server.gemini("gemini-3-candidate", thinking="low")),
        ("interactor", server.gemini("interactor")),
        ("evaluator", server.anthropic("evaluator")),
    ]
    named = [text for role, name in models for text in (f"--{role}", name)]
    arguments = ["run", "kieval", "--dataset", ITEMS, "-n", "4", "--rounds", "3", "--detectors", "repetition", *named]
    arguments += ["--concurrency", "4", "--json", "--out"]
    whole = _viva(*arguments, tmp_path / "whole")
    log = server.log()
    calls = _recorded(tmp_path / "whole")
    paths = {entry["path"].rpartition(":")[2] for entry in log}
    assert paths == {"/v1/messages", "generateContent", "streamGenerateContent"}
    assert any(entry["body"].get("stream") for entry in log)
    assert len(log) == calls + 2 * len(_TROUBLE) + 1, "each failed attempt was made again, and nothing else"

    server.replan(plan | {"default": usual})
    process = started(*arguments, tmp_path / "killed")
    server.log(requests=calls // 2)
    process.kill()
    ended(process)
    before = _recorded(tmp_path / "killed")
    assert 0 < before < calls
    server.replan({"default": usual})
    assert _viva("resume", tmp_path / "killed", "--json") == whole
    assert len(server.log()) == calls - before, "what was recorded is not asked again"
    shown = [_viva("show", tmp_path / name, "--json") for name in ("whole", "killed")]
    assert shown[0] == shown[1]

    report = orjson.loads(whole)["candidates"]
    assert {one["failed"] for one in report.values()} == {0}
    thoughts = b"".join(path.read_bytes() for path in (tmp_path / "killed").glob("journal.sqlite*"))
    assert b"What would follow" in thoughts

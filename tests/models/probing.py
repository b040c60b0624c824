"""Probes through the ``viva`` command, for its tests: running one, items to probe, what was recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import command
import orjson

from viva.engine.journal_reader import History

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
PACK = Path(__file__).parents[2] / "scenarios" / "probes" / "prompts" / "probe.yaml"
_WORDS = "tin fog steel rain glass sand wood ice salt wool clay coal"


def probe(out: Path, *options: str | Path) -> dict[str, Any]:
    """The JSON report of a probe that succeeds."""
    done = command.viva("run", "probe", *options, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


def make_items(path: Path, count: int, subjects: str = "", seed: int = 1) -> Path:
    """``count`` items of four choices in one file, their subjects in turn."""
    draw, names = random.Random(seed), subjects.split()
    with path.open("w") as file:
        for number in range(count):
            choices = draw.sample(_WORDS.split(), 4)
            item = {"id": f"{path.stem}-{number}", "question": f"Which one is number {seed}.{number}?"}
            item |= {"choices": choices, "answer": draw.randrange(4)}
            file.write(json.dumps(item | ({"subject": names[number % len(names)]} if names else {})) + "\n")
    return path


def recorded(run: Path) -> dict[str, dict[str, Any]]:
    """The recorded results of a run by key."""
    with History(run / "journal.sqlite") as history:
        return {one.key: one.result for one in history.ended()}
